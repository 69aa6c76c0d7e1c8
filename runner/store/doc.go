// Package store keeps a supervisor's journal in SQLite: features, tasks, steps and the audit trail.
//
// Many processes share one file. It is in WAL mode, has one connection per process, and begins every writing
// transaction with BEGIN IMMEDIATE, so that a lock is waited for (10 s) and never upgraded. A transition is one
// transaction that compares the old state, writes the new one and appends the audit row; what runner.Transitions
// does not name is refused by a trigger, whoever asks. SQLite calls for durability at checkpoints only
// (synchronous=NORMAL): a power cut may lose the newest transitions, never the order or the integrity.
//
// A new file is made under a temporary name and renamed, so that nobody sees a half-made one. A file of a newer
// version is refused; an older one is migrated under a lock.
package store
