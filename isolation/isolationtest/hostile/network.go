//go:build linux

package hostile

import (
	"fmt"
	"net"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// strangeFamilies are socket families that no build needs; each is a part of the kernel that can be loaded by asking.
var strangeFamilies = map[string]int{
	"packet": unix.AF_PACKET, "vsock": unix.AF_VSOCK, "alg": unix.AF_ALG, "key": unix.AF_KEY, "xdp": unix.AF_XDP,
	"bluetooth": unix.AF_BLUETOOTH, "can": unix.AF_CAN, "tipc": unix.AF_TIPC, "rds": unix.AF_RDS, "x25": unix.AF_X25, "ax25": unix.AF_AX25,
	"netrom": unix.AF_NETROM, "rose": unix.AF_ROSE, "llc": unix.AF_LLC, "ieee802154": unix.AF_IEEE802154, "phonet": unix.AF_PHONET,
	"caif": unix.AF_CAIF, "nfc": unix.AF_NFC, "kcm": unix.AF_KCM, "qipcrtr": unix.AF_QIPCRTR, "smc": unix.AF_SMC, "mctp": unix.AF_MCTP,
	"appletalk": unix.AF_APPLETALK, "ipx": unix.AF_IPX, "decnet": unix.AF_DECnet, "pppox": unix.AF_PPPOX, "rxrpc": unix.AF_RXRPC, "isdn": unix.AF_ISDN,
}

// outside are addresses that exist for most hosts: public ones, the cloud's metadata service, private networks.
var outside = []string{"1.1.1.1:53", "8.8.8.8:443", "169.254.169.254:80", "10.0.0.1:80", "172.17.0.1:80", "192.168.1.1:80", "[2606:4700:4700::1111]:443", "[fe80::1]:80"}

func networkCases() []Case {
	var cases []Case
	for name, family := range strangeFamilies {
		cases = append(cases, Case{"net/family_" + name, "code of the kernel that nobody needs here", Denied | Absent, func(*Host) error {
			return anyOf([]int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_RAW, unix.SOCK_SEQPACKET}, Denied|Absent, func(kind int) error {
				return socket(family, kind, 0)
			})
		}})
	}
	return append(cases, []Case{
		{"net/raw", "raw packets", Denied, func(*Host) error { return socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP) }},
		{"net/raw6", "raw packets", Denied | Absent, func(*Host) error { return socket(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6) }},
		{"net/ping", "packets to anywhere", Denied | Unreachable, func(*Host) error { return socket(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP) }},
		{"net/tcp_outside", "the network", Unreachable | Denied | Invalid, func(*Host) error {
			return anyOf(outside, Unreachable|Denied|Invalid|Absent, func(a string) error { return dial("tcp", a) })
		}},
		{"net/udp_outside", "the network", Unreachable | Denied | Invalid, func(*Host) error {
			return anyOf(outside, Unreachable|Denied|Invalid|Absent, func(a string) error { return dial("udp", a) })
		}},
		{"net/tcp_host", "services of the host", Unreachable | Denied, func(h *Host) error {
			return anyOf(h.Listeners, Unreachable|Denied, func(a string) error { return dial("tcp", a) })
		}},
		{"net/unix_abstract", "services of the host by abstract sockets (CVE-2020-15257)", Unreachable | Absent | Denied, func(h *Host) error {
			return anyOf([]string{h.Abstract}, Unreachable|Absent|Denied, func(a string) error { return dial("unix", a) })
		}},
		{"net/interfaces", "more than a loopback device", NoEffect, interfaces},
		{"net/new_interface", "a network device", Denied, newInterface},
		{"net/so_mark", "marked packets", Denied, func(*Host) error { return option(unix.SO_MARK) }},
		{"net/so_rcvbufforce", "more memory than allowed", Denied, func(*Host) error { return option(unix.SO_RCVBUFFORCE) }},
		{"net/proc_tcp", "the host's connections", NoEffect | Empty, procTCP},
	}...)
}

func socket(family, kind, protocol int) error {
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
	if err == nil {
		return unix.Close(fd)
	}
	return err
}

func dial(network, address string) error {
	c, err := net.DialTimeout(network, address, 2*time.Second)
	if err == nil {
		return c.Close()
	}
	return err
}

func interfaces(*Host) error {
	list, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, i := range list {
		if i.Flags&net.FlagLoopback == 0 && i.Flags&net.FlagUp != 0 {
			return nil
		}
	}
	return refuse(NoEffect, "%d interfaces", len(list))
}

// newInterface asks rtnetlink for a dummy device. The answer comes as a message.
func newInterface(*Host) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request := struct {
		unix.NlMsghdr
		unix.IfInfomsg
		info   unix.RtAttr
		kind   unix.RtAttr
		device [8]byte
	}{
		NlMsghdr: unix.NlMsghdr{Type: unix.RTM_NEWLINK, Flags: unix.NLM_F_REQUEST | unix.NLM_F_ACK | unix.NLM_F_CREATE | unix.NLM_F_EXCL, Seq: 1},
		info:     unix.RtAttr{Type: unix.IFLA_LINKINFO, Len: 16},
		kind:     unix.RtAttr{Type: 1 /* IFLA_INFO_KIND */, Len: 4 + 6},
		device:   [8]byte{'d', 'u', 'm', 'm', 'y'},
	}
	request.Len = uint32(unsafe.Sizeof(request))
	if err := unix.Sendto(fd, unsafe.Slice((*byte)(unsafe.Pointer(&request)), unsafe.Sizeof(request)), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return err
	}
	if n < unix.SizeofNlMsghdr+4 {
		return fmt.Errorf("an answer of %d bytes", n)
	}
	if code := *(*int32)(unsafe.Pointer(&answer[unix.SizeofNlMsghdr])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

func option(name int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, name, 1<<20)
}

func procTCP(*Host) error {
	data, err := readSome("/proc/net/tcp")
	if err != nil {
		return err
	}
	lines := 0
	for _, b := range data {
		if b == '\n' {
			lines++
		}
	}
	if lines > 1 { // the heading alone
		return nil
	}
	return refuse(NoEffect, "no connections")
}

func ipcCases() []Case {
	return []Case{
		{"ipc/shm", "shared memory of the host", Absent | Denied, func(h *Host) error { return raw(unix.SYS_SHMGET, uintptr(h.Key), 0, 0) }},
		{"ipc/sem", "semaphores of the host", Absent | Denied, func(h *Host) error { return raw(unix.SYS_SEMGET, uintptr(h.Key), 0, 0) }},
		{"ipc/msg", "message queues of the host", Absent | Denied, func(h *Host) error { return raw(unix.SYS_MSGGET, uintptr(h.Key), 0) }},
		{"ipc/mq", "POSIX message queues of the host", Absent | Denied, func(h *Host) error {
			return raw(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(cstring(h.Queue))), unix.O_RDONLY, 0, 0)
		}},
		{"ipc/dev_shm", "shared memory files of the host", Absent | Empty, listing("/dev/shm")},
		{"ipc/dev_mqueue", "queues of the host", Absent | Empty, listing("/dev/mqueue")},
	}
}
