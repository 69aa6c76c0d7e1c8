// Package socket is how the owner's programs find each other: unix sockets in a directory that only the owner can enter,
// and links to them from the state directory. Who connects, and who answers, is asked of the kernel.
package socket

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

// ErrNotRunning says that nobody listens there.
var ErrNotRunning = errors.New("no supervisor is running")

// Dir is where sockets of a state directory lie: $XDG_RUNTIME_DIR/caisson, /run/caisson for root, else the state
// directory itself. The first that can be had is made, if it is missing.
func Dir(stateDir string) string {
	var dirs []string
	if run := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(run) {
		dirs = append(dirs, filepath.Join(run, "caisson"))
	}
	if os.Geteuid() == 0 {
		dirs = append(dirs, "/run/caisson")
	}
	for _, dir := range dirs {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			continue
		}
		if info, err := os.Lstat(dir); err == nil && info.IsDir() && owned(info) {
			return dir
		}
	}
	return stateDir
}

// prefix begins the names of a state directory's sockets.
func prefix(stateDir string) string {
	sum := sha256.Sum256([]byte(stateDir))
	return hex.EncodeToString(sum[:6])
}

// Door is a listening socket, and the link through which it is found.
type Door struct {
	*net.UnixListener
	Path, Link string
}

// Open listens at DIR/PREFIX[-NAME].sock, PREFIX being the state directory's, and points link there. The socket takes its
// name when it listens: so one that refuses connections is a dead one's, and goes.
func Open(dir, stateDir, name, link string) (*Door, error) {
	file := prefix(stateDir)
	if name != "" {
		file += "-" + name
	}
	d := &Door{Path: filepath.Join(dir, file+".sock"), Link: link}
	temporary := fmt.Sprintf("%s.%d", d.Path, os.Getpid())
	if err := errors.Join(Unlink(temporary), d.listen(temporary)); err != nil {
		return nil, err
	}
	err := os.Chmod(temporary, 0o600)
	if err == nil {
		err = os.Rename(temporary, d.Path)
	}
	if err == nil {
		err = Point(link, d.Path)
	}
	if err != nil {
		return nil, errors.Join(err, d.Close(), Unlink(temporary), Unlink(d.Path))
	}
	return d, nil
}

func (d *Door) listen(path string) error {
	name, done, err := short(path)
	if err != nil {
		return err
	}
	defer done()
	d.UnixListener, err = net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err == nil {
		d.SetUnlinkOnClose(false) // by then it has another name
	}
	return err
}

// Shut ends it: who comes now finds nobody, who waits to be let in is turned away.
func (d *Door) Shut() error {
	return errors.Join(Unlink(d.Link), Unlink(d.Path), d.Close())
}

// Point makes link point to target, whatever it was.
func Point(link, target string) error {
	if target == link {
		return nil
	}
	temporary := fmt.Sprintf("%s.%d", link, os.Getpid())
	if err := errors.Join(Unlink(temporary), os.Symlink(target, temporary)); err != nil {
		return err
	}
	return os.Rename(temporary, link)
}

// Unlink removes a file that need not be there.
func Unlink(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Sweep removes sockets in dir that dead supervisors of a state directory left.
func Sweep(dir, stateDir string) {
	files, err := filepath.Glob(filepath.Join(dir, prefix(stateDir)+"*.sock"))
	if err != nil {
		return // a directory with strange names: nothing is lost but tidiness
	}
	for _, f := range files {
		c, err := connect(f)
		if err == nil {
			_ = c.Close()
		} else if errors.Is(err, syscall.ECONNREFUSED) {
			_ = os.Remove(f)
		}
	}
}

func connect(path string) (*net.UnixConn, error) {
	name, done, err := short(path)
	if err != nil {
		return nil, err
	}
	defer done()
	return net.DialUnix("unix", nil, &net.UnixAddr{Name: name, Net: "unix"})
}

// Dial connects to where link points: ErrNotRunning when nobody listens, *StrangerError when whoever does is neither us nor
// root.
func Dial(link string) (net.Conn, error) {
	path, err := os.Readlink(link)
	if errors.Is(err, syscall.EINVAL) { // the socket itself
		path, err = link, nil
	}
	if err == nil {
		var c *net.UnixConn
		if c, err = connect(path); err == nil {
			return trusted(c)
		}
	}
	for _, none := range []error{fs.ErrNotExist, syscall.ECONNREFUSED, syscall.ENOTDIR} {
		if errors.Is(err, none) {
			return nil, ErrNotRunning
		}
	}
	return nil, err
}

// StrangerError is another user at the other end.
type StrangerError struct{ UID uint32 }

func (e *StrangerError) Error() string {
	return fmt.Sprintf("the supervisor that answers belongs to user %d", e.UID)
}

func trusted(c *net.UnixConn) (net.Conn, error) {
	uid, _, err := Peer(c)
	if err == nil && allowed(uid) {
		return c, nil
	}
	if err == nil {
		err = &StrangerError{uid}
	}
	return nil, errors.Join(err, c.Close())
}

// allowed says whom we serve and trust: ourselves, and root, who needs no permission.
func allowed(uid uint32) bool { return uid == 0 || int(uid) == os.Geteuid() }

// Guard lets only the owner in.
type Guard struct {
	*Door
	Enter  func() bool // counts a guest; false: nobody is let in any more
	Leave  func()      // a guest has gone
	Refuse func(uid uint32, pid int)
}

// refused is all that another user gets.
const refused = "HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: 92\r\n\r\n" +
	`{"error":{"code":"forbidden","cause":"this supervisor belongs to another user","exit":120}}` + "\n"

// Accept returns the owner's next connection.
func (g *Guard) Accept() (net.Conn, error) {
	for {
		c, err := g.AcceptUnix()
		if err != nil {
			return nil, err
		}
		uid, pid, err := Peer(c)
		if err != nil || !allowed(uid) {
			g.Refuse(uid, pid)
			_, _ = c.Write([]byte(refused)) // it fits into the socket's buffer, or nobody reads it
			_ = c.Close()
			continue
		}
		if g.Enter() {
			return &guest{UnixConn: c, leave: sync.OnceFunc(g.Leave)}, nil
		}
		_ = c.Close() // before the first byte: who dialled finds nobody, and may start another
	}
}

// guest tells that it is closed.
type guest struct {
	*net.UnixConn
	leave func()
}

func (c *guest) Close() error {
	defer c.leave()
	return c.UnixConn.Close()
}
