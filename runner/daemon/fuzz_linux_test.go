package daemon

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/runner"
	"github.com/caisson-dev/caisson/runner/store"
)

// FuzzAPI: whatever is asked, and however, the answer is JSON or nothing, and never a panic. The supervisor is a real one
// without an engine.
func FuzzAPI(f *testing.F) {
	for _, r := range routes {
		f.Add("POST", "/v1/"+r.route(), `{"ref":"x"}`, false)
		f.Add("POST", "/v1/"+r.route(), `{"ref":"x","options":{}}`, true)
	}
	f.Add("GET", "/health", "", false)
	f.Add("POST", "/stop", `{"grace_ns":1,"seal":true}`, false)
	f.Add("POST", "/v1/start", `{"workspace":"/","steps":[{"args":["true"],"rest":{}}],"profile":{}}`, false)
	f.Add("POST", "/v1/remove", `{"refs":["x","y"],"options":true}`, false)
	f.Add("POST", "/v1/copy", `{"from":{"path":{"base64":"/w=="}},"to":{"ref":"x","path":"y"}}`, false)
	dir := f.TempDir()
	journal, err := store.Open(f.Context(), filepath.Join(dir, "store.db"))
	if err != nil {
		f.Fatal(err)
	}
	v, err := runner.New(f.Context(), runner.Options{StateDir: dir, Journal: journal})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = v.Close() })
	s := New(Options{StateDir: dir, Supervisor: v, Log: &log{}})
	h := s.handler()
	f.Fuzz(func(t *testing.T, method, path, body string, upgrade bool) {
		q, err := http.NewRequest(method, "http://caisson/", strings.NewReader(body))
		if err != nil {
			return
		}
		q.URL.Path = path
		q.Header.Set(versionHeader, s.opt.Version)
		if upgrade {
			q.Header.Set("Upgrade", "caisson-stream/1")
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, q)
		if strings.Contains(w.Body.String(), "panic") {
			t.Fatalf("%s %q %q: %s", method, path, body, w.Body)
		}
		if w.Code/100 == 3 {
			return // to the same path, tidied
		}
		if w.Code != http.StatusOK && w.Code < 300 || w.Body.Len() == 0 && method != http.MethodHead {
			t.Fatalf("%s %q %q: %d %s", method, path, body, w.Code, w.Body)
		}
	})
}
