package watch

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// inotify is one instance with its reader.
type inotify struct {
	file  *os.File
	fd    int
	most  int
	dirs  map[int]*node // by watch descriptor; the loop's own
	heard chan []byte   // what was read; nil: events were lost
	stop  chan struct{}
	done  chan struct{}
}

func newInotify(most int) (*inotify, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	i := &inotify{file: os.NewFile(uintptr(fd), "inotify"), fd: fd, most: most, dirs: map[int]*node{},
		heard: make(chan []byte), stop: make(chan struct{}), done: make(chan struct{})}
	go i.read()
	return i, nil
}

// read passes on what the kernel says, until close.
func (i *inotify) read() {
	defer close(i.done)
	for {
		buf := make([]byte, 64<<10)
		n, err := i.file.Read(buf)
		if err != nil {
			return
		}
		buf = buf[:n]
		lost := false
		eachEvent(buf, func(_ int, mask uint32, _ string) { lost = lost || mask&unix.IN_Q_OVERFLOW != 0 })
		if lost {
			buf = nil
		}
		select {
		case i.heard <- buf:
		case <-i.stop:
			return
		}
	}
}

func (i *inotify) close() {
	close(i.stop)
	_ = i.file.Close() // ends the read
	<-i.done
}

const watchMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_MODIFY |
	unix.IN_CLOSE_WRITE | unix.IN_ATTRIB | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK

var errTooMany = errors.New("too many directories to watch")

// add watches a directory that is open.
func (i *inotify) add(n *node, fd int) error {
	if len(i.dirs) >= i.most {
		return errTooMany
	}
	wd, err := unix.InotifyAddWatch(i.fd, "/proc/self/fd/"+strconv.Itoa(fd), watchMask)
	if errors.Is(err, unix.ENOSPC) {
		return errTooMany
	}
	if err != nil {
		return os.NewSyscallError("inotify_add_watch", err)
	}
	if old := i.dirs[wd]; old != nil && old != n { // renamed: the kernel goes by inode
		old.wd = -1
	}
	i.dirs[wd], n.wd = n, wd
	return nil
}

// remove forgets a directory. Where it was deleted the kernel has forgotten it, too.
func (i *inotify) remove(n *node) {
	if n.wd >= 0 && i.dirs[n.wd] == n {
		delete(i.dirs, n.wd)
		_, _ = unix.InotifyRmWatch(i.fd, uint32(n.wd))
	}
	n.wd = -1
}

// eachEvent takes a buffer of struct inotify_event apart.
func eachEvent(buf []byte, do func(wd int, mask uint32, name string)) {
	const head = unix.SizeofInotifyEvent
	for len(buf) >= head {
		e := (*unix.InotifyEvent)(unsafe.Pointer(&buf[0]))
		end := head + int(e.Len)
		if end > len(buf) {
			return
		}
		name, _, _ := bytes.Cut(buf[head:end], []byte{0})
		do(int(e.Wd), e.Mask, string(name))
		buf = buf[end:]
	}
}
