package quota

import (
	"strconv"
	"strings"
	"time"
)

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
