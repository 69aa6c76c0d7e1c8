package daemon

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/daemon/internal/frame"
	"github.com/caisson-dev/caisson/runner/daemon/internal/socket"
	"github.com/caisson-dev/caisson/runner/flock"
)

// ErrNotRunning says that nobody serves there.
var ErrNotRunning = socket.ErrNotRunning

// Peer says who is at the other end of a unix socket, as the kernel noted it when the connection was made.
func Peer(c *net.UnixConn) (uid uint32, pid int, err error) { return socket.Peer(c) }

// Client asks a process that serves: its methods are those of *runner.Supervisor, with the same types and the same
// errors. It is safe for concurrent use. As long as it is open the background supervisor does not leave for want of work.
type Client struct {
	link    string // to the socket
	version string
	health  Health
	http    http.Client
}

// Dial connects to the background supervisor of a state directory: ErrNotRunning, or *runner.Error with CodeVersion when
// it was started by another version of this program.
func Dial(ctx context.Context, stateDir string) (*Client, error) {
	return dial(ctx, filepath.Join(stateDir, socketLink), buildVersion())
}

// DialFeature connects to whoever holds a feature, also a foreground run. id is the feature's id.
func DialFeature(ctx context.Context, stateDir, id string) (*Client, error) {
	return dial(ctx, featureLink(stateDir, id), buildVersion())
}

func dial(ctx context.Context, link, version string) (*Client, error) {
	c := newClient(link, version)
	if err := c.hello(ctx); err != nil {
		_ = c.Close()
		return nil, err
	}
	if c.health.API != APIVersion || c.health.Version != version {
		_ = c.Close()
		return nil, versionError(c.health.Version, version)
	}
	return c, nil
}

func newClient(link, version string) *Client {
	c := &Client{link: link, version: version}
	c.http.Transport = &http.Transport{
		DialContext:        func(context.Context, string, string) (net.Conn, error) { return socket.Dial(link) },
		DisableCompression: true, MaxIdleConnsPerHost: 4, IdleConnTimeout: silence / 2,
	}
	return c
}

// hello asks for the supervisor's health. One that turns us away is about to leave.
func (c *Client) hello(ctx context.Context) error {
	err := c.get(ctx)
	if e, ok := errors.AsType[*runner.Error](err); ok && e.Code == CodeGone && ctx.Err() == nil {
		return ErrNotRunning
	}
	return err
}

func (c *Client) get(ctx context.Context) error {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://caisson/health", nil)
	if err != nil {
		return err
	}
	return c.send(q, &c.health)
}

// Close lets the connection go.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// Health is what the supervisor said of itself when it was dialled.
func (c *Client) Health() Health { return c.health }

// send sends a request and reads its one answer.
func (c *Client) send(q *http.Request, to any) error {
	r, err := c.http.Do(q)
	if err != nil {
		return c.explain(q.Context(), err)
	}
	defer r.Body.Close()
	return c.read(q.Context(), r, to)
}

func (c *Client) read(ctx context.Context, r *http.Response, to any) error {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxAnswer))
	if err != nil {
		return c.explain(ctx, err)
	}
	if r.StatusCode == http.StatusOK {
		if err := json.Unmarshal(body, to); err != nil {
			return gone(err)
		}
		return nil
	}
	return readFailure(body, to)
}

// readFailure reads an error, and what came with it into to.
func readFailure(body []byte, to any) error {
	var f failure
	if err := json.Unmarshal(body, &f); err != nil {
		return gone(err)
	}
	if len(f.Result) > 0 {
		if err := json.Unmarshal(f.Result, to); err != nil {
			return gone(err)
		}
	}
	return f.err()
}

// explain says what a broken connection means.
func (c *Client) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return &runner.Error{Code: runner.CodeCancelled, Cause: "cancelled", Exit: runner.ExitCanceled, Err: context.Cause(ctx)}
	}
	if errors.Is(err, ErrNotRunning) {
		return ErrNotRunning
	}
	if e, ok := errors.AsType[*socket.StrangerError](err); ok {
		return &runner.Error{Code: CodeForbidden, Cause: e.Error(), Exit: runner.ExitRefused}
	}
	return gone(err)
}

// post is a call's request.
func (c *Client) post(ctx context.Context, path string, a any) (*http.Request, error) {
	body, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	if lossy(body) {
		return nil, &runner.Error{Code: runner.CodeUsage, Cause: "a name that is not UTF-8 cannot be sent to the supervisor",
			Remedy: "stop the feature, and ask again", Exit: runner.ExitRefused}
	}
	if len(body) > maxBody {
		return nil, &runner.Error{Code: CodeTooLarge, Exit: runner.ExitRefused, Cause: fmt.Sprintf("the request has %d bytes, more than %d", len(body), maxBody)}
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://caisson"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	q.GetBody = nil // a call is never made twice
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set(versionHeader, c.version)
	return q, nil
}

// lossy reports whether a string that was not UTF-8 has become another in a JSON text: only of such bytes is U+FFFD written
// as an escape.
func lossy(body []byte) bool {
	escaped := false
	for i, c := range body {
		if escaped && bytes.HasPrefix(body[i:], []byte("ufffd")) {
			return true
		}
		escaped = c == '\\' && !escaped
	}
	return false
}

// ask makes the call.
func (k *call[A, R]) ask(ctx context.Context, c *Client, a A) (R, error) {
	var r R
	q, err := c.post(ctx, "/"+APIVersion+"/"+k.name, a)
	if err == nil {
		err = c.send(q, &r)
	}
	return r, err
}

// open makes the call and returns the connection of its frames.
func (k *stream[A, R]) open(ctx context.Context, c *Client, a A) (net.Conn, *bufio.Reader, error) {
	q, err := c.post(ctx, "/"+APIVersion+"/"+k.name, a)
	if err != nil {
		return nil, nil, err
	}
	q.Header.Set("Connection", "Upgrade")
	q.Header.Set("Upgrade", frame.Protocol)
	conn, err := socket.Dial(c.link)
	if err != nil {
		return nil, nil, c.explain(ctx, err)
	}
	set := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { // only until it is upgraded
		defer close(set)
		at := time.Now()
		if k.task { // it may have begun: then it is told to end
			at = at.Add(patience)
		}
		_ = conn.SetDeadline(at)
	})
	r := bufio.NewReaderSize(conn, 2*frame.Max)
	err = q.Write(conn)
	var answer *http.Response
	if err == nil {
		answer, err = http.ReadResponse(r, q)
	}
	if !stop() {
		<-set
	}
	if err == nil && answer.StatusCode == http.StatusSwitchingProtocols {
		_ = conn.SetDeadline(time.Time{})
		return conn, r, nil
	}
	if err != nil {
		err = c.explain(ctx, err)
	} else {
		err = c.read(ctx, answer, new(R))
	}
	return nil, nil, errors.Join(err, conn.Close())
}

// StopAll ends every feature of the background supervisor, of whatever version, and returns when it has left.
func StopAll(ctx context.Context, stateDir string, o runner.StopOptions) ([]string, error) {
	c := newClient(filepath.Join(stateDir, socketLink), "")
	defer c.Close()
	if err := c.hello(ctx); err != nil {
		return nil, err
	}
	q, err := c.post(ctx, "/stop", stopRequest{Grace: o.Grace, Seal: o.Seal})
	if err != nil {
		return nil, err
	}
	var a stopped
	err = c.send(q, &a)
	_ = c.Close()
	if err != nil {
		return a.Features, err
	}
	lock, err := flock.Acquire(ctx, filepath.Join(stateDir, lockName))
	return a.Features, errors.Join(err, lock.Release())
}

// Peers asks the holders of live features: it is a runner.Dialer.
func Peers(stateDir string) runner.Dialer { return peers(stateDir) }

// patience is how long another process may take to answer: it may hang.
const patience = 5 * time.Second

// buildVersion tells one build from another: the module's version and commit, and of one that was built from changed or
// unknown sources the file's time and size too.
func buildVersion() string {
	version, commit, clean := "", "", false
	if info, ok := debug.ReadBuildInfo(); ok {
		version = info.Main.Version
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				commit = s.Value
			case "vcs.modified":
				clean = s.Value == "false"
			}
		}
	}
	v := version + "-" + commit
	if !clean {
		if info, err := os.Stat("/proc/self/exe"); err == nil {
			v = fmt.Sprintf("%s-%x-%x", v, info.Size(), info.ModTime().UnixNano())
		}
	}
	return v
}
