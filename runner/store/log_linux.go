package store

import (
	"os"

	"golang.org/x/sys/unix"
)

// The bytes of a database file that SQLite locks for reading (file format 3, "the lock-byte page"; os.h, SHARED_FIRST).
const (
	sharedFirst = 0x40000000 + 2
	sharedSize  = 510
)

// keepLog keeps the last connection to the store at path from writing the log back into the file and removing it when it
// is closed. That costs two fsyncs, and two more for the next process that makes a log again, and it is what every short
// caisson process would do. A log that stays is as good: whoever comes next reads it, and every 1,000 pages it is written
// back. SQLite has a switch for this (SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE) that its Go driver does not offer; so for that
// moment we are a reader, with a lock that SQLite respects as another process's.
func keepLog(path string) (release func()) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return func() {}
	}
	// If it cannot be had, somebody is writing the log back at this moment, and all is well too.
	_ = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK, Start: sharedFirst, Len: sharedSize})
	return func() { _ = f.Close() }
}
