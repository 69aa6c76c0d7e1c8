package uplink

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/caisson-dev/caisson/isolation/egress"
)

// unrouted is how often something was to be sent from the network namespace of a process, and there was no route: the
// kernel's count since the namespace began, of both families. Whom it was for, nobody has seen.
func unrouted(pid int) (n int, err error) {
	v4, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/snmp", pid))
	if err != nil {
		return 0, err
	}
	if v6, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/snmp6", pid)); err == nil { // a kernel without IPv6 has none
		n = unrouted6(v6)
	}
	m, err := unrouted4(v4)
	return n + m, err
}

// unrouted4 reads the two lines of net/snmp that begin with Ip: names, and their values.
func unrouted4(text []byte) (int, error) {
	var names [][]byte
	for line := range bytes.Lines(text) {
		fields := bytes.Fields(line)
		switch {
		case len(fields) == 0 || string(fields[0]) != "Ip:":
			continue
		case names == nil:
			names = fields
			continue
		}
		for i, name := range names {
			if string(name) == "OutNoRoutes" && i < len(fields) {
				return strconv.Atoi(string(fields[i]))
			}
		}
	}
	return 0, errors.New("net/snmp has no OutNoRoutes")
}

// unrouted6 reads net/snmp6: a name and its value in a line.
func unrouted6(text []byte) int {
	for line := range bytes.Lines(text) {
		if f := bytes.Fields(line); len(f) == 2 && string(f[0]) == "Ip6OutNoRoutes" {
			n, _ := strconv.Atoi(string(f[1])) // the kernel's own number
			return n
		}
	}
	return 0
}

// count tells what found no route since it was counted last, to the steps that have run since. With a gateway everything has
// a route, and is told by it. u.changing is held.
func (u *Uplink) count() {
	if u.gateway() != nil {
		return
	}
	n, err := unrouted(u.opt.Sandbox.PID())
	if err != nil {
		return // the sandbox has ended, and took its count with it
	}
	more := n - u.unrouted
	first := !u.counts
	u.unrouted, u.counts = n, true
	if first || more <= 0 {
		return
	}
	step, _ := u.current()
	u.tell(egress.Event{At: time.Now(), Step: step, Verdict: egress.VerdictRefused, Rule: egress.RuleUnseen, Count: more,
		Reason: "the step has no network, so nobody has seen who was wanted"})
}
