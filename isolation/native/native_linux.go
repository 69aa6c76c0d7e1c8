package native

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/isolation"
	"github.com/caisson-dev/caisson/isolation/native/internal/netns"
	"github.com/caisson-dev/caisson/isolation/native/internal/pause"
	"github.com/caisson-dev/caisson/isolation/seccomp"
)

// Engine is the embedded engine. New makes it.
type Engine struct {
	root    bool // we may make id ranges and mounts; otherwise the child does, with our one id
	lastCap int
	pause   *os.File
	ownNet  int // our own namespaces, for the spawner threads to return to
	ownPID  int
	spawner *spawner
	pool    *netns.Pool // root only
	maps    mapKeeper
	live    sync.WaitGroup // sandboxes
	scratch string         // where the probe makes its directories

	attachLayers atomic.Bool // this kernel takes no detached layer
	appends      bool        // this kernel takes an overlay's layers one by one

	mu      sync.Mutex
	filters map[*specs.LinuxSeccomp]*unix.SockFprog

	lstat    func(string) (os.FileInfo, error) // os.Lstat, except in golden tests
	ignored  func() []unix.Signal              // ignoredSignals, likewise
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
		root: privileged(), scratch: o.ScratchDir, lastCap: lastCap(), ownNet: -1, ownPID: -1,
		maps: mapKeeper{ns: map[string]int{}}, filters: map[*specs.LinuxSeccomp]*unix.SockFprog{},
		lstat: os.Lstat, ignored: ignoredSignals, patience: scriptTimeout, appends: kernelAtLeast(6, 8),
	}
	threads, spare := 2*runtime.NumCPU(), max(o.Pool, 1)
	if o.Once {
		threads, spare = 1, 0
	}
	if e.root {
		e.pool = netns.NewPool(spare) // first: it works while we go on
	}
	e.spawner = newSpawner(threads)
	if err := e.acquire(); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// acquire takes what the engine holds until Close.
func (e *Engine) acquire() (err error) {
	if e.pause, err = pause.Memfd(); err != nil {
		return err
	}
	for name, fd := range map[string]*int{"net": &e.ownNet, "pid": &e.ownPID} {
		if *fd, err = unix.Open("/proc/self/ns/"+name, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return fmt.Errorf("own %s namespace: %w", name, err)
		}
	}
	if e.root {
		// A child that enters a sandbox shares our memory: nobody inside may look at it. Unprivileged no memory is
		// shared, and we must stay dumpable to write a child's uid_map.
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
			return fmt.Errorf("become undumpable: %w", err)
		}
	}
	return nil
}

// needed are the capabilities that the privileged way uses. Root without them is an ordinary user with a name that
// files obey, which isolation.Build refuses.
var needed = []int{unix.CAP_SYS_ADMIN, unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_CHOWN, unix.CAP_FOWNER,
	unix.CAP_DAC_OVERRIDE, unix.CAP_SYS_PTRACE, unix.CAP_NET_ADMIN, unix.CAP_KILL}

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
	runtime.KeepAlive(&h)
	runtime.KeepAlive(&d)
	for _, c := range needed {
		if d[c/32].effective&(1<<(c%32)) == 0 {
			return false
		}
	}
	return errno == 0
}

// Name is "native".
func (e *Engine) Name() string { return "native" }

// Root says whether the engine works with a private id range (root) or with the supervisor's one id.
func (e *Engine) Root() bool { return e.root }

// Close waits for the sandboxes to be closed and frees what the engine holds.
func (e *Engine) Close() error {
	e.live.Wait()
	if e.pool != nil {
		e.pool.Close()
	}
	e.spawner.close()
	e.maps.close()
	for _, fd := range []int{e.ownNet, e.ownPID} {
		if fd >= 0 {
			_ = unix.Close(fd) // namespaces of our own
		}
	}
	if e.pause == nil {
		return nil
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

// CanOverlay says whether layers that lie in dir can be stacked on the directory base, by stacking some as Start would; nil
// when they can. Whether an error is the host's answer, or the question itself failed, isolation.Refused tells. It leaves
// nothing behind.
func (e *Engine) CanOverlay(dir, base string) error {
	at, err := os.MkdirTemp(dir, "overlay-probe-")
	if err != nil {
		return err
	}
	defer removeLayers(at)
	p := &prober{plan: plan{steps: make([]step, 2)}}
	p.become(0, 0, !e.root)
	var now immediate
	defer now.close()
	if err := e.probeOverlay(p.on(isolation.ControlOverlay, ""), &now, at, base); err != nil || e.root {
		return err
	}
	s, err := e.attempt(&p.plan, unix.CLONE_NEWUSER|unix.CLONE_NEWNS)
	if s != nil {
		defer s.free()
	}
	if err != nil {
		return userNamespaceError(err)
	}
	for _, t := range p.trials {
		if errno := s.refusal(t.step); errno != 0 {
			return fmt.Errorf("%s: %w", s.plan.steps[t.step].name, errno)
		}
	}
	return nil
}

// removeLayers removes what an overlay has been tried on.
func removeLayers(dir string) {
	_ = clearVolatile(filepath.Join(dir, "work"))
	_ = os.RemoveAll(dir)
}

// probeOverlay mounts a workspace's kind of overlay below dir, as Start would: on base, or on an empty directory.
func (e *Engine) probeOverlay(p *prober, now *immediate, dir, base string) error {
	var paths [3]fdPath
	c := caller(p)
	for i, name := range []string{"lower", "upper", "work"} {
		d := filepath.Join(dir, name)
		if i == 0 && base != "" {
			d = base
		} else if err := os.Mkdir(d, 0o700); err != nil {
			return fmt.Errorf("overlay probe: %w", err)
		}
		if !e.root {
			paths[i] = p.open(name, d, childFDs()+i)
			continue
		}
		c = now
		fd, err := unix.Open(d, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("overlay probe: %w", err)
		}
		now.fds = append(now.fds, fd)
		paths[i] = fdPath{name, fd}
	}
	_, err := mountOverlay(c, overlaySpec{name: "probe", lower: lowerDirs{n: 1, joined: paths[:1]}, upper: paths[1], work: paths[2], userxattr: !e.root})
	return err
}
