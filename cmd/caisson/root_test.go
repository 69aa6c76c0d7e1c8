package main

import "testing"

func TestCommandsHaveTheirNames(t *testing.T) {
	for _, g := range groups {
		for _, c := range g.commands {
			if name := c.make(newApp(nil)).Name(); name != c.name {
				t.Errorf("%s is called %s", name, c.name)
			}
		}
	}
}

// The command that is named is made alone, wherever it stands; for everything else all are.
func TestChosenCommand(t *testing.T) {
	for _, x := range []struct {
		args   []string
		chosen string
	}{
		{nil, ""},
		{[]string{"run", "--", "ps"}, "run"},
		{[]string{"--json", "ps"}, "ps"},
		{[]string{"--state-dir", "run", "version"}, "version"},
		{[]string{"--state-dir=run", "version"}, "version"},
		{[]string{"--json=true", "--max-tasks", "3", "gc"}, "gc"},
		{[]string{"--state-dir"}, ""},
		{[]string{"--state-dir", "run"}, ""},
		{[]string{"--nonsense", "run"}, ""},
		{[]string{"--help", "run"}, ""},
		{[]string{"-h", "run"}, ""},
		{[]string{"--", "run"}, ""},
		{[]string{"help", "run"}, ""},
		{[]string{"__complete", "run", ""}, ""},
		{[]string{"ru"}, ""},
		{[]string{""}, ""},
	} {
		root := newRootCommand(newApp(x.args))
		made := func(name string) bool {
			c, _, err := root.Find([]string{name})
			return err == nil && c != root
		}
		for _, name := range []string{"run", "ps", "version", "gc"} {
			if want := x.chosen == "" || x.chosen == name; made(name) != want {
				t.Errorf("%q: the command %s is made: %v", x.args, name, !want)
			}
		}
		if len(root.Groups()) != len(groups) {
			t.Errorf("%q: %d groups", x.args, len(root.Groups()))
		}
	}
}
