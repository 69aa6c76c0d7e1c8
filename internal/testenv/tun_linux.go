package testenv

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// OpenTUN has this thread, and so what it starts or executes, see a node of the TUN device that is everybody's, as it is on
// most hosts. The node is made in dir. It is for root; the goroutine stays on its thread, which must not serve others after.
func OpenTUN(dir string) error {
	runtime.LockOSThread()
	node := filepath.Join(dir, fmt.Sprintf("tun%d", os.Getpid()))
	return errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mknod(node, unix.S_IFCHR|0o600, int(unix.Mkdev(10, 200))), os.Chmod(node, 0o666),
		unix.Mount(node, "/dev/net/tun", "", unix.MS_BIND, ""))
}
