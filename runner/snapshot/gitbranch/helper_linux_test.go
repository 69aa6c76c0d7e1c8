package gitbranch

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/runner/snapshot/tree"
)

// box is a workspace with a repository, and a feature on it: two directories of which one is what the feature saw, the
// other what it made of it.
type box struct {
	testing.TB
	ws, old, new string
}

func TestMain(m *testing.M) {
	syncfs = func(int) error { return nil }
	os.Exit(m.Run())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newBox makes a repository with one commit of what fill writes.
func newBox(t testing.TB, fill func(dir string)) *box {
	t.Helper()
	b := emptyBox(t)
	if fill != nil {
		fill(b.ws)
	}
	b.git("add", "-A")
	b.git("commit", "-q", "--allow-empty", "-m", "first")
	b.begin()
	return b
}

func emptyBox(t testing.TB) *box {
	t.Helper()
	_, err := exec.LookPath("git")
	testenv.Need(t, "git", err)
	dir := t.TempDir()
	b := &box{TB: t, ws: dir + "/ws", old: dir + "/old", new: dir + "/new"}
	must(t, os.Mkdir(b.ws, 0o755))
	b.git("init", "-q", "-b", "main")
	return b
}

// begin starts the feature on the workspace as it is.
func (b *box) begin() {
	b.Helper()
	for _, dir := range []string{b.old, b.new} {
		must(b, os.RemoveAll(dir))
		must(b, exec.Command("cp", "-a", b.ws, dir).Run())
		must(b, os.RemoveAll(dir+"/.git"))
	}
}

// environ is what git gets: nothing of the machine's or the user's configuration.
func environ() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b"}
}

// git runs git in the workspace.
func (b *box) git(args ...string) string {
	b.Helper()
	return b.gitIn(b.ws, nil, args...)
}

func (b *box) gitIn(dir string, env []string, args ...string) string {
	b.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Env = dir, append(environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		b.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimRight(string(out), "\n")
}

// write makes a file of the feature, with its parents.
func (b *box) write(path, content string) { put(b, b.new, path, content) }

func put(t testing.TB, dir, path, content string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(dir+"/"+path), 0o755))
	must(t, os.WriteFile(dir+"/"+path, []byte(content), 0o644))
}

// source is the feature's change.
func (b *box) source() Source {
	b.Helper()
	old, err := tree.OpenView([]tree.Root{{Path: b.old, Plain: true}})
	must(b, err)
	now, err := tree.OpenView([]tree.Root{{Path: b.new, Plain: true}})
	must(b, err)
	c, err := tree.Compare(b.Context(), old, now, tree.CompareOptions{})
	must(b, err)
	b.Cleanup(func() { must(b, errors.Join(old.Close(), now.Close())) })
	return Source{
		Change: c,
		Open:   func(path string) (io.ReadCloser, error) { return now.Open(path) },
		Old:    func(path string) (io.ReadCloser, error) { return old.Open(path) },
	}
}

var when = time.Unix(1700000000, 0)

func (b *box) options() Options {
	return Options{Workspace: b.ws, Branch: "caisson/x", Author: Person{"caisson", "caisson@localhost"}, When: when, Message: "what was done"}
}

// commit writes the feature's change, and lets git check the whole repository.
func (b *box) commit() *Report {
	b.Helper()
	r, err := Write(b.Context(), b.source(), b.options())
	must(b, err)
	b.clean()
	if got := b.git("rev-parse", "refs/heads/"+r.Branch); got != r.Commit {
		b.Errorf("the branch is at %s, reported was %s", got, r.Commit)
	}
	return r
}

// clean checks that git finds nothing wrong, and nothing of ours beside the objects.
func (b *box) clean() {
	b.Helper()
	if out := b.git("fsck", "--strict", "--no-dangling"); strings.Contains(out, "error") || strings.Contains(out, "warning") {
		b.Errorf("fsck: %s", out)
	}
	left, err := filepath.Glob(b.ws + "/.git/objects/tmp_*")
	locks, err2 := filepath.Glob(b.ws + "/.git/refs/heads/caisson/*.lock")
	if must(b, errors.Join(err, err2)); len(left)+len(locks) > 0 {
		b.Errorf("left: %v %v", left, locks)
	}
}

// expected is the tree that git makes of the same: HEAD's tree in an index of its own, and everything added.
func (b *box) expected() string {
	b.Helper()
	index := "GIT_INDEX_FILE=" + filepath.Join(b.TempDir(), "index")
	env := []string{index, "GIT_DIR=" + b.ws + "/.git", "GIT_WORK_TREE=" + b.new}
	if _, err := os.Stat(b.ws + "/.git/refs/heads/main"); err == nil {
		b.gitIn(b.new, env, "read-tree", "HEAD")
	}
	b.gitIn(b.new, env, "add", "-A", ".")
	return b.gitIn(b.new, env, "write-tree")
}

// same compares the commit's tree with what git makes.
func (b *box) same(r *Report) {
	b.Helper()
	if got, want := b.git("rev-parse", r.Commit+"^{tree}"), b.expected(); got != want {
		b.Errorf("the tree differs from git's:\n%s", b.git("diff-tree", "-r", "--no-renames", want, got))
	}
}

// notes are a report's, a line each.
func notes(r *Report) string {
	var b strings.Builder
	for _, n := range r.Notes {
		b.WriteString(tree.Quote(n.Path) + ": " + n.Text + "\n")
	}
	return b.String()
}

// refused expects an *Error that says something.
func (b *box) refused(o Options, say string) Error {
	b.Helper()
	_, err := Write(b.Context(), b.source(), o)
	e, ok := errors.AsType[*Error](err)
	if !ok || !strings.Contains(e.Reason, say) {
		b.Errorf("got %v, want a refusal that says %q", err, say)
		return Error{}
	}
	left, err := filepath.Glob(b.ws + "/.git/objects/tmp_*")
	if must(b, err); len(left) > 0 {
		b.Errorf("left: %v", left)
	}
	return *e
}
