package quota

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// Bytes is a number of bytes. Its units are powers of 1024: "512m", "1.5g" and "1GiB".
type Bytes int64

// CPUs is an amount of processor time per wall time, in thousandths of one CPU.
type CPUs int64

// Count is a number of things: processes, inodes.
type Count int64

// Duration is a wall time. It is written in Go's syntax: "90s", "1h30m".
type Duration time.Duration

// Binary multiples of a byte.
const (
	KiB Bytes = 1 << (10 * (iota + 1))
	MiB
	GiB
	TiB
	PiB
	EiB
)

// CPU is one whole processor.
const CPU CPUs = 1000

var (
	errEmpty    = errors.New("empty")
	errNegative = errors.New("negative")
	errOverflow = errors.New("too large")
	errSyntax   = errors.New("not a number")
	errUnit     = errors.New("unknown unit")
)

// byteUnits is in the order in which String tries them.
var byteUnits = []struct {
	suffix string
	size   Bytes
}{{"e", EiB}, {"p", PiB}, {"t", TiB}, {"g", GiB}, {"m", MiB}, {"k", KiB}}

// ParseBytes reads a decimal number and an optional unit out of b, k, m, g, t, p, e, each also as in "kb" and
// "KiB", in either case. A fraction needs a unit and is rounded down to whole bytes.
func ParseBytes(s string) (Bytes, error) {
	end := strings.LastIndexAny(s, "0123456789.") + 1
	size, err := unitSize(strings.ToLower(s[end:]))
	if err != nil {
		return 0, parseError("size", s, "such as 512m or 1.5g", err)
	}
	v, exact, err := parseDecimal(s[:end], int64(size))
	if err == nil && !exact && size == 1 {
		err = errors.New("not a whole number of bytes")
	}
	if err != nil {
		return 0, parseError("size", s, "such as 512m or 1.5g", err)
	}
	return Bytes(v), nil
}

func unitSize(suffix string) (Bytes, error) {
	if suffix == "" || suffix == "b" {
		return 1, nil
	}
	for _, u := range byteUnits {
		if rest, ok := strings.CutPrefix(suffix, u.suffix); ok && (rest == "" || rest == "b" || rest == "ib") {
			return u.size, nil
		}
	}
	return 0, errUnit
}

// ParseCPUs reads a decimal number of processors with at most three digits after the point.
func ParseCPUs(s string) (CPUs, error) {
	v, exact, err := parseDecimal(s, int64(CPU))
	if err == nil && !exact {
		err = errors.New("finer than a thousandth of a CPU")
	}
	if err != nil {
		return 0, parseError("number of CPUs", s, "such as 1.5", err)
	}
	return CPUs(v), nil
}

// ParseCount reads a whole number in plain digits.
func ParseCount(s string) (Count, error) {
	v, exact, err := parseDecimal(s, 1)
	if err == nil && (!exact || strings.Contains(s, ".")) {
		err = errors.New("not a whole number")
	}
	if err != nil {
		return 0, parseError("count", s, "such as 512", err)
	}
	return Count(v), nil
}

// ParseDuration reads Go's syntax for a duration that is not negative. A unit is required.
func ParseDuration(s string) (Duration, error) {
	const example = "such as 90s or 1h30m"
	if strings.HasPrefix(s, "-") {
		return 0, parseError("duration", s, example, errNegative)
	}
	if _, err := strconv.ParseFloat(s, 64); err == nil && s != "0" {
		return 0, parseError("duration", s, example, errors.New("no unit"))
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, parseError("duration", s, example, errSyntax)
	}
	return Duration(d), nil
}

func parseError(what, s, example string, err error) error {
	return fmt.Errorf("invalid %s %q (%s): %w", what, s, example, err)
}

// parseDecimal returns s × scale, rounded down. Exact says that nothing was lost. Floating point is not
// used: 1.1 × 1000 must be 1100.
func parseDecimal(s string, scale int64) (v int64, exact bool, err error) {
	whole, frac, point := strings.Cut(s, ".")
	switch {
	case s == "":
		return 0, false, errEmpty
	case strings.HasPrefix(s, "-"):
		return 0, false, errNegative
	case !digits(whole) || !digits(frac) || whole+frac == "" || point && frac == "":
		return 0, false, errSyntax
	}
	var n uint64
	for _, c := range []byte(whole) {
		if n, err = mulAdd(n, 10, uint64(c-'0')); err != nil {
			return 0, false, err
		}
	}
	// Long division of the fraction, last digit first, keeps every intermediate below 10 × scale.
	var part, rest uint64
	frac = strings.TrimRight(frac, "0")
	for i := len(frac) - 1; i >= 0; i-- {
		part += uint64(frac[i]-'0') * uint64(scale)
		rest |= part % 10
		part /= 10
	}
	if n, err = mulAdd(n, uint64(scale), part); err != nil {
		return 0, false, err
	}
	return int64(n), rest == 0, nil
}

// mulAdd returns a × b + c unless it exceeds an int64.
func mulAdd(a, b, c uint64) (uint64, error) {
	hi, lo := bits.Mul64(a, b)
	sum, carry := bits.Add64(lo, c, 0)
	if hi != 0 || carry != 0 || sum > math.MaxInt64 {
		return 0, errOverflow
	}
	return sum, nil
}

func digits(s string) bool {
	return strings.Trim(s, "0123456789") == ""
}

// String writes b with the largest unit that loses nothing, so that ParseBytes reads back the same value.
func (b Bytes) String() string {
	for _, u := range byteUnits {
		if b != 0 && b%u.size == 0 {
			return strconv.FormatInt(int64(b/u.size), 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(b), 10)
}

// MarshalText writes what String writes.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText is ParseBytes.
func (b *Bytes) UnmarshalText(text []byte) error { return set(b, ParseBytes, string(text)) }

// Set is ParseBytes, for flags.
func (b *Bytes) Set(s string) error { return set(b, ParseBytes, s) }

// Type names the kind of value in a flag's help.
func (b *Bytes) Type() string { return "bytes" }

// String writes c as a decimal number of processors.
func (c CPUs) String() string {
	sign, n := "", c
	if c < 0 {
		sign, n = "-", -c
	}
	s := sign + strconv.FormatInt(int64(n/CPU), 10)
	if frac := int64(n % CPU); frac != 0 {
		s += strings.TrimRight("."+strconv.FormatInt(1000+frac, 10)[1:], "0")
	}
	return s
}

// MarshalText writes what String writes.
func (c CPUs) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText is ParseCPUs.
func (c *CPUs) UnmarshalText(text []byte) error { return set(c, ParseCPUs, string(text)) }

// Set is ParseCPUs, for flags.
func (c *CPUs) Set(s string) error { return set(c, ParseCPUs, s) }

// Type names the kind of value in a flag's help.
func (c *CPUs) Type() string { return "cpus" }

// String writes n in decimal digits.
func (n Count) String() string { return strconv.FormatInt(int64(n), 10) }

// MarshalText writes what String writes.
func (n Count) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

// UnmarshalText is ParseCount.
func (n *Count) UnmarshalText(text []byte) error { return set(n, ParseCount, string(text)) }

// Set is ParseCount, for flags.
func (n *Count) Set(s string) error { return set(n, ParseCount, s) }

// Type names the kind of value in a flag's help.
func (n *Count) Type() string { return "count" }

// String writes d in Go's syntax without trailing zero units: "10m", not "10m0s".
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalText writes what String writes.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText is ParseDuration.
func (d *Duration) UnmarshalText(text []byte) error { return set(d, ParseDuration, string(text)) }

// Set is ParseDuration, for flags.
func (d *Duration) Set(s string) error { return set(d, ParseDuration, s) }

// Type names the kind of value in a flag's help.
func (d *Duration) Type() string { return "duration" }

func set[T any](to *T, parse func(string) (T, error), s string) error {
	v, err := parse(s)
	if err == nil {
		*to = v
	}
	return err
}
