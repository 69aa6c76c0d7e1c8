package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestForms: a known value goes in whatever form a program echoes it.
func TestForms(t *testing.T) {
	for _, value := range []string{"s3cr3t-v4lue", "it's \"q\"/<b>&x", "with space + ü€😀", "first line of it\nsecond line, too\r\n", strings.Repeat("long/", 999)} {
		var r Redactor
		r.Know(Value{"NAME", value})
		quoted, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		nested, err := json.Marshal(string(quoted))
		if err != nil {
			t.Fatal(err)
		}
		forms := map[string]string{
			"plain": value, "JSON": string(quoted), "JSON in JSON": string(nested), "ASCII": strconv.QuoteToASCII(value),
			"query": url.QueryEscape(value), "path": url.PathEscape(value), "userinfo": url.UserPassword("u", value).String(),
			"hex": hex.EncodeToString([]byte(value)), "shell": "'" + strings.ReplaceAll(value, "'", `'\''`) + "'",
		}
		for n := range 4 {
			text := strings.Repeat("#", n) + value + strings.Repeat("#", 3-n)
			forms["base64 at "+strconv.Itoa(n)] = base64.StdEncoding.EncodeToString([]byte(text))
			forms["base64url at "+strconv.Itoa(n)] = base64.RawURLEncoding.EncodeToString([]byte(text))
		}
		for form, text := range forms {
			got := r.Text("<" + text + ">")
			if !strings.Contains(got, "[redacted:NAME]") || leaks(got, text) {
				t.Errorf("%.40q as %s: %q becomes %q", value, form, text, got)
			}
		}
	}
}

// TestWrapped: a long value goes also where its encoder begins a new line in the middle of it.
func TestWrapped(t *testing.T) {
	lines := func(text string, n int) string {
		var b strings.Builder
		for line := range slices.Chunk([]byte(text), n) {
			b.Write(line)
			b.WriteByte('\n')
		}
		return b.String()
	}
	for _, n := range []int{31, 48, 49, 57, 58, 59, 60, 61, 96, 97, 114, 115, 200, maxPiece + 100, 5000} {
		value := strings.Repeat("s3cr3t-v4lue/of+many~different?parts;", n/30+1)[:n]
		var r Redactor
		r.Know(Value{"NAME", value})
		for _, after := range []string{"", "\n"} { // printf %s, echo, of which K, o or Cg are left
			text := base64.StdEncoding.EncodeToString([]byte(value + after))
			digits := hex.EncodeToString([]byte(value))
			for form, all := range map[string]string{
				"base64": lines(text, 76), "openssl": lines(text, 64), "xxd -p": lines(digits, 60), "xxd -u -p": lines(strings.ToUpper(digits), 60),
			} {
				got := strings.ReplaceAll(r.Text("it is\n"+all), "[redacted:NAME]", "")
				if got = strings.Trim(strings.TrimPrefix(got, "it is\n"), "KCgo=\n"); got != "" {
					t.Errorf("%d bytes, %s: %q has %q", n, form, all, got)
				}
			}
		}
	}
}

// leaks says that six bytes in a row of what was hiding are left. Marks count for nothing.
func leaks(got, text string) bool {
	got = strings.ReplaceAll(got, "[redacted:NAME]", "\x00")
	for i := 0; i+MinValue <= len(text); i++ {
		if part := text[i : i+MinValue]; strings.Contains(got, part) && !strings.Contains("######IyMjIyMjIw==", part) {
			return true
		}
	}
	return false
}

// TestCutOff: a value of which only the beginning came is hidden from where it tells something.
func TestCutOff(t *testing.T) {
	const value = "s3cr3t-v4lue/with=more"
	var r Redactor
	r.Know(Value{"NAME", value})
	for _, text := range []string{value, hex.EncodeToString([]byte(value)), url.QueryEscape(value), base64.RawStdEncoding.EncodeToString([]byte(value))} {
		for n := range len(text) + 1 {
			got, want := pieces(t, &r, "it is "+text[:n], 1+n%7), "it is [redacted:NAME]"
			if n < MinValue {
				want = "it is " + text[:n]
			}
			if got != want {
				t.Errorf("%q: %q", text[:n], got)
			}
		}
	}
}

// TestLines: of a value of several lines each goes that is long enough.
func TestLines(t *testing.T) {
	var r Redactor
	r.Know(Value{"KEY", "the first line\nshort\nanother long line\n"})
	if got := r.Text("1 the first line 2 short 3 another long line 4"); got != "1 [redacted:KEY] 2 short 3 [redacted:KEY] 4" {
		t.Error(got)
	}
}

// TestOverlap: values that overlap or have each other as prefixes go together, under one mark.
func TestOverlap(t *testing.T) {
	var r Redactor
	r.Know(Value{"A", "abcdef"}, Value{"B", "abcdefgh"}, Value{"C", "efghij"}, Value{"SHORT", "xyz"})
	for text, want := range map[string]string{
		"abcdef":             "[redacted:A]",
		"abcdefg.":           "[redacted:A]g.",
		"abcdefg":            "[redacted:B]", // cut off
		"abcdefgh":           "[redacted:B]",
		"abcdefghij":         "[redacted:B]",
		"abcdefabcdef":       "[redacted:A]",
		"abcdeabcdef":        "abcde[redacted:A]",
		"-efghij abcdef.":    "-[redacted:C] [redacted:A].",
		"xyz is too short":   "xyz is too short",
		"abcde efghi abcdef": "abcde efghi [redacted:A]",
	} {
		for n := range 12 {
			if got := pieces(t, &r, text, n+1); got != want {
				t.Errorf("%q in pieces of %d: %q, want %q", text, n+1, got, want)
			}
		}
	}
}

// TestForget: what is known by two is hiding until both have forgotten it, also in a writer that exists.
func TestForget(t *testing.T) {
	var r Redactor
	var b bytes.Buffer
	w := r.Writer(&b)
	say := func() { _, _ = io.WriteString(w, "s3cr3t-v4lue\n") } // a Buffer takes everything
	say()
	one := r.Know(Value{"A", "s3cr3t-v4lue"})
	two := r.Know(Value{"A", "s3cr3t-v4lue"})
	say()
	one()
	one()
	say()
	two()
	say()
	if got := b.String(); got != "s3cr3t-v4lue\n[redacted:A]\n[redacted:A]\ns3cr3t-v4lue\n" {
		t.Errorf("%q", got)
	}
	_, _ = io.WriteString(w, "s3cr3t")
	r.Know(Value{"A", "s3cr3t-v4lue"})
	_, _ = io.WriteString(w, "-v4lue s3cr3t-v4")
	r.Know(Value{"B", "another one"})
	_, _ = io.WriteString(w, "lue another one")
	_ = w.Close()
	if got := b.String(); !strings.HasSuffix(got, " [redacted:A] [redacted:B]") {
		t.Errorf("%q", got)
	}
}

// TestMarks: a name is shown only as far as it tells nothing and breaks nothing.
func TestMarks(t *testing.T) {
	for name, want := range map[string]string{"A_B": "[redacted:A_B]", "": Mark, "a b\"]": "[redacted:a_b__]", "s3cr3t-v4lue": Mark, "MY-s3cr3t-v4lue": Mark} {
		var r Redactor
		r.Know(Value{name, "s3cr3t-v4lue"})
		if got := r.Text("s3cr3t-v4lue"); got != want || r.Text(got) != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

// TestBinary: what has nothing to hide comes out as it went in.
func TestBinary(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	data := make([]byte, 1<<20)
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	r := known()
	for _, cut := range []int{1, 7, 4096, 65537} {
		if got := pieces(t, r, string(data[:min(len(data), cut*5000)]), cut); got != string(data[:min(len(data), cut*5000)]) {
			t.Errorf("in pieces of %d it changes", cut)
		}
	}
}

// TestLong: lines and values of any length, with a secret at every place around where a line is cut.
func TestLong(t *testing.T) {
	r := &Redactor{}
	r.Know(Value{"KNOWN", "s3cr3t-v4lue"})
	for _, at := range []int{maxLine - ahead, maxLine, 2*maxLine - 2*ahead} {
		for shift := -40; shift < 20; shift += 3 {
			lead := strings.Repeat("a b ", at/4+20)[:at+shift]
			for text, want := range map[string]string{
				" password=\"hiding words\" ":                             " password=\"[redacted]\" ",
				" s3cr3t-v4lue ":                                          " [redacted:KNOWN] ",
				" https://u:hiding@h/ ":                                   " https://[redacted]@h/ ",
				" token=" + strings.Repeat("hiding9", 12000) + " ":        " token=[redacted] ",
				" secret='" + strings.Repeat("hiding ", 12000) + "' ":     " secret='[redacted]' ",
				" ghp_" + strings.Repeat("hiding9", 12000) + " ":          " [redacted] ",
				" Authorization: " + strings.Repeat("hiding ", 12000):     " Authorization: [redacted]",
				" -----BEGIN PRIVATE KEY-----hiding-----END PRIVATE KEY-": " [redacted]",
			} {
				if strings.HasSuffix(text, "KEY-") {
					text += "---- x"
					want += " x"
				}
				if got := pieces(t, r, lead+text, 1<<20); got != lead+want {
					t.Fatalf("%.20q at %d%+d: %.60q", text, at, shift, got[min(len(got), len(lead)):])
				}
				if shift == -40 && pieces(t, r, lead+text, 5000, 77) != lead+want {
					t.Errorf("%.20q at %d%+d, in pieces", text, at, shift)
				}
			}
		}
	}
}

// TestEndlessKey: of a key without an end so much is hiding, and what follows is looked at again.
func TestEndlessKey(t *testing.T) {
	var r *Redactor
	begin := "-----BEGIN PRIVATE KEY-----\n"
	text := begin + strings.Repeat("hiding\n", maxBlock/7+100)
	want := Mark + text[maxBlock:]
	for _, cut := range []int{1 << 20, 4096, 1000} {
		if got := pieces(t, r, text, cut); got != want {
			t.Errorf("in pieces of %d: %.40q… of %d", cut, got, len(got))
		}
	}
}

// TestFlush: a prompt is written without its line's end, and what is ambiguous is not.
func TestFlush(t *testing.T) {
	var b bytes.Buffer
	r := &Redactor{}
	r.Know(Value{"KNOWN", "s3cr3t-v4lue"})
	w := r.Writer(&b)
	for _, step := range []struct{ text, want string }{
		{"Password: ", "Password: "}, {"\n", "\n"}, {"$ ", "$ "}, {"s3cr3t", ""}, {"-v4", ""}, {"lue", "[redacted:KNOWN]"}, {" ", " "},
		{"ghp_0123", ""}, {"456789012345678901234567890123456789", Mark}, {"more", ""}, {" x", " x"}, {" password=hun", " password=" + Mark}, {"ter2", ""}, {" y\n", " y\n"},
		{"https://ghp0", "https://"}, {"123456789abcdef", ""}, {"@h/ ", Mark + "@h/ "}, {"at http://h/", "at http://h/"}, {" or http://h2", " or http://"}, {"\n", "h2\n"},
		{"token: unex", "token: "}, {"pected EOF\n", "unexpected EOF\n"},
	} {
		b.Reset()
		_, _ = io.WriteString(w, step.text)
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		if b.String() != step.want {
			t.Errorf("%q: %q, want %q", step.text, b.String(), step.want)
		}
	}
}

type broken struct{ error }

func (b broken) Write([]byte) (int, error) { return 0, b.error }

func TestBrokenWriter(t *testing.T) {
	why := errors.New("gone")
	w := (*Redactor)(nil).Writer(broken{why})
	if _, err := io.WriteString(w, "a\n"); !errors.Is(err, why) {
		t.Error(err)
	}
	if _, err := io.WriteString(w, "b\n"); !errors.Is(err, why) || !errors.Is(w.Flush(), why) || !errors.Is(w.Close(), why) {
		t.Error(err)
	}
}

func TestNames(t *testing.T) {
	for name, want := range map[string]bool{
		"API_KEY": true, "dbPassword": true, "DBPassword": true, "X-Auth-Token": true, "token2": true, "AWS_SECRET_ACCESS_KEY": true, "PGPASSWORD": true, "MYSQL_PWD": true,
		"SMTP_PASS": true, "authToken": true, "APIKEY": true, "private_key": true, "Cookie": true, "Authorization": true, "client-secret": true,
		"": false, "key": false, "KEY": false, "PASS": false, "token_file": false, "secret_name": false, "PASSWORD_REQUIRED": false, "PATH": false, "HOME": false, "monkey": false,
		"token.go": false, "AWS_ACCESS_KEY_ID": false, "public_key": false, "SSH_AUTH_SOCK": false, "tokenizer": false,
		"PWD": false, "OLDPWD": false, "GPG_TTY": false, "XAUTHORITY": false, "KEYBOARD": false, "TOKENIZERS_PARALLELISM": false, "PASSENGER": false, "MONKEY": false, "HOTKEY": false, "AUTHOR": false,
	} {
		if got := SecretName(name); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestArgsAndEnv(t *testing.T) {
	r := &Redactor{}
	r.Know(Value{"KNOWN", "s3cr3t-v4lue"})
	got := r.Args([]string{"tool", "--password", "a b", "--token=abcdef1", "s3cr3t-v4lue", "--verbose", "x", "--key-file", "f", "-H", "Authorization: Bearer x"})
	if want := []string{"tool", "--password", Mark, "--token=" + Mark, "[redacted:KNOWN]", "--verbose", "x", "--key-file", "f", "-H", "Authorization: " + Mark}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	got = r.Env([]string{"A=b", "MY_TOKEN=y", "PASSWORD=", "Q=s3cr3t-v4lue", "URL=https://u:p@h/"})
	if want := []string{"A=b", "MY_TOKEN=" + Mark, "PASSWORD=", "Q=[redacted:KNOWN]", "URL=https://" + Mark + "@h/"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if got := Values([]string{"A=b", "MY_TOKEN=y", "PASSWORD=", "SECRET=" + Mark}); !slices.Equal(got, []Value{{"MY_TOKEN", "y"}}) {
		t.Errorf("%q", got)
	}
}

// TestJSON: documents stay valid, and are the same where there is nothing to hide.
func TestJSON(t *testing.T) {
	r := &Redactor{}
	r.Know(Value{"KNOWN", `a "quoted" one`})
	for doc, want := range map[string]string{
		`{"a": 1,  "b": ["x"]}`:                                                    `{"a": 1,  "b": ["x"]}`,
		`{"args":["x","--password","a b","y"],"n":1.50}`:                           `{"args":["x","--password","[redacted]","y"],"n":1.50}`,
		`{"token":"abc123","token_file":"/x","tokens":["abc123",{"id":"abc123"}]}`: `{"token":"[redacted]","token_file":"/x","tokens":["[redacted]",{"id":"abc123"}]}`,
		`{"cause":"it said a \"quoted\" one <&>","password":"\u0061b c"}`:          `{"cause":"it said [redacted:KNOWN] <&>","password":"[redacted]"}`,
		`{"secret":{"name":"x"},"password":null}`:                                  `{"secret":{"name":"x"},"password":null}`,
		`"password=hunter2"`:                                                       `"password=[redacted]"`,
		`not JSON password=hunter2`:                                                `not JSON password=[redacted]`,
		``:                                                                         ``,
	} {
		if got := string(r.JSON([]byte(doc))); got != want || string(r.JSON([]byte(want))) != want {
			t.Errorf("%s\nis   %s\nwant %s", doc, got, want)
		}
	}
}
