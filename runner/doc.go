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
//	prepare   At the same time: the feature's layers, the root file system's mount points, the cgroup. Then the engine
//	          starts the sandbox on them.
//	runSteps  One after the other until one does not end well. A step is recorded as running before it is executed, so
//	          that after a crash "not started" is true. It ends when its first process ends, or at its time, or when a
//	          limit is hit, or when somebody cancels; then the rest of its cgroup is killed.
//	seal      The sandbox is closed: nothing runs any more. The change is read from the layers.
//	validate  The gates judge the change.
//	promote   If everything went well and it was asked for, the change goes to the workspace. From its first step on a
//	          promotion is not interrupted any more; if we die it is finished or undone by the next start.
//	finish    The end is recorded, with the result. With Request.Remove, and when nothing ever ran, the feature goes.
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
// removes the cgroup, finishes or undoes a promotion, writes StateInterrupted, and removes features that never had layers
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
// As root each feature has a range of 65,536 ids of its own, from 1<<30 on, by the lowest index that no feature has. Inside,
// the workspace's owner is 1000. Unprivileged there is one id, the user's, which is 1000 inside.
package runner
