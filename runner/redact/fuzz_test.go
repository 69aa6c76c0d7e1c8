package redact

import (
	"bytes"
	"strings"
	"testing"
)

// FuzzRedact: however a text comes, and whatever it is, no known value comes out, what came out does not change any more, and
// the same comes out.
func FuzzRedact(f *testing.F) {
	for _, s := range []string{
		"password=hunter2 hunter2x", "{\"token\": \"abc\\\"def\", \"x\": 1}", "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\nx",
		"-----BEGIN PRIVATE KEY---\n----\nabc\n-----END PRIVATE KEY-----\nx",
		"Authorization: Bearer abcdef\r\nCookie: a=b; c=d\n", "https://user:pa@ss@host/?sig=abcdefgh&x=1", "password: |\n  a\n\n  b\nnext: 1\n",
		"A_PASSWORD=\"a\nb\" ghp_0123456789012345678901234567890123456789", "\"\\\"password\\\":\\\"a\\\\\\\"b\\\",\"", "secret='it'\\''s', x=1",
		"A_PASSWORD=\"" + strings.Repeat("_", 300) + "\nb\"",
	} {
		f.Add([]byte(s), "hunter2x", "unter2xyz", uint16(3), uint16(7))
	}
	f.Fuzz(func(t *testing.T, text []byte, one, other string, first, second uint16) {
		if strings.ContainsAny(one+other, "[]") {
			t.Skip("the marks have these")
		}
		r := &Redactor{}
		r.Know(Value{"ONE", one}, Value{"other", other})
		text = append(append(append(text, one...), other...), text[:min(len(text), 50)]...)
		whole := r.Text(string(text))
		if got := pieces(t, r, string(text), 1+int(first%512), 1+int(second%9000)); got != whole {
			t.Fatalf("in pieces of %d and %d\n%q\nis\n%q\nwhole it is\n%q", first, second, text, got, whole)
		}
		if again := r.Text(whole); again != whole {
			t.Fatalf("%q\nis\n%q\nand then\n%q", text, whole, again)
		}
		for _, v := range []string{one, other} {
			if len(v) >= MinValue && strings.Contains(whole, v) && !strings.Contains("[redacted:ONE][redacted:other][redacted]", v) {
				t.Fatalf("%q has %q", whole, v)
			}
		}
	})
}

// FuzzCutOff: a text that ends in the middle of a known value does not end with its beginning.
func FuzzCutOff(f *testing.F) {
	f.Add([]byte("it is "), "hunter2x-hunter2y", uint8(9), uint8(3))
	f.Fuzz(func(t *testing.T, text []byte, value string, cut, every uint8) {
		if len(value) <= MinValue || strings.ContainsAny(value, "[]") || strings.Contains("redacted:VALUE", value[:MinValue]) {
			t.Skip()
		}
		r := &Redactor{}
		r.Know(Value{"VALUE", value})
		cutOff := string(text) + value[:MinValue+int(cut)%(len(value)-MinValue)]
		got := pieces(t, r, cutOff, 1+int(every))
		for n := MinValue; n <= len(value); n++ {
			if strings.HasSuffix(got, value[:n]) {
				t.Fatalf("%q ends with %q: %q", cutOff, value[:n], got)
			}
		}
	})
}

// FuzzFlush: what is flushed may be decided otherwise, but no known value comes out.
func FuzzFlush(f *testing.F) {
	f.Add([]byte("Password: hunter2x and token=abcdef0123"), "hunter2x", uint8(3))
	f.Fuzz(func(t *testing.T, text []byte, value string, every uint8) {
		if len(value) < MinValue || strings.ContainsAny(value, "[]") || strings.Contains("redacted:VALUE", value) {
			t.Skip()
		}
		r := &Redactor{}
		r.Know(Value{"VALUE", value})
		text = append(append(text, value...), text...)
		var b bytes.Buffer
		w := r.Writer(&b)
		for len(text) > 0 {
			n := min(1+int(every), len(text))
			_, _ = w.Write(text[:n]) // a Buffer takes everything
			_ = w.Flush()
			text = text[n:]
		}
		_ = w.Close()
		if strings.Contains(b.String(), value) {
			t.Fatalf("%q has %q", b.String(), value)
		}
	})
}
