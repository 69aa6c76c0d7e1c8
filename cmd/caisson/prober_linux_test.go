package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// prober is a program that tries to get out of a sandbox by everything but names, and says what worked. Its arguments are
// addresses of the host that must not be reached; @NAME is an abstract socket. With the first one "private" it leaves public
// addresses alone. It changes the network that it is in, where it may: outside of a sandbox it needs a namespace of its own.
// With the word serve it serves the working directory on a port instead.
func prober() {
	args := os.Args[1:]
	if len(args) == 2 && args[0] == "serve" {
		s := &http.Server{Addr: ":" + args[1], Handler: http.FileServer(http.Dir(".")), ReadHeaderTimeout: 10 * time.Second}
		fmt.Println(s.ListenAndServe())
		os.Exit(1)
	}
	out := 0
	report := func(what string, err error) {
		if err == nil {
			out++
			fmt.Println("OUT:", what)
		}
	}
	targets := []string{"169.254.169.254:80", "10.0.0.1:80", "198.18.0.1:80", "198.19.255.1:443", "[::ffff:10.0.0.1]:80", "[fd00:ec2::254]:80", "[64:ff9b::a00:1]:80"}
	if len(args) > 0 && args[0] == "private" {
		args = args[1:]
	} else {
		targets = append(targets, "1.1.1.1:443", "8.8.8.8:53", "[2606:4700:4700::1111]:443", "[::ffff:1.1.1.1]:443")
	}
	probeSockets(report)
	for _, to := range slices.Concat(args, targets) {
		if name, ok := strings.CutPrefix(to, "@"); ok {
			c, err := net.Dial("unix", "@"+name)
			if err == nil {
				_ = c.Close()
			}
			report("the abstract socket "+name, err)
			continue
		}
		c, err := net.DialTimeout("tcp", to, 2*time.Second)
		if err == nil {
			_ = c.Close()
		}
		report("TCP to "+to, err)
	}
	for _, to := range append(targets, "1.1.1.1:443", "8.8.8.8:53", "198.18.1.0:53", "255.255.255.255:67", "224.0.0.251:5353", "[ff02::fb%tun0]:5353", "[2606:4700:4700::1111]:443") {
		report("UDP to "+to, askUDP(to))
	}
	probeNetlink(report)
	probeDevices(report) // which may lead into another namespace: the last
	if out == 0 {
		fmt.Println("nothing got out")
	}
}

// probeSockets opens what goes around TCP and UDP.
func probeSockets(report func(string, error)) {
	const dccp, kcm = 6, 41
	for _, s := range []struct {
		what               string
		family, kind, prot int
	}{
		{"raw IPv4", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP}, {"raw IPv4 with a header", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW},
		{"raw UDP", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_UDP}, {"raw ICMP", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP},
		{"raw GRE", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_GRE}, {"IPv4 in IPv4", unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_IPIP},
		{"raw IPv6", unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_RAW}, {"raw ICMPv6", unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6},
		{"packets", unix.AF_PACKET, unix.SOCK_RAW, 0x0300}, {"packets of one kind", unix.AF_PACKET, unix.SOCK_DGRAM, 0x0008},
		{"express data path", unix.AF_XDP, unix.SOCK_RAW, 0}, {"vsock", unix.AF_VSOCK, unix.SOCK_STREAM, 0}, {"vsock datagrams", unix.AF_VSOCK, unix.SOCK_DGRAM, 0},
		{"ping", unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP}, {"ping6", unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_ICMPV6},
		{"SCTP", unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP}, {"SCTP messages", unix.AF_INET6, unix.SOCK_SEQPACKET, unix.IPPROTO_SCTP},
		{"DCCP", unix.AF_INET, dccp, unix.IPPROTO_DCCP}, {"Bluetooth", unix.AF_BLUETOOTH, unix.SOCK_RAW, 1}, {"CAN", unix.AF_CAN, unix.SOCK_RAW, 1},
		{"TIPC", unix.AF_TIPC, unix.SOCK_STREAM, 0}, {"RDS", unix.AF_RDS, unix.SOCK_SEQPACKET, 0}, {"KCM", kcm, unix.SOCK_DGRAM, 0},
		{"PPP over Ethernet", unix.AF_PPPOX, unix.SOCK_STREAM, 0}, {"L2TP", unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_L2TP},
		{"the firewall", unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER},
	} {
		fd, err := unix.Socket(s.family, s.kind|unix.SOCK_CLOEXEC, s.prot)
		if err == nil {
			err = harmless(fd, s.family)
			_ = unix.Close(fd)
		}
		report(s.what, err)
	}
}

var errHarmless = errors.New("it does nothing")

// harmless says no of what can be opened and has no use: netfilter's socket, whose every change is refused.
func harmless(fd, family int) error {
	if family != unix.AF_NETLINK {
		return nil
	}
	const batchBegin = 16 // NFNL_MSG_BATCH_BEGIN
	b := binary.NativeEndian.AppendUint32(nil, unix.SizeofNlMsghdr+4)
	b = binary.NativeEndian.AppendUint16(b, batchBegin)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	b = append(b, make([]byte, 12)...)
	binary.BigEndian.PutUint16(b[18:], 10) // the subsystem nftables
	return errors.Join(answered(fd, b), errHarmless)
}

// answered sends one request and returns the kernel's answer.
func answered(fd int, b []byte) error {
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return err
	}
	if n >= unix.SizeofNlMsghdr+4 && binary.NativeEndian.Uint16(answer[4:]) == unix.NLMSG_ERROR {
		if code := int32(binary.NativeEndian.Uint32(answer[unix.SizeofNlMsghdr:])); code != 0 {
			return unix.Errno(-code)
		}
	}
	return nil
}

// probeNetlink asks the kernel for links, addresses and routes of its own, as ip(8) does.
func probeNetlink(report func(string, error)) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return // it is closed altogether
	}
	defer unix.Close(fd)
	request := func(kind, flags uint16, body []byte) []byte {
		b := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
		b = binary.NativeEndian.AppendUint16(b, kind)
		b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_ACK|flags)
		return append(append(b, make([]byte, 8)...), body...)
	}
	attribute := func(b []byte, kind uint16, data string) []byte {
		b = binary.NativeEndian.AppendUint16(binary.NativeEndian.AppendUint16(b, uint16(4+len(data))), kind)
		b = append(b, data...)
		return append(b, make([]byte, (4-len(b)%4)%4)...)
	}
	const lo = 1
	index := binary.NativeEndian.AppendUint32(nil, lo)
	route := []byte{unix.AF_INET, 0, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_BOOT, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST, 0, 0, 0, 0}
	create := uint16(unix.NLM_F_CREATE)
	report("a route", answered(fd, request(unix.RTM_NEWROUTE, create, attribute(route, unix.RTA_OIF, string(index)))))
	rule := append([]byte{unix.AF_INET, 0, 0, 0, unix.RT_TABLE_LOCAL, 0, 0, unix.FR_ACT_TO_TBL}, make([]byte, 4)...)
	report("a rule for routes", answered(fd, request(unix.RTM_NEWRULE, create, rule)))
	address := append([]byte{unix.AF_INET, 32, 0, 0}, index...)
	report("an address", answered(fd, request(unix.RTM_NEWADDR, create, attribute(address, unix.IFA_LOCAL, "\x0a\x00\x00\x01"))))
	link := make([]byte, unix.SizeofIfInfomsg)
	for _, kind := range []string{"veth", "dummy", "macvlan", "ipvlan", "wireguard", "vxlan"} {
		info := attribute(nil, unix.IFLA_INFO_KIND, kind)
		report("a link of the kind "+kind, answered(fd, request(unix.RTM_NEWLINK, create, attribute(link, unix.IFLA_LINKINFO, string(info)))))
	}
	binary.NativeEndian.PutUint32(link[4:], 2)
	pid := binary.NativeEndian.AppendUint32(nil, uint32(os.Getpid())) // into the same one: where it may be moved, nothing happens
	report("the device into a namespace", answered(fd, request(unix.RTM_NEWLINK, 0, attribute(link, unix.IFLA_NET_NS_PID, string(pid)))))
}

// probeDevices looks for another namespace, and for a device to make a way of.
func probeDevices(report func(string, error)) {
	open := func(path string) error {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err == nil {
			_ = unix.Close(fd)
		}
		return err
	}
	for _, path := range []string{"/dev/net/tun", "/dev/vhost-net", "/dev/vhost-vsock", "/dev/vsock", "/dev/ppp", "/dev/kvm", "/dev/mem", "/proc/sys/net/ipv4/ip_forward"} {
		report(path, open(path))
	}
	node := filepath.Join(os.TempDir(), "probed-tun")
	defer os.Remove(node)
	err := unix.Mknod(node, unix.S_IFCHR|0o666, int(unix.Mkdev(10, 200)))
	if err == nil {
		err = open(node)
	}
	report("a node of the TUN device", err)
	report("a network namespace", unix.Unshare(unix.CLONE_NEWNET))
	report("a user namespace", unix.Unshare(unix.CLONE_NEWUSER|unix.CLONE_NEWNET))
	report("io_uring", called(unix.SYS_IO_URING_SETUP, 1))
	report("bpf", called(unix.SYS_BPF, 5))
	if fd, err := unix.Open("/proc/1/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
		report("the namespace of PID 1", unix.Setns(fd, unix.CLONE_NEWNET))
		_ = unix.Close(fd)
	}
}

// called makes a system call with room for what it may read and write.
func called(number, first uintptr) error {
	var room [256]byte
	_, _, errno := unix.Syscall(number, first, uintptr(unsafe.Pointer(&room[0])), uintptr(len(room)))
	if errno != 0 {
		return errno
	}
	return nil
}

// askUDP sends a datagram and wants any answer but an error. 198.18.0.1:53 alone, the gateway's DNS, would give one.
func askUDP(to string) error {
	c, err := net.Dial("udp", to)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Write([]byte("is anybody there?")); err != nil {
		return err
	}
	_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	_, err = c.Read(make([]byte, 100))
	return err
}

// cmdAbstract listens on an abstract socket of the host until the script ends; $NAME is what it is called.
func cmdAbstract(ts *testscript.TestScript, _ bool, args []string) {
	name := fmt.Sprintf("@caisson-test-%d-%d", os.Getpid(), time.Now().UnixNano())
	l, err := net.Listen("unix", name)
	ts.Check(err)
	ts.Defer(func() { _ = l.Close() })
	c, err := net.Dial("unix", name) // from here it is reached
	ts.Check(err)
	ts.Check(c.Close())
	ts.Setenv(args[0], name)
}
