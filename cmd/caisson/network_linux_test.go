package main

import (
	"archive/zip"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// cmdServe serves a directory. Who asks for /headers is told how long what it has sent is, and not what.
func cmdServe(ts *testscript.TestScript, _ bool, args []string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	mux := http.NewServeMux()
	mux.Handle("/", http.FileServer(http.Dir(ts.MkAbs(args[1]))))
	mux.HandleFunc("/headers", func(w http.ResponseWriter, r *http.Request) {
		for name := range r.Header {
			fmt.Fprintf(w, "%s: %d bytes\n", name, len(r.Header.Get(name)))
		}
	})
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = s.Serve(l) }()
	ts.Defer(func() { _ = s.Close() })
	ts.Setenv(args[0], fmt.Sprint(l.Addr().(*net.TCPAddr).Port))
}

// cmdModules makes what GOPROXY answers with (go.dev/ref/mod, "GOPROXY protocol").
func cmdModules(ts *testscript.TestScript, _ bool, args []string) {
	dir := filepath.Join(ts.MkAbs(args[0]), "example.com/m/@v")
	ts.Check(os.MkdirAll(dir, 0o755))
	const mod = "module example.com/m\n\ngo 1.21\n"
	for name, text := range map[string]string{"list": "v1.0.0\n", "v1.0.0.info": `{"Version":"v1.0.0","Time":"2020-01-01T00:00:00Z"}`, "v1.0.0.mod": mod} {
		ts.Check(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	f, err := os.Create(filepath.Join(dir, "v1.0.0.zip"))
	ts.Check(err)
	z := zip.NewWriter(f)
	for name, text := range map[string]string{"go.mod": mod, "m.go": "// Package m is there.\npackage m\n\n// Word is said.\nconst Word = \"from the proxy\"\n"} {
		w, err := z.Create("example.com/m@v1.0.0/" + name)
		ts.Check(err)
		_, err = w.Write([]byte(text))
		ts.Check(err)
	}
	ts.Check(errors.Join(z.Close(), f.Close()))
}

// cmdFreePort asks the kernel for one.
func cmdFreePort(ts *testscript.TestScript, _ bool, args []string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Setenv(args[0], fmt.Sprint(l.Addr().(*net.TCPAddr).Port))
	ts.Check(l.Close())
}
