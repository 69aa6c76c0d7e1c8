// Package dirs is what every driver does with a feature's own directories: how their roots look, what they take, where
// HOME's mount points are, which ids lie in them, and which paths a pattern selects.
package dirs

// Owner is a pair of host ids.
type Owner struct{ UID, GID uint32 }

// IDs translates ids. A feature's layers hold the ids of its lineage's range, the workspace the host's, with its owner in
// the place of the sandbox's user (isolation.MapOwner); archives hold what the sandbox sees.
type IDs struct {
	none  bool  // everything has the host's ids
	first Owner // of the range
	base  Owner // of the workspace
}

const (
	insideID = 1000  // the sandbox's user
	rangeIDs = 65536 // of a lineage
	nobody   = 65534
)

// NewIDs makes the translation of a feature whose files belong to owner, the sandbox's user, over a workspace of base.
// direct says that the sandbox has a single id, which is the host's.
func NewIDs(owner, base Owner, direct bool) IDs {
	if direct || owner.UID < rangeIDs || owner.GID < rangeIDs {
		return IDs{none: true}
	}
	return IDs{first: Owner{owner.UID - insideID, owner.GID - insideID}, base: base}
}

// FromBase gives the workspace's ids as the feature's layers hold them.
func (m IDs) FromBase(uid, gid uint32) (uint32, uint32) {
	if m.none {
		return uid, gid
	}
	return m.ToLayer(swap(uid, m.base.UID), swap(gid, m.base.GID))
}

// ToLayer gives an archive's ids as the feature's layers hold them.
func (m IDs) ToLayer(uid, gid uint32) (uint32, uint32) {
	if m.none {
		return uid, gid
	}
	return m.first.UID + inRange(uid), m.first.GID + inRange(gid)
}

// Inside gives a layer's ids as the sandbox sees them.
func (m IDs) Inside(uid, gid uint32) (uint32, uint32) {
	if m.none {
		return uid, gid
	}
	return inRange(uid - m.first.UID), inRange(gid - m.first.GID)
}

// BaseInside gives the workspace's ids as the sandbox sees them.
func (m IDs) BaseInside(uid, gid uint32) (uint32, uint32) { return m.Inside(m.FromBase(uid, gid)) }

func swap(id, owner uint32) uint32 {
	switch id {
	case owner:
		return insideID
	case insideID:
		return owner
	}
	return id
}

func inRange(id uint32) uint32 {
	if id >= rangeIDs {
		return nobody
	}
	return id
}
