package tree_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

func TestConflictJSON(t *testing.T) {
	for _, path := range []string{"a/b", "ö", "\xff/\n"} {
		c := tree.Conflict{Path: path, Reason: "why", Ours: &tree.Side{Type: tree.File, Size: 3}}
		data, err := json.Marshal([]tree.Conflict{c})
		if err != nil {
			t.Fatal(err)
		}
		if exact := strings.Contains(string(data), "path_base64"); exact != (path == "\xff/\n") {
			t.Errorf("%s", data)
		}
		var back []tree.Conflict
		if err := json.Unmarshal(data, &back); err != nil || len(back) != 1 || !reflect.DeepEqual(back[0], c) {
			t.Errorf("%+v became %s and %+v, %v", c, data, back, err)
		}
	}
}
