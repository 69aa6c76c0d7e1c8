package command

import (
	"slices"
	"testing"
)

// TestRulesTakeAnything: no rule expects words that need not be there.
func TestRulesTakeAnything(t *testing.T) {
	names := []string{}
	for name := range rules() {
		names = append(names, name)
	}
	for name := range wrappers {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		for _, words := range []string{"", "''", "-", "--", "-c", "-e", "-x ''", "a", "a ''", "-f", "-o", "exec", "run", "netns exec", "a b c d", "send", "-- a", "--x=", "= =", "-d / -s", "$x", "$x $x", "-c $x", "@", ": :", "[", "* *"} {
			line := name + " " + words
			if i := slices.IndexFunc(Analyze(line, Config{}).Findings, func(f Finding) bool { return f.Rule == "internal" }); i >= 0 {
				t.Errorf("%q breaks its rule", line)
			}
		}
	}
}
