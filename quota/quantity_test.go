package quota

import (
	"encoding/json"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"
)

func TestParseBytes(t *testing.T) {
	for s, want := range map[string]Bytes{
		"0": 0, "0g": 0, "1": 1, "1048576": MiB, "7b": 7, "7B": 7,
		"512m": 512 * MiB, "512M": 512 * MiB, "512mb": 512 * MiB, "512MiB": 512 * MiB,
		"1.5g": 1536 * MiB, ".5g": 512 * MiB, "0.1k": 102, "64k": 64 * KiB, "64KB": 64 * KiB,
		"2t": 2 * TiB, "3p": 3 * PiB, "7e": 7 * EiB, "7.9999999999999999999e": 1<<63 - 1, "1.0": 1, "007": 7,
		"9223372036854775807": 1<<63 - 1,
	} {
		if got, err := ParseBytes(s); err != nil || got != want {
			t.Errorf("ParseBytes(%q) = %d, %v; want %d", s, got, err, want)
		}
	}
	for s, want := range map[string]error{
		"": errEmpty, "m": errEmpty, "-1": errNegative, "-1g": errNegative, "NaN": errUnit, "Inf": errUnit, "max": errUnit,
		"unlimited": errUnit, "1x": errUnit, "1mm": errUnit, "1ib": errUnit, "1 m": errUnit, " 1m": errSyntax, "1m ": errUnit,
		"+1": errSyntax, "1e3": errSyntax, "0x10": errSyntax, "1_000": errSyntax, "1.": errSyntax, ".": errSyntax, "1.2.3": errSyntax,
		"8e": errOverflow, "9223372036854775808": errOverflow, "99999999999999999999999": errOverflow, "٣": errUnit, "1.5": nil, "1.5b": nil,
	} {
		got, err := ParseBytes(s)
		if err == nil || want != nil && !errors.Is(err, want) || got != 0 {
			t.Errorf("ParseBytes(%q) = %d, %v; want error %v", s, got, err, want)
		}
		if err != nil && !strings.Contains(err.Error(), `"`+s+`"`) {
			t.Errorf("ParseBytes(%q): the error does not quote the value: %v", s, err)
		}
	}
}

func TestParseCPUs(t *testing.T) {
	for s, want := range map[string]CPUs{"0": 0, "1": 1000, "1.5": 1500, ".5": 500, "0.001": 1, "1.100": 1100, "1.1": 1100, "64": 64000, "1.0000": 1000} {
		if got, err := ParseCPUs(s); err != nil || got != want {
			t.Errorf("ParseCPUs(%q) = %d, %v; want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "-1", "1.0001", "NaN", "Inf", "1e1", "two", "1,5", "100m", "9223372036854775.808", "1."} {
		if got, err := ParseCPUs(s); err == nil {
			t.Errorf("ParseCPUs(%q) = %d, want an error", s, got)
		}
	}
}

func TestParseCount(t *testing.T) {
	for s, want := range map[string]Count{"0": 0, "512": 512, "0512": 512, "9223372036854775807": 1<<63 - 1} {
		if got, err := ParseCount(s); err != nil || got != want {
			t.Errorf("ParseCount(%q) = %d, %v; want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "-1", "1.5", "1.0", "1k", "max", "NaN", "9223372036854775808", "+1"} {
		if got, err := ParseCount(s); err == nil {
			t.Errorf("ParseCount(%q) = %d, want an error", s, got)
		}
	}
}

func TestParseDuration(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"0": 0, "0s": 0, "90s": 90 * time.Second, "1h30m": 90 * time.Minute, "1.5h": 90 * time.Minute, "250ms": 250 * time.Millisecond,
	} {
		if got, err := ParseDuration(s); err != nil || time.Duration(got) != want {
			t.Errorf("ParseDuration(%q) = %v, %v; want %v", s, got, err, want)
		}
	}
	for _, s := range []string{"", "90", "1.5", "-1s", "NaN", "inf", "1 s", "1d", "s", "9999999h", "-0s"} {
		if got, err := ParseDuration(s); err == nil {
			t.Errorf("ParseDuration(%q) = %v, want an error", s, got)
		}
	}
}

func TestString(t *testing.T) {
	for _, c := range []struct {
		value interface{ String() string }
		want  string
	}{
		{Bytes(0), "0"}, {Bytes(1), "1"}, {Bytes(1000), "1000"}, {1536 * MiB, "1536m"}, {2 * GiB, "2g"}, {Bytes(-1), "-1"}, {EiB, "1e"},
		{CPUs(0), "0"}, {CPUs(1), "0.001"}, {CPUs(50), "0.05"}, {CPUs(1500), "1.5"}, {CPUs(2000), "2"}, {CPUs(-1500), "-1.5"},
		{Count(512), "512"},
		{Duration(0), "0s"}, {Duration(10 * time.Minute), "10m"}, {Duration(time.Hour), "1h"}, {Duration(90 * time.Second), "1m30s"},
		{Duration(3*time.Hour + 20*time.Minute), "3h20m"}, {Duration(time.Hour + 10*time.Second), "1h0m10s"},
	} {
		if got := c.value.String(); got != c.want {
			t.Errorf("%T(%#v).String() = %q, want %q", c.value, c.value, got, c.want)
		}
	}
}

func TestFlagValues(t *testing.T) {
	var l Limits
	for _, c := range []struct {
		value interface {
			Set(string) error
			String() string
			Type() string
		}
		text, kind string
	}{{&l.Memory, "1g", "bytes"}, {&l.CPUs, "1.5", "cpus"}, {&l.Pids, "64", "count"}, {&l.Timeout, "10m", "duration"}} {
		if err := c.value.Set(c.text); err != nil || c.value.String() != c.text || c.value.Type() != c.kind {
			t.Errorf("Set(%q): %v, %q, type %s", c.text, err, c.value, c.value.Type())
		}
		if err := c.value.Set("junk"); err == nil || c.value.String() != c.text {
			t.Errorf("Set(junk) = %v and left %q, want an error and %q", err, c.value, c.text)
		}
	}
}

func TestLimitsRoundTrip(t *testing.T) {
	const source = "cpus: 1.5\nmemory: 1536m\npids: 512\ntimeout: 10m\noutput: 256m\ntmp: 512m\ndisk: 10g\ninodes: 100000\n"
	var l Limits
	if err := yaml.Unmarshal([]byte(source), &l); err != nil {
		t.Fatal(err)
	}
	if l.CPUs != 1500 || l.Memory != 1536*MiB || *l.Disk != 10*GiB || time.Duration(l.Timeout) != 10*time.Minute {
		t.Fatalf("read %+v", l)
	}
	out, err := yaml.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	var again, viaJSON Limits
	if err := yaml.Unmarshal(out, &again); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	data, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &viaJSON); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
	for _, got := range []Limits{again, viaJSON} {
		if *got.Disk != *l.Disk || *got.Inodes != *l.Inodes {
			t.Errorf("read back %v %v", got.Disk, got.Inodes)
		}
		got.Disk, got.Inodes = l.Disk, l.Inodes
		if got != l {
			t.Errorf("read back %+v, want %+v", got, l)
		}
	}
	if err := yaml.Unmarshal([]byte("memory: -1\n"), &l); err == nil {
		t.Error("a negative memory was read from YAML")
	}
}

// oracle computes floor(decimal × scale) in another way: by rational numbers.
func oracle(t *testing.T, decimal string, scale int64) *big.Int {
	r, ok := new(big.Rat).SetString(decimal)
	if !ok {
		t.Fatalf("%q was read, but is no number", decimal)
	}
	r.Mul(r, new(big.Rat).SetInt64(scale))
	return new(big.Int).Quo(r.Num(), r.Denom())
}

func FuzzParseBytes(f *testing.F) {
	for _, s := range []string{"512m", "1.5g", "64k", "1GiB", "1048576", "-1", "NaN", "7.9e", "1e3", "0.0000000000000001e"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b, err := ParseBytes(s)
		if err != nil {
			if b != 0 {
				t.Fatalf("%d beside an error", b)
			}
			return
		}
		number := strings.TrimRight(s, "bBiIkKmMgGtTpPeE")
		size, _ := unitSize(strings.ToLower(s[len(number):]))
		if want := oracle(t, number, int64(size)); b < 0 || want.Cmp(big.NewInt(int64(b))) != 0 {
			t.Fatalf("ParseBytes(%q) = %d, want %d", s, b, want)
		}
		roundTrip(t, b, ParseBytes)
	})
}

func FuzzParseCPUs(f *testing.F) {
	for _, s := range []string{"1.5", "0.001", "64", "1.0001", "-1", "Inf"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if c, err := ParseCPUs(s); err == nil {
			if want := oracle(t, s, 1000); c < 0 || want.Cmp(big.NewInt(int64(c))) != 0 {
				t.Fatalf("ParseCPUs(%q) = %d, want %d", s, c, want)
			}
			roundTrip(t, c, ParseCPUs)
		}
	})
}

func FuzzParseCount(f *testing.F) {
	f.Add("512")
	f.Add("1.0")
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := ParseCount(s); err == nil {
			roundTrip(t, n, ParseCount)
		}
	})
}

func FuzzParseDuration(f *testing.F) {
	for _, s := range []string{"90s", "1h30m", "90", "-1s", "1.5h", "0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if d, err := ParseDuration(s); err == nil {
			if want, err := time.ParseDuration(s); err != nil || want < 0 || Duration(want) != d {
				t.Fatalf("ParseDuration(%q) = %v, Go reads %v, %v", s, d, want, err)
			}
			roundTrip(t, d, ParseDuration)
		}
	})
}

func roundTrip[T interface {
	comparable
	String() string
}](t *testing.T, v T, parse func(string) (T, error)) {
	t.Helper()
	if got, err := parse(v.String()); err != nil || got != v {
		t.Fatalf("%#v is written as %q and read as %#v, %v", v, v.String(), got, err)
	}
}
