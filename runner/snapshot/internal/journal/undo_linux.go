package journal

import (
	"context"
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runner/snapshot/internal/beneath"
)

// Touched is an object that is as it was, but for a ctime that is our own doing.
type Touched struct {
	Path []byte `json:"path"`
	Seen Seen   `json:"seen"`
}

// Undo puts the old state back and removes the stage. What others changed meanwhile is left as they made it. It
// returns the objects whose ctime it or the promote changed, without those that others changed, too.
func (p *Plan) Undo(base *beneath.Root) ([]Touched, error) {
	if p.Stage == "" {
		return nil, nil
	}
	fd, err := base.Open(p.Stage, beneath.ReadDir)
	if err == nil {
		stage := &beneath.Root{FD: fd, Path: base.Path + "/" + p.Stage}
		err = p.undoOps(base, stage)
		stage.Close()
		if err != nil {
			return nil, err
		}
	} else if !beneath.Gone(err) {
		return nil, base.Fail("open", p.Stage, err)
	}
	if err := base.RemoveAll(context.Background(), p.Stage); err != nil {
		return nil, err
	}
	for _, d := range slices.Backward(p.Dirs) {
		if err := d.Restore(base); err != nil && !beneath.Gone(err) {
			return nil, base.Fail("restore", string(d.Path), err)
		}
	}
	touched, err := p.touched(base)
	if err != nil {
		return nil, err
	}
	return touched, Syncfs(base)
}

// Syncfs makes the workspace durable.
func Syncfs(base *beneath.Root) error {
	if err := unix.Syncfs(base.FD); err != nil {
		return base.Fail("syncfs", ".", err)
	}
	return nil
}

func (p *Plan) undoOps(base, stage *beneath.Root) error {
	at := beneath.Cursor{Root: base}
	defer at.Close()
	for i, o := range slices.Backward(p.Ops) {
		dir, name, err := at.Parent(string(o.Path))
		if beneath.Gone(err) {
			continue
		}
		if err == nil {
			err = o.undo(stage.FD, i, dir, name)
		}
		if err != nil {
			return base.Fail("restore", string(o.Path), err)
		}
		Step("undo")
	}
	return nil
}

// undo takes one op back, as far as it was done.
func (o *Op) undo(stage, i, dir int, name string) error {
	now, err := Inode(dir, name)
	if err != nil {
		return err
	}
	old, err := Inode(stage, Aside(i))
	if err != nil {
		return err
	}
	if o.New != 0 && now == o.New {
		if o.Old.Inode == 0 || old == o.Old.Inode {
			if err := RenameNew(dir, name, stage, Slot(i)); err != nil {
				return err
			}
		} else {
			if err := Exchange(dir, name, stage, Slot(i)); err != nil {
				return err
			}
			return o.narrow(dir, name)
		}
	}
	if o.Old.Inode == 0 {
		return nil
	}
	from := Aside(i)
	if o.New == 0 {
		from = Slot(i)
		if old, err = Inode(stage, from); err != nil {
			return err
		}
	}
	if old != o.Old.Inode {
		return nil // it never left its place
	}
	err = RenameNew(stage, from, dir, name)
	if errors.Is(err, unix.EEXIST) {
		return nil // somebody made a new one
	}
	if err != nil {
		return err
	}
	return o.narrow(dir, name)
}

// narrow puts the mode of a directory right that was widened to move it.
func (o *Op) narrow(dir int, name string) error {
	if o.Old.Mode&unix.S_IFMT != unix.S_IFDIR || os.Geteuid() == 0 {
		return nil
	}
	return beneath.ChmodDir(dir, name, o.Old.Mode&0o7777)
}

// Inode returns a name's inode number; 0 for none.
func Inode(dir int, name string) (uint64, error) {
	var st unix.Stat_t
	err := beneath.StatAt(dir, name, &st)
	if beneath.Gone(err) {
		return 0, nil
	}
	return st.Ino, err
}

// touched looks at what the plan names.
func (p *Plan) touched(base *beneath.Root) ([]Touched, error) {
	var all []Touched
	at := beneath.Cursor{Root: base}
	defer at.Close()
	look := func(path []byte, old *Seen) error {
		dir, name, err := at.Parent(string(path))
		if name == "" {
			name = "."
		}
		var st unix.Stat_t
		if err == nil {
			err = beneath.StatAt(dir, name, &st)
		}
		if beneath.Gone(err) {
			return nil
		}
		if err != nil {
			return base.Fail("stat", string(path), err)
		}
		if now := See(&st); old == nil || old.Same(now) && old.Ctime != now.Ctime {
			all = append(all, Touched{path, now})
		}
		return nil
	}
	for i := range p.Ops {
		if o := &p.Ops[i]; o.Old.Inode != 0 {
			if err := look(o.Path, &o.Old); err != nil {
				return nil, err
			}
		}
	}
	for i := range p.Linked {
		if err := look(p.Linked[i].Path, &p.Linked[i].Seen); err != nil {
			return nil, err
		}
	}
	for i := range p.Dirs {
		if err := look(p.Dirs[i].Path, nil); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Restore puts a directory's old attributes back, where they differ.
func (d *DirOp) Restore(base *beneath.Root) error {
	fd, err := base.Open(string(d.Path), beneath.ReadDir)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	unix.Close(fd)
	if err != nil {
		return err
	}
	now := AttrOf(&st)
	if now.Mtime == d.Old.Mtime && (!d.Mode || now.Mode == d.Old.Mode) && !d.Xattrs {
		return nil
	}
	return d.Set(base, &d.Old, true)
}

// RestoreRoot sets the time of the workspace's root, which making and removing the stage changed, to what it is in the
// new state.
func (p *Plan) RestoreRoot(base *beneath.Root) error {
	if p.Stage == "" {
		return nil
	}
	root := DirOp{Old: p.Dirs[0].Old}
	if p.Dirs[0].SetMtime {
		root.Old = p.Dirs[0].New
	}
	if err := root.Restore(base); err != nil {
		return base.Fail("restore", ".", err)
	}
	return nil
}

// AttrOf is what stat tells of a directory's attributes.
func AttrOf(st *unix.Stat_t) DirAttr {
	return DirAttr{Mode: st.Mode & 0o7777, Mtime: [2]int64{st.Mtim.Sec, st.Mtim.Nsec}}
}

// Set gives a directory of the base the attributes of one of the sides. mtime says whether its time, too.
func (d *DirOp) Set(base *beneath.Root, a *DirAttr, mtime bool) error {
	fd, err := base.Open(string(d.Path), beneath.ReadDir)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if d.Xattrs {
		if err := beneath.SetXattrs(fd, a.Xattrs); err != nil {
			return err
		}
	}
	if d.Mode {
		if err := unix.Fchmod(fd, a.Mode); err != nil {
			return err
		}
	}
	if !mtime {
		return nil
	}
	err = beneath.SetMtime(fd, unix.Timespec{Sec: a.Mtime[0], Nsec: a.Mtime[1]})
	if errors.Is(err, unix.EPERM) && os.Geteuid() != 0 {
		return nil // another owner's directory, in which we may only write
	}
	return err
}
