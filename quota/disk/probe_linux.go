package disk

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/quota/disk/internal/ext4"
	"github.com/caisson-dev/caisson/quota/disk/internal/loop"
)

// probe asks each mechanism. An answer costs some 100 µs together, and is not kept: a host changes.
func probe(ctx context.Context, stateDir string) []Support {
	var all []Support
	for _, m := range Mechanisms() {
		s := Support{Mechanism: m}
		if err := ctx.Err(); err != nil {
			s.Reason = err.Error()
		} else {
			probes[m](&s, stateDir)
		}
		all = append(all, s)
	}
	return all
}

var probes = map[Mechanism]func(s *Support, stateDir string){
	Project: probeProject, Btrfs: probeBtrfs, Ext4: probeExt4, Tmpfs: probeTmpfs, Watched: probeWatched,
}

const remedyRoot = "run it as root"

// filesystem opens the state directory, or what it will be made in, and says what that lies on.
func filesystem(stateDir string) (*os.File, int64, error) {
	at, err := Existing(stateDir)
	if err != nil {
		return nil, 0, err
	}
	dir, err := os.Open(at)
	if err != nil {
		return nil, 0, err
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil {
		return nil, 0, errors.Join(os.NewSyscallError("fstatfs", err), dir.Close())
	}
	return dir, st.Type, nil
}

func probeProject(s *Support, stateDir string) {
	dir, kind, err := filesystem(stateDir)
	if err != nil {
		s.Reason = err.Error()
		return
	}
	defer func() { _ = dir.Close() }()
	if kind != unix.EXT4_SUPER_MAGIC && kind != unix.XFS_SUPER_MAGIC {
		s.Reason = "the state directory is on neither ext4 nor xfs"
		return
	}
	if err := enforcesProjects(dir); err != nil {
		s.Reason = fmt.Sprintf("its file system has no project quota: %v", err)
		s.Remedy = "put the state directory on a file system with the mount option prjquota"
		return
	}
	if os.Geteuid() != 0 {
		s.Reason, s.Remedy = "only root may set quotas", remedyRoot
		return
	}
	s.Bytes, s.Inodes, s.Persistent = true, true, true
}

func probeBtrfs(s *Support, stateDir string) {
	dir, kind, err := filesystem(stateDir)
	if err != nil {
		s.Reason = err.Error()
		return
	}
	defer func() { _ = dir.Close() }()
	switch {
	case kind != unix.BTRFS_SUPER_MAGIC:
		s.Reason = "the state directory is not on btrfs"
	case os.Geteuid() != 0:
		s.Reason, s.Remedy = "only root may set quotas", remedyRoot
	default:
		if err := enforcesGroups(dir); err != nil {
			s.Reason, s.Remedy = err.Error(), "btrfs quota enable --simple "+stateDir
			return
		}
		s.Bytes, s.Persistent = true, true
	}
}

func probeExt4(s *Support, _ string) {
	if os.Geteuid() != 0 {
		s.Reason, s.Remedy = "loop devices are for root only", remedyRoot
		return
	}
	if err := loop.Available(); err != nil {
		s.Reason, s.Remedy = "no loop devices: "+err.Error(), "load the kernel module loop; in a container, give it the loop devices (--privileged)"
		return
	}
	ctx, err := unix.Fsopen("ext4", unix.FSOPEN_CLOEXEC)
	if err != nil {
		s.Reason, s.Remedy = "the kernel mounts no ext4: "+err.Error(), "a kernel with ext4, and CAP_SYS_ADMIN"
		return
	}
	_ = unix.Close(ctx)
	if _, err := ext4.Tool("mkfs.ext4"); err != nil {
		s.Reason, s.Remedy = err.Error(), "install e2fsprogs"
		return
	}
	s.Bytes, s.Inodes, s.Persistent = true, true, true
}

func probeTmpfs(s *Support, _ string) {
	if os.Geteuid() != 0 {
		s.Reason, s.Remedy = "only root may mount outside of a sandbox", remedyRoot
		return
	}
	ctx, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		s.Reason = err.Error()
		return
	}
	_ = unix.Close(ctx)
	s.Bytes, s.Inodes = true, true
	s.Reason = "for features that go with their process; what is in them counts as memory"
}

func probeWatched(s *Support, _ string) {
	s.Persistent = true
	s.Reason = "nothing stops a writer: it is noticed within a second, and the task killed"
	s.Remedy = "to run so, which is weaker, add --allow-weaker disk_quota"
}
