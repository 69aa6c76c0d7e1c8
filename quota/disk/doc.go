// Package disk bounds what a feature may write: bytes and inodes, enforced by the kernel while the task runs.
//
// A Unit is one feature's quota: the directory that holds its uppers, work directories and sealed layers. A Store
// makes, opens and removes the units of a state directory; each lies in features/ID and is described by
// features/ID/disk.json. The mechanisms, in order of preference:
//
//	project  a directory with a project quota of the state directory's own ext4 or xfs
//	btrfs    a subvolume with a qgroup; it counts no inodes, so it is for features without a limit of them
//	ext4     a file system of its own in an image on a loop device (disk.img)
//	tmpfs    memory; for what need not outlive its process
//	watched  a plain directory that is looked at every second; nothing stops a writer, its owner must
//
// Whoever writes inside sees ENOSPC or EDQUOT at the limit (± 2 %). A unit is a little larger than its limit: what the
// layers' own directories need, and a ballast (Ballast, BallastInodes) that Reserve gives free for a seal, so that a full
// feature can still be sealed and rolled back.
//
// Space on the host is never promised twice: an image is allocated whole before it is mounted, the limits of all units
// together stay below Limits.Total, and no unit is made or opened that would leave less than 5 % of the host's file system
// free. Units that nobody has open give back what they do not use when another one needs it.
//
// Mounts are detached: they are in no mount table, Unit.Dir is a path below /proc/self/fd that only this process can use,
// and the kernel takes mount and loop device away when the last file descriptor is closed, however the process ends.
// Several processes may open one unit; they share its device.
package disk
