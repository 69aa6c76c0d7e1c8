package secrets

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/caisson-dev/caisson/gates"
)

// Secrets are put together here, so that this file has none.
var (
	awsKey   = "AKIA" + "IMNOJVGFDXXXE4OA"
	github   = "ghp_" + "x7Kq2mZ9vT4bN8sJ1wE6rY3uL5pC0dFhGaQo"
	generic  = "vJ3k9Qz7" + "Lw2mXc8TbR5n"
	jwtToken = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9." + "eyJzdWIiOiIxMjM0NTY3ODkwIiwibmFtZSI6IkpvaG4ifQ" + ".SflKxwRJSMeKKF2QT4fwpMeJf36POk6yJV_adQssw5c"
	pem      = "-----BEGIN RSA " + "PRIVATE KEY-----\n" + strings.Repeat("MIIEowIBAAKCAQEAx7Kq2mZ9vT4bN8sJ1wE6rY3uL5pC0dFhGaQo\n", 4) + "-----END RSA PRIVATE KEY-----\n"
)

// change is one of added files; an old content makes it a modification.
func change(files map[string]string, old map[string]string) *gates.Change {
	open := func(m map[string]string) func(string) (io.ReadCloser, error) {
		return func(p string) (io.ReadCloser, error) {
			s, ok := m[p]
			if !ok {
				return nil, errors.New("no such file")
			}
			return io.NopCloser(strings.NewReader(s)), nil
		}
	}
	c := &gates.Change{Digest: "d", Open: open(files), OpenOld: open(old)}
	for p := range files {
		e := gates.Entry{Path: p, Kind: gates.KindAdded, Type: gates.TypeFile}
		if _, ok := old[p]; ok {
			e.Kind, e.OldType = gates.KindModified, gates.TypeFile
		}
		c.Entries = append(c.Entries, e)
	}
	slices.SortFunc(c.Entries, func(a, b gates.Entry) int { return strings.Compare(a.Path, b.Path) })
	return c
}

func judge(t testing.TB, cfg Config, c *gates.Change) gates.Verdict {
	t.Helper()
	g, err := Gate(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return gates.Run(t.Context(), []gates.Configured{{Gate: g, Mode: gates.ModeBlock}}, c)[0]
}

func TestFinds(t *testing.T) {
	utf16le := []byte{0xff, 0xfe}
	for _, u := range utf16.Encode([]rune("x\nkey = '" + awsKey + "'\n")) {
		utf16le = append(utf16le, byte(u), byte(u>>8))
	}
	for _, c := range []struct {
		name, path, content, rule string
		line                      int
	}{
		{"a key", "a.go", "package a\n\nconst k = \"" + awsKey + "\"\n", "aws-access-token", 3},
		{"a token", "x/.env", "GITHUB_TOKEN=" + github + "\n", "github-pat", 1},
		{"by its name", "config.py", "debug = True\napi_key = \"" + generic + "\"\n", "generic-api-key", 2},
		{"by its name, later", "config.py", strings.Repeat("# nothing\n", 9000) + "password: " + generic + "\n", "generic-api-key", 9001},
		{"a private key", "id_rsa", pem, "private-key", 1},
		{"a token of three parts", "a.txt", "see " + jwtToken + "\n", "jwt", 1},
		{"whatever the comment says", "a.go", "k := \"" + awsKey + "\" // gitleaks:allow\n", "aws-access-token", 1},
		{"wherever it lies", "node_modules/x/logo.png", "\x00\x01 " + awsKey + " \x00", "aws-access-token", 1},
		{"at the border of chunks", "a.txt", strings.Repeat("x", chunkBytes-overlapBytes-12) + "\n" + awsKey + "\n", "aws-access-token", 2},
		{"at the end of a chunk", "a.txt", strings.Repeat("x", chunkBytes-10) + " " + awsKey + "\n", "aws-access-token", 1},
		{"in base64", "a.yaml", "data:\n  x: " + base64.StdEncoding.EncodeToString([]byte("the key is "+awsKey+" ok")) + "\n", "aws-access-token", 2},
		{"in base64, twice", "a", base64.StdEncoding.EncodeToString([]byte(base64.URLEncoding.EncodeToString([]byte("the key is " + awsKey + " ok!")))), "aws-access-token", 1},
		{"in hexadecimal", "a", hex.EncodeToString([]byte("the key is " + awsKey)), "aws-access-token", 1},
		{"in UTF-16", "a.ps1", string(utf16le), "aws-access-token", 2},
		{"by the file's name", "certs/server.p12", "\x30\x82", "pkcs12-file", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := judge(t, Config{}, change(map[string]string{c.path: c.content}, nil))
			if v.Status != gates.Fail || len(v.Findings) != 1 || v.Findings[0].Rule != c.rule || v.Findings[0].Line != c.line || v.Findings[0].Path != c.path {
				t.Errorf("%+v", v)
			}
			hidden(t, v)
		})
	}
}

// hidden: nothing that leaves the gate has six letters in a row of any secret.
func hidden(t *testing.T, v gates.Verdict) {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := gates.WriteText(&text, []gates.Verdict{v}, 0); err != nil {
		t.Fatal(err)
	}
	all := string(data) + text.String()
	for _, s := range []string{awsKey, github, generic, jwtToken, pem} {
		for i := 0; i+6 <= len(s); i++ {
			if part := s[i : i+6]; part != "PRIVATE KEY"[:6] && part != "RIVATE" && !strings.Contains("-----BEGIN RSA PRIVATE KEY----------END", part) && strings.Contains(all, part) {
				t.Fatalf("%q of a secret is shown: %s", part, all)
			}
		}
	}
}

func TestFindsNothing(t *testing.T) {
	random := make([]byte, 200_000)
	for i, r := 0, rand.New(rand.NewPCG(1, 2)); i < len(random); i++ {
		random[i] = byte(r.Uint32())
	}
	for path, content := range map[string]string{
		"main.go":           "package main\n\nfunc main() { token := os.Getenv(\"TOKEN\"); key, ok := m[token] }\n",
		"docs.md":           "Set `AWS_ACCESS_KEY_ID=AKIAIOSFODNN7EXAMPLE`, and api_key: ${API_KEY}.\n",
		"package-lock.json": `{"integrity": "sha512-v2kDEe57lecTulaDIuNTPy3Ry4gLGJ6Z1O3vE1krgXZNrsQ+LFTGHVxVjcXPs17LhbZVGedAJv8XZ1tvj5FvSg==", "key": "` + generic + `"}`,
		"blob.bin":          string(random),
		"empty":             "",
	} {
		if v := judge(t, Config{}, change(map[string]string{path: content}, nil)); v.Status != gates.Pass || len(v.Findings) > 0 {
			t.Errorf("%s: %+v", path, v.Findings)
		}
	}
}

func TestConfig(t *testing.T) {
	files := map[string]string{"testdata/key.txt": awsKey, "a.txt": "x " + awsKey + " y"}
	if v := judge(t, Config{Allowed: []string{"testdata"}}, change(files, nil)); len(v.Findings) != 1 || v.Findings[0].Path != "a.txt" {
		t.Errorf("%+v", v)
	}
	if v := judge(t, Config{Disabled: []string{"aws-access-token"}}, change(files, nil)); v.Status != gates.Pass {
		t.Errorf("%+v", v)
	}
	if v := judge(t, Config{Found: gates.SeverityWarn}, change(files, nil)); v.Status != gates.Pass || len(v.Findings) != 2 {
		t.Errorf("%+v", v)
	}
	// What was there before is told, unless something is added to it.
	old := map[string]string{"a.txt": awsKey}
	if v := judge(t, Config{}, change(map[string]string{"a.txt": "x\n" + awsKey + "\n"}, old)); v.Status != gates.Pass || len(v.Findings) != 1 || v.Findings[0].Severity != gates.SeverityInfo {
		t.Errorf("%+v", v)
	}
	if v := judge(t, Config{}, change(map[string]string{"a.txt": awsKey + "\n" + github + "\n"}, old)); v.Status != gates.Fail || len(v.Findings) != 2 {
		t.Errorf("%+v", v)
	}
	for _, c := range []Config{{Found: "x"}, {Before: "x"}, {Allowed: []string{"/etc"}}, {Disabled: []string{"nosuch"}}} {
		if err := c.Validate(); err == nil {
			t.Errorf("%+v is taken", c)
		}
	}
}

// What cannot be read blocks, and an end of the context is an error.
func TestFailsClosed(t *testing.T) {
	c := change(map[string]string{"a": "x"}, nil)
	c.Open = func(string) (io.ReadCloser, error) { return nil, errors.New("permission denied") }
	if v := judge(t, Config{}, c); v.Status != gates.Fail || v.Findings[0].Rule != "unread" {
		t.Errorf("%+v", v)
	}
	huge := change(map[string]string{"a": strings.Repeat("x", int(gates.DefaultBounds.File)+1)}, nil)
	if v := judge(t, Config{}, huge); v.Status != gates.Fail || v.Findings[0].Rule != "unread" || v.Findings[0].Remedy == "" {
		t.Errorf("%+v", v)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("stop"))
	rules, err := load()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rules.scan(ctx, "a", []byte("x")); err == nil || err.Error() != "stop" {
		t.Error(err)
	}
}

// TestRules: every expression compiles, every keyword is in small letters and long enough for the index.
func TestRules(t *testing.T) {
	s, err := load()
	if err != nil || len(s.rules) < 200 {
		t.Fatal(err, len(s.rules))
	}
	lists := []allowlist{s.global}
	for _, r := range s.rules {
		for _, e := range []string{r.Regex, r.Path} {
			if _, err := regexp.Compile(e); err != nil {
				t.Errorf("%s: %v", r.ID, err)
			}
		}
		if r.ID == "" || r.Description == "" || r.regex == nil && r.path == nil || len(r.Keywords) == 0 && r.regex != nil {
			t.Errorf("%+v", r)
		}
		for _, k := range r.Keywords {
			if len(k) < 2 || k != strings.ToLower(k) {
				t.Errorf("%s: %q", r.ID, k)
			}
		}
		lists = append(lists, r.Allowlists...)
	}
	for _, a := range lists {
		for _, e := range slices.Concat(a.Paths, a.Regexes) {
			if _, err := regexp.Compile(e); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestHostileText: what makes every rule work hard for minutes can be stopped.
func TestHostileText(t *testing.T) {
	s, err := load()
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, k := range s.keywords {
		fmt.Fprintf(&all, "%s = ", k.text)
	}
	text := []byte(strings.Repeat(all.String(), int(gates.DefaultBounds.File)/all.Len()))
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, gates.ErrTimeout)
	defer cancel()
	if _, err := s.scan(ctx, "a.txt", text); !errors.Is(err, gates.ErrTimeout) {
		t.Error(err)
	}
}

func FuzzScan(f *testing.F) {
	for _, s := range []string{awsKey, "api_key = '" + generic + "'", pem, base64.StdEncoding.EncodeToString([]byte("key " + awsKey)), "\xff\xfeA\x00", "eyeyey.ey", "KEY=\u0130\u212a"} {
		f.Add([]byte(s))
	}
	s, err := load()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		found, err := s.scan(t.Context(), "a.txt", data)
		if err != nil {
			t.Fatal(err)
		}
		text := plain(data)
		for _, m := range found {
			if m.start < 0 || m.start > len(text) || m.secret == "" {
				t.Errorf("%+v", m)
			}
		}
	})
}

func BenchmarkGate(b *testing.B) {
	files := map[string]string{}
	for i := range 1000 {
		files[fmt.Sprintf("src/f%d.go", i)] = strings.Repeat("func (k *keeper) token(key string) error {\n\tif k.access == nil || they.secretly == \"x\" {\n\t\treturn errors.New(\"no key: \" + key)\n\t}\n}\n", 30)
	}
	c := change(files, nil)
	for b.Loop() {
		if v := judge(b, Config{}, c); v.Status != gates.Pass {
			b.Fatalf("%+v", v)
		}
	}
}
