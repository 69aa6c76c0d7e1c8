package gitbranch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func project(t testing.TB) func(dir string) {
	return func(dir string) {
		for path, text := range map[string]string{
			"edit": "one\n", "gone": "bye\n", "mode": "#!/bin/sh\n", "dir/a": "a\n", "dir/sub/b": "b\n", "file": "f\n", "a.b": "x\n", "a/b": "y\n", "a0": "z\n",
		} {
			put(t, dir, path, text)
		}
		must(t, os.Symlink("edit", dir+"/link"))
	}
}

func TestWrite(t *testing.T) {
	b := newBox(t, project(t))
	head := b.git("rev-parse", "HEAD")
	index, err := os.ReadFile(b.ws + "/.git/index")
	must(t, err)
	b.write("edit", "two\n")
	b.write("new/deep/file", "new\n")
	b.write("ü\n\"\xff", "odd\n")
	b.write("a-", "between a and a/b\n")
	must(t, os.Remove(b.new+"/gone"))
	must(t, os.Chmod(b.new+"/mode", 0o755))
	must(t, os.Remove(b.new+"/link"))
	must(t, os.Symlink("file", b.new+"/link"))
	must(t, os.RemoveAll(b.new+"/dir"))
	b.write("dir", "a file by now\n")
	must(t, os.Remove(b.new+"/file"))
	b.write("file/is/dir", "by now\n")
	must(t, os.Mkdir(b.new+"/empty", 0o755))
	must(t, os.Chmod(b.new+"/a0", 0o600)) // which git does not know
	r := b.commit()
	b.same(r)
	if r.Parent != head || r.Files != 12 || len(r.Notes) != 0 {
		t.Errorf("%+v", r)
	}
	if got, want := b.git("cat-file", "commit", r.Commit), "tree "+b.expected()+"\nparent "+head+
		"\nauthor caisson <caisson@localhost> 1700000000 +0000\ncommitter caisson <caisson@localhost> 1700000000 +0000\n\nwhat was done"; got != want {
		t.Errorf("commit:\n%s\nwant:\n%s", got, want)
	}
	if got := b.git("reflog", "show", "--format=%H %gs", r.Branch); got != r.Commit+" caisson: what was done" {
		t.Errorf("reflog: %s", got)
	}
	// Nothing of the checkout has moved.
	after, err := os.ReadFile(b.ws + "/.git/index")
	must(t, err)
	if out := b.git("status", "--porcelain"); out != "" || !bytes.Equal(index, after) || b.git("rev-parse", "HEAD") != head || b.git("symbolic-ref", "HEAD") != "refs/heads/main" {
		t.Errorf("the checkout moved: %s", out)
	}
	b.git("checkout", "-q", r.Branch)
	if data, err := os.ReadFile(b.ws + "/file/is/dir"); err != nil || string(data) != "by now\n" {
		t.Errorf("checked out: %q, %v", data, err)
	}
}

// TestUnborn commits to a repository that has no commit yet, and none of whose files are in an index.
func TestUnborn(t *testing.T) {
	b := emptyBox(t)
	put(t, b.ws, "there", "before\n")
	b.begin()
	b.write("new", "n\n")
	b.write("there", "after\n")
	r := b.commit()
	b.same(r)
	if r.Parent != "" || !strings.Contains(notes(r), "there: is in the workspace, but not in HEAD") {
		t.Errorf("%+v", r)
	}
}

// TestPacked reads trees and commits out of packs, in deltas, and references out of packed-refs.
func TestPacked(t *testing.T) {
	b := newBox(t, func(dir string) {
		for i := range 300 {
			put(t, dir, fmt.Sprintf("many/file-with-a-long-name-%d", i), fmt.Sprint(i))
		}
	})
	for i := range 20 { // trees that differ little become deltas
		put(t, b.ws, fmt.Sprintf("many/file-with-a-long-name-%d", i), "more")
		b.git("commit", "-q", "-a", "-m", "next")
	}
	for _, args := range [][]string{{"repack", "-adfq", "--depth=50"}, {"-c", "repack.usedeltabaseoffset=false", "repack", "-adfq", "--depth=50"}} {
		b.git(args...)
		b.git("pack-refs", "--all", "--prune")
		b.git("prune-packed")
		b.begin()
		b.write("many/new", args[0])
		b.write("many/file-with-a-long-name-7", "changed "+args[0])
		r := b.commit()
		b.same(r)
		if r.Files != 2 {
			t.Errorf("%+v", r)
		}
		b.git("branch", "-q", "-D", r.Branch)
	}
	if out := b.git("verify-pack", "-v", filepath.Join(b.ws, ".git/objects/pack", packName(t, b.ws))); !strings.Contains(out, "chain length") {
		t.Errorf("no deltas were read: %s", out)
	}
}

func packName(t *testing.T, ws string) string {
	t.Helper()
	all, err := filepath.Glob(ws + "/.git/objects/pack/*.idx")
	if err != nil || len(all) != 1 {
		t.Fatalf("%v, %v", all, err)
	}
	return filepath.Base(all[0])
}

// TestUncommitted: what the user has not committed is no part of the commit, but where the feature changed the same file.
func TestUncommitted(t *testing.T) {
	b := newBox(t, project(t))
	put(t, b.ws, "edit", "uncommitted\n")
	put(t, b.ws, "a.b", "uncommitted, and nobody's business\n")
	put(t, b.ws, "untracked", "u\n")
	must(t, os.Remove(b.ws+"/gone"))
	b.begin()
	b.write("edit", "uncommitted\nand the feature's\n")
	b.write("gone", "made anew\n")
	b.write("untracked", "u2\n")
	must(t, os.Chmod(b.new+"/a.b", 0o640))
	r := b.commit()
	if out := b.git("diff", "--name-only", "HEAD", r.Commit); out != "edit\ngone\nuntracked" {
		t.Errorf("changed: %s", out)
	}
	if got := b.git("show", r.Commit+":edit"); got != "uncommitted\nand the feature's" {
		t.Errorf("edit: %s", got)
	}
	const want = `edit: was not as in HEAD when the feature began: the commit has that difference, too
gone: was in HEAD, but not in the workspace
untracked: is in the workspace, but not in HEAD: committed as a new file
`
	if got := notes(r); got != want {
		t.Errorf("notes:\n%s", got)
	}
}

func TestIgnored(t *testing.T) {
	b := newBox(t, func(dir string) {
		put(t, dir, ".gitignore", "*.log\n/build/\nnode_modules\n!keep.log\n")
		put(t, dir, "sub/.gitignore", "!here.log\n*.tmp\n")
		put(t, dir, "tracked", "t\n")
	})
	put(t, b.ws, "forced.log", "tracked all the same\n")
	b.git("add", "-f", "forced.log")
	b.git("commit", "-q", "-m", "second")
	b.begin()
	b.write("forced.log", "changed\n")
	for _, path := range []string{"x.log", "keep.log", "sub/here.log", "sub/y.log", "sub/z.tmp", "build/out", "build/keep.log", "sub/build/in", "node_modules/a/b", "node_modules/c"} {
		b.write(path, path)
	}
	r := b.commit()
	b.same(r)
	const want = `build: 2 paths are left out: ignored by .gitignore
node_modules: 2 paths are left out: ignored by .gitignore
sub/y.log: 1 path is left out: ignored by .gitignore
sub/z.tmp: 1 path is left out: ignored by .gitignore
x.log: 1 path is left out: ignored by .gitignore
`
	if got := notes(r); got != want {
		t.Errorf("notes:\n%s", got)
	}
	b.begin()
	b.write("only.log", "x")
	o := b.options()
	o.Branch = "other"
	if e := b.refused(o, "HEAD has all"); !e.Nothing || !strings.Contains(e.Remedy, "ignored") {
		t.Errorf("%+v", e)
	}
}

// TestManyPatterns: a task's patterns cost bounded memory and time, and what is too much is named.
func TestManyPatterns(t *testing.T) {
	b := newBox(t, project(t))
	line := strings.Repeat("x", 100)
	lines := func(n int) string { return strings.Repeat(line+"\n", n) }
	for i := range 20 {
		b.write(fmt.Sprintf("d%02d/.gitignore", i), lines(10_000)) // the same everywhere
		b.write(fmt.Sprintf("d%02d/file", i), "x")
	}
	b.refused(b.options(), "d16/.gitignore, .gitignore and .gitattributes have more than 16 MiB")
	b.begin()
	for i := range 10 {
		b.write(fmt.Sprintf("d%d/.gitignore", i), lines(10_000))
		b.write(fmt.Sprintf("d%d/file", i), "x")
	}
	b.same(b.commit())
	b.git("branch", "-q", "-D", "caisson/x")
	b.begin()
	for i, name := range []string{".gitignore", ".gitattributes", ".gitignore"} {
		b.write(fmt.Sprintf("d%d/%s", i, name), strings.Repeat(line+" filter=x\n", 8_000+i))
		b.write(fmt.Sprintf("d%d/file", i), "x")
	}
	b.refused(b.options(), "with d2/.gitignore, .gitignore and .gitattributes have more than 20000 patterns")
}

// TestCancelledMatching: a file may be looked up in many patterns; who cancels does not wait for them all.
func TestCancelledMatching(t *testing.T) {
	b := newBox(t, project(t))
	b.write(".gitignore", strings.Repeat("*a*b*c\n", 10_000))
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("enough")
	s := b.source()
	open := s.Open
	opened := 0
	s.Open = func(path string) (io.ReadCloser, error) { // for its patterns, which come first; then for the commit
		if opened++; opened > 1 {
			t.Errorf("%s is read after the end", path)
		}
		cancel(stop)
		return open(path)
	}
	if _, err := Write(ctx, s, b.options()); !errors.Is(err, stop) {
		t.Errorf("%v", err)
	}
	b.clean()
}

// TestIgnoreRules compares with git, line by line.
func TestIgnoreRules(t *testing.T) {
	paths := []string{"a", "b", "a.o", "d/a.o", "d/x", "d/e/x", "foo/bar", "x/foo/bar", "foo/a/bar", "foo/a/b/bar", "a b", "a ", "#x", "!x", "a{b}", "aXb", "[x]", `a\b`,
		"abc/def/ghi", "abc/x", "d/abc/y", "build/x", "d/build/y", "deep/er/est", "a*b", "aa", "ab", "ba", "d/é"}
	lists := []string{
		"*.o", "/a.o", "d/", "d/*", "d/**", "**/x", "**/foo/bar", "foo/**/bar", "foo/*/bar", "a\\ ", "a   ", "\\#x", "#x", "\\!x", "!x", "a{b}", "a{b,X}b", "a[!X]b", "[[]x]",
		"a?b", "*\n!*/\n!*.o", "*\n!d\n!d/x", "d\n!d/x", "/*\n!/foo", "abc/**", "**/abc/*", "build/", "/build", "a**", "a**b", "**", "*/x", "e/x", "d/e", "a\\*b", "a\\", "[a",
		"a\r", "\ufeffa", "[ab]", "[^a]b", "é", "d/[!a-y]", "  a", "/", "//", "!", "a/", "foo//bar", "./a", "../a",
	}
	b := newBox(t, func(dir string) { put(t, dir, "kept", "") })
	o := b.options()
	o.Force = true
	for _, list := range lists {
		b.begin()
		b.write(".gitignore", list+"\n")
		for _, p := range paths {
			if st, err := os.Stat(b.new + "/" + p); err == nil && st.IsDir() {
				continue
			}
			b.write(p, p)
		}
		b.write("zz", "there is always something")
		r, err := Write(t.Context(), b.source(), o)
		if err != nil && strings.Contains(err.Error(), "HEAD has all") {
			if want, was := b.expected(), b.git("rev-parse", "HEAD^{tree}"); want != was {
				t.Errorf("%q: all is ignored, not by git", list)
			}
			continue
		}
		must(t, err)
		if got, want := b.git("rev-parse", r.Commit+"^{tree}"), b.expected(); got != want {
			t.Errorf("%q: left is the file, ours - git's +:\n%s", list, b.git("diff-tree", "-r", "--name-status", got, want))
		}
	}
}

// TestRandom: whatever changes, the tree is git's.
func TestRandom(t *testing.T) {
	rounds := 40
	if testing.Short() {
		rounds = 10
	}
	for seed := range rounds {
		r := rand.New(rand.NewPCG(4, uint64(seed)))
		b := newBox(t, func(dir string) {
			for range 30 {
				act(r, dir)
			}
		})
		// git would add what is there and was ignored once the feature has changed .gitignore; a change does not hold it.
		b.git("add", "-A", "-f")
		b.git("commit", "-q", "--amend", "--allow-empty", "-m", "all")
		if seed%2 == 0 {
			b.git("repack", "-adq")
		}
		for range 1 + r.IntN(40) {
			act(r, b.new)
		}
		report, err := Write(t.Context(), b.source(), b.options())
		if err != nil {
			if want := b.git("rev-parse", "HEAD^{tree}"); !strings.Contains(err.Error(), "HEAD has all") || b.expected() != want {
				t.Fatalf("seed %d: %v", seed, err)
			}
			continue
		}
		b.clean()
		if b.same(report); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		if n := b.git("diff-tree", "-r", "--no-renames", "--name-only", "-z", "HEAD", report.Commit); strings.Count(n, "\x00") != report.Files {
			t.Fatalf("seed %d: %d files reported, %d changed", seed, report.Files, strings.Count(n, "\x00"))
		}
	}
}

// act does something at random in a directory. Errors are part of it.
func act(r *rand.Rand, dir string) {
	names := []string{"a", "b", "a.b", "a-", "a0", "B", "x y", "\n", "\xff", ".gitignore"}
	path := dir
	for range 1 + r.IntN(4) {
		path += "/" + names[r.IntN(len(names)-1)]
	}
	switch r.IntN(10) {
	case 0, 1, 2, 3:
		_ = os.MkdirAll(filepath.Dir(path), 0o755)
		_ = os.WriteFile(path, fmt.Append(nil, r.IntN(5)), 0o644)
	case 4:
		_ = os.RemoveAll(path)
	case 5:
		_ = os.Symlink(names[r.IntN(len(names))], path)
	case 6:
		mode := []os.FileMode{0o644, 0o755, 0o700}[r.IntN(3)]
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			mode |= 0o100 // git needs to read it, whoever it runs as
		}
		_ = os.Chmod(path, mode)
	case 7:
		_ = os.Rename(path, dir+"/"+names[r.IntN(len(names)-1)])
	case 8:
		_ = os.Mkdir(path, 0o755)
	case 9:
		_ = os.WriteFile(filepath.Dir(path)+"/.gitignore", fmt.Appendf(nil, "%s\n!%s\n/%s/\n", names[r.IntN(6)], names[r.IntN(6)], names[r.IntN(6)]), 0o644)
	}
}

// TestNoted: what git cannot hold or would have changed is said.
func TestNoted(t *testing.T) {
	b := newBox(t, func(dir string) {
		put(t, dir, ".gitattributes", "*.bin filter=lfs diff=lfs -text\n*.md text\nraw.bin -filter\n")
		put(t, dir, "pipe", "a file for now\n")
	})
	b.write("big.bin", "content\r\n")
	b.write("raw.bin", "content\n")
	must(t, os.Remove(b.new+"/pipe"))
	must(t, unix.Mkfifo(b.new+"/pipe", 0o600))
	must(t, unix.Mkfifo(b.new+"/other", 0o600))
	must(t, os.MkdirAll(b.new+"/.git/hooks", 0o755))
	b.write(".git/hooks/post-commit", "#!/bin/sh\ntouch /tmp/never\n")
	r := b.commit()
	const want = `.git: 3 paths are left out: no commit holds the repository itself
big.bin: filter=lfs of .gitattributes is not run: committed as it is
other: a fifo is left out: git knows none
pipe: a fifo is left out: git knows none
`
	if got := notes(r); got != want {
		t.Errorf("notes:\n%s", got)
	}
	if out := b.git("diff", "--name-status", "HEAD", r.Commit); out != "A\tbig.bin\nD\tpipe\nA\traw.bin" {
		t.Errorf("changed: %s", out)
	}
	if got := b.git("cat-file", "-s", r.Commit+":big.bin"); got != "9" {
		t.Errorf("big.bin has %s bytes", got)
	}
}

func TestLarge(t *testing.T) {
	b := newBox(t, project(t))
	f, err := os.Create(b.new + "/large")
	must(t, err)
	must(t, f.Truncate(200<<20))
	must(t, f.Close())
	var before, after unix.Rusage
	must(t, unix.Getrusage(unix.RUSAGE_SELF, &before))
	r := b.commit()
	must(t, unix.Getrusage(unix.RUSAGE_SELF, &after))
	if got := b.git("cat-file", "-s", r.Commit+":large"); got != "209715200" {
		t.Errorf("large has %s bytes", got)
	}
	if grown := after.Maxrss - before.Maxrss; grown > 64<<10 {
		t.Errorf("memory grew by %d KiB for a file of 200 MiB", grown)
	}
}

// TestForbidden: no commit has a path that would be .git somewhere.
func TestForbidden(t *testing.T) {
	b := newBox(t, project(t))
	for _, name := range []string{".GIT", ".git ", ".git.", "git~1", "GIT~1", ".git::$INDEX_ALLOCATION", ".g\u200cit", "\ufeff.git", `.git\x`, `x\.git`, ".git. . "} {
		for _, path := range []string{name, "sub/" + name, name + "/config"} {
			b.begin()
			b.write(path, "x")
			b.refused(b.options(), "cannot be committed")
		}
	}
	b.begin()
	must(t, os.Symlink("x", b.new+"/.gitmodules"))
	b.refused(b.options(), "symbolic link")
	b.begin()
	for _, fine := range []string{".gitx", "git~2", ".git-x", "..git", ".gi", "x.git", "...", ".gitignore", ".gitmodules"} {
		b.write(fine, "")
	}
	b.same(b.commit())
}

// TestSubmodules: nothing is committed into another repository.
func TestSubmodules(t *testing.T) {
	b := newBox(t, project(t))
	b.gitIn(b.ws, nil, "init", "-q", "sub")
	put(t, b.ws, "sub/x", "x")
	b.gitIn(b.ws+"/sub", nil, "add", "-A")
	b.gitIn(b.ws+"/sub", nil, "commit", "-q", "-m", "sub")
	b.begin()
	b.write("sub/x", "changed")
	b.refused(b.options(), "a repository of its own")
	b.git("add", "sub")
	b.git("commit", "-q", "-m", "as a submodule")
	b.refused(b.options(), "in the submodule sub")
	b.begin()
	must(t, os.RemoveAll(b.new+"/sub"))
	b.write("sub", "a file")
	b.refused(b.options(), "in the submodule sub")
	b.begin()
	b.write("beside", "fine")
	if out := b.git("diff", "--name-only", "HEAD", b.commit().Commit); out != "beside" {
		t.Errorf("changed: %s", out)
	}
}

func TestOptions(t *testing.T) {
	b := newBox(t, project(t))
	b.write("edit", "x")
	for say, change := range map[string]func(*Options){
		"cannot be in an author": func(o *Options) { o.Author.Name = "a <b" },
		"cannot be a branch":     func(o *Options) { o.Branch = "a..b" },
		"the message":            func(o *Options) { o.Message = " \n" },
		"holds a NUL":            func(o *Options) { o.Message = "a\x00" },
	} {
		o := b.options()
		change(&o)
		b.refused(o, say)
	}
}

// TestNames lets git judge.
func TestNames(t *testing.T) {
	b := emptyBox(t)
	names := []string{"a", "a/b", "caisson/fix-1", "", "-a", "a..b", "a b", "a~", "a^", "a:", "a?", "a*", "a[", `a\`, "a.", ".a", "a/.b", "a.lock", "a.lock/b", "a//b", "/a", "a/", "a@{b", "@a", "ü", "a\x7f", "HEAD", "a\n"}
	for _, name := range names {
		cmd := b.ok("check-ref-format", "--branch", name)
		if got := CheckName(name) == nil; got != cmd {
			t.Errorf("%q: %v, git says %v", name, got, cmd)
		}
	}
	if !slices.ContainsFunc(names, func(n string) bool { return CheckName(n) == nil }) || CheckName("refs/heads/x") == nil || CheckName("@") == nil {
		t.Error("all or nothing")
	}
}
