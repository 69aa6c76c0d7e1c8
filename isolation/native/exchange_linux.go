package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/isolation/native/internal/holders"
)

// Exchange replaces the mounts at the stacks' targets. Everybody inside stands still meanwhile, so the old mounts may go
// before the new ones come. They go when umount2(MNT_EXPIRE) has said that nobody uses them: it sees also what /proc does
// not show, a descriptor on its way through a socket. So nobody can write to an old upper afterwards.
func (b *sandbox) Exchange(ctx context.Context, stacks ...isolation.Stack) error {
	if len(stacks) == 0 {
		return nil
	}
	if err := checkStacks(stacks); err != nil {
		return fmt.Errorf("exchange in sandbox %s: %w", b.id, err)
	}
	b.exchanging.Lock()
	defer b.exchanging.Unlock()
	x := &exchange{mounter: mounter{e: b.e, ids: b.spec.IDs}, b: b, stacks: stacks}
	defer x.mounter.release()
	if err := x.makeTrees(); err != nil { // as root, while they still run
		return fmt.Errorf("exchange in sandbox %s: %w", b.id, err)
	}
	release, err := b.Hold(ctx)
	if err != nil {
		return err
	}
	b.mu.Lock()
	err = x.run(ctx)
	b.mu.Unlock()
	err = errors.Join(err, release())
	if err != nil && !errors.Is(err, isolation.ErrHeld) {
		return fmt.Errorf("exchange in sandbox %s: %w", b.id, err)
	}
	return err
}

func checkStacks(stacks []isolation.Stack) error {
	for i, s := range stacks {
		if err := s.Validate(); err != nil {
			return err
		}
		for _, other := range stacks[:i] {
			if s.Target == other.Target || below(s.Target, other.Target) || below(other.Target, s.Target) {
				return fmt.Errorf("%s and %s overlap", other.Target, s.Target)
			}
		}
	}
	return nil
}

// exchange is one exchange in progress.
type exchange struct {
	mounter
	b      *sandbox
	stacks []isolation.Stack
	trees  []any      // the new mounts, as root
	kept   []submount // what is mounted below the old ones, to be kept

	park, expire, leave int // steps: the first that parks, that asks whether a mount is used, and that unmounts one
}

// submount is a mount on a target's mount.
type submount struct {
	stack int
	path  string // from the target
	dir   bool
}

// makeTrees makes the new mounts, detached, when that is the supervisor's to do.
func (x *exchange) makeTrees() error {
	if !x.e.root {
		return nil
	}
	_, err := x.planned(func() (*plan, error) {
		x.trees = x.trees[:0]
		return nil, x.addTrees(nil)
	})
	return err
}

func (x *exchange) addTrees(p *plan) error {
	for _, s := range x.stacks {
		tree, err := x.stack(p, s)
		if err != nil {
			return err
		}
		x.trees = append(x.trees, tree)
	}
	return nil
}

// run does it, with b.mu held and nobody running inside. That a mount is used may be a moment's: somebody else forked
// while we had it open. So that counts only when it lasts.
func (x *exchange) run(ctx context.Context) error {
	if x.b.closed {
		return os.ErrClosed
	}
	targets := make([]string, len(x.stacks))
	for i, s := range x.stacks {
		targets[i] = s.Target
	}
	held, err := x.b.holders(ctx, targets)
	if err != nil {
		return err
	}
	if len(held) > 0 {
		return &isolation.HeldError{Holders: held}
	}
	if err := x.findSubmounts(targets); err != nil {
		return err
	}
	return x.lasting(ctx, x.attempt)
}

// lasting repeats f while it finds a use that may be a moment's.
func (x *exchange) lasting(ctx context.Context, f func(context.Context) error) error {
	const first, most = 500 * time.Microsecond, 32 * time.Millisecond
	for delay := first; ; delay *= 2 {
		err := f(ctx)
		if delay > most || !errors.Is(err, isolation.ErrHeld) || rest(ctx, delay) != nil {
			return err
		}
	}
}

// references returns the targets that somebody uses though /proc does not show it, as a HeldError. Nobody may be running
// inside; b.mu is held.
func (b *sandbox) references(ctx context.Context, targets []string) error {
	x := &exchange{mounter: mounter{e: b.e}, b: b}
	for _, target := range targets {
		x.stacks = append(x.stacks, isolation.Stack{Target: target})
	}
	if err := x.findSubmounts(targets); err != nil {
		return err
	}
	return x.lasting(ctx, x.ask)
}

// ask is an exchange that asks whether the mounts are in use, and leaves them where they are.
func (x *exchange) ask(ctx context.Context) error {
	p := &plan{}
	x.enter(p)
	for _, s := range x.stacks {
		x.touch(p, s)
	}
	from := make([]ref, len(x.kept))
	for i, s := range x.kept {
		from[i] = p.find(x.name(s))
	}
	x.planPark(p, from)
	asked := len(p.steps)
	for _, s := range x.stacks {
		p.soft("is "+s.Target+" in use", unix.SYS_UMOUNT2, relative(s.Target), unix.MNT_EXPIRE|unix.UMOUNT_NOFOLLOW)
	}
	for i, s := range x.kept {
		at := p.find(x.name(s))
		p.add("put back "+x.name(s), unix.SYS_MOVE_MOUNT, from[i], "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	}
	p.add("close descriptors", unix.SYS_CLOSE_RANGE, 3, uintptr(^uint32(0)), 0)
	answers, err := x.b.enterBriefly(p)
	if err != nil {
		return x.failClosed(ctx, err)
	}
	held := &isolation.HeldError{}
	for i, s := range x.stacks {
		switch errno := syscall.Errno(-answers[asked+i]); errno {
		case unix.EAGAIN:
		case unix.EBUSY:
			held.Holders = append(held.Holders, isolation.Holder{Target: s.Target, What: isolation.HeldReference})
		default:
			return x.failClosed(ctx, fmt.Errorf("is %s in use: %w", s.Target, errno))
		}
	}
	if len(held.Holders) == 0 {
		return nil
	}
	return held
}

// findSubmounts finds what is mounted below the targets.
func (x *exchange) findSubmounts(targets []string) error {
	table, err := holders.ReadTable(x.b.pid)
	if err != nil {
		return err
	}
	root, err := unix.Open("/proc/"+strconv.Itoa(x.b.pid)+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("root of PID 1: %w", err)
	}
	defer func() { _ = unix.Close(root) }()
	x.kept = nil
	for i, target := range targets {
		m, ok := table.Mounted(target)
		if !ok {
			return fmt.Errorf("nothing is mounted at %s", target)
		}
		for _, sub := range table.Below(m) {
			path, ok := strings.CutPrefix(sub.Point, target+"/")
			if !ok {
				return fmt.Errorf("a mount on %s is at %s", target, sub.Point)
			}
			fd, err := unix.Openat2(root, relative(sub.Point), beneath())
			if err != nil {
				return fmt.Errorf("mount at %s: %w", sub.Point, err)
			}
			var st unix.Stat_t
			err = unix.Fstat(fd, &st)
			_ = unix.Close(fd)
			if err != nil {
				return fmt.Errorf("mount at %s: %w", sub.Point, err)
			}
			x.kept = append(x.kept, submount{i, path, st.Mode&unix.S_IFMT == unix.S_IFDIR})
		}
	}
	return nil
}

// beneath finds a path below a directory, of which no part is a link.
func beneath() *unix.OpenHow {
	return &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
}

// attempt runs the plan once.
func (x *exchange) attempt(ctx context.Context) error {
	p := &plan{stop: x.e.stop}
	if err := x.plan(p); err != nil {
		return err
	}
	_, err := x.b.enterBriefly(p)
	if err == nil {
		return nil
	}
	var step *StepError
	if errors.As(err, &step) && step.Index <= x.leave { // nothing is unmounted: all is as it was but for what is parked
		if uerr := x.unpark(step.Index - x.park); uerr != nil {
			return x.failClosed(ctx, errors.Join(err, uerr))
		}
		if step.Errno == unix.EBUSY && step.Index >= x.expire {
			target := x.stacks[max(step.Index-x.expire, 0)%len(x.stacks)].Target
			return &isolation.HeldError{Holders: []isolation.Holder{{Target: target, What: isolation.HeldReference}}}
		}
		return err
	}
	return x.failClosed(ctx, err)
}

// failClosed ends a sandbox whose mounts are neither the old ones nor the new ones.
func (x *exchange) failClosed(ctx context.Context, err error) error {
	return errors.Join(err, os.ErrClosed, x.b.close(context.WithoutCancel(ctx)))
}

// parkings are two places that every sandbox has, for directories and for files; only mounts and no process is ever there.
const parkDir, parkFile = "dev/mqueue", "dev/full"

func (s submount) parking() string {
	if s.dir {
		return parkDir
	}
	return parkFile
}

// plan is the whole exchange as the child does it.
func (x *exchange) plan(p *plan) error {
	if x.e.root {
		x.enter(p)
	} else {
		p.dieWithSupervisor()
		p.add("undumpable", unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
		p.add("enter user namespace", unix.SYS_SETNS, hostFD{"PID 1", x.b.pidfd}, unix.CLONE_NEWUSER)
		// An overlay takes only layers of the mounter's own mount namespace, and its own user namespace must own that.
		p.add("new mount namespace", unix.SYS_UNSHARE, unix.CLONE_NEWNS)
		p.add("private mounts", unix.SYS_MOUNT, "none", "/", nil, unix.MS_REC|unix.MS_PRIVATE, nil)
		x.trees, x.fixed = nil, 0
		if err := x.addTrees(p); err != nil {
			return err
		}
		p.add("enter mount namespace", unix.SYS_SETNS, hostFD{"PID 1", x.b.pidfd}, unix.CLONE_NEWNS)
		p.dieWithSupervisor()
	}
	var old []ref
	for _, s := range x.stacks {
		old = append(old, x.touch(p, s))
	}
	from, to := x.findKept(p)
	x.planPark(p, from)
	x.expire = len(p.steps)
	for _, s := range x.stacks {
		p.add("is "+s.Target+" in use", unix.SYS_UMOUNT2, relative(s.Target), unix.MNT_EXPIRE|unix.UMOUNT_NOFOLLOW)
		p.flag(opAgain)
	}
	x.leave = len(p.steps)
	for _, s := range x.stacks {
		// Not MNT_EXPIRE again: a lookup that meets a mount of somebody else on this host takes the mark off.
		p.add("unmount "+s.Target, unix.SYS_UMOUNT2, relative(s.Target), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	for i, s := range x.stacks {
		p.attach(x.trees[i], s.Target)
	}
	for i, s := range x.kept {
		p.add("attach "+x.name(s), unix.SYS_MOVE_MOUNT, from[i], "", to[i], "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	}
	x.letGo(p, old)
	return nil
}

func (x *exchange) name(s submount) string { return x.stacks[s.stack].Target + "/" + s.path }

// enter plans the way into the sandbox's mounts.
func (x *exchange) enter(p *plan) {
	p.dieWithSupervisor()
	if !x.e.root {
		p.add("undumpable", unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	}
	p.add("enter namespaces", unix.SYS_SETNS, hostFD{"PID 1", x.b.pidfd}, unix.CLONE_NEWUSER|unix.CLONE_NEWNS)
	p.dieWithSupervisor() // a change of credentials clears it
}

func (p *plan) dieWithSupervisor() {
	p.add("die with the supervisor", unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, unix.SIGKILL, 0, 0, 0)
}

// find finds a path of which no part is a link: the workspace is the task's, and so are its links.
func (p *plan) find(path string) ref {
	how := beneath()
	return p.add("find "+path, unix.SYS_OPENAT2, unix.AT_FDCWD, relative(path), how, unsafe.Sizeof(*how))
}

// touch takes the mark off a mount that MNT_EXPIRE may have left, and holds its filesystem by a mount of its own, so that
// unmounting does not free it: that takes a time that grows with what was written.
func (x *exchange) touch(p *plan, s isolation.Stack) ref {
	at := p.find(s.Target)
	old := p.add("keep old "+s.Target, unix.SYS_OPEN_TREE, at, "",
		unix.AT_EMPTY_PATH|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	p.add("close", unix.SYS_CLOSE, at)
	return old
}

// planPark moves what is mounted below the targets out of the way: it would be a use of them.
func (x *exchange) planPark(p *plan, from []ref) {
	x.park = len(p.steps)
	for i, s := range x.kept {
		p.add("park "+x.name(s), unix.SYS_MOVE_MOUNT, from[i], "", unix.AT_FDCWD, s.parking(), unix.MOVE_MOUNT_F_EMPTY_PATH)
	}
}

// findKept finds what is to be kept, and where in the new mounts.
func (x *exchange) findKept(p *plan) (from, to []ref) {
	for _, s := range x.kept {
		from = append(from, p.find(x.name(s)))
		how := beneath()
		to = append(to, p.add("find new "+x.name(s), unix.SYS_OPENAT2, x.trees[s.stack], s.path, how, unsafe.Sizeof(*how)))
	}
	return from, to
}

// letGo leaves the child with the old filesystems alone: the supervisor goes on, and the child's end frees them.
func (x *exchange) letGo(p *plan, old []ref) {
	first := childFDs()
	for i, fd := range old {
		p.add("keep old "+x.stacks[i].Target, unix.SYS_DUP3, fd, first+i, unix.O_CLOEXEC)
	}
	p.add("close descriptors", unix.SYS_CLOSE_RANGE, first+len(old), uintptr(^uint32(0)), 0)
	p.add("close descriptors", unix.SYS_CLOSE_RANGE, 0, first-1, 0) // the pipe, too
}

// unpark puts the first n submounts back, the latest first: it lies on top.
func (x *exchange) unpark(n int) error {
	n = min(n, len(x.kept))
	if n <= 0 {
		return nil
	}
	p := &plan{}
	x.enter(p)
	for i := n - 1; i >= 0; i-- {
		s := x.kept[i]
		at := p.find(x.name(s))
		p.add("put back "+x.name(s), unix.SYS_MOVE_MOUNT, unix.AT_FDCWD, s.parking(), at, "", unix.MOVE_MOUNT_T_EMPTY_PATH)
		p.add("close", unix.SYS_CLOSE, at)
	}
	_, err := x.b.enterBriefly(p)
	return err
}
