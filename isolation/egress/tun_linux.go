package egress

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
	gvbuffer "gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/rawfile"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// MTU of the device, in bytes: the largest, because every packet costs the same.
const MTU = 65535

// device is the TUN's name inside.
const device = "tun0"

// OpenTUN makes the device in a network namespace, with its addresses and the only route. It needs CAP_SYS_ADMIN over that
// namespace's owner and over our own. The file is the device's other end; the device goes away with it.
func OpenTUN(netns int) (*os.File, error) {
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
	err := SetUp(a.tun, a.netlink)
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
func SetUp(tun, rtnetlink *os.File) error {
	r, err := unix.NewIfreq(device)
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
	index, err := linkIndex(s)
	if err != nil {
		return err
	}
	n := &netlink{fd: s, index: index}
	n.linkUp()
	n.address(Sandbox4)
	n.route(unix.AF_INET)
	if n.err != nil {
		return n.err
	}
	n.address(Sandbox6)
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
func linkIndex(socket int) (uint32, error) {
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

func (n *netlink) linkUp() {
	b := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(b[4:], n.index)
	binary.NativeEndian.PutUint32(b[8:], unix.IFF_UP)
	binary.NativeEndian.PutUint32(b[12:], unix.IFF_UP)
	mtu := make([]byte, 4)
	binary.NativeEndian.PutUint32(mtu, MTU)
	n.do("raise "+device, unix.RTM_NEWLINK, 0, attribute(b, unix.IFLA_MTU, mtu))
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

// vnetHeader is the length of struct virtio_net_hdr, which stands before every packet (IFF_VNET_HDR), in bytes.
const vnetHeader = 10

// checksums are where transports have them, in bytes. The stack makes those of the others.
var checksums = map[tcpip.TransportProtocolNumber]uint16{header.TCPProtocolNumber: header.TCPChecksumOffset, header.UDPProtocolNumber: 6}

// link is the device's other end as the stack's network interface. It has one reader, which waits in Go's poller, and
// hands on what is read itself.
type link struct {
	stack  *stack.Stack
	f      *os.File
	fd     int // of f
	up     stack.NetworkDispatcher
	reader sync.WaitGroup
	syns   chan *stack.PacketBuffer

	written chan struct{} // closed when syns are
}

// newLink takes a descriptor of its own: the poller hears only of devices that had been made when it was told of them.
func newLink(s *stack.Stack, tun *os.File) (*link, error) {
	fd, err := unix.FcntlInt(tun.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("TUN device: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(fmt.Errorf("TUN device: %w", err), unix.Close(fd))
	}
	l := &link{stack: s, f: os.NewFile(uintptr(fd), tun.Name()), fd: fd, syns: make(chan *stack.PacketBuffer, maxSyns), written: make(chan struct{})}
	go l.writeSyns()
	return l, nil
}

// Attach implements stack.LinkEndpoint. The stack is locked: nothing is waited for.
func (l *link) Attach(up stack.NetworkDispatcher) {
	if l.up = up; up != nil {
		l.reader.Go(func() { l.read(up) })
	}
}

// stop ends the reader, before the stack goes: it may be waiting for the stack.
func (l *link) stop() {
	_ = l.f.SetReadDeadline(time.Now())
	l.reader.Wait()
}

// read hands on packets until the device is gone. What is small goes into a buffer of its size: one byte must not hold the
// memory of the largest packet.
func (l *link) read(up stack.NetworkDispatcher) {
	b := make([]byte, vnetHeader+MTU)
	for {
		n, err := l.f.Read(b)
		if err != nil {
			return
		}
		if n <= vnetHeader {
			continue
		}
		protocol := protocolOf(b[vnetHeader:n])
		if unwanted(protocol, b[vnetHeader:n]) {
			continue
		}
		l.makeWay(protocol, b[vnetHeader:n])
		p := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: gvbuffer.MakeWithData(b[vnetHeader:n])})
		up.DeliverNetworkPacket(protocol, p)
		p.DecRef()
	}
}

func protocolOf(b []byte) tcpip.NetworkProtocolNumber {
	switch header.IPVersion(b) {
	case header.IPv4Version:
		return header.IPv4ProtocolNumber
	case header.IPv6Version:
		return header.IPv6ProtocolNumber
	}
	return 0
}

// unwanted reports whether a packet is kept away from the stack, which would answer by itself: ICMP to others than the
// gateway, and what has no ordinary header.
func unwanted(protocol tcpip.NetworkProtocolNumber, b []byte) bool {
	switch {
	case protocol == header.IPv4ProtocolNumber && len(b) >= header.IPv4MinimumSize:
		h := header.IPv4(b)
		return h.TransportProtocol() == header.ICMPv4ProtocolNumber && address(h.DestinationAddress()) != Gateway4
	case protocol == header.IPv6ProtocolNumber && len(b) >= header.IPv6MinimumSize:
		h := header.IPv6(b)
		// What has extension headers is nothing that an ordinary client sends.
		next := h.TransportProtocol()
		return next != header.TCPProtocolNumber && next != header.UDPProtocolNumber && address(h.DestinationAddress()) != Gateway6
	}
	return true
}

// makeWay ends a connection that only waits for stray segments (TIME-WAIT) when its port opens another one. The stack
// would look for a listener, find none, and refuse.
func (l *link) makeWay(protocol tcpip.NetworkProtocolNumber, b []byte) {
	size, next := header.IPv6MinimumSize, uint8(0)
	id := stack.TransportEndpointID{}
	if protocol == header.IPv4ProtocolNumber {
		h := header.IPv4(b)
		size, next = int(h.HeaderLength()), h.Protocol()
		id.LocalAddress, id.RemoteAddress = h.DestinationAddress(), h.SourceAddress()
	} else {
		h := header.IPv6(b)
		next = h.NextHeader()
		id.LocalAddress, id.RemoteAddress = h.DestinationAddress(), h.SourceAddress()
	}
	if next != uint8(header.TCPProtocolNumber) || len(b) < size+header.TCPMinimumSize {
		return
	}
	t := header.TCP(b[size:])
	if t.Flags()&(header.TCPFlagSyn|header.TCPFlagAck) != header.TCPFlagSyn {
		return
	}
	id.LocalPort, id.RemotePort = t.DestinationPort(), t.SourcePort()
	e, ok := l.stack.FindTransportEndpoint(protocol, header.TCPProtocolNumber, id, nic).(*tcp.Endpoint)
	if ok && (e.EndpointState() == tcp.StateTimeWait || e.EndpointState() == tcp.StateClose) {
		e.Abort()
	}
}

// WritePackets implements stack.LinkEndpoint.
func (l *link) WritePackets(list stack.PacketBufferList) (int, tcpip.Error) {
	for i, p := range list.AsSlice() {
		if l.later(p) {
			continue
		}
		if errno := l.write(p); errno != 0 {
			return i, tcpip.TranslateErrno(errno)
		}
	}
	return list.Len(), nil
}

// later leaves a SYN to writeSyns. The stack holds a lock while it sends one; the kernel answers it within our write, and
// what handles the answer would spin on that lock.
func (l *link) later(p *stack.PacketBuffer) bool {
	h := header.TCP(p.TransportHeader().Slice())
	if p.TransportProtocolNumber != header.TCPProtocolNumber || len(h) < header.TCPMinimumSize || !h.Flags().Contains(header.TCPFlagSyn) {
		return false
	}
	select {
	case l.syns <- p.IncRef():
		return true
	default:
		p.DecRef()
		return false
	}
}

// writeSyns writes what later took, until close.
func (l *link) writeSyns() {
	for p := range l.syns {
		_ = l.write(p) // it is sent again
		p.DecRef()
	}
	close(l.written)
}

// close is for when the stack does not write any more.
func (l *link) close() error {
	close(l.syns)
	<-l.written
	return l.f.Close()
}

// write writes a packet. It is said to have a checksum that is still to be made, which nobody then makes
// (VIRTIO_NET_HDR_F_NEEDS_CSUM).
func (l *link) write(p *stack.PacketBuffer) unix.Errno {
	var iovecs [16]unix.Iovec
	var head [vnetHeader]byte
	if offset, ok := checksums[p.TransportProtocolNumber]; ok {
		head[0] = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM
		binary.NativeEndian.PutUint16(head[6:], uint16(len(p.NetworkHeader().Slice())))
		binary.NativeEndian.PutUint16(head[8:], offset)
	}
	v := rawfile.AppendIovecFromBytes(iovecs[:0], head[:], len(iovecs))
	for _, b := range p.AsSlices() {
		v = rawfile.AppendIovecFromBytes(v, b, len(iovecs))
	}
	return rawfile.NonBlockingWriteIovec(l.fd, v)
}

// Capabilities implements stack.LinkEndpoint.
func (*link) Capabilities() stack.LinkEndpointCapabilities {
	return stack.CapabilityRXChecksumOffload | stack.CapabilityTXChecksumOffload
}

// The rest of stack.LinkEndpoint: there is no link layer.

func (*link) MTU() uint32                             { return MTU }
func (*link) SetMTU(uint32)                           {}
func (*link) MaxHeaderLength() uint16                 { return 0 }
func (*link) LinkAddress() tcpip.LinkAddress          { return "" }
func (*link) SetLinkAddress(tcpip.LinkAddress)        {}
func (l *link) IsAttached() bool                      { return l.up != nil }
func (*link) Wait()                                   {}
func (*link) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareNone }
func (*link) AddHeader(*stack.PacketBuffer)           {}
func (*link) ParseHeader(*stack.PacketBuffer) bool    { return true }
func (*link) Close()                                  {}
func (*link) SetOnCloseAction(func())                 {}
