package egress

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestTry(t *testing.T) {
	policies := map[string]Policy{
		"none":  {Mode: ModeNone, Allow: []string{"example.com"}},
		"empty": {Mode: ModeAllow},
		"inner": {Mode: ModeAllow, Allow: []string{"*.internal", "*.caisson.internal"}},
		"open":  {Mode: ModeOpen, Deny: []string{"*.evil.test", "203.0.114.0/24", "bad.test:25"}},
		"list": {Mode: ModeAllow, Allow: []string{"go", "example.com", "*.sub.test:80,8000-8999", "10.1.0.0/16:5432", "[2001:db8::/32]:443",
			"192.0.2.7", "host:8080", "mail.test:465/tls", "mine"}, Deny: []string{"secret.example.com", "x.sub.test"},
			Groups: map[string][]string{"mine": {"a.mine.test:1", "npm"}}},
	}
	for _, c := range []struct {
		policy, to string
		allowed    bool
		rule       string
	}{
		{"none", "example.com:443", false, "none"},
		{"", "example.com:443", false, "none"},
		{"empty", "example.com:443", false, "allow"},
		{"empty", "1.1.1.1:443", false, "allow"},
		{"open", "example.com:443", true, "open"},
		{"open", "1.1.1.1:53", true, "open"},
		{"open", "[2606:4700::1111]:443", true, "open"},
		{"open", "a.evil.test:443", false, "deny *.evil.test"},
		{"open", "evil.test:443", true, "open"},
		{"open", "203.0.114.9:80", false, "deny 203.0.114.0/24"},
		{"open", "bad.test:25", false, "deny bad.test:25"},
		{"open", "bad.test:26", true, "open"},
		{"list", "proxy.golang.org:443", true, "go → proxy.golang.org:443"},
		{"list", "proxy.golang.org:80", false, "allow"},
		{"list", "PROXY.golang.ORG:443", true, "go → proxy.golang.org:443"},
		{"list", "example.com:22", true, "example.com"},
		{"list", "www.example.com:443", false, "allow"},
		{"list", "sub.test:80", false, "allow"},
		{"list", "a.b.sub.test:8123", true, "*.sub.test:80,8000-8999"},
		{"list", "a.sub.test:9000", false, "allow"},
		{"list", "x.sub.test:80", false, "deny x.sub.test"},
		{"list", "notsub.test:80", false, "allow"},
		{"list", "10.1.2.3:5432", true, "10.1.0.0/16:5432"},
		{"list", "10.1.2.3:5433", false, "allow"},
		{"list", "10.2.2.3:5432", false, "allow"},
		{"list", "[2001:db8::5]:443", true, "[2001:db8::/32]:443"},
		{"list", "192.0.2.7:9", true, "192.0.2.7"},
		{"list", "host.caisson.internal:8080", true, "host:8080"},
		{"list", "host:8080", true, "host:8080"},
		{"list", "host:8081", false, "allow"},
		{"open", "host:8080", false, "open"},
		{"list", "host.caisson.internal:8081", false, "allow"},
		{"inner", "host.caisson.internal:22", false, "allow"},
		{"inner", "x.caisson.internal:22", true, "*.internal"},
		{"open", "host.caisson.internal:22", false, "open"},
		{"list", "registry.npmjs.org:443", true, "mine → npm → registry.npmjs.org:443"},
		{"list", "a.mine.test:1", true, "mine → a.mine.test:1"},
	} {
		r, err := Parse(policies[c.policy])
		if err != nil {
			t.Fatal(err)
		}
		if v := r.Try(c.to); v.Allowed != c.allowed || v.Rule != c.rule || !v.Allowed && v.Reason == "" {
			t.Errorf("%s: %s: %+v, want %t by %q", c.policy, c.to, v, c.allowed, c.rule)
		}
	}
}

// TestPrivateWorld: whatever the mode, what is not the public internet is reached only by an entry that names it.
func TestPrivateWorld(t *testing.T) {
	open, err := Parse(Policy{Mode: ModeOpen})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range strings.Fields("127.0.0.1 127.9.9.9 0.0.0.0 10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 169.254.169.254 100.64.0.1 " +
		"100.100.100.200 168.63.129.16 192.0.0.192 198.18.0.1 198.19.255.255 224.0.0.1 255.255.255.255 240.0.0.1 [::1] [::] [fe80::1] [fc00::1] " +
		"[fd00:ec2::254] [ff02::1] [2001:db8::1] [::ffff:8.8.8.8] [::ffff:127.0.0.1] [::7f00:1] [64:ff9b::7f00:1] [2002:7f00:1::] [64:ff9b:1::1] [2001::1]") {
		if v := open.Try(a + ":80"); v.Allowed {
			t.Errorf("%s is allowed", a)
		}
	}
	if v := open.Try("172.32.0.1:80"); !v.Allowed {
		t.Errorf("%+v", v)
	}
	for _, a := range []string{"127.0.0.1", "169.254.169.254", "10.0.0.1", "fd00:ec2::254", "::1"} {
		if v := open.decideAddr(target{name: "rebound.test", port: 80}, netip.MustParseAddr(a)); v.Allowed || v.Remedy == "" {
			t.Errorf("a name that resolves to %s: %+v", a, v)
		}
	}
	named, err := Parse(Policy{Mode: ModeAllow, Allow: []string{"db.test:5432", "10.0.0.0/8:5432"}})
	if err != nil {
		t.Fatal(err)
	}
	if v := named.decideAddr(target{name: "db.test", port: 5432}, netip.MustParseAddr("10.0.0.1")); !v.Allowed {
		t.Errorf("%+v", v)
	}
	for entry, want := range map[string]string{"169.0.0.0/8": "", "169.254.0.0/15": "", "169.254.0.0/16": "169.254.169.254", "168.63.129.0/24": "", "192.0.0.0/8": "",
		"192.168.0.0/16": "192.168.1.1", "0.0.0.0/0": "", "10.0.0.0/7": "", "10.0.0.0/8": "10.0.0.1", "10.0.0.1": "10.0.0.1", "fc00::/6": "", "fd00::/8": "[fd00:ec2::254]"} {
		r, err := Parse(Policy{Mode: ModeAllow, Allow: []string{entry}})
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range []string{"169.254.169.254", "168.63.129.16", "192.168.1.1", "10.0.0.1", "[fd00:ec2::254]", "[fe80::1]"} {
			if v := r.Try(a + ":80"); v.Allowed != (a == want) {
				t.Errorf("%s: %s is %+v", entry, a, v)
			}
		}
	}
}

func TestOddDestinations(t *testing.T) {
	open, err := Parse(Policy{Mode: ModeOpen})
	if err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{
		"", ":", ":80", "example.com", "example.com:", "example.com:0", "example.com:65536", "example.com:+80", "example.com:080", "example.com:http",
		"exa\x00mple.com:80", "example.com\r\n:80", "example.com%00:80", "example.com%2e:80", "example.com.:80", "bücher.example:80", "b\xfccher.example:80",
		strings.Repeat("a.", 127) + "com:80", strings.Repeat("a", 64) + ".com:80", "a..b:80", ".a:80", "-a.com:80", "a-.com:80", "a b.com:80", "a/b.com:80",
		"user@example.com:80", "2130706433:80", "0x7f000001:80", "0x7f.0.0.1:80", "0177.0.0.1:80", "127.1:80", "127.0.0.1.:80", "1.2.3:80", "1.2.3.4.5:80",
		"010.0.0.1:80", "256.1.1.1:80", "example.0x10:80", "[fe80::1%eth0]:80", "::1:80", "[::1:80", "[example.com]:80", "http://example.com:80", "*.example.com:80",
		"[127.0.0.1]:80",
	} {
		if v := open.Try(to); v.Allowed || v.Reason == "" {
			t.Errorf("%q: %+v", to, v)
		}
	}
	for _, to := range []string{"xn--bcher-kva.example:80", "_sip.example.com:80", "a-b.example.com:1", "EXAMPLE.com:443", "3com.com:80", "1.2.3.4.example.com:80"} {
		if v := open.Try(to); !v.Allowed {
			t.Errorf("%q: %+v", to, v)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{
		"", "unknowngroup", "Go", "example.com:", "example.com:0", "example.com:80-70", "example.com:80-", "example.com:80,", "example.com/tls", "example.com:443/udp", "10.0.0.0/8:443/tls", "host:80/tls",
		"10.0.0.1/8", "10.0.0.0/33", "::ffff:10.0.0.0/104", "fe80::1%eth0", "exa mple.com", "*.", "*", "*.*.com", "a.*.com", "*example.com", "host", "host:1-9", "host:1,2",
		"host.caisson.internal:80", "example.com.", "127.1", "bücher.example", "[2001:db8::1]:", "[2001:db8::1", "http://example.com", "example.com\n", "a\x00b.com",
		"cycle",
	} {
		_, err := Parse(Policy{Mode: ModeAllow, Allow: []string{"example.org", text}, Groups: map[string][]string{"cycle": {"other"}, "other": {"cycle"}}})
		var se *SyntaxError
		if !errors.As(err, &se) || text != "cycle" && (se.Index != 1 || se.Text != text || se.List != "allow") {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, p := range []Policy{{Mode: "closed"}, {Mode: ModeOpen, Limits: Limits{Bytes: -1}}, {Mode: ModeOpen, Deny: []string{"nogroup"}}} {
		if _, err := Parse(p); err == nil {
			t.Errorf("%+v is accepted", p)
		}
	}
}

func TestGroups(t *testing.T) {
	for _, name := range []string{"go", "npm", "pypi", "crates", "debian", "github"} {
		if !slices.Contains(Groups(), name) {
			t.Errorf("no group %s", name)
		}
	}
	for _, name := range Groups() {
		r, err := Parse(Policy{Mode: ModeAllow, Allow: []string{name}})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.allow) == 0 {
			t.Errorf("group %s is empty", name)
		}
		for _, e := range r.allow {
			if len(e.ports) == 0 {
				t.Errorf("%s: without a port", e.text)
			}
		}
	}
}

// FuzzParse: what parses can be tried, and what is allowed by name is a name.
func FuzzParse(f *testing.F) {
	f.Add("example.com:80", "example.com:80")
	f.Add("*.a.b:1-2,3/tls", "x.a.b:2")
	f.Add("[2001:db8::/32]:443", "[2001:db8::1]:443")
	f.Add("go", "127.1:80")
	f.Fuzz(func(t *testing.T, entry, to string) {
		r, err := Parse(Policy{Mode: ModeAllow, Allow: []string{entry}})
		if err != nil {
			return
		}
		v := r.Try(to)
		if !v.Allowed {
			return
		}
		got, err := parseTarget(to)
		if err != nil {
			t.Fatalf("%q is allowed and is no destination: %v", to, err)
		}
		if got.name == "" && plainAddr(got.addr) != nil {
			t.Fatalf("%q is allowed", to)
		}
		if again := r.Try(got.String()); !again.Allowed {
			t.Fatalf("%q is allowed, %q is not", to, got)
		}
	})
}

// TestAll: what steps that run at the same time may reach is what each of them may.
func TestAll(t *testing.T) {
	parse := func(p Policy) *Rule {
		t.Helper()
		r, err := Parse(p)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	a := parse(Policy{Mode: ModeAllow, Allow: []string{"a.example", "both.example", "tls.example:8443/tls"}, Limits: Limits{Bytes: 10}})
	b := parse(Policy{Mode: ModeOpen, Deny: []string{"denied.example"}, Limits: Limits{Connections: 3}})
	none, learning := None(), None().Learning()
	for _, c := range []struct {
		rule    *Rule
		dest    string
		allowed bool
		reason  string
	}{
		{All(), "both.example:443", false, "no network"},
		{All(a), "a.example:443", true, ""},
		{All(a, a), "a.example:443", true, ""},
		{All(a, b), "both.example:443", true, ""},
		{All(b, a), "other.example:443", false, "another step that runs now, whose rule must allow it, too: no entry"},
		{All(a, b), "other.example:443", false, "no entry"},
		{All(a, b), "denied.example:443", false, "no entry"},
		{All(b, a), "denied.example:443", false, "denies"},
		{All(a, b, none), "both.example:443", false, "another step that runs now, whose rule must allow it, too: the step has no network"},
		{All(All(a, b), none), "both.example:443", false, "another step"},
		{learning, "anything.example:443", true, ""},
		{learning, "10.0.0.1:443", false, "no network"},
		{learning, "host.caisson.internal:80", false, "no network"},
		{b.Learning(), "denied.example:443", false, "denies"},
		{All(learning, none), "anything.example:443", false, "another step"},
		{All(learning, a), "a.example:443", true, ""},
	} {
		v := c.rule.Try(c.dest)
		if v.Allowed != c.allowed || !strings.Contains(v.Reason, c.reason) {
			t.Errorf("%s: %+v, want %v because of %q", c.dest, v, c.allowed, c.reason)
		}
	}
	if v := learning.Try("anything.example:443"); v.Rule != RuleLearn || v.Remedy != "anything.example:443" {
		t.Errorf("learning says %+v", v)
	}
	if l := All(a, b).Limits(); l.Bytes != 10 || l.Connections != 3 {
		t.Errorf("limits of both: %+v", l)
	}
	if l := All(b, a).Limits(); l.Bytes != 10 || l.Connections != 3 {
		t.Errorf("limits of both: %+v", l)
	}
	r := parse(Policy{Mode: ModeOpen, TLS: []string{"*.corp.example:9000"}})
	for dest, want := range map[string]bool{"x.corp.example:9000": true, "x.corp.example:9001": false, "x.example:443": true} {
		d, err := parseTarget(dest)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.speaksTLS(d); got != want {
			t.Errorf("TLS to %s: %v", dest, got)
		}
		if got := All(b, r).speaksTLS(d); got != want {
			t.Errorf("TLS to %s under both: %v", dest, got)
		}
	}
}

// TestWatching: a rule that watches has every name known that it does not deny, and lets none of them be reached.
func TestWatching(t *testing.T) {
	r, err := Parse(Policy{Mode: ModeAllow, Allow: []string{"a.example:443"}, Deny: []string{"denied.example"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, known := range map[string]bool{"a.example": true, "other.example": true, HostName: true, "denied.example": false} {
		if v := r.Watching().resolves(name); v.Allowed != known {
			t.Errorf("%s: %+v", name, v)
		}
		if v := All(r.Watching(), None()).resolves(name); v.Allowed {
			t.Errorf("%s beside a step without a network: %+v", name, v)
		}
	}
	for _, r := range []*Rule{r, None()} {
		for _, dest := range []string{"a.example:443", "other.example:443", HostName + ":80", "10.0.0.1:80", "denied.example:1"} {
			if v, w := r.Try(dest), r.Watching().Try(dest); v != w {
				t.Errorf("%s: %+v, and %+v while it watches", dest, v, w)
			}
		}
	}
}
