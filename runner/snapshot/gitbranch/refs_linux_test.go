package gitbranch

import (
	"bytes"
	"compress/zlib"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-git/go-git/v5/plumbing"

	"github.com/caisson-dev/caisson/internal/testenv"
)

// ok reports whether git says yes.
func (b *box) ok(args ...string) bool {
	cmd := exec.Command("git", args...)
	cmd.Dir, cmd.Env = b.ws, environ()
	return cmd.Run() == nil
}

// TestFormats: a repository that is not known is refused by name, and not touched.
func TestFormats(t *testing.T) {
	for say, change := range map[string]func(b *box){
		"of format 2":                       func(b *box) { b.git("config", "core.repositoryformatversion", "2") },
		"objectformat = sha256":             func(b *box) { b.git("config", "extensions.objectFormat", "sha256") },
		"refstorage = reftable":             func(b *box) { b.git("config", "extensions.refStorage", "reftable") },
		"partialclone = origin":             func(b *box) { b.git("config", "extensions.partialClone", "origin") },
		"fromthefuture = yes":               func(b *box) { b.git("config", "extensions.fromTheFuture", "yes") },
		"bare":                              func(b *box) { b.git("config", "core.bare", "true") },
		"core.worktree":                     func(b *box) { b.git("config", "core.worktree", "/elsewhere") },
		"objects/info/alternates":           func(b *box) { put(b, b.ws, ".git/objects/info/alternates", "/elsewhere\n") },
		"a worktree's":                      func(b *box) { put(b, b.ws, ".git/commondir", "../x\n") },
		"cannot be read":                    func(b *box) { put(b, b.ws, ".git/config", "[core\n") },
		"core.sharedRepository is nonsense": func(b *box) { b.git("config", "core.sharedRepository", "nonsense") },
		"reftables":                         func(b *box) { must(b, os.Mkdir(b.ws+"/.git/reftable", 0o755)) },
		"names no commit":                   func(b *box) { put(b, b.ws, ".git/HEAD", "nonsense\n") },
		"cannot be read: is missing":        func(b *box) { put(b, b.ws, ".git/HEAD", strings.Repeat("1", 40)+"\n") },
		"symbolic reference":                func(b *box) { put(b, b.ws, ".git/refs/heads/main", "ref: refs/heads/other\n") },
		"a reference":                       func(b *box) { put(b, b.ws, ".git/HEAD", "ref: ../../../etc/passwd\n") },
		"is a file": func(b *box) {
			must(b, os.Rename(b.ws+"/.git", b.ws+"/../git"))
			put(b, b.ws, ".git", "gitdir: ../git\n")
		},
		"is a symbolic link": func(b *box) {
			must(b, os.Rename(b.ws+"/.git", b.ws+"/../git"))
			must(b, os.Symlink("../git", b.ws+"/.git"))
		},
		"has no .git directory": func(b *box) { must(b, os.RemoveAll(b.ws+"/.git")) },
	} {
		b := newBox(t, project(t))
		b.write("edit", "x")
		change(b)
		_, err := Write(t.Context(), b.source(), b.options())
		if e, ok := errors.AsType[*Error](err); !ok || !strings.Contains(e.Reason, say) {
			t.Errorf("%s: %v", say, err)
		}
		if _, err := os.Stat(b.ws + "/.git/refs/heads/caisson"); err == nil {
			t.Errorf("%s: a branch was made", say)
		}
	}
	b := newBox(t, project(t))
	b.git("config", "core.repositoryformatversion", "1")
	b.git("config", "extensions.objectFormat", "sha1")
	b.git("config", "extensions.worktreeConfig", "true")
	b.write("edit", "x")
	b.same(b.commit())
}

// TestWorktreeConfig: whatever git takes for true has the second file read, which can say that the worktree is elsewhere.
func TestWorktreeConfig(t *testing.T) {
	for _, line := range []string{"= true", "= yes", "= On", "= 1", "= 2", "= 1k", "= -1", "", "= 0", "= false", "=", "= no", "= off"} {
		b := newBox(t, project(t))
		b.write("edit", "x")
		put(t, b.ws, ".git/config", "[core]\n\trepositoryformatversion = 1\n[Extensions]\n\tworktreeConfig "+line+"\n")
		put(t, b.ws, ".git/config.worktree", "[core]\n\tworktree = "+b.new+"\n")
		_, err := Write(t.Context(), b.source(), b.options())
		// git judges.
		elsewhere := b.git("rev-parse", "--show-toplevel") == b.new
		if refused := err != nil && strings.Contains(err.Error(), "core.worktree"); refused != elsewhere || !refused && err != nil {
			t.Errorf("%q: %v, for git it is elsewhere: %v", line, err, elsewhere)
		}
	}
}

// TestLinks: nothing in the repository is followed out of it.
func TestLinks(t *testing.T) {
	for _, path := range []string{"objects", "refs", "refs/heads", "HEAD", "logs", "config", "packed-refs"} {
		b := newBox(t, project(t))
		b.git("pack-refs", "--all")
		outside := filepath.Join(t.TempDir(), "outside")
		must(t, os.Rename(filepath.Join(b.ws, ".git", path), outside))
		must(t, os.Symlink(outside, filepath.Join(b.ws, ".git", path)))
		b.write("edit", "x")
		r, err := Write(t.Context(), b.source(), b.options())
		if err == nil {
			t.Errorf("%s: followed, %+v", path, r)
		}
	}
}

func TestBranches(t *testing.T) {
	b := newBox(t, project(t))
	b.write("edit", "x")
	first := b.commit()
	if e := b.refused(b.options(), "the branch caisson/x exists"); !e.Exists || !strings.Contains(e.Remedy, "--force") {
		t.Errorf("%+v", e)
	}
	o := b.options()
	o.Branch, o.Force = "main", true
	b.refused(o, "in use (.git/HEAD)")
	o.Branch = "caisson"
	b.refused(o, "cannot be beside the branch caisson/x")
	o.Branch = "caisson/x/y"
	b.refused(o, "cannot be beside the branch caisson/x")
	b.git("pack-refs", "--all")
	o.Branch = "caisson"
	b.refused(o, "cannot be beside the branch caisson/x")
	o.Branch = "caisson/x/y"
	b.refused(o, "cannot be beside the branch caisson/x")
	b.git("worktree", "add", "-q", b.ws+"/../tree", "caisson/x")
	o.Branch = "caisson/x"
	b.refused(o, "in use (.git/worktrees/tree/HEAD)")
	b.git("worktree", "remove", b.ws+"/../tree")
	b.write("edit", "y")
	r, err := Write(t.Context(), b.source(), o)
	must(t, err)
	b.clean()
	if got := b.git("rev-parse", "caisson/x@{1}"); got != first.Commit || r.Commit == got || r.Parent != first.Parent {
		t.Errorf("replaced %s by %+v, the reflog has %s", first.Commit, r, got)
	}
	// What a deleted branch below the name left.
	b.git("branch", "-q", "-D", "caisson/x")
	must(t, os.MkdirAll(b.ws+"/.git/refs/heads/caisson/x/y/z", 0o755))
	b.commit()
}

// TestDetached: HEAD need not be a branch, and can be one of packed-refs.
func TestDetached(t *testing.T) {
	b := newBox(t, project(t))
	b.git("checkout", "-q", "--detach")
	b.git("pack-refs", "--all")
	b.write("edit", "x")
	if r := b.commit(); r.Parent != b.git("rev-parse", "main") {
		t.Errorf("%+v", r)
	}
	o := b.options()
	o.Branch, o.Force = "main", true // nobody is on it
	_, err := Write(t.Context(), b.source(), o)
	must(t, err)
	b.clean()
}

// TestLocked: git's own lock is respected, and what moved meanwhile is not overwritten.
func TestLocked(t *testing.T) {
	b := newBox(t, project(t))
	b.write("edit", "x")
	put(t, b.ws, ".git/refs/heads/caisson/x.lock", "")
	_, err := Write(t.Context(), b.source(), b.options())
	if err == nil || !strings.Contains(err.Error(), "git is at work") {
		t.Errorf("%v", err)
	}
	must(t, os.Remove(b.ws+"/.git/refs/heads/caisson/x.lock"))
	step = func(name string) {
		if name == "published" {
			b.git("branch", "caisson/x", "main")
		}
	}
	defer func() { step = func(string) {} }()
	b.refused(b.options(), "moved by others")
	if b.git("rev-parse", "caisson/x") != b.git("rev-parse", "main") {
		t.Error("the branch was moved")
	}
}

// TestReflogs: they are kept where the repository keeps them.
func TestReflogs(t *testing.T) {
	for value, want := range map[string]bool{"": true, "true": true, "always": true, "false": false} {
		b := newBox(t, project(t))
		if value != "" {
			b.git("config", "core.logAllRefUpdates", value)
		}
		b.write("edit", "x")
		b.commit()
		if _, err := os.Stat(b.ws + "/.git/logs/refs/heads/caisson/x"); err == nil != want {
			t.Errorf("core.logAllRefUpdates %q: %v", value, err)
		}
	}
}

// TestShared: modes are those that git gives.
func TestShared(t *testing.T) {
	old := syscall.Umask(0o027)
	defer syscall.Umask(old)
	for _, value := range []string{"umask", "group", "all", "0640", "1", "2"} {
		b := emptyBox(t)
		b.git("config", "core.sharedRepository", value)
		put(t, b.ws, "edit", "")
		b.git("add", "edit")
		b.git("commit", "-q", "-m", "first")
		b.begin()
		b.write("edit", "by caisson "+value)
		b.commit()
		put(t, b.ws, "edit", "by git")
		b.git("checkout", "-q", "-b", "caisson/git")
		b.git("commit", "-q", "-a", "-m", "x")
		modes := func(branch string) (all []os.FileMode) {
			hash := b.git("rev-parse", branch)
			for _, path := range []string{"objects/" + hash[:2], "objects/" + hash[:2] + "/" + hash[2:], "refs/heads/" + branch, "logs/refs/heads/" + branch} {
				st, err := os.Lstat(b.ws + "/.git/" + path)
				must(t, err)
				all = append(all, st.Mode())
			}
			return all
		}
		ours, gits := modes("caisson/x"), modes("caisson/git")
		for i := range ours {
			if ours[i] != gits[i] {
				t.Errorf("%s: modes %v, git's %v", value, ours, gits)
				break
			}
		}
	}
}

// TestOwner: what root writes belongs to the repository's owner.
func TestOwner(t *testing.T) {
	var err error
	if os.Geteuid() != 0 {
		err = errors.New("not root")
	}
	testenv.Need(t, "root", err)
	b := newBox(t, project(t))
	must(t, filepath.WalkDir(b.ws, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, 1001, 1002))
	}))
	b.write("new/file", "x")
	_, err = Write(t.Context(), b.source(), b.options())
	must(t, err)
	must(t, filepath.WalkDir(b.ws, func(path string, d os.DirEntry, err error) error {
		must(t, err)
		info, err := d.Info()
		must(t, err)
		if st := info.Sys().(*syscall.Stat_t); st.Uid != 1001 || st.Gid != 1002 {
			t.Errorf("%s belongs to %d:%d", path, st.Uid, st.Gid)
		}
		return nil
	}))
}

// TestDies ends the process, as far as the disk is concerned, at every step: the repository is whole, and the next try works.
func TestDies(t *testing.T) {
	type dead struct{}
	defer func() { step = func(string) {} }()
	for n := 1; ; n++ {
		b := newBox(t, project(t))
		b.write("edit", "x")
		b.write("new/file", "y")
		calls, survived := 0, false
		step = func(string) {
			if calls++; calls == n {
				panic(dead{})
			}
		}
		func() {
			defer func() { _ = recover() }()
			r, err := openRepository(b.ws)
			must(t, err)
			defer func() { _ = r.Close() }()
			o := b.options()
			m, err := r.begin(&o)
			must(t, err)
			must(t, r.beginStage())
			_, err = r.commit(t.Context(), b.source(), &o, m)
			must(t, err)
			must(t, r.publish())
			step("published")
			must(t, r.update(m))
			step("updated")
			survived = true
		}()
		step = func(string) {}
		if out := b.git("fsck", "--strict", "--no-dangling"); strings.Contains(out, "error") {
			t.Errorf("step %d: %s", n, out)
		}
		if b.ok("rev-parse", "--verify", "-q", "refs/heads/caisson/x") {
			b.git("branch", "-q", "-D", "caisson/x")
		}
		o := b.options()
		o.Again = true
		_, err := Write(t.Context(), b.source(), o)
		must(t, err)
		b.git("prune", "--expire=now")
		b.clean() // git takes what was left for garbage
		if survived {
			if n < 5 {
				t.Errorf("only %d steps", n)
			}
			return
		}
	}
}

// TestLooseObjects: an object whose header is no header is refused, without the memory that it asks for.
func TestLooseObjects(t *testing.T) {
	for name, content := range map[string][]byte{
		"negative":   []byte("commit -1\x00"),
		"huge":       []byte("commit 9223372036854775807\x00"),
		"beyond":     []byte("commit 18446744073709551615\x00"),
		"no blank":   bytes.Repeat([]byte("c"), 64<<20),
		"no NUL":     append([]byte("commit "), bytes.Repeat([]byte("0"), 64<<20)...),
		"another":    []byte("comet 1\x00x"),
		"short":      []byte("commit 10\x00x"),
		"empty":      {},
		"other size": []byte("commit +1\x00x"),
	} {
		b := newBox(t, project(t))
		b.write("edit", "x")
		head := b.git("rev-parse", "HEAD")
		path := b.ws + "/.git/objects/" + head[:2] + "/" + head[2:]
		var packed bytes.Buffer
		w := zlib.NewWriter(&packed)
		_, err := w.Write(content)
		must(t, errors.Join(err, w.Close(), os.Remove(path), os.WriteFile(path, packed.Bytes(), 0o444)))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		b.refused(b.options(), "the commit "+head+" of the repository cannot be read")
		if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc > 16<<20 {
			t.Errorf("%s: %d MiB allocated", name, (after.TotalAlloc-before.TotalAlloc)>>20)
		}
	}
}

// TestOldIndex: what lies in a pack with an index that is not known is nobody's to guess, however often it is asked for.
func TestOldIndex(t *testing.T) {
	b := newBox(t, project(t))
	head := plumbing.NewHash(b.git("rev-parse", "HEAD"))
	b.git("-c", "pack.indexVersion=1", "repack", "-adq")
	b.write("edit", "x")
	b.refused(b.options(), "an index of another version than 2")
	r, err := openRepository(b.ws)
	must(t, err)
	defer r.Close()
	for range 3 {
		if _, _, err := r.findPacked(head); err == nil || !strings.Contains(err.Error(), packName(t, b.ws)+" cannot be read: an index of another version than 2") {
			t.Error(err)
		}
	}
}

// dies ends a try at a step, as far as the repository is concerned.
func (b *box) dies(at string, o Options) {
	b.Helper()
	type dead struct{}
	defer func() { step = func(string) {} }()
	defer func() {
		if _, ok := recover().(dead); !ok {
			b.Errorf("no step %s", at)
		}
	}()
	step = func(name string) {
		if name == at {
			panic(dead{})
		}
	}
	_, err := Write(b.Context(), b.source(), o)
	must(b, err)
}

// TestAgain: who died after the branch or its lock was there finds it done, or does it, when it is to go on.
func TestAgain(t *testing.T) {
	for _, at := range []string{"locked", "updated"} {
		for _, force := range []bool{false, true} {
			b := newBox(t, project(t))
			b.write("edit", "x")
			o := b.options()
			o.Message, o.Force = "what\n\nCaisson-Task: 1\nCaisson-Checkpoint: a\n", force
			b.dies(at, o)
			was, _ := os.ReadFile(b.ws + "/.git/refs/heads/caisson/x")
			o.When = when.Add(time.Hour)
			o.Message = strings.Replace(o.Message, ": a", ": b", 1)
			if !force || at == "locked" {
				b.refused(o, map[string]string{"locked": "git is at work", "updated": "the branch caisson/x exists"}[at])
			}
			o.Again = true
			r, err := Write(t.Context(), b.source(), o)
			must(t, err)
			b.clean()
			b.same(r)
			if got := b.git("rev-parse", "caisson/x"); got != r.Commit || r.Parent != b.git("rev-parse", "main") || r.Files != 1 ||
				at == "updated" && got != strings.TrimSpace(string(was)) {
				t.Errorf("%s: %+v, the branch is at %s, was %s", at, r, got, was)
			}
		}
	}
}

// TestAgainOthers: what is not exactly the same is another's, whatever it says.
func TestAgainOthers(t *testing.T) {
	message := "what\n\nCaisson-Task: 1\nCaisson-Checkpoint: a\n"
	for name, change := range map[string]func(b *box, o *Options){
		"task":    func(_ *box, o *Options) { o.Message = strings.Replace(message, "Task: 1", "Task: 2", 1) },
		"tree":    func(b *box, _ *Options) { b.write("edit", "y") },
		"parent":  func(b *box, _ *Options) { b.git("commit", "-q", "--allow-empty", "-m", "second") },
		"author":  func(_ *box, o *Options) { o.Author.Name = "other" },
		"message": func(_ *box, o *Options) { o.Message = "other" },
	} {
		for at, say := range map[string]string{"locked": "git is at work", "updated": "the branch caisson/x exists"} {
			b := newBox(t, project(t))
			b.write("edit", "x")
			o := b.options()
			o.Message = message
			b.dies(at, o)
			o.Again = true
			change(b, &o)
			if e := b.refused(o, say); e.Exists != (at == "updated") {
				t.Errorf("%s, %s: %+v", name, at, e)
			}
		}
	}
	for _, text := range []string{"", "\n", "nonsense\n", strings.Repeat("1", 40) + "\n"} {
		b := newBox(t, project(t))
		b.write("edit", "x")
		put(t, b.ws, ".git/refs/heads/caisson/x.lock", text)
		o := b.options()
		o.Again = true
		b.refused(o, "git is at work")
		if got, err := os.ReadFile(b.ws + "/.git/refs/heads/caisson/x.lock"); err != nil || string(got) != text {
			t.Errorf("the lock is %q, was %q: %v", got, text, err)
		}
	}
}

// FuzzTree: what decodes is encoded the same, and nothing makes the decoder fail otherwise.
func FuzzTree(f *testing.F) {
	f.Add([]byte("100644 a\x00aaaaaaaaaaaaaaaaaaaa40000 b\x00aaaaaaaaaaaaaaaaaaaa"))
	f.Add([]byte("160000 \xff\x00aaaaaaaaaaaaaaaaaaaa"))
	f.Add([]byte("100644"))
	f.Fuzz(func(t *testing.T, data []byte) {
		names, err := decodeTree(data)
		if err != nil {
			return
		}
		again, err := decodeTree(encodeTree(names))
		if err != nil || len(again) != len(names) {
			t.Fatalf("%q: %v", data, err)
		}
		for name, n := range names {
			if m := again[name]; m == nil || m.mode != n.mode || m.hash != n.hash {
				t.Fatalf("%q: %q became %+v", data, name, m)
			}
		}
	})
}

// FuzzPack: hostile packs end in an error, in bounded time and memory.
func FuzzPack(f *testing.F) {
	f.Add([]byte("\x95\x0bx\x9cKLJ\x06\x00\x02M\x01'"), int64(0))
	f.Add([]byte("\x60\x01\x60\x01\x60\x01"), int64(4))
	f.Fuzz(func(t *testing.T, data []byte, at int64) {
		p := &pack{index: strings.NewReader(string(data)), data: strings.NewReader(string(data)), count: int64(len(data) / 28)}
		if _, got, err := p.read(at); err == nil && len(got) > maxObject {
			t.Errorf("%d bytes", len(got))
		}
		if _, err := p.find(plumbing.Hash{byte(at)}); err == nil {
			_, _ = p.fanout(int(byte(at)))
		}
	})
}
