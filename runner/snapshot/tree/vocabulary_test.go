package tree_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

func TestConflictJSON(t *testing.T) {
	for _, path := range []string{"a/b", "ö", "\xff/\n"} {
		c := tree.Conflict{Path: path, Reason: "why", Ours: &tree.Side{Type: tree.File, Size: 3}}
		there(t, c, path)
		there(t, tree.Resolution{Conflict: c, Side: tree.Theirs}, path)
	}
}

// there checks that a value comes back as it was.
func there[T any](t *testing.T, v T, path string) {
	t.Helper()
	data, err := json.Marshal([]T{v})
	if err != nil {
		t.Fatal(err)
	}
	if exact := strings.Contains(string(data), "path_base64"); exact == utf8.ValidString(path) {
		t.Errorf("%s", data)
	}
	var back []T
	if err := json.Unmarshal(data, &back); err != nil || len(back) != 1 || !reflect.DeepEqual(back[0], v) {
		t.Errorf("%+v became %s and %+v, %v", v, data, back, err)
	}
}
