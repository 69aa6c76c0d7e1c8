package tun

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Device is a TUN device as it is to be inside.
type Device struct {
	Name         string
	MTU          int // bytes
	Addr4, Addr6 netip.Prefix
}

// Open makes the device in a network namespace, with its addresses and the only route. It needs CAP_SYS_ADMIN over that
// namespace's owner and over our own. The file is the device's other end; the device goes away with it.
func (d *Device) Open(netns int) (*os.File, error) {
	type answer struct {
		tun, netlink *os.File
		err          error
	}
	done := make(chan answer)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, in the namespace
		var a answer
		if a.err = unix.Setns(netns, unix.CLONE_NEWNET); a.err == nil {
			a.tun, a.netlink, a.err = openDescriptors()
		}
		done <- a
	}()
	a := <-done
	if a.err != nil {
		return nil, fmt.Errorf("network namespace: %w", a.err)
	}
	err := d.SetUp(a.tun, a.netlink)
	if err = errors.Join(err, a.netlink.Close()); err != nil {
		return nil, errors.Join(err, a.tun.Close())
	}
	return a.tun, nil
}

// openDescriptors opens what SetUp takes, in this thread's namespace.
func openDescriptors() (tun, netlink *os.File, err error) {
	t, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, &os.PathError{Op: "open", Path: "/dev/net/tun", Err: err}
	}
	tun = os.NewFile(uintptr(t), "/dev/net/tun")
	n, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("netlink: %w", err), tun.Close())
	}
	return tun, os.NewFile(uintptr(n), "netlink"), nil
}

// SetUp makes the device of two descriptors that were opened in its namespace: the kernel remembers that, so whoever owns
// the namespace's user namespace need not enter it, and could not, unprivileged.
func (d *Device) SetUp(tun, rtnetlink *os.File) error {
	r, err := unix.NewIfreq(d.Name)
	if err != nil {
		return err
	}
	r.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(int(tun.Fd()), unix.TUNSETIFF, r); err != nil {
		return fmt.Errorf("make the TUN device: %w", err)
	}
	// Nothing gets lost between two ends of one memory: checksums would only be work.
	if err := unix.IoctlSetInt(int(tun.Fd()), unix.TUNSETOFFLOAD, unix.TUN_F_CSUM); err != nil {
		return fmt.Errorf("checksums of the TUN device: %w", err)
	}
	s := int(rtnetlink.Fd())
	index, err := linkIndex(s, d.Name)
	if err != nil {
		return err
	}
	n := &netlink{fd: s, index: index}
	n.linkUp(d.MTU)
	n.address(d.Addr4)
	n.route(unix.AF_INET)
	if n.err != nil {
		return n.err
	}
	n.address(d.Addr6)
	n.route(unix.AF_INET6)
	if noIPv6(n.err) {
		return nil
	}
	return n.err
}

// noIPv6 reports whether an error says that this kernel, or this host's administrator, has no IPv6.
func noIPv6(err error) bool {
	return errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EACCES)
}

// linkIndex asks by ioctl, which a socket of any family takes.
func linkIndex(socket int, device string) (uint32, error) {
	r, err := unix.NewIfreq(device)
	if err != nil {
		return 0, err
	}
	if err := unix.IoctlIfreq(socket, unix.SIOCGIFINDEX, r); err != nil {
		return 0, fmt.Errorf("index of %s: %w", device, err)
	}
	return r.Uint32(), nil
}

// netlink sends a few rtnetlink(7) requests; the first error stays.
type netlink struct {
	fd    int
	index uint32
	err   error
}

func (n *netlink) linkUp(size int) {
	b := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(b[4:], n.index)
	binary.NativeEndian.PutUint32(b[8:], unix.IFF_UP)
	binary.NativeEndian.PutUint32(b[12:], unix.IFF_UP)
	mtu := make([]byte, 4)
	binary.NativeEndian.PutUint32(mtu, uint32(size))
	n.do("raise the device", unix.RTM_NEWLINK, 0, attribute(b, unix.IFLA_MTU, mtu))
}

func (n *netlink) address(p netip.Prefix) {
	family, raw := byte(unix.AF_INET), p.Addr().AsSlice()
	flags := byte(0)
	if p.Addr().Is6() {
		family, flags = unix.AF_INET6, unix.IFA_F_NODAD // nobody else is there, and it would take a second
	}
	b := []byte{family, byte(p.Bits()), flags, 0, 0, 0, 0, 0}
	binary.NativeEndian.PutUint32(b[4:], n.index)
	b = attribute(b, unix.IFA_LOCAL, raw)
	n.do("address "+p.String(), unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_EXCL, attribute(b, unix.IFA_ADDRESS, raw))
}

func (n *netlink) route(family byte) {
	b := make([]byte, unix.SizeofRtMsg)
	b[0], b[4], b[5], b[6], b[7] = family, unix.RT_TABLE_MAIN, unix.RTPROT_BOOT, unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST
	oif := make([]byte, 4)
	binary.NativeEndian.PutUint32(oif, n.index)
	n.do("route", unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, attribute(b, unix.RTA_OIF, oif))
}

func attribute(b []byte, kind uint16, data []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(data)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, data...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// do sends one request and waits for the kernel's answer.
func (n *netlink) do(what string, kind, flags uint16, body []byte) {
	if n.err != nil {
		return
	}
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_ACK|flags)
	b = append(b, make([]byte, 8)...)
	err := unix.Sendto(n.fd, append(b, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	answer := make([]byte, 4096)
	if err == nil {
		var size int
		size, _, err = unix.Recvfrom(n.fd, answer, 0)
		if err == nil && size >= unix.SizeofNlMsghdr+4 {
			if code := *(*int32)(unsafe.Pointer(&answer[unix.SizeofNlMsghdr])); code != 0 {
				err = unix.Errno(-code)
			}
		}
	}
	if err != nil {
		n.err = fmt.Errorf("%s: %w", what, err)
	}
}
