// Package daemon has a supervisor serve others: the commands of its owner. The background supervisor of a state directory
// is started on demand, serves the features that outlive their command, and leaves when it has nothing to do; a foreground
// run serves its own feature. Both speak HTTP over a unix socket:
//
//	GET  /health     who serves; the same in every version
//	POST /stop       seal and stop every feature, and leave; likewise
//	POST /v1/NAME    a method of *runner.Supervisor: its arguments and its result in JSON, its error as {"error": {code,
//	                 cause, remedy, exit}} with a status that is not 200
//
// A request has at most 8 MiB and no field that is not known. The header Caisson-Version must be the supervisor's own
// version: what two builds take for granted may differ. Where bytes flow (exec, attach, logs, diff, export …) the request is
// upgraded to caisson-stream/1, whose frames internal/frame describes; the last one has the result or the error.
//
// Only the owner and root are served; the kernel says who is at the other end (SO_PEERCRED). Client asks; its methods are
// the supervisor's, so that a command need not know in which process it is carried out.
//
// # Files in the state directory
//
//	daemon.lock       held by the background supervisor as long as it lives
//	daemon.spawn      held by a command that starts it
//	daemon.sock       link to its socket
//	daemon.log        what it says, with daemon.log.1 at most 16 MiB
//	features/ID/sock  link to the socket of whoever holds features/ID/lock
//
// # Whom a task belongs to
//
// A task that a client began belongs to the supervisor. A client that goes, however it ends, is not missed: what the task
// writes is in its log, and attach replays that and goes on. A client whose context is cancelled asks for the task's end.
package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/daemon/internal/process"
	"github.com/caisson-dev/caisson/runner/daemon/internal/socket"
	"github.com/caisson-dev/caisson/runner/flock"
)

// DefaultIdle is how long a background supervisor with nothing to do stays.
const DefaultIdle = 5 * time.Minute

const (
	takeover  = 20 * time.Second       // how long a new supervisor waits for one that leaves
	stopGrace = 5 * time.Second        // between SIGTERM and the end, when the supervisor has to go
	lastWord  = 500 * time.Millisecond // for what is under way when nobody serves any more
	silence   = 2 * time.Minute        // after which a connection without a request is closed
	slowest   = 30 * time.Second       // for a request to arrive
	welcome   = 10 * time.Second       // for who has started the supervisor to come
)

// Names in the state directory.
const (
	socketLink = "daemon.sock"
	lockName   = "daemon.lock"
	spawnName  = "daemon.spawn"
	logName    = "daemon.log"
)

// featureLink is where a feature's holder is found.
func featureLink(stateDir, id string) string {
	return filepath.Join(stateDir, "features", filepath.Base(id), "sock")
}

// Options is what a Server works with.
type Options struct {
	StateDir   string             // absolute
	SocketDir  string             // "": $XDG_RUNTIME_DIR/caisson, /run/caisson, the state directory
	Supervisor *runner.Supervisor // may come later: see Server.Use
	Idle       time.Duration      // a background supervisor without features and callers leaves after it; 0: DefaultIdle
	Log        io.Writer          // nil: Serve writes to daemon.log, others say nothing
	Version    string             // "": this program's
	Ready      *Readiness         // of the command that waits for Serve; may be nil
}

// Server serves the API of one process: the background supervisor's, or a foreground run's for its feature. It is safe
// for concurrent use.
type Server struct {
	opt     Options
	keeper  keeper
	routes  []route
	started time.Time
	life    context.Context // of tasks and streams; they outlive the request that began them
	end     context.CancelCauseFunc
	kick    chan struct{} // something has changed that Serve waits for

	shutting chan struct{} // closed when nobody is served any more
	shutOnce sync.Once

	mu       sync.Mutex
	guests   int  // open connections
	met      bool // somebody has been here
	active   time.Time
	leaving  bool   // nobody is let in any more
	asked    bool   // to leave
	path     string // the background supervisor's socket
	sessions map[string]*session
	tasks    sync.WaitGroup // sessions whose task runs
	streams  sync.WaitGroup
	held     map[string]time.Time // features that are live here, since when
	leases   map[string]*lease    // Serve's goroutine's
}

// keeper is what the server itself asks of its supervisor.
type keeper interface {
	Live() []string // ids of the features that are live in this process
	Feature(ctx context.Context, ref string) (*runner.FeatureInfo, error)
	Stop(ctx context.Context, features []string, o runner.StopOptions) error
}

// New returns a server that does not serve yet: see Serve for the background, Hold for a foreground run.
func New(o Options) *Server {
	o.SocketDir = cmp.Or(o.SocketDir, socket.Dir(o.StateDir))
	o.Idle = cmp.Or(o.Idle, DefaultIdle)
	o.Version = cmp.Or(o.Version, buildVersion())
	s := &Server{opt: o, started: time.Now(), active: time.Now(), kick: make(chan struct{}, 1), shutting: make(chan struct{}), routes: routes,
		sessions: map[string]*session{}, held: map[string]time.Time{}, leases: map[string]*lease{}}
	s.life, s.end = context.WithCancelCause(context.Background())
	if o.Supervisor != nil {
		s.Use(o.Supervisor)
	}
	return s
}

// Use gives the server its supervisor, whose Options.Holding is the server's Hold.
func (s *Server) Use(v *runner.Supervisor) { s.opt.Supervisor, s.keeper = v, v }

// errLeaving is why what is still under way ends when the supervisor goes.
var errLeaving = errors.New("the supervisor is leaving")

// Serve is the background supervisor of a state directory. It returns nil when it has had nothing to do for Options.Idle,
// when it was asked to leave, or when ctx is done; its features are then sealed and stopped. *runner.Error with
// CodeExists: there is one already.
func (s *Server) Serve(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			s.opt.Ready.Fail(err)
		}
	}()
	lock, err := s.only(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	if s.opt.Log == nil {
		j := &process.Log{Path: filepath.Join(s.opt.StateDir, logName)}
		if s.opt.Ready != nil { // our standard output is the log
			j.Turn = process.Redirect
		}
		defer j.Close()
		s.opt.Log = j
	}
	socket.Sweep(s.opt.SocketDir, s.opt.StateDir)
	d, err := socket.Open(s.opt.SocketDir, s.opt.StateDir, "", filepath.Join(s.opt.StateDir, socketLink))
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.path = d.Path
	s.mu.Unlock()
	srv, done := s.open(d)
	s.logf("pid %d, version %s: serving", os.Getpid(), s.opt.Version)
	s.opt.Ready.say([]byte(served))
	why := s.watch(ctx)
	s.logf("leaving: %v", why)
	err = errors.Join(s.stopAll(s.keeper.Live(), runner.StopOptions{Grace: stopGrace, Seal: true}), s.shut(d, srv))
	<-done
	s.logf("left")
	return err
}

// only takes the lock that makes this the only background supervisor. One that is leaving is waited for.
func (s *Server) only(ctx context.Context) (*flock.Lock, error) {
	wait, cancel := context.WithTimeoutCause(ctx, takeover, flock.ErrLocked)
	defer cancel()
	lock, err := flock.Acquire(wait, filepath.Join(s.opt.StateDir, lockName))
	if errors.Is(err, flock.ErrLocked) {
		return nil, &runner.Error{Code: runner.CodeExists, Cause: "another background supervisor serves this state directory",
			Exit: runner.ExitRefused, Err: err}
	}
	return lock, err
}

// open serves at a door until it is shut.
func (s *Server) open(d *socket.Door) (*http.Server, <-chan struct{}) {
	routes := sync.OnceValue(s.handler) // hardly any task in the foreground is ever asked
	answering := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { routes().ServeHTTP(w, r) })
	srv := &http.Server{Handler: answering, ReadHeaderTimeout: slowest, IdleTimeout: silence, MaxHeaderBytes: 64 << 10}
	done := make(chan struct{})
	go func() {
		defer close(done)
		g := &socket.Guard{Door: d, Enter: s.enter, Leave: s.leave, Refuse: func(uid uint32, pid int) {
			s.logf("refused: user %d, pid %d", uid, pid)
		}}
		if err := srv.Serve(g); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			s.logf("accepting: %v", err)
		}
	}()
	return srv, done
}

// shut lets nobody in any more, lets those who are inside end, for a moment, and closes their connections.
func (s *Server) shut(d *socket.Door, srv *http.Server) error {
	s.close(true)
	s.shutOnce.Do(func() { close(s.shutting) })
	err := d.Shut()
	ctx, cancel := context.WithTimeout(context.Background(), lastWord)
	defer cancel()
	streams := make(chan struct{})
	go func() { s.streams.Wait(); close(streams) }()
	_ = srv.Shutdown(ctx) // closes what is idle
	select {
	case <-streams:
	case <-ctx.Done():
	}
	s.end(errLeaving)
	_ = srv.Close()
	s.tasks.Wait()
	<-streams
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	return err
}

func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving {
		return false
	}
	s.guests++
	s.met = true
	s.active = time.Now()
	return true
}

func (s *Server) leave() {
	s.mu.Lock()
	s.guests--
	s.active = time.Now()
	s.mu.Unlock()
	s.wake()
}

// close lets nobody in any more, and nothing begin; or again.
func (s *Server) close(leaving bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaving = leaving
}

// wake has Serve look whether it is still needed.
func (s *Server) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// errIdle and errAsked are why a background supervisor leaves.
var (
	errIdle  = errors.New("nothing to do")
	errAsked = errors.New("asked to")
)

// watch returns when the supervisor is to leave; meanwhile it stops features whose time is over.
func (s *Server) watch(ctx context.Context) error {
	for {
		next := s.reap(ctx)
		wait, why := s.idle()
		if why != nil {
			return why
		}
		if next > 0 && (wait < 0 || next < wait) {
			wait = next
		}
		var timer <-chan time.Time
		if wait >= 0 {
			timer = time.After(wait)
		}
		select {
		case <-ctx.Done():
			s.close(true)
			return context.Cause(ctx)
		case <-s.kick:
		case <-timer:
		}
	}
}

// idle says why to leave, or when to ask again; negative is when something happens. Whoever is inside has been counted
// before, and nobody comes in after it has said that there is nothing to do.
func (s *Server) idle() (time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	busy := len(s.keeper.Live()) > 0 || len(s.sessions) > 0
	switch {
	case s.asked && !busy:
		s.leaving = true
		return 0, errAsked
	case busy:
		s.active = time.Now()
		return -1, nil
	case s.guests > 0:
		return -1, nil
	}
	stay := s.opt.Idle
	if !s.met {
		stay = max(stay, welcome)
	}
	if left := time.Until(s.active.Add(stay)); left > 0 {
		return left, nil
	}
	s.leaving = true
	return 0, errIdle
}

// Hold is runner.Options.Holding: it serves at features/ID/sock as long as the feature's lock is held. In the background
// supervisor that is a link to its one socket, in a foreground run a socket of its own.
func (s *Server) Hold(_ context.Context, id string) (release func(), err error) {
	s.mu.Lock()
	path := s.path
	s.held[id] = time.Now()
	s.mu.Unlock()
	link := featureLink(s.opt.StateDir, id)
	if path != "" {
		if err := socket.Point(link, path); err != nil {
			return nil, err
		}
		s.wake()
		return func() {
			_ = socket.Unlink(link) // it goes with the feature
			s.mu.Lock()
			delete(s.held, id)
			s.mu.Unlock()
			s.wake()
		}, nil
	}
	d, err := socket.Open(s.opt.SocketDir, s.opt.StateDir, id, link)
	if err != nil {
		return nil, fmt.Errorf("serving the feature %s: %w", id, err)
	}
	own := New(s.opt) // it ends with the feature
	own.keeper, own.routes = s.keeper, s.routes
	srv, done := own.open(d)
	return func() {
		_ = own.shut(d, srv) // what is left of a link and a socket is swept: see Clean
		<-done
	}, nil
}

// Clean removes the sockets that supervisors of a state directory left when they were killed.
func Clean(stateDir string) { socket.Sweep(socket.Dir(stateDir), stateDir) }

// stopAll seals and stops features of this process. One that has ended meanwhile is as it should be.
func (s *Server) stopAll(features []string, o runner.StopOptions) error {
	if len(features) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), o.Grace+takeover)
	defer cancel()
	var errs []error
	for _, f := range features {
		if err := s.keeper.Stop(ctx, []string{f}, o); !errors.Is(err, &runner.Error{Code: runner.CodeNotLive}) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
