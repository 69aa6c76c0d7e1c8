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
		{"at the border of chunks", "a.txt", strings.Repeat("x", chunkBytes-farBytes-12) + "\n" + awsKey + "\n", "aws-access-token", 2},
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

// What the library finds and the matcher did not, or the other way round.
func TestAsGitleaks(t *testing.T) {
	example := "AKIA" + "IOSFODNN7EXAMPLE\n"
	long := strings.Repeat("vJ3k9Qz7Lw2mXc8TbR5n", 100)
	percent := strings.NewReplacer("=", "%3D", " ", "%20", "K", "%4b")
	var escapes strings.Builder
	for _, c := range awsKey {
		fmt.Fprintf(&escapes, `\u%04X`, c)
	}
	named := base64.StdEncoding.EncodeToString([]byte(generic))
	for _, c := range []struct{ name, content, want string }{
		{"wherever the same one is", awsKey + "\n\n" + awsKey + "\n", "aws-access-token:1 aws-access-token:3"},
		{"behind many that are none", strings.Repeat(example, 1000) + awsKey, "aws-access-token:1001"},
		{"long values", "api_key = '" + long + "'\n", "generic-api-key:1"},
		{"a key longer than a chunk", pem[:32] + strings.Repeat("MIIEowIBAAKCAQEAx7Kq2mZ9vT4bN8sJ1wE6rY3uL5pC0dFhGaQo\n", 2000) + pem[len(pem)-30:], "private-key:1"},
		{"a keyword far away", "airtable\n" + strings.Repeat("x\n", 50_000) + "pat" + "JcldTtSOiiwXUG.e4594505d6bfc0a4ef561687cbf4a8e19e435cb344534b1547cfad02b392b9a6\n", "airtable-personnal-access-token:50002"},
		{"no half of a word", strings.Repeat("x", chunkBytes-21) + " " + awsKey + "ABC\n", ""},
		{"a name beside base64", "api_key: " + base64.StdEncoding.EncodeToString([]byte("'"+generic+"'")) + "\n", "generic-api-key:1 generic-api-key:1"},
		{"a name in base64", "\n" + base64.StdEncoding.EncodeToString([]byte("api_key = "+generic+"\n")), "generic-api-key:2"},
		{"a layer below five others", strings.Repeat("\n", 9) + deep("k = "+awsKey, 5), "aws-access-token:10"},
		{"percent signs", "x\nhttps://x/?k=" + percent.Replace("a = "+awsKey+" ") + "\n", "aws-access-token:2"},
		{"percent signs in base64", "k=" + strings.ReplaceAll(base64.StdEncoding.EncodeToString([]byte("is "+awsKey+"!")), "=", "%3D") + "\n", "aws-access-token:1"},
		{"escapes", "\nk = \"" + escapes.String() + "\"\n", "aws-access-token:2"},
		{"code points", "\n" + strings.ReplaceAll(escapes.String(), `\u`, " U+") + "\n", "aws-access-token:2"},
		{"lines below the names", "a\n\napi_key:\n  " + generic + "\n" + named, "generic-api-key:3"},
		{"İ and other letters that shrink", "\xff\u212a\u0130 api_key = \"" + generic + "\"\n", "generic-api-key:1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, f := range judge(t, Config{}, change(map[string]string{"a.txt": c.content}, nil)).Findings {
				got = append(got, fmt.Sprintf("%s:%d", f.Rule, f.Line))
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("%q", got)
			}
		})
	}
}

func deep(s string, layers int) string {
	for range layers {
		s = base64.StdEncoding.EncodeToString([]byte(s))
	}
	return s
}

// TestLinear: half a megabyte of what is most work takes no minutes, whatever it is.
func TestLinear(t *testing.T) {
	var keys, names strings.Builder
	r := rand.New(rand.NewPCG(3, 4))
	for keys.Len() < 1<<19 {
		keys.WriteString("AKIA")
		names.WriteString("key='")
		for range 16 {
			keys.WriteByte("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"[r.IntN(32)])
			names.WriteByte("abcdefghijklmnopqrstuvwxyz234567"[r.IntN(32)])
		}
		keys.WriteByte(' ')
		names.WriteByte('\'')
	}
	for name, text := range map[string]string{
		"keys":           keys.String(),
		"names":          names.String(),
		"keys in base64": base64.StdEncoding.EncodeToString([]byte(keys.String())),
		"keywords":       strings.Repeat("ey", 1<<18),
		"assignments":    strings.Repeat("key=", 1<<17),
		"percent signs":  strings.Repeat("%", 1<<20),
		"begins":         strings.Repeat("-----BEGIN PRIVATE KEY-----", 1<<15),
		"backslashes":    strings.Repeat(`\`, 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("not linear"))
			defer cancel()
			g, err := Gate(Config{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := g.Check(ctx, change(map[string]string{"a.txt": text}, nil)); err != nil || ctx.Err() != nil {
				t.Error(err, ctx.Err())
			}
		})
	}
}

// FuzzScan: a finding says the rule and the line, and nothing that depends on the text.
func FuzzScan(f *testing.F) {
	for _, s := range []string{awsKey, "api_key = '" + generic + "'", pem, base64.StdEncoding.EncodeToString([]byte("key " + awsKey)), "\xff\xfeA\x00", "eyeyey.ey", "KEY=\u0130\u212a",
		"%41%4b", `\\u0041\u004b`, "U+0041 U+004b", deep(awsKey, 3), "airtable patJcldTtSOiiwXUG.", "curl -u \"a:bcd\" x"} {
		f.Add([]byte(s))
	}
	s, err := load()
	if err != nil {
		f.Fatal(err)
	}
	messages := map[string]string{}
	for _, r := range s.rules {
		messages[r.ID] = r.Description
	}
	g, err := Gate(Config{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		text := plain(data)
		found, err := s.scan(t.Context(), "a.txt", text)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range found {
			if m.start < 0 || m.start > len(text) || m.secret == "" {
				t.Errorf("%+v", m)
			}
		}
		v, err := g.Check(t.Context(), change(map[string]string{"a.txt": string(data)}, nil))
		if err != nil {
			t.Fatal(err)
		}
		for _, got := range v.Findings {
			want := gates.Finding{Rule: got.Rule, Path: "a.txt", Line: got.Line, Severity: gates.SeverityBlock, Message: messages[got.Rule], Remedy: remedy}
			if got != want || got.Line > 1+bytes.Count(text, []byte("\n")) {
				t.Errorf("%+v", got)
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
