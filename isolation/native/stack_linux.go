package native

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/isolation"
)

// mounter makes the mounts of a start or of an exchange: the supervisor as root, else the child by its plan. release
// closes what it holds; the mounts live on where they have been attached.
type mounter struct {
	e        *Engine
	ids      isolation.IDs
	now      immediate // mounts made by the supervisor
	dirs     []int     // layers held open
	brief    int       // one of dirs that is open only until the next, plus one; 0: none
	fixed    int       // descriptors of the child's own
	attached bool      // idmapped layers are attached, on this thread
}

func (m *mounter) release() {
	m.now.close()
	for _, fd := range m.dirs {
		_ = unix.Close(fd) // nothing was written through them
	}
	m.dirs = nil
}

// maker is who makes a mount: the supervisor as root, else the child.
func (m *mounter) maker(p *plan) caller {
	if m.e.root {
		return &m.now
	}
	return p
}

// planned calls f, which plans, and as root makes the mounts. Kernels before 6.15 take no detached mount as an
// overlay's layer: there the idmapped layers are attached, in a mount namespace of this thread alone. The first refusal
// tells.
func (m *mounter) planned(f func() (*plan, error)) (p *plan, err error) {
	if !m.e.root {
		return f()
	}
	if !m.e.attachLayers.Load() {
		p, err = f()
		if !errors.Is(err, unix.EINVAL) {
			return p, err
		}
		m.now.close()
	}
	m.attached = true
	aerr := inPrivateMounts(func() error {
		var err error
		p, err = f()
		return err
	})
	if aerr == nil {
		m.e.attachLayers.Store(true)
	}
	return p, aerr
}

// inPrivateMounts runs f on a thread whose mount namespace is a fresh copy of the host's: what f attaches is seen by
// nobody, and gone with the thread.
func inPrivateMounts(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends here
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
				return fmt.Errorf("private mount namespace: %w", err)
			}
			if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				return fmt.Errorf("private mounts: %w", err)
			}
			return f()
		}()
	}()
	return <-done
}

// attachLayer puts an idmapped tree where it came from, for this thread only, and opens it there.
func (m *mounter) attachLayer(p *plan, tree any, label, dir string) (fdPath, error) {
	if _, err := m.now.call("attach "+label, unix.SYS_MOVE_MOUNT, tree, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fdPath{}, err
	}
	return m.open(p, label, dir)
}

// stackAttrs are every stack's.
const stackAttrs = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV

// stack makes one stack, detached.
func (m *mounter) stack(p *plan, s isolation.Stack) (any, error) {
	switch {
	case len(s.Lower) == 0:
		return cloneTree(m.maker(p), s.Upper, s.Target, stackAttrs)
	case s.Upper == "" && len(s.Lower) == 1: // an overlay without an upper needs two
		return m.readonly(p, s)
	}
	spec := overlaySpec{name: s.Target, userxattr: !m.e.root, attrs: stackAttrs}
	var err error
	if spec.lower, err = m.lower(p, s.Target, s.Lower); err != nil {
		return nil, err
	}
	if s.Upper == "" {
		spec.attrs |= unix.MOUNT_ATTR_RDONLY
	} else {
		if err := clearVolatile(s.Work); err != nil {
			return nil, err
		}
		if spec.upper, err = m.open(p, s.Target+" upper", s.Upper); err != nil {
			return nil, err
		}
		if spec.work, err = m.open(p, s.Target+" work", s.Work); err != nil {
			return nil, err
		}
	}
	tree, err := mountOverlay(m.maker(p), spec)
	if err != nil {
		return nil, fmt.Errorf("overlay at %s: %w", s.Target, err)
	}
	if s.Upper == "" {
		return tree, nil
	}
	return tree, writable(tree, s.Target)
}

// readonly is a read-only bind of a stack's only layer.
func (m *mounter) readonly(p *plan, s isolation.Stack) (any, error) {
	l := s.Lower[0]
	tree, err := cloneTree(m.maker(p), l.Path, s.Target, stackAttrs|unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return nil, err
	}
	uid, gid := m.ids.MountMappings(l.Map, m.ids.Owner, m.ids.OwnerGroup)
	if uid == nil {
		return tree, nil
	}
	if err := m.e.idmap(tree, s.Target, uid, gid); err != nil {
		return nil, idmapUnsupported(l.Path, err)
	}
	return tree, nil
}

// clearVolatile removes the mark that a volatile overlay leaves, so that its layer can be mounted again: what the mark
// warns of, a host that went down before the data was on disk, is for the journal to know.
func clearVolatile(work string) error {
	inner := filepath.Join(work, "work")
	if os.Geteuid() != 0 { // the kernel made these without any permission; they are ours
		for _, dir := range []string{"", "incompat", "incompat/volatile"} {
			if err := os.Chmod(filepath.Join(inner, dir), 0o700); err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("work directory of an earlier mount: %w", err)
			}
		}
	}
	if err := os.RemoveAll(filepath.Join(inner, "incompat")); err != nil {
		return fmt.Errorf("work directory of an earlier mount: %w", err)
	}
	return nil
}

// lower says how to open the lower directories, one after the other: a deep stack has more of them than we have descriptors.
func (m *mounter) lower(p *plan, name string, layers []isolation.Layer) (lowerDirs, error) {
	open := m.open
	deep := len(layers) > joinedLayers
	if deep && !m.e.appends && m.e.root && !m.attached {
		return lowerDirs{}, unix.EINVAL // needs a thread with a working directory of its own: see planned
	}
	if deep = deep && m.e.appends; deep {
		m.fixed++
		number := childFDs() + m.fixed // one for all
		open = func(p *plan, name, dir string) (fdPath, error) { return m.openBriefly(p, name, dir, number) }
	}
	d := lowerDirs{n: len(layers), open: func(i int) (fdPath, error) {
		return m.layer(p, name+" lower "+strconv.Itoa(i), layers[i], open)
	}}
	if deep {
		return d, nil
	}
	for i := range layers {
		dir, err := d.open(i)
		if err != nil {
			return d, err
		}
		d.joined = append(d.joined, dir)
	}
	return d, nil
}

// opener is open or openBriefly.
type opener func(p *plan, name, dir string) (fdPath, error)

// layer opens one lower directory, idmapped where it holds other ids than the sandbox's.
func (m *mounter) layer(p *plan, label string, l isolation.Layer, open opener) (fdPath, error) {
	uid, gid := m.ids.MountMappings(l.Map, m.ids.Owner, m.ids.OwnerGroup)
	if uid == nil {
		return open(p, label, l.Path)
	}
	// Not recursive: an overlay does not descend into mounts below a lower directory.
	tree, err := openTree(&m.now, l.Path, label, 0)
	if err != nil {
		return fdPath{}, err
	}
	layer := fdPath{label, m.now.last()}
	if err := m.e.idmap(tree, label, uid, gid); err != nil {
		return fdPath{}, idmapUnsupported(l.Path, err)
	}
	if m.attached {
		return m.attachLayer(p, tree, label, l.Path)
	}
	return layer, nil
}

// open holds a layer's directory, by whoever mounts it: an overlay takes only directories of the mounter's own
// mount namespace. The child's descriptors get numbers that are known beforehand.
func (m *mounter) open(p *plan, name, dir string) (fdPath, error) {
	if !m.e.root {
		m.fixed++
		return p.open(name, dir, childFDs()+m.fixed), nil
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fdPath{}, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	m.dirs = append(m.dirs, fd)
	return fdPath{name, fd}, nil
}

// openBriefly is open until the next call: the kernel has taken the directory when it knows the option.
func (m *mounter) openBriefly(p *plan, name, dir string, number int) (fdPath, error) {
	if !m.e.root {
		return p.open(name, dir, number), nil
	}
	if m.brief > 0 {
		i := m.brief - 1
		_ = unix.Close(m.dirs[i])
		m.dirs = slices.Delete(m.dirs, i, i+1)
	}
	d, err := m.open(p, name, dir)
	m.brief = 0
	if err == nil {
		m.brief = len(m.dirs)
	}
	return d, err
}

// childFDs is where the child's own descriptors begin: beyond what a supervisor has open, below its limit.
func childFDs() int {
	const most, room = 8192, 96
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err != nil {
		return most - room
	}
	return int(min(own.Cur, most)) - room
}

func (p *plan) open(name, dir string, number int) fdPath {
	fd := p.add("open "+name, unix.SYS_OPENAT, unix.AT_FDCWD, dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	p.add("keep "+name, unix.SYS_DUP3, fd, number, unix.O_CLOEXEC)
	p.add("close", unix.SYS_CLOSE, fd)
	return fdPath{name, number}
}

// overlaySpec is one overlay to mount.
type overlaySpec struct {
	name        string
	lower       lowerDirs
	upper, work fdPath // both zero: read-only
	userxattr   bool   // unprivileged: overlay's own attributes are user.overlay.*
	attrs       int    // MOUNT_ATTR_*
}

// lowerDirs are the lower directories, newest first: open already, or to be opened one by one.
type lowerDirs struct {
	n      int
	open   func(i int) (fdPath, error)
	joined []fdPath
}

// joinedLayers is how many layers fit into one fsconfig string as /proc/self/fd/N.
const joinedLayers = 10

// optionSize is what fsconfig takes as a string, in bytes.
const optionSize = 255

// mountOverlay makes a detached overlay. The options are fixed: a layer's format depends on them.
func mountOverlay(c caller, o overlaySpec) (any, error) {
	return o.lower.among(c, func() (any, error) { return o.mount(c) })
}

func (o overlaySpec) mount(c caller) (any, error) {
	fs, err := c.call("fsopen overlay "+o.name, unix.SYS_FSOPEN, "overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, err
	}
	if err := o.lower.add(c, fs); err != nil {
		return nil, err
	}
	for _, kv := range o.options() {
		cmd, value := unix.FSCONFIG_SET_STRING, any(kv[1])
		if kv[1] == "" {
			cmd, value = unix.FSCONFIG_SET_FLAG, nil
		}
		if _, err := c.call("overlay "+kv[0], unix.SYS_FSCONFIG, fs, cmd, kv[0], value, 0); err != nil {
			return nil, err
		}
	}
	if _, err := c.call("create overlay "+o.name, unix.SYS_FSCONFIG, fs, unix.FSCONFIG_CMD_CREATE, nil, nil, 0); err != nil {
		return nil, err
	}
	return c.call("fsmount overlay "+o.name, unix.SYS_FSMOUNT, fs, unix.FSMOUNT_CLOEXEC, o.attrs)
}

// add names the lower directories to the kernel: in one string, or one by one.
func (l lowerDirs) add(c caller, fs any) error {
	if l.joined != nil {
		paths := make([]string, l.n)
		for i, dir := range l.joined {
			paths[i] = dir.String()
			if l.n > joinedLayers {
				paths[i] = strconv.Itoa(dir.fd)
			}
		}
		value := strings.Join(paths, ":")
		if len(value) > optionSize {
			return fmt.Errorf("%d layers are too many for this kernel (since 6.8 it takes 500)", l.n)
		}
		_, err := c.call("overlay lowerdir", unix.SYS_FSCONFIG, fs, unix.FSCONFIG_SET_STRING, "lowerdir", value, 0)
		return err
	}
	for i := range l.n {
		dir, err := l.open(i)
		if err != nil {
			return err
		}
		if _, err := c.call("overlay lowerdir+", unix.SYS_FSCONFIG, fs, unix.FSCONFIG_SET_STRING, "lowerdir+", dir.String(), 0); err != nil {
			return err
		}
	}
	return nil
}

// among runs f, which makes an overlay, where its layers have short names: in the directory of descriptors. The
// thread, or the child, must have a working directory of its own.
func (l lowerDirs) among(c caller, f func() (any, error)) (any, error) {
	if l.joined == nil || l.n <= joinedLayers {
		return f()
	}
	back, err := c.call("find the working directory", unix.SYS_OPENAT2, unix.AT_FDCWD, ".", beneath(), unsafe.Sizeof(unix.OpenHow{}))
	if err != nil {
		return nil, err
	}
	if _, err := c.call("enter the descriptors", unix.SYS_CHDIR, "/proc/thread-self/fd"); err != nil {
		return nil, err
	}
	tree, err := f()
	if err != nil {
		return nil, err
	}
	_, err = c.call("return", unix.SYS_FCHDIR, back)
	return tree, err
}

func (o overlaySpec) options() [][2]string {
	var kv [][2]string
	if o.upper != (fdPath{}) {
		// volatile: a task's fsync is free, and unmounting does not flush the host's disk; promote syncs.
		kv = append(kv, [2]string{"upperdir", o.upper.String()}, [2]string{"workdir", o.work.String()}, [2]string{"volatile", ""})
	}
	kv = append(kv, [2]string{"index", "off"}, [2]string{"metacopy", "off"}, [2]string{"xino", "auto"})
	if o.userxattr {
		return append(kv, [2]string{"userxattr", ""})
	}
	return append(kv, [2]string{"redirect_dir", "on"})
}
