package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// cmdSources serves what package managers ask for, by HTTP on loopback: at /npm an npm registry with left-word 1.0.0, at
// /debian a Debian archive with the package left-word, and at /git a directory of bare repositories. INTEGRITY is what npm's lock
// files have of the package.
func cmdSources(ts *testscript.TestScript, _ bool, args []string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	pack := npmPackage(ts)
	sum := sha512.Sum512(pack)
	integrity := "sha512-" + base64.StdEncoding.EncodeToString(sum[:])
	mux := http.NewServeMux()
	mux.HandleFunc("/npm/left-word", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"name": "left-word", "dist-tags": map[string]string{"latest": "1.0.0"},
			"versions": map[string]any{"1.0.0": map[string]any{"name": "left-word", "version": "1.0.0",
				"dist": map[string]string{"tarball": "http://" + r.Host + "/npm/left-word/-/left-word-1.0.0.tgz", "integrity": integrity}}}})
	})
	mux.HandleFunc("/npm/left-word/-/left-word-1.0.0.tgz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(pack) })
	for name, data := range debianArchive() {
		mux.HandleFunc(path.Join("/debian", name), func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data) })
	}
	mux.Handle("/git/", http.StripPrefix("/git/", http.FileServer(http.Dir(ts.MkAbs(args[1])))))
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = s.Serve(l) }()
	ts.Defer(func() { _ = s.Close() })
	ts.Setenv(args[0], fmt.Sprint(l.Addr().(*net.TCPAddr).Port))
	ts.Setenv("INTEGRITY", integrity)
}

// npmPackage is a package as npm packs it.
func npmPackage(ts *testscript.TestScript) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	t := tar.NewWriter(z)
	for _, f := range []struct{ name, text string }{
		{"package/package.json", `{"name":"left-word","version":"1.0.0","main":"index.js"}`},
		{"package/index.js", "module.exports = 'from the registry'\n"},
	} {
		ts.Check(t.WriteHeader(&tar.Header{Name: f.name, Mode: 0o644, Size: int64(len(f.text))}))
		_, err := t.Write([]byte(f.text))
		ts.Check(err)
	}
	ts.Check(t.Close())
	ts.Check(z.Close())
	return b.Bytes()
}

// debianArchive are the files of an archive that nobody has signed (wiki.debian.org/DebianRepository/Format).
func debianArchive() map[string][]byte {
	packages := []byte("Package: left-word\nVersion: 1.0.0\nArchitecture: all\nMaintainer: nobody\nFilename: pool/left-word.deb\nSize: 1\n" +
		"SHA256: " + fmt.Sprintf("%x", sha256.Sum256([]byte("x"))) + "\nDescription: from the archive\n\n")
	release := "Origin: test\nSuite: stable\nCodename: stable\nArchitectures: all amd64 arm64\nComponents: main\nDate: " +
		time.Now().UTC().Format(time.RFC1123) + "\nSHA256:\n"
	files := map[string][]byte{}
	for _, arch := range []string{"all", "amd64", "arm64"} {
		name := "main/binary-" + arch + "/Packages"
		release += fmt.Sprintf(" %x %d %s\n", sha256.Sum256(packages), len(packages), name)
		files["dists/stable/"+name] = packages
	}
	files["dists/stable/Release"] = []byte(release)
	return files
}
