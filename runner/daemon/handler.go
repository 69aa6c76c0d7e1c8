package daemon

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/caisson-dev/caisson/runner"
)

// APIVersion is the first part of every path but /health and /stop, which do not change.
const APIVersion = "v1"

// versionHeader names the caller's version.
const versionHeader = "Caisson-Version"

// Health is what /health answers to every version.
type Health struct {
	API      string    `json:"api"`
	Version  string    `json:"version"`
	PID      int       `json:"pid"`
	StateDir string    `json:"state_dir"`
	Started  time.Time `json:"started"`
	Features []string  `json:"features"` // ids of those that are live in this process
}

// route is one path of the API.
type route interface {
	route() string
	serve(s *Server, w http.ResponseWriter, r *http.Request)
}

// handler is the whole API. Only the owner gets here: see guard.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, Health{API: APIVersion, Version: s.opt.Version, PID: os.Getpid(), StateDir: s.opt.StateDir,
			Started: s.started, Features: append([]string{}, s.keeper.Live()...)}, nil)
	})
	mux.HandleFunc("POST /stop", s.stop)
	for _, x := range s.routes {
		mux.HandleFunc("POST /"+APIVersion+"/"+x.route(), func(w http.ResponseWriter, r *http.Request) {
			if v := r.Header.Get(versionHeader); v != s.opt.Version {
				refuseRequest(w, versionError(s.opt.Version, v))
				return
			}
			x.serve(s, w, r)
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if major, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/"); major != APIVersion && len(major) > 1 && major[0] == 'v' {
			refuseRequest(w, versionError(APIVersion, major))
			return
		}
		refuseRequest(w, &runner.Error{Code: runner.CodeNotFound, Exit: runner.ExitRefused,
			Cause: fmt.Sprintf("the supervisor has no %s %s", r.Method, r.URL.Path)})
	})
	return s.recovering(mux)
}

// recovering has a panic end one request, and not the supervisor with everybody's features.
func (s *Server) recovering(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if v := recover(); v != nil {
				s.logf("panic: %v\n%s", v, debug.Stack())
				refuseRequest(w, fmt.Errorf("panic: %v", v))
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// stopRequest and stopped are understood by every version.
type (
	stopRequest struct {
		Grace time.Duration `json:"grace_ns,omitempty"`
		Seal  bool          `json:"seal"`
	}
	stopped struct {
		Features []string `json:"features"`
	}
)

// stop ends every feature of this process and has it leave.
func (s *Server) stop(w http.ResponseWriter, r *http.Request) {
	var q stopRequest
	if err := decode(w, r, &q); err != nil {
		refuseRequest(w, err)
		return
	}
	s.close(true) // a command that comes now starts another supervisor, which waits for this one's end
	a := stopped{Features: append([]string{}, s.keeper.Live()...)}
	err := s.stopAll(a.Features, runner.StopOptions{Grace: q.Grace, Seal: q.Seal})
	s.mu.Lock()
	s.asked, s.leaving = err == nil, err == nil
	s.mu.Unlock()
	w.Header().Set("Connection", "close")
	answer(w, a, err)
	s.wake()
}

// versionError refuses a caller of another version: what the two take for granted may differ.
func versionError(server, client string) error {
	return &runner.Error{Code: CodeVersion, Exit: runner.ExitRefused, Remedy: "caisson stop --all",
		Cause: fmt.Sprintf("the running supervisor has version %s, this is %s", server, cmp.Or(client, "unknown"))}
}

// decode reads a request: one JSON value of at most maxBody bytes, without fields that we do not know.
func decode(w http.ResponseWriter, r *http.Request, to any) error {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(slowest)) // every connection of ours has deadlines
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &runner.Error{Code: CodeTooLarge, Exit: runner.ExitRefused,
			Cause: fmt.Sprintf("a request may have %d bytes", maxBody)}
	}
	if err != nil {
		return badRequest(err)
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return badRequest(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return badRequest(errors.New("more than one JSON value"))
	}
	return nil
}

// answer writes a result, or an error with the result if there is one.
func answer(w http.ResponseWriter, result any, err error) {
	status := http.StatusOK
	if err != nil {
		f := failed(result, err)
		result, status = f, statusOf(f.Error.Code)
	}
	text, err := json.Marshal(result)
	if err != nil {
		refuseRequest(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n')) // a caller that has gone needs no answer
}

func refuseRequest(w http.ResponseWriter, err error) { answer(w, nil, err) }

func failed(result any, err error) *failure {
	f := toFailure(err)
	if text, err := json.Marshal(result); err == nil && string(text) != "null" && string(text) != "{}" {
		f.Result = text
	}
	return f
}

// call is a request with one answer; both sides have it.
type call[A, R any] struct {
	name string
	do   func(ctx context.Context, s *Server, a A) (R, error)
}

func (c *call[A, R]) route() string { return c.name }

func (c *call[A, R]) serve(s *Server, w http.ResponseWriter, r *http.Request) {
	var a A
	if err := decode(w, r, &a); err != nil {
		refuseRequest(w, err)
		return
	}
	result, err := c.do(r.Context(), s, a)
	answer(w, result, err)
}
