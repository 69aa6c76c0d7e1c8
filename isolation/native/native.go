// Package native is the embedded engine: no daemon, no other program, nothing of ours inside a sandbox but a
// pause program of a hundred bytes.
//
// A sandbox's set-up is a plan: an array of named system calls, made by Go code in the supervisor (startplan,
// exec) and interpreted in the child by a few lines of assembly (clone_linux_*.s) up to execve. No Go code runs in
// the child and no page tables are copied; a step that the kernel refuses comes back by name. A plan is data, so
// it is golden-tested, and a test can stop it at any step.
//
// As root the supervisor makes the mounts itself, detached, and the child only moves them in; the
// child may then share the supervisor's memory. Unprivileged the child makes them, because only its user
// namespace may, and shares no memory, because its uid is the task's.
//
// Stacks of a live sandbox are exchanged the same way: a child enters its mount namespace, and nothing else of it, while
// everybody inside stands still. It asks the kernel whether an old mount is in use (umount2 with MNT_EXPIRE), so a mount
// is replaced only when nobody can reach it any more; what is mounted below it is moved over. The child's end frees the
// old filesystems, which takes a time that grows with what was written, and nobody waits for that but Close.
package native

// Options configure New. The zero value is right for one sandbox.
type Options struct {
	// Pool is how many network namespaces to keep ready (as root; 0 means 1).
	Pool int
	// Once says that one sandbox will be started, or few: nothing is made ready for those that follow. They are only
	// slower.
	Once bool
	// ScratchDir is where Probe tries an overlay: a directory on the filesystem of the state directory, because that
	// is where the layers will be. Empty means the system's temporary directory.
	ScratchDir string
}
