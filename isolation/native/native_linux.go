package native

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/isolation/seccomp"
)

// Engine is the embedded engine. New makes it.
type Engine struct {
	root    bool // we may make id ranges and mounts; otherwise the child does, with our one id
	lastCap int
	pause   *os.File
	netns   int // our own namespaces, for the spawner threads to return to
	pidns   int
	spawner *spawner
	pool    *netnsPool // root only
	maps    mapKeeper
	live    sync.WaitGroup // sandboxes
	scratch string         // where the probe makes its directories

	attachLayers atomic.Bool // this kernel takes no detached layer

	mu      sync.Mutex
	filters map[*specs.LinuxSeccomp]*unix.SockFprog

	lstat    func(string) (os.FileInfo, error) // os.Lstat, except in golden tests
	patience time.Duration                     // how long a child may take for its script
	stop     stopper                           // tests only
}

var _ isolation.Engine = (*Engine)(nil)

// New returns the engine for this process's privileges. It starts a few threads; Close ends them.
func New(o Options) (isolation.Engine, error) {
	return newEngine(o)
}

func newEngine(o Options) (*Engine, error) {
	e := &Engine{
		root: privileged(), scratch: o.ScratchDir, lastCap: lastCap(), netns: -1, pidns: -1,
		maps: mapKeeper{ns: map[string]int{}}, filters: map[*specs.LinuxSeccomp]*unix.SockFprog{},
		lstat: os.Lstat, patience: scriptTimeout,
	}
	if e.root && o.Pool >= 0 {
		e.pool = newNetnsPool(max(o.Pool, 1)) // first: it works while we go on
	}
	var err error
	if e.pause, err = pauseMemfd(); err != nil {
		return nil, err
	}
	for name, fd := range map[string]*int{"net": &e.netns, "pid": &e.pidns} {
		if *fd, err = unix.Open("/proc/self/ns/"+name, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return nil, fmt.Errorf("own %s namespace: %w", name, err)
		}
	}
	if e.root {
		// A child that enters a sandbox shares our memory: nobody inside may look at it. Unprivileged no memory is
		// shared, and we must stay dumpable to write a child's uid_map.
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
			return nil, fmt.Errorf("become undumpable: %w", err)
		}
	}
	e.spawner = newSpawner(2 * runtime.NumCPU())
	return e, nil
}

// privileged says whether we are root over the host's ids and mounts, not only by name.
func privileged() bool {
	if os.Geteuid() != 0 {
		return false
	}
	var h capHeader
	var d capData
	h.version = capVersion3
	r, _ := register(&h)
	s, _ := register(&d)
	_, _, errno := unix.RawSyscall(unix.SYS_CAPGET, r, s, 0)
	const need = 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_CHOWN
	return errno == 0 && d[0].effective&need == need
}

// Name is "native".
func (e *Engine) Name() string { return "native" }

// Root says whether the engine works with a private id range (root) or with the supervisor's one id.
func (e *Engine) Root() bool { return e.root }

// Close waits for the sandboxes to be closed and frees what the engine holds.
func (e *Engine) Close() error {
	e.live.Wait()
	if e.pool != nil {
		e.pool.close()
	}
	e.spawner.close()
	e.maps.close()
	for _, fd := range []int{e.netns, e.pidns} {
		_ = unix.Close(fd) // namespaces of our own
	}
	return e.pause.Close()
}

// filter compiles a seccomp profile once.
func (e *Engine) filter(p *specs.LinuxSeccomp) (*unix.SockFprog, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if f, ok := e.filters[p]; ok {
		return f, nil
	}
	prog, err := seccomp.Compile(p, runtime.GOARCH)
	if err != nil {
		return nil, fmt.Errorf("compile the seccomp filter: %w", err)
	}
	if len(e.filters) >= maxFilters {
		clear(e.filters) // specs come and go; a script keeps its own filter alive
	}
	f := &unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	e.filters[p] = f
	return f, nil
}

const maxFilters = 16
