package egress

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

// HostName is the name of the host's loopback inside.
const HostName = "host.caisson.internal"

const maxName, maxLabel = 253, 63

// parseName returns a host name in lower case, or why it is none. It is the only one that decides what a name is: for
// rules, DNS questions, SNI, Host headers and dialling.
func parseName(text string) (string, error) {
	switch {
	case text == "":
		return "", errors.New("an empty name")
	case len(text) > maxName:
		return "", fmt.Errorf("a name of %d bytes; at most %d", len(text), maxName)
	case strings.HasSuffix(text, "."):
		return "", errors.New("a name does not end with a dot")
	}
	name := make([]byte, len(text))
	for i := range len(text) {
		c := text[i]
		switch {
		case 'A' <= c && c <= 'Z':
			c += 'a' - 'A'
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_', c == '.':
		case c >= 0x80:
			return "", errors.New("a name has ASCII letters only; write an international one as xn--…")
		default:
			return "", fmt.Errorf("a name has no %q", c)
		}
		name[i] = c
	}
	labels := strings.Split(string(name), ".")
	for _, l := range labels {
		switch {
		case l == "":
			return "", errors.New("a name with an empty part")
		case len(l) > maxLabel:
			return "", fmt.Errorf("a part of %d bytes; at most %d", len(l), maxLabel)
		case l[0] == '-' || l[len(l)-1] == '-':
			return "", errors.New("a part of a name neither begins nor ends with -")
		}
	}
	if numeric(labels[len(labels)-1]) {
		return "", errors.New("an address in an odd form; write it as four decimal numbers")
	}
	return string(name), nil
}

// legible makes one line of words that may hold what the sandbox has sent: parsers quote some of it, and not all.
func legible(text string) string {
	if strings.IndexFunc(text, func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }) < 0 {
		return text
	}
	return fmt.Sprintf("%.200q", text)
}

// numeric reports whether a name's last part makes resolvers read the whole as an IPv4 address (WHATWG URL, "ends in a
// number"): 127.1, 0x7f.1, 2130706433.
func numeric(label string) bool {
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

// parseAddr accepts the one usual form of an address: no zone, no leading zero, no IPv4 within IPv6.
func parseAddr(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		return a, errors.New("no address")
	}
	return a, plainAddr(a)
}

func plainAddr(a netip.Addr) error {
	switch {
	case a.Zone() != "":
		return errors.New("an address with a zone")
	case embeds(a):
		return errors.New("an IPv4 address within an IPv6 one")
	}
	return nil
}

// IPv6 prefixes whose addresses carry an IPv4 address (RFC 4291, 6052, 8215, 3056, 4380).
var embedding = prefixes("::ffff:0:0/96", "::/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")

func embeds(a netip.Addr) bool {
	return a.Is6() && a != netip.IPv6Unspecified() && a != netip.IPv6Loopback() && contains(embedding, a)
}

// private is what is not the public internet: RFC 6890 and its successors, as IANA's special-purpose registries list
// them, with the clouds' metadata services.
var private = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
	"192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24",
	"203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "168.63.129.16/32",
	"::/8", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16", "fc00::/7",
	"fe80::/10", "fec0::/10", "ff00::/8",
)

func prefixes(texts ...string) []netip.Prefix {
	list := make([]netip.Prefix, len(texts))
	for i, t := range texts {
		list[i] = netip.MustParsePrefix(t)
	}
	return list
}

func contains(list []netip.Prefix, a netip.Addr) bool {
	for _, p := range list {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// public reports whether an address is on the public internet, as seen from this host.
func public(a netip.Addr) bool { return special(a) == "" }

// special says why an address is not on the public internet; "" when it is.
func special(a netip.Addr) string {
	switch {
	case plainAddr(a) != nil || a.Is4In6() || contains(private, a):
		return "not on the public internet"
	case here.holds(a):
		return "an address of this host, or of a network that it is in"
	}
	return ""
}

// here is where this process runs.
var here = &surroundings{find: net.InterfaceAddrs}

// surroundings are the networks that the host's interfaces are in, public ones too: what listens there takes us for a
// neighbour, or for the host itself.
type surroundings struct {
	find func() ([]net.Addr, error)

	mu   sync.Mutex
	at   time.Time
	list []netip.Prefix
	err  error
}

// hereTime is for how long the host's addresses are taken to be the same.
const hereTime = time.Second

// holds reports whether an address is the host's or a neighbour's. When nobody can tell, it is.
func (s *surroundings) holds(a netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at.IsZero() || time.Since(s.at) > hereTime {
		s.list, s.err = s.read()
		s.at = time.Now()
	}
	return s.err != nil || contains(s.list, a)
}

func (s *surroundings) read() ([]netip.Prefix, error) {
	found, err := s.find()
	if err != nil {
		return nil, err
	}
	var list []netip.Prefix
	for _, f := range found {
		n, ok := f.(*net.IPNet)
		if !ok {
			return nil, fmt.Errorf("an interface has %v", f)
		}
		a, _ := netip.AddrFromSlice(n.IP)
		ones, _ := n.Mask.Size()
		list = append(list, netip.PrefixFrom(a.Unmap(), ones).Masked())
	}
	return list, nil
}

// namesSpecial reports whether a network is a name for an address that is not on the public internet: one that lies within the
// registry's entry for it. One that only reaches into it, 0.0.0.0/0 or 169.0.0.0/8, stands for the internet around. Of the
// host's own networks, which an entry need not know, it may be the whole of 10.0.0.0/8 or fc00::/7 at most.
func namesSpecial(p netip.Prefix, a netip.Addr) bool {
	if contains(private, a) {
		return slices.ContainsFunc(private, func(own netip.Prefix) bool { return own.Bits() <= p.Bits() && own.Contains(p.Addr()) })
	}
	return p.Bits() >= 8 || p.Addr().Is6() && p.Bits() >= 7
}

// target is a destination: a name or an address, and a port.
type target struct {
	name string // "" for an address
	addr netip.Addr
	port uint16
}

func (t target) String() string {
	switch {
	case t.name != "":
		return t.name + ":" + strconv.Itoa(int(t.port))
	}
	return netip.AddrPortFrom(t.addr, t.port).String()
}

// parseTarget reads NAME:PORT, ADDRESS:PORT or [ADDRESS]:PORT.
func parseTarget(text string) (target, error) {
	host, port, bracketed, err := splitPort(text)
	if err != nil {
		return target{}, err
	}
	n, err := parsePort(port)
	if err != nil {
		return target{}, err
	}
	if a, err := parseAddr(host); err == nil || bracketed || strings.Contains(host, ":") {
		return target{addr: a, port: n}, err
	} else if _, perr := netip.ParseAddr(host); perr == nil {
		return target{}, err
	}
	name, err := parseName(host)
	return target{name: name, port: n}, err
}

// splitPort cuts the port off.
func splitPort(text string) (host, port string, bracketed bool, err error) {
	if rest, ok := strings.CutPrefix(text, "["); ok {
		host, port, ok = strings.Cut(rest, "]:")
		if !ok {
			return "", "", true, errors.New("[ADDRESS]:PORT wanted")
		}
		return host, port, true, nil
	}
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return "", "", false, errors.New("no port")
	}
	if strings.Contains(text[:i], ":") {
		return "", "", false, errors.New("an IPv6 address with a port is written in brackets")
	}
	return text[:i], text[i+1:], false, nil
}

func parsePort(text string) (uint16, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || text[0] == '0' || text[0] == '+' {
		return 0, fmt.Errorf("%q is no port", text)
	}
	return uint16(n), nil
}
