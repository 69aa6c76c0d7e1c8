package promote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

func (b *box) diff(o tree.DiffOptions) string {
	b.Helper()
	var out bytes.Buffer
	must(b, b.w.diff(context.Background(), b.change(), &out, o))
	return out.String()
}

func TestWriteDiff(t *testing.T) {
	b := newBox(t, project(t))
	b.sandbox(func(m string) error {
		return steps(
			write(m+"/edit", "one\n2\nthree"), os.Remove(m+"/gone"), os.Chmod(m+"/mode", 0o755), write(m+"/new", "a\nb\n"),
			os.Remove(m+"/link"), os.Symlink("edit", m+"/link"), write(m+"/nul", "a\x00b"), write(m+"/e", ""),
			os.Remove(m+"/keep"), os.Symlink("x", m+"/keep"), os.Mkdir(m+"/d2", 0o700), write(m+"/sp ace\t", "s\n"),
			os.Mkdir(m+"/full", 0o755), write(m+"/full/f", "f\n"), os.Remove(m+"/empty"),
		)
	})
	const want = `caisson: d2: new dir, mode 0700
diff --git a/e b/e
new file mode 100644
diff --git a/edit b/edit
--- a/edit
+++ b/edit
@@ -1,3 +1,3 @@
 one
-two
-three
+2
+three
\ No newline at end of file
caisson: empty: deleted dir, mode 0755
diff --git a/full/f b/full/f
new file mode 100644
--- /dev/null
+++ b/full/f
@@ -0,0 +1 @@
+f
diff --git a/gone b/gone
deleted file mode 100644
--- a/gone
+++ /dev/null
@@ -1 +0,0 @@
-bye
diff --git a/keep b/keep
deleted file mode 100644
--- a/keep
+++ /dev/null
@@ -1 +0,0 @@
-same
diff --git a/keep b/keep
new file mode 120000
--- /dev/null
+++ b/keep
@@ -0,0 +1 @@
+x
\ No newline at end of file
diff --git a/link b/link
--- a/link
+++ b/link
@@ -1 +1 @@
-keep
\ No newline at end of file
+edit
\ No newline at end of file
diff --git a/mode b/mode
old mode 100644
new mode 100755
diff --git a/new b/new
new file mode 100644
--- /dev/null
+++ b/new
@@ -0,0 +1,2 @@
+a
+b
diff --git a/nul b/nul
new file mode 100644
Binary files /dev/null and b/nul differ
diff --git "a/sp ace\t" "b/sp ace\t"
new file mode 100644
--- /dev/null
+++ "b/sp ace\t"` + "\t" + `
@@ -0,0 +1 @@
+s
`
	if got := b.diff(tree.DiffOptions{}); got != want {
		t.Errorf("diff:\n%s", got)
	}
	if got := b.diff(tree.DiffOptions{Paths: []string{"full/", "e"}, NameOnly: true}); got != "e\nfull\nfull/f\n" {
		t.Errorf("names:\n%s", got)
	}
	const stat = ` d2         | new dir, mode 0700
 e          | 0
 edit       | 4 ++--
 empty      | deleted dir, mode 0755
 full/f     | 1 +
 gone       | 1 -
 keep       | 2 +-
 link       | 2 +-
 mode       | file: mode 0644 became 0755
 new        | 2 ++
 nul        | Bin 0 -> 3 bytes
 "sp ace\t" | 1 +
 12 files changed, 8 insertions(+), 5 deletions(-)
`
	if got := b.diff(tree.DiffOptions{Stat: true}); got != stat {
		t.Errorf("stat:\n%s", got)
	}
	if got := b.diff(tree.DiffOptions{Paths: []string{"new"}, MaxFile: 3}); !strings.Contains(got, "too large to show (0 bytes before, 4 after)") {
		t.Errorf("large:\n%s", got)
	}
	if _, err := b.w.apply(t.Context(), &tree.Change{}, nil); !errors.Is(err, tree.ErrStaleChange) {
		t.Errorf("foreign change: %v", err)
	}
}

// texts are pairs that are hard on a differ.
var texts = [][2]string{
	{"", "a"}, {"a", ""}, {"a", "a\n"}, {"a\n", "a"}, {"\n", "\n\n"}, {"a\nb\nc\n", "c\nb\na\n"}, {"\r\n", "\n"},
	{"--- a\n+++ b\n", "@@ -1 +1 @@\n"}, {"\xff\xfe\n", "\xfe\xff\n"}, {"x", "y"},
	{strings.Repeat("same\n", 50) + "old\n" + strings.Repeat("same\n", 50), strings.Repeat("same\n", 50) + "new\n" + strings.Repeat("same\n", 50)},
	{numbers(0, 3000, 1), numbers(0, 3000, 2)}, {numbers(0, 2000, 3), numbers(500, 2500, 7)},
}

func numbers(from, to, skip int) string {
	var b strings.Builder
	for i := from; i < to; i++ {
		if i%skip == 0 {
			fmt.Fprintln(&b, i%97)
		}
	}
	return b.String()
}

// TestGitApplies lets git apply what WriteDiff and a patch print, and compares.
func TestGitApplies(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Log("without git only the format is checked, in TestWriteDiff")
		return
	}
	for _, context := range []int{0, 1, 7, -1} {
		b := newBox(t, func(ws string) {
			project(t)(ws)
			for i, x := range texts {
				must(t, write(fmt.Sprintf("%s/text %d", ws, i), x[0]))
			}
		})
		b.sandbox(func(m string) error {
			for i, x := range texts {
				must(t, write(fmt.Sprintf("%s/text %d", m, i), x[1]))
			}
			return steps(write(m+"/edit", "mine"), os.Remove(m+"/gone"), os.Chmod(m+"/mode", 0o755), os.Remove(m+"/keep"),
				os.Symlink("x", m+"/keep"), os.RemoveAll(m+"/dir/sub"), write(m+"/ü\n\"", "odd\n"), os.Remove(m+"/link"),
				write(m+"/link", "file"), os.Mkdir(m+"/empty2", 0o755), write(m+"/e", ""))
		})
		patch := filepath.Join(t.TempDir(), "out.patch")
		if context == 0 {
			r, err := b.w.patch(t.Context(), b.change(), patch)
			must(t, err)
			if r.PatchFile != patch {
				t.Errorf("%+v", r)
			}
		} else {
			must(t, write(patch, b.diff(tree.DiffOptions{Context: context})))
		}
		copied := t.TempDir() + "/copy"
		must(t, exec.Command("cp", "-a", b.ws, copied).Run())
		args := []string{"apply", "--unidiff-zero", "--whitespace=nowarn", patch}
		cmd := exec.Command(git, args...)
		cmd.Dir = copied
		cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(copied), "GIT_CONFIG_GLOBAL=/dev/null")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("context %d: %v\n%s", context, err, out)
		}
		b.promote()
		must(t, os.Remove(b.ws+"/empty2"))
		if out, err := exec.Command("diff", "-r", "--no-dereference", b.ws, copied).CombinedOutput(); err != nil {
			t.Errorf("context %d: %s", context, out)
		}
	}
}

func TestPatchErrors(t *testing.T) {
	b := newBox(t, project(t))
	b.upper("edit", "mine\x00")
	c := b.change()
	if _, err := b.w.patch(t.Context(), c, ""); err == nil {
		t.Error("no file")
	}
	dir := t.TempDir()
	must(t, os.Symlink(b.ws+"/keep", dir+"/p"))
	r, err := b.w.patch(t.Context(), c, dir+"/p")
	must(t, err)
	if len(r.Notes) != 1 || r.Notes[0].Path != "edit" {
		t.Errorf("%+v", r)
	}
	if data, err := os.ReadFile(b.ws + "/keep"); err != nil || string(data) != "same\n" {
		t.Errorf("followed a link: %q %v", data, err)
	}
	b.wantChange("modified edit")
}

func TestQuote(t *testing.T) {
	for in, want := range map[string]string{
		"plain path": "plain path", "a\nb": `"a\nb"`, `"`: `"\""`, `\`: `"\\"`, "\x01\x7f": `"\001\177"`, "é": `"\303\251"`,
	} {
		if got := tree.Quote(in); got != want {
			t.Errorf("Quote(%q) = %s, want %s", in, got, want)
		}
	}
}
