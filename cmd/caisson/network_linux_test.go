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
	"golang.org/x/sys/unix"
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

// prober is a program that tries to get out of a sandbox by everything but names, and says what worked.
// With the word serve it serves the working directory on a port instead.
func prober() {
	if len(os.Args) == 3 && os.Args[1] == "serve" {
		s := &http.Server{Addr: ":" + os.Args[2], Handler: http.FileServer(http.Dir(".")), ReadHeaderTimeout: 10 * time.Second}
		fmt.Println(s.ListenAndServe())
		os.Exit(1)
	}
	out := 0
	report := func(what string, err error) {
		if err == nil {
			out++
			fmt.Println("OUT:", what)
		}
	}
	for _, s := range []struct {
		what               string
		family, kind, prot int
	}{
		{"raw IPv4", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP}, {"raw IPv6", unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6},
		{"raw ICMP", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP}, {"packets", unix.AF_PACKET, unix.SOCK_RAW, 0},
		{"vsock", unix.AF_VSOCK, unix.SOCK_STREAM, 0}, {"ping", unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP},
	} {
		fd, err := unix.Socket(s.family, s.kind, s.prot)
		if err == nil {
			_ = unix.Close(fd)
		}
		report(s.what, err)
	}
	for _, to := range append(os.Args[1:], "1.1.1.1:443", "8.8.8.8:53", "169.254.169.254:80", "10.0.0.1:80", "[2606:4700:4700::1111]:443",
		"[::ffff:1.1.1.1]:443", "198.18.0.1:80", "198.19.255.1:443") {
		c, err := net.DialTimeout("tcp", to, 2*time.Second)
		if err == nil {
			_ = c.Close()
		}
		report("TCP to "+to, err)
		report("UDP to "+to, askUDP(to))
	}
	if out == 0 {
		fmt.Println("nothing got out")
	}
}

// askUDP sends a datagram and wants any answer but an error. 198.18.0.1:53 alone, the gateway's DNS, would give one.
func askUDP(to string) error {
	c, err := net.Dial("udp", to)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Write([]byte("is anybody there?")); err != nil {
		return err
	}
	_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	_, err = c.Read(make([]byte, 100))
	return err
}
