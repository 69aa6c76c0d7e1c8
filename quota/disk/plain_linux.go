package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/quota/disk/internal/measure"
)

// directory is a volume that is a directory of the state directory's own file system.
type directory struct{ path string }

func (d directory) top() string { return d.path }
func (directory) close() error  { return nil }

func (d directory) sync(*place) error {
	f, err := os.Open(d.path)
	if err != nil {
		return err
	}
	return errors.Join(os.NewSyscallError("syncfs", unix.Syncfs(int(f.Fd()))), f.Close())
}

// unplanned is what the mechanisms have in common whose records need nothing more.
type unplanned struct{}

func (unplanned) plan(context.Context, *place) error { return nil }

// makePlain makes features/ID/disk, empty.
func (p *place) makePlain() error {
	if err := os.Mkdir(p.plain(), 0o700); err != nil {
		return err
	}
	return os.Chmod(p.plain(), 0o700) // whatever the umask is
}

func (p *place) makeContent() error {
	content := filepath.Join(p.plain(), contentName)
	if err := os.Mkdir(content, 0o700); err != nil {
		return err
	}
	return os.Chmod(content, 0o700) // whatever the umask is
}

// memory is the mechanism Tmpfs. features/ID/disk is only there to be locked.
type memory struct{ unplanned }

func (memory) lockFile(p *place) string                 { return p.plain() }
func (memory) create(_ context.Context, p *place) error { return p.makePlain() }
func (memory) remove(p *place) error                    { return os.RemoveAll(p.plain()) }

func (memory) idle(context.Context, *place) (quota.Bytes, error) { return 0, nil }

func (memory) open(_ context.Context, p *place) (volume, error) {
	parameters := append([]string{"mode=0700"}, memorySize(&p.record)...)
	root, err := mount("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOATIME, parameters...)
	if err != nil {
		return nil, err
	}
	var st unix.Statfs_t
	if err := furnish(procPath(root)); err != nil {
		return nil, errors.Join(err, root.Close())
	}
	if err := unix.Fstatfs(int(root.Fd()), &st); err != nil {
		return nil, errors.Join(os.NewSyscallError("fstatfs", err), root.Close())
	}
	p.Free, p.FreeInodes = quota.Bytes(int64(st.Bavail)*st.Frsize), quota.Count(st.Ffree)
	if err := p.write(); err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return &memoryVolume{imageVolume{root}}, nil
}

// memorySize are the options of tmpfs. It counts no directory's bytes, but 20 bytes or so of the names.
func memorySize(r *record) []string {
	size := []string{"size=" + strconv.FormatInt(int64(r.Bytes+Ballast+slackBytes), 10)}
	if r.Inodes == nil {
		return append(size, "nr_inodes=0")
	}
	return append(size, fmt.Sprintf("nr_inodes=%d", *r.Inodes+BallastInodes+slackInodes+2))
}

type memoryVolume struct{ imageVolume }

func (memoryVolume) sync(*place) error { return nil } // nothing of it survives anyway

func (v *memoryVolume) resize(_ context.Context, _ *place, next *record) error {
	ctx, err := unix.Fspick(int(v.root.Fd()), "", unix.FSPICK_EMPTY_PATH|unix.FSPICK_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("fspick", err)
	}
	defer func() { _ = unix.Close(ctx) }()
	var before, after unix.Statfs_t
	if err := unix.Fstatfs(int(v.root.Fd()), &before); err != nil {
		return os.NewSyscallError("fstatfs", err)
	}
	if (next.Inodes == nil) != (before.Files == 0) {
		return fmt.Errorf("%w: a limit of inodes cannot be added or taken away", ErrResize)
	}
	for _, o := range memorySize(next) {
		key, value, _ := strings.Cut(o, "=")
		if err := unix.FsconfigSetString(ctx, key, value); err != nil {
			return explain(ctx, "fsconfig "+o, err)
		}
	}
	if err := unix.FsconfigReconfigure(ctx); err != nil {
		return fmt.Errorf("%w: %w", ErrResize, explain(ctx, "remount", err)) // it holds more than that
	}
	if err := unix.Fstatfs(int(v.root.Fd()), &after); err != nil {
		return os.NewSyscallError("fstatfs", err)
	}
	next.Free += quota.Bytes(int64(after.Bavail-before.Bavail) * after.Frsize)
	next.FreeInodes += quota.Count(after.Ffree - before.Ffree)
	return nil
}

// watched is the mechanism Watched: a directory, and nothing that stops a writer.
type watched struct{ unplanned }

func (watched) lockFile(p *place) string { return p.plain() }

func (watched) create(_ context.Context, p *place) error {
	if err := p.makePlain(); err != nil {
		return err
	}
	return p.makeContent()
}
func (watched) remove(p *place) error { return os.RemoveAll(p.plain()) }

func (watched) open(_ context.Context, p *place) (volume, error) {
	return watchedVolume{directory{p.plain()}}, nil
}

func (watched) idle(ctx context.Context, p *place) (quota.Bytes, error) {
	u, err := watchedVolume{directory{p.plain()}}.usage(&p.record)
	return u.Used, err
}

type watchedVolume struct{ directory }

func (watchedVolume) reserve(*record, bool) error { return nil } // nothing stops a writer there

func (watchedVolume) resize(context.Context, *place, *record) error { return nil }

// many is how much of its limits a tree is counted up to: who is over them is over them.
const many = 4

func (v watchedVolume) usage(r *record) (Usage, error) {
	root, err := os.Open(filepath.Join(v.path, contentName))
	if err != nil {
		return Usage{}, err
	}
	defer func() { _ = root.Close() }()
	sum, err := measure.Tree(root, func(s measure.Sum) bool {
		return s.Bytes > many*int64(r.Bytes) || r.Inodes != nil && s.Inodes > many*int64(*r.Inodes)
	})
	return Usage{Used: quota.Bytes(sum.Bytes) - slackBytes, Inodes: quota.Count(sum.Inodes) - slackInodes}, err
}
