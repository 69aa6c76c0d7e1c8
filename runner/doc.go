// Package runner is the supervisor: it takes a task from submit to promote, and it is the only package that knows the
// order. The packages below it (quota, images, snapshot, gates, profiles, isolation) know nothing of each other; runner
// turns what one describes into what the next one needs.
//
// # A task's life
//
// Supervisor.Run is this list, in this order; each line is a method of the same name.
//
//	admit     What cannot be is refused before anything exists: the request, the profile, controls that this host lacks,
//	          the workspace, the mounts. A refusal is an *Error with code, cause and remedy, and leaves nothing.
//	submit    The feature's lock is taken (CodeBusy if somebody has it) and the task recorded, in StateQueued.
//	queue     Until one of the slots is free. Slots are locks of files, so they bound all processes together.
//	prepare   At the same time: the feature's disk unit and layers, the root file system's mount points, the cgroup. Then
//	          the engine starts the sandbox on them. Or the task joins a session that lives.
//	runSteps  A checkpoint before the first step; then one step after the other until one does not end well, with a
//	          checkpoint after each. A step is recorded as running before it is executed, so that after a crash "not
//	          started" is true. It ends when its first process ends, or at its time, or when a limit is hit, or when
//	          somebody cancels; then the rest of its cgroup is killed. "Done" and the checkpoint after it are one
//	          transaction.
//	seal      The sandbox is closed, unless it is to stay: nothing of the task runs any more. The last checkpoint is made,
//	          and the change is read from it.
//	validate  The gates judge that checkpoint; what they say is stored with it.
//	promote   If everything went well and it was asked for, the change goes to the workspace, after the other live
//	          features of it have moved. From its first step on a promotion is not interrupted any more; if we die it is
//	          finished or undone by the next start.
//	finish    The end is recorded, with the result. With Request.Remove, and when nothing ever ran, the feature goes.
//
// # Sessions
//
// A session is a feature in this process's hands: its lock, its disk unit, its layers, and perhaps a sandbox (runner/live).
// A task makes one and ends with it, or leaves it alive (Request.Detach) for others to join until Stop. Commands on a
// feature use the session that lives in this process, or make one that lasts as long as they do; when another process has
// the lock they answer CodeBusy, and the caller asks that one (runner/daemon). The order of locks: the feature's lock, the
// session's lifetime, its changing, the live sandbox's turn, the workspace's lock, the journal.
//
// # Checkpoints
//
// The disk is the truth about which checkpoints there are, and the journal an index of it: a seal, a rollback or a fork is
// committed by one rename in the layers, and recorded after it. A process that dies between the two leaves a checkpoint
// without a row, which whoever opens the feature next makes of what lies beside it (reconcile, and Repair for all). What
// only a journal knows (labels, verdicts) is lost with it. Counts, digests and durability are found out later: in the
// background of a session that stays, else by whoever asks. After a start of the machine, what was not durable is read
// again before it is trusted (afterBoot).
//
// A rollback seals first, holds the sandbox still from that seal to the exchange of the mounts, and never touches what a
// process holds: by default every process is stopped, with Keep a holder is a refusal. Resume is a rollback to the state
// before the first step that is not done, on the same task.
//
// # Result and error
//
// A task's failure is a Result, ours is an error; Run answers one of them. The verdict comes before the exit status: what
// the kernel counted (an OOM kill, refused forks), what the supervisor measured (time, bytes of output) and only then what
// the command said of itself. The order is that of the switch in judge.
//
// # State
//
// Transitions is the whole state machine, as data. A transition is one transaction of the Journal that compares the old
// state, writes the new one and appends the audit row; runner/store gives the database the same table, so that what is not
// in it cannot happen there either.
//
// # Liveness and recovery
//
// Whoever works on a feature holds the flock of features/ID/lock. The kernel frees it with its holder: a task in a live
// state whose lock can be taken is a dead supervisor's. New asks the journal once for such tasks; for each it kills and
// removes the cgroup, finishes or undoes what was begun on the layers, writes StateInterrupted, and removes features that never had layers
// or were to go. Directories without a record are swept by Features and GC, each under its lock. A removal first moves the
// directory out of its place (to tmp/), lock and all, so that nobody meets half of it. Nothing is decided by a process id,
// but for one courtesy: a child of a dead supervisor that has not executed yet still shares the lock, and is waited for
// (flock.Inherit).
//
// # Output
//
// A command never gets a descriptor of the caller's: its streams are pipes, or a terminal inside, owned by its own user
// so that /dev/stdout can be opened. runner/pump moves the bytes, within the budget of limits.output, to the caller and to
// a log in bounded space (runner/logfile). A caller that reads slowly holds a living step up, as a pipe would, and a dying
// one never. A caller that has closed its end is no concern of the task's.
//
// # Ids
//
// As root each feature has a range of 65,536 ids, from 1<<30 on, by the lowest index that none has; forks share their
// origin's, because they share its layers. Inside,
// the workspace's owner is 1000. Unprivileged there is one id, the user's, which is 1000 inside.
package runner
