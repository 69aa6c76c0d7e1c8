package isolation

import (
	"errors"
	"fmt"
	"testing"
)

func TestHeldError(t *testing.T) {
	err := error(&HeldError{Holders: []Holder{
		{PID: 12, Command: "make", Target: "/workspace", What: HeldCwd, Path: "/workspace/a"},
		{Target: "/home/user", What: HeldReference},
		{PID: 13, Command: "sh", Target: "/workspace", What: HeldUnknown},
		{PID: 14}, {PID: 15},
	}})
	want := "held by a live process: process 12 (make): cwd /workspace/a, reference to /home/user, process 13 (sh): unknown /workspace and 2 more"
	if err.Error() != want {
		t.Errorf("%q", err)
	}
	var held *HeldError
	if wrapped := fmt.Errorf("seal: %w", err); !errors.Is(wrapped, ErrHeld) || !errors.As(wrapped, &held) {
		t.Error("it is no ErrHeld")
	}
	if got := (&HeldError{}).Error(); got != ErrHeld.Error() {
		t.Errorf("%q", got)
	}
}

func TestStackValidate(t *testing.T) {
	layers := func(n int) []Layer { return make([]Layer, n) }
	for name, c := range map[string]struct {
		s  Stack
		ok bool
	}{
		"overlay":         {Stack{"/workspace", layers(1), "/u", "/w"}, true},
		"500 layers":      {Stack{"/workspace", layers(500), "/u", "/w"}, true},
		"501 layers":      {Stack{"/workspace", layers(501), "/u", "/w"}, false},
		"a bind":          {Stack{"/workspace", nil, "/u", ""}, true},
		"read-only":       {Stack{"/workspace", layers(2), "", ""}, true},
		"nothing":         {Stack{"/workspace", nil, "", ""}, false},
		"no work":         {Stack{"/workspace", layers(1), "/u", ""}, false},
		"no upper":        {Stack{"/workspace", layers(1), "", "/w"}, false},
		"work for a bind": {Stack{"/workspace", nil, "/u", "/w"}, false},
		"relative":        {Stack{"workspace", layers(1), "/u", "/w"}, false},
		"the root":        {Stack{"/", layers(1), "/u", "/w"}, false},
		"not clean":       {Stack{"/a/../workspace", layers(1), "/u", "/w"}, false},
	} {
		if err := c.s.Validate(); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
