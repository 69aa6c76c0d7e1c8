package isolation

import "github.com/opencontainers/runtime-spec/specs-go"

// IDs is a sandbox's id mapping.
type IDs struct {
	// Base is the first host uid and gid of the lineage's private range of Size ids. Single means that the
	// sandbox has one id only, the supervisor's own (unprivileged): Base and Size are then ignored.
	Base, Size uint32
	Single     bool

	// Owner and OwnerGroup are the workspace owner's host ids; inside they are Inside.
	Owner, OwnerGroup uint32
	Inside            uint32 // 1000

	// Direct maps the owner straight onto Inside in the sandbox's user namespace, because the workspace's
	// filesystem cannot be idmapped.
	Direct bool
}

// validate refuses to give a command root's own uid outside, whatever its uid inside: the kernel would let it read
// what only root may read.
func (i IDs) validate() error {
	switch {
	case i.Single && i.Owner == 0:
		return &UnsupportedError{Control: ControlUserNS, Reason: "root without the privileges for a private id range: the command would have root's uid",
			Remedy: "run caisson as an ordinary user, or as root with its capabilities (in a container: --privileged)"}
	case i.Direct && (i.Owner == 0 || i.OwnerGroup == 0):
		return &UnsupportedError{Control: ControlIDMap, Reason: "the workspace belongs to root and its filesystem cannot be idmapped: the command would have root's uid or gid",
			Remedy: "give the workspace to an ordinary user (chown), or put it on ext4, xfs or btrfs"}
	}
	return nil
}

// Host returns the host ids that uid and gid inside stand for, in files of an upper layer.
func (i IDs) Host(uid, gid uint32) (hostUID, hostGID uint32) {
	switch {
	case i.Single:
		return i.Owner, i.OwnerGroup
	case i.Direct:
		return i.direct(uid, i.Owner), i.direct(gid, i.OwnerGroup)
	}
	return i.Base + uid, i.Base + gid
}

func (i IDs) direct(id, owner uint32) uint32 {
	if id == i.Inside {
		return owner
	}
	return i.Base + id
}

// mappings is the sandbox's uid (or gid) map; owner is the workspace owner's uid (or gid).
func (i IDs) mappings(owner uint32) []specs.LinuxIDMapping {
	switch {
	case i.Single:
		return []specs.LinuxIDMapping{{ContainerID: i.Inside, HostID: owner, Size: 1}}
	case i.Direct:
		after := i.Inside + 1
		return []specs.LinuxIDMapping{
			{ContainerID: 0, HostID: i.Base, Size: i.Inside},
			{ContainerID: i.Inside, HostID: owner, Size: 1},
			{ContainerID: after, HostID: i.Base + after, Size: i.Size - after},
		}
	}
	return []specs.LinuxIDMapping{{ContainerID: 0, HostID: i.Base, Size: i.Size}}
}

// MountMappings returns the uid and gid maps of an idmapped mount whose files hold ids as m says; for MapOwner
// owner and group are the ids that become Inside. Nil means that the mount is not idmapped.
// In a mount's map ContainerID is the id on disk and HostID the id in the kernel.
func (i IDs) MountMappings(m Mapping, owner, group uint32) (uid, gid []specs.LinuxIDMapping) {
	switch {
	case i.Single || i.Direct || m == MapNone:
		return nil, nil
	case m == MapRange:
		whole := []specs.LinuxIDMapping{{ContainerID: 0, HostID: i.Base, Size: i.Size}}
		return whole, whole
	}
	return i.exchange(owner), i.exchange(group)
}

// exchange maps the whole range, with owner and Inside exchanged. An owner beyond the range takes Inside's place,
// and Inside the range's last id (65535 is no id on a 16-bit system and nobody's elsewhere): every id on disk
// below that has a place, because an unmapped one makes unlink fail with EOVERFLOW.
func (i IDs) exchange(owner uint32) []specs.LinuxIDMapping {
	if owner == i.Inside {
		return []specs.LinuxIDMapping{{ContainerID: 0, HostID: i.Base, Size: i.Size}}
	}
	low, high, end := min(owner, i.Inside), max(owner, i.Inside), i.Size
	if owner >= i.Size {
		low, high, end = i.Inside, i.Size-1, i.Size-1
	}
	var m []specs.LinuxIDMapping
	add := func(disk, to, n uint32) {
		if n > 0 {
			m = append(m, specs.LinuxIDMapping{ContainerID: disk, HostID: i.Base + to, Size: n})
		}
	}
	add(0, 0, low)
	add(low, high, 1)
	add(low+1, low+1, high-low-1)
	if owner >= i.Size {
		add(owner, i.Inside, 1)
		return m
	}
	add(high, low, 1)
	add(high+1, high+1, end-high-1)
	return m
}
