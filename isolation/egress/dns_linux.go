package egress

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"sync"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/time/rate"
)

const (
	firstName = 256 // offset of the first name's address
	maxNames  = 4096
	ttl       = 5 // seconds
)

// names gives every name that was asked for an address of each family, for as long as the gateway lives.
type names struct {
	mu     sync.Mutex
	list   []string // by number
	number map[string]int
	fresh  *rate.Limiter // of names not asked for before: a question can carry data out
}

func newNames() *names {
	return &names{number: map[string]int{}, fresh: rate.NewLimiter(50, 250)}
}

// number of a name; false when there are too many, or they come too fast.
func (n *names) add(name string) (int, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if i, ok := n.number[name]; ok {
		return i, true
	}
	if len(n.list) >= maxNames || !n.fresh.Allow() {
		return 0, false
	}
	n.list = append(n.list, name)
	n.number[name] = len(n.list) - 1
	return len(n.list) - 1, true
}

// of is the name that an address stands for.
func (n *names) of(a netip.Addr) (string, bool) {
	var i int
	switch {
	case a.Is4() && Sandbox4.Masked().Contains(a):
		b, base := a.As4(), Sandbox4.Masked().Addr().As4()
		i = int(binary.BigEndian.Uint32(b[:])-binary.BigEndian.Uint32(base[:])) - firstName
	case a.Is6() && Sandbox6.Masked().Contains(a):
		b := a.As16()
		if binary.BigEndian.Uint32(b[8:]) != 0 {
			return "", false
		}
		i = int(binary.BigEndian.Uint32(b[12:])) - firstName
	default:
		return "", false // an address outside stands for itself
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if i < 0 || i >= len(n.list) {
		return "", false
	}
	return n.list[i], true
}

func addr4(i int) [4]byte {
	b := Sandbox4.Masked().Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(i+firstName))
	return b
}

func addr6(i int) [16]byte {
	b := Sandbox6.Masked().Addr().As16()
	binary.BigEndian.PutUint32(b[12:], uint32(i+firstName))
	return b
}

// inner reports whether an address is one of ours that nobody outside has.
func inner(a netip.Addr) bool {
	return Sandbox4.Masked().Contains(a) || Sandbox6.Masked().Contains(a)
}

// answer answers one DNS message; nil for what deserves no answer. Only A and AAAA of allowed names have one, and they
// have it without anybody outside being asked.
func (g *Gateway) answer(query []byte) []byte {
	var p dnsmessage.Parser
	h, err := p.Start(query)
	if err != nil || h.Response {
		return nil
	}
	questions, err := p.AllQuestions()
	reply := dnsmessage.Message{Header: dnsmessage.Header{ID: h.ID, Response: true, OpCode: h.OpCode,
		RecursionDesired: h.RecursionDesired, RecursionAvailable: true}}
	if err != nil || len(questions) != 1 || h.OpCode != 0 {
		reply.RCode = dnsmessage.RCodeFormatError
		return pack(&reply)
	}
	q := questions[0]
	reply.Questions = questions
	reply.RCode = g.question(q, &reply)
	return pack(&reply)
}

func pack(m *dnsmessage.Message) []byte {
	b, err := m.Pack()
	if err != nil {
		return nil
	}
	return b
}

// question fills in the answer to one question.
func (g *Gateway) question(q dnsmessage.Question, reply *dnsmessage.Message) dnsmessage.RCode {
	text := strings.TrimSuffix(q.Name.String(), ".")
	name, err := parseName(text)
	if err != nil {
		g.refusedName(fmt.Sprintf("%.80q", text), Verdict{Rule: "syntax", Reason: err.Error()})
		return dnsmessage.RCodeNameError
	}
	answerable := q.Class == dnsmessage.ClassINET && (q.Type == dnsmessage.TypeA || q.Type == dnsmessage.TypeAAAA)
	if v := g.rule().resolves(name); !v.Allowed {
		if !answerable { // a rule would not help, and who asks (apt, for SRV) goes on without
			v = Verdict{Rule: "dns", Reason: "only addresses are answered"}
		}
		g.refusedName(name, v)
		return dnsmessage.RCodeNameError
	}
	if !answerable {
		return dnsmessage.RCodeRefused
	}
	i, ok := g.names.add(name)
	if !ok {
		g.refusedName(name, Verdict{Rule: "limit", Reason: "too many different names"})
		return dnsmessage.RCodeRefused
	}
	r := dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: ttl}}
	if q.Type == dnsmessage.TypeA {
		r.Body = &dnsmessage.AResource{A: addr4(i)}
	} else {
		r.Body = &dnsmessage.AAAAResource{AAAA: addr6(i)}
	}
	reply.Answers = []dnsmessage.Resource{r}
	return dnsmessage.RCodeSuccess
}

func (g *Gateway) refusedName(name string, v Verdict) {
	g.refused(Event{Name: name, Protocol: "dns"}, v)
}
