package runner

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/isolation/egress"
	"github.com/caisson-dev/caisson/profiles"
)

// TestRuleOfStep: what a caller says is put over the rule that the step has anyway, and what the profile denies stays denied.
func TestRuleOfStep(t *testing.T) {
	p := &profiles.Effective{Profile: profiles.Profile{
		Network: profiles.Network{NetworkRule: profiles.NetworkRule{Mode: "allow", Allow: []string{"own.example:1-9"}, Deny: []string{"bad.example"}}},
		Rules:   map[string]profiles.NetworkRule{"registry": {Mode: "allow", Allow: []string{"registry.example:1-9"}}, "world": {Mode: "open"}},
		Steps:   map[string]profiles.StepPolicy{"fetch": {Network: "registry"}, "look": {Network: "world"}, "test": {Network: "none"}},
	}}
	own := &egress.Policy{Mode: egress.ModeAllow, Allow: []string{"task.example:1-9"}}
	allow := &Reach{Allow: []string{"more.example:1-9", "bad.example:1-9"}}
	for name, c := range map[string]struct {
		step    Step
		reached string
		not     string
	}{
		"nothing said":            {Step{}, "own", "more registry bad any"},
		"an entry":                {Step{Reach: allow}, "own more", "registry bad any"},
		"a mode":                  {Step{Reach: &Reach{Mode: egress.ModeAllow}}, "own", "more any"},
		"open":                    {Step{Reach: &Reach{Mode: egress.ModeOpen}}, "own any", "bad"},
		"none":                    {Step{Reach: &Reach{Mode: egress.ModeNone}}, "", "own any"},
		"named":                   {Step{Name: "fetch"}, "registry", "own more"},
		"named, an entry":         {Step{Name: "fetch", Reach: allow}, "registry more", "own bad any"},
		"named, open":             {Step{Name: "fetch", Reach: &Reach{Mode: egress.ModeOpen}}, "registry own any", "bad"},
		"named open, an entry":    {Step{Name: "look", Reach: allow}, "any more", "bad"},
		"named none, an entry":    {Step{Name: "test", Reach: allow}, "more", "own registry bad any"},
		"named none, open":        {Step{Name: "test", Reach: &Reach{Mode: egress.ModeOpen}}, "any", "bad"},
		"one of its own":          {Step{Network: own}, "task", "own more bad any"},
		"one of its own, entries": {Step{Network: own, Name: "fetch", Reach: allow}, "task more", "own registry bad any"},
	} {
		r, err := ruleOf(p, &c.step)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for want, list := range map[bool]string{true: c.reached, false: c.not} {
			for host := range strings.FieldsSeq(list) {
				if v := r.Try(host + ".example:5"); v.Allowed != want {
					t.Errorf("%s: %s: %+v", name, host, v)
				}
			}
		}
	}
	if _, err := ruleOf(p, &Step{Name: "fetsh", Reach: allow}); !errors.Is(err, profiles.ErrNoStep) {
		t.Errorf("a step that is not there: %v", err)
	}
}

// TestGroupOf: a tool is known by its name, wherever a shell calls it, and not by its arguments.
func TestGroupOf(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"npm", "ci"}, "npm"},
		{[]string{"/usr/bin/pip3", "install", "x"}, "pypi"},
		{[]string{"sh", "-c", "cd app && cargo fetch"}, "crates"},
		{[]string{"bash", "-ec", "set -x\ngo mod download; npm ci"}, "go"},
		{[]string{"make", "go"}, ""},
		{[]string{"sh", "npm"}, ""},
		{[]string{"sh", "-c", ""}, ""},
		{[]string{""}, ""},
	} {
		if got := groupOf(c.args); got != c.want {
			t.Errorf("%q: %q, and not %q", c.args, got, c.want)
		}
	}
	for tool, group := range fetchers {
		if !slices.Contains(egress.Groups(), group) {
			t.Errorf("%s: there is no group %s", tool, group)
		}
	}
}
