package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/profiles"
	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/quota/disk"
	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/snapshot"
	"github.com/caisson-dev/caisson/runner/snapshot/copytree"
)

// diagnoseDisk asks what can bound a feature's disk, with the limits of the default profile, and how many more features
// fit. The control's row is the answer in short.
func (d *diagnosis) diagnoseDisk(ctx context.Context) (isolation.Feature, disk.Mechanism) {
	row := isolation.Feature{Control: isolation.ControlDiskQuota}
	p, err := profiles.Load(profiles.LoadOptions{Name: "default"})
	if err != nil {
		row.Detail = err.Error()
		return row, ""
	}
	limits := diskLimits(p)
	d.Disk = disk.Probe(ctx, d.StateDir)
	mechanism, err := disk.Choose(d.Disk, limits, true, false)
	if err != nil {
		row.Support, row.Detail = isolation.Unsupported, err.Error()
		if u, ok := errors.AsType[*disk.UnavailableError](err); ok {
			row.Remedy = u.Remedy
		}
		return row, disk.Watched
	}
	row.Support, row.Detail = isolation.Available, fmt.Sprintf("%s, %s and %s for each feature by default", mechanism, limits.Bytes, inodesText(limits.Inodes))
	if _, err := os.Stat(d.StateDir); err == nil {
		d.Room = diskRoom(d.StateDir, limits)
	}
	return row, mechanism
}

// diagnoseLayers asks how layers can be kept where they will lie. The control is that the workspace is never written, which
// copies keep as well.
func (d *diagnosis) diagnoseLayers(engine isolation.Engine, m disk.Mechanism) isolation.Feature {
	row := isolation.Feature{Control: isolation.ControlOverlay, Support: isolation.Unsupported,
		Remedy: "put the state directory (CAISSON_STATE) on ext4, xfs, btrfs or tmpfs"}
	e, ok := engine.(interface {
		Root() bool
		CanIDMap(path string) error
		CanOverlay(dir, base string) error
	})
	at, err := disk.Existing(d.StateDir)
	if err != nil || !ok {
		row.Detail = fmt.Sprint("the state directory cannot be asked: ", err)
		return row
	}
	layers := at
	if m == disk.Ext4 { // they lie on a file system of their own, which takes them; what is asked is the kernel
		layers = memory
	}
	refused := e.CanOverlay(layers, "")
	if refused == nil && e.Root() {
		if err := e.CanIDMap(at); err != nil { // what lies below them
			refused = fmt.Errorf("the state directory cannot be idmapped: %w", err)
		}
	}
	if refused == nil {
		d.Layers = &runner.Layering{Driver: snapshot.DriverOverlay}
		row.Support, row.Detail, row.Remedy = isolation.Available, "overlay, in "+layers, ""
		return row
	}
	if !isolation.Refused(refused) {
		row.Support, row.Detail, row.Remedy = isolation.Unknown, refused.Error(), ""
		return row
	}
	if err := copytree.Possible(at); err != nil {
		row.Detail = fmt.Sprintf("%v; nor can files be copied: %v", refused, err)
		return row
	}
	d.Layers = &runner.Layering{Driver: snapshot.DriverCopy, Reason: refused.Error()}
	row.Support, row.Detail = isolation.Available, fmt.Sprintf("not here (%v): whole copies instead, which are slower", refused)
	return row
}

// memory is a directory that lies on a tmpfs on every Linux.
const memory = "/dev/shm"

// diskLimits are a profile's limits for one feature; where it has none, those that are asked about.
func diskLimits(p *profiles.Effective) disk.Limits {
	l := disk.Limits{Bytes: quota.GiB, Inodes: p.Limits.Inodes, Total: p.DiskTotal}
	if p.Limits.Disk != nil {
		l.Bytes = *p.Limits.Disk
	}
	return l
}

func inodesText(n *quota.Count) string {
	if n == nil {
		return "any number of inodes"
	}
	return fmt.Sprintf("%s inodes", n)
}

// diskRoom is nil where it cannot be had.
func diskRoom(stateDir string, l disk.Limits) *disk.Room {
	s, err := disk.OpenStore(stateDir)
	if err != nil {
		return nil
	}
	room, err := s.Room(l)
	if err != nil {
		return nil
	}
	return &room
}

func (d *diagnosis) printDisk(w *tabwriter.Writer) {
	fmt.Fprintln(w, "\nDISK QUOTA\tBYTES\tINODES\tOUTLIVES\tDETAIL")
	for _, s := range d.Disk {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", s.Mechanism, yesNo(s.Bytes), yesNo(s.Inodes), yesNo(s.Persistent), firstLine(s.Reason))
	}
	if r := d.Room; r != nil {
		fmt.Fprintf(w, "\n%d features hold %s; %d more with the default limits fit (%s free on the host)\n", r.Units, size(int64(r.Promised)), r.More, size(int64(r.HostFree)))
	}
	w.Flush()
}
