package promote

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// TestResolve takes every case of conflictCases, once for each side.
func TestResolve(t *testing.T) {
	for _, c := range conflictCases {
		if len(c.want) == 0 {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Run("ours", func(t *testing.T) {
				b := newBox(t, project(t))
				b.sandbox(c.feature)
				must(t, c.others(b.ws))
				before := contents(t, b.ws)
				r, err := b.w.resolve(t.Context(), b.change(), tree.Choice{Ours: c.want})
				must(t, err)
				report, err := b.w.apply(t.Context(), r, nil)
				must(t, err)
				if len(report.Resolved) != len(c.want) || report.Resolved[0].Side != tree.Ours {
					t.Errorf("report: %+v", report)
				}
				after := contents(t, b.ws)
				for path, was := range before {
					if covered(c.want, path) && after[path] != was {
						t.Errorf("%s was %q, is %q", path, was, after[path])
					}
				}
				b.wantChange() // the feature begins anew on what the workspace has
			})
			t.Run("theirs", func(t *testing.T) {
				b := newBox(t, project(t))
				b.sandbox(c.feature)
				must(t, c.others(b.ws))
				before := b.at(0)
				change := b.change()
				var seen map[string]string
				b.sandbox(func(m string) error {
					seen = contents(t, m)
					return nil
				})
				r, err := b.w.resolve(t.Context(), change, tree.Choice{Theirs: c.want})
				if c.name == "directory renamed, removed by others" {
					if _, ok := errors.AsType[*tree.ChoiceError](err); !ok {
						t.Errorf("the feature's side is lost, and taken: %v", err)
					}
					return
				}
				must(t, err)
				_, err = b.w.apply(t.Context(), r, nil)
				must(t, err)
				after := contents(t, b.ws)
				if strings.HasPrefix(c.name, "directory became a link") {
					// The kernel takes a file and the copy that the feature has of it for one, though the file was moved.
					after["/real/a"] = seen["/real/a"]
				}
				if d := differences(seen, after); d != "" {
					t.Errorf("the feature saw (-), the workspace is (+):\n%s", d)
				}
				if d := differences(before, b.at(0)); d != "" {
					t.Errorf("the workspace was (-), shows (+):\n%s", d)
				}
			})
		})
	}
}

func covered(paths []string, path string) bool {
	for _, p := range paths {
		if tree.Below(strings.TrimPrefix(path, "/"), p) {
			return true
		}
	}
	return false
}

// contents lists a tree without what the workspace and a sandbox never have in common: owners and times.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		line := info.Mode().String()
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(path)
			must(t, err)
			line += " " + string(data)
		} else if target, err := os.Readlink(path); err == nil {
			line += " " + target
		}
		all[path[len(dir):]] = line
		return nil
	}))
	return all
}

// TestSides: what each side has is told where it is known.
func TestSides(t *testing.T) {
	b := newBox(t, project(t))
	other := newBoxAt(t, b.ws, b.w.dir+"2")
	b.sandbox(func(m string) error {
		return steps(write(m+"/edit", "feature\n"), os.Remove(m+"/gone"), write(m+"/new", "feature\n"), write(m+"/keep", "feature\n"))
	})
	other.sandbox(func(m string) error {
		return steps(write(m+"/edit", "other\n"), write(m+"/new", "other\n"), os.Chmod(m+"/gone", 0o600))
	})
	other.promote()
	must(t, write(b.ws+"/keep", "by hand\n"))
	_, err := b.w.apply(t.Context(), b.change(), nil)
	refused, ok := errors.AsType[*tree.ConflictError](err)
	if !ok {
		t.Fatalf("%v", err)
	}
	var got []string
	for _, x := range refused.Conflicts {
		line := x.Path
		for _, s := range []*tree.Side{x.Base, x.Ours, x.Theirs} {
			switch {
			case s == nil:
				line += " ?"
			case s.Type == "":
				line += " " + string(s.Kind) + "-"
			default:
				line += " " + string(s.Kind) + ":" + s.Mode + ":" + s.SHA256[:4]
			}
		}
		got = append(got, line)
	}
	const want = `edit :0644:b628 modified:0644:7e4f modified:0644:53f8
gone :0644:abc6 mode:0600:abc6 deleted-
keep ? modified:0644:ccc6 modified:0644:53f8
new - added:0644:7e4f added:0644:53f8`
	if all := strings.Join(got, "\n"); all != want {
		t.Errorf("got:\n%s\nwant:\n%s", all, want)
	}
}

// TestChoice: a name that fits nothing, or two sides, is an error; what is not named is still refused.
func TestChoice(t *testing.T) {
	b := newBox(t, project(t))
	b.sandbox(func(m string) error {
		return steps(write(m+"/edit", "f"), write(m+"/dir/a", "f"), write(m+"/dir/b", "f"), write(m+"/free", "f"))
	})
	must(t, steps(write(b.ws+"/edit", "o"), write(b.ws+"/dir/a", "o"), write(b.ws+"/dir/b", "o")))
	before := listing(t, b.ws)
	for _, c := range []struct {
		choice tree.Choice
		path   string
	}{
		{tree.Choice{Ours: []string{"free"}}, "free"},
		{tree.Choice{Theirs: []string{"nothing/*"}}, "nothing/*"},
		{tree.Choice{Ours: []string{"edit"}, Theirs: []string{"**"}}, "edit"},
		{tree.Choice{Ours: []string{"dir/a"}, Theirs: []string{"dir/*"}}, "dir/a"},
		{tree.Choice{Ours: []string{"[a"}}, "[a"},
	} {
		_, err := b.w.resolve(t.Context(), b.change(), c.choice)
		if e, ok := errors.AsType[*tree.ChoiceError](err); !ok || e.Path != c.path {
			t.Errorf("%+v: %v", c.choice, err)
		}
	}
	_, err := b.w.resolve(t.Context(), b.change(), tree.Choice{Ours: []string{"dir"}})
	if e, ok := errors.AsType[*tree.ConflictError](err); !ok || len(e.Conflicts) != 1 || e.Conflicts[0].Path != "edit" {
		t.Errorf("one is left: %v", err)
	}
	b.wantSame(before, "nothing was promoted")
	r, err := b.w.resolve(t.Context(), b.change(), tree.Choice{Ours: []string{"dir/*"}, Theirs: []string{"ed?t"}})
	must(t, err)
	if got := summary(r); got != "modified edit\nadded free\n" {
		t.Errorf("resolved:\n%s", got)
	}
	// What happens afterwards is a conflict of its own, also at a path that was resolved.
	must(t, write(b.ws+"/edit", "and again"))
	if _, err := b.w.apply(t.Context(), r, nil); !errors.Is(err, tree.ErrConflict) {
		t.Errorf("changed after it was resolved: %v", err)
	}
}

// TestChoiceAcross: what stays and what goes can be one below the other.
func TestChoiceAcross(t *testing.T) {
	for _, replace := range []bool{false, true} {
		b := newBox(t, project(t))
		b.sandbox(func(m string) error {
			if err := os.RemoveAll(m + "/dir"); err != nil || !replace {
				return err
			}
			return write(m+"/dir", "a file by now")
		})
		must(t, steps(write(b.ws+"/dir/a", "ours"), write(b.ws+"/dir/more", "ours")))
		r, err := b.w.resolve(t.Context(), b.change(), tree.Choice{Ours: []string{"dir/a"}, Theirs: []string{"dir"}})
		if replace {
			if e, ok := errors.AsType[*tree.ChoiceError](err); !ok || e.Path != "dir" || !strings.Contains(e.Reason, "cannot become a file") {
				t.Errorf("%v", err)
			}
			continue
		}
		must(t, err)
		report, err := b.w.apply(t.Context(), r, nil)
		must(t, err)
		if !exists(b.ws+"/dir/a") || exists(b.ws+"/dir/b") || exists(b.ws+"/dir/more") || exists(b.ws+"/dir/sub") {
			t.Errorf("left: %v", contents(t, b.ws))
		}
		if len(report.Notes) != 1 || report.Notes[0].Path != "dir" || !strings.Contains(report.Notes[0].Text, "is not deleted") {
			t.Errorf("notes: %+v", report.Notes)
		}
	}
}

// TestResolvedOver promotes over a promote of another feature; a third one, and the checkpoint before, see what they saw.
func TestResolvedOver(t *testing.T) {
	b := newBox(t, project(t))
	other := newBoxAt(t, b.ws, b.w.dir+"2")
	third := newBoxAt(t, b.ws, b.w.dir+"3")
	b.sandbox(func(m string) error {
		return steps(write(m+"/edit", "feature\n"), os.RemoveAll(m+"/dir"), write(m+"/keep", "feature\n"))
	})
	other.sandbox(func(m string) error {
		return steps(write(m+"/edit", "other\n"), write(m+"/dir/new", "other\n"), write(m+"/keep", "other\n"), write(m+"/beside", "other\n"))
	})
	saw := third.shows()
	began := b.at(0)
	other.promote()
	between := b.at(1)
	r, err := b.w.resolve(t.Context(), b.change(), tree.Choice{Theirs: []string{"edit", "dir"}, Ours: []string{"keep"}})
	must(t, err)
	report, err := b.w.apply(t.Context(), r, nil)
	must(t, err)
	for path, want := range map[string]string{"edit": "feature\n", "keep": "other\n", "beside": "other\n"} {
		if data, err := os.ReadFile(b.ws + "/" + path); err != nil || string(data) != want {
			t.Errorf("%s: %q, %v", path, data, err)
		}
	}
	if exists(b.ws + "/dir") {
		t.Error("dir was not deleted")
	}
	if len(report.Notes) == 0 || report.Notes[0].Path != "dir/new" {
		t.Errorf("dir/new went without a word: %+v", report.Notes)
	}
	if d := differences(saw, third.shows()); d != "" {
		t.Errorf("a third feature saw (-), sees (+):\n%s", d)
	}
	b.checkStates("", []map[string]string{began, between})
}
