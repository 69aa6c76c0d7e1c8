package egress

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
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

// read hands on packets until the device is gone. A large one stays where it was read; a small one is copied, because one byte
// must not hold the memory of the largest packet.
func (l *link) read(up stack.NetworkDispatcher) {
	raw, err := l.f.SyscallConn()
	if err != nil {
		return
	}
	page := gvbuffer.NewViewSize(MTU)
	defer func() { page.Release() }()
	for {
		n, err := readPacket(raw, page.AsSlice())
		if err != nil {
			return
		}
		b := page.AsSlice()[:n]
		protocol := protocolOf(b)
		if unwanted(protocol, b) {
			continue
		}
		head := l.makeWay(protocol, b)
		var data gvbuffer.Buffer
		if n < MTU/2 {
			data = gvbuffer.MakeWithData(b)
		} else {
			// The stack copies the chunk that headers are in: that is to be a small one.
			data = gvbuffer.MakeWithView(gvbuffer.NewViewWithData(b[:head]))
			page.CapLength(n)
			page.TrimFront(head)
			rest := gvbuffer.MakeWithView(page)
			data.Merge(&rest)
			page = gvbuffer.NewViewSize(MTU)
		}
		p := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: data})
		up.DeliverNetworkPacket(protocol, p)
		p.DecRef()
	}
}

// readPacket reads one into b, without what stands before it.
func readPacket(raw syscall.RawConn, b []byte) (n int, err error) {
	var header [vnetHeader]byte
	vector := [2]unix.Iovec{{Base: &header[0], Len: vnetHeader}, {Base: &b[0]}}
	vector[1].SetLen(len(b))
	var errno unix.Errno
	rerr := raw.Read(func(fd uintptr) bool {
		var size uintptr
		for {
			// A device never blocks here, so the scheduler need not hear of it.
			size, _, errno = unix.RawSyscall(unix.SYS_READV, fd, uintptr(unsafe.Pointer(&vector[0])), uintptr(len(vector)))
			if errno != unix.EINTR {
				break
			}
		}
		n = max(int(size)-vnetHeader, 0)
		return errno != unix.EAGAIN
	})
	if errno != 0 {
		err = errno
	}
	return n, errors.Join(rerr, err)
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

// makeWay ends a connection that only waits for stray segments (TIME-WAIT) when its port opens another one: the stack
// would look for a listener, find none, and refuse. It returns how long the packet's headers are, in bytes.
func (l *link) makeWay(protocol tcpip.NetworkProtocolNumber, b []byte) int {
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
		return min(size, len(b))
	}
	t := header.TCP(b[size:])
	size = min(size+int(t.DataOffset()), len(b))
	if t.Flags()&(header.TCPFlagSyn|header.TCPFlagAck) != header.TCPFlagSyn {
		return size
	}
	id.LocalPort, id.RemotePort = t.DestinationPort(), t.SourcePort()
	e, ok := l.stack.FindTransportEndpoint(protocol, header.TCPProtocolNumber, id, nic).(*tcp.Endpoint)
	if ok && (e.EndpointState() == tcp.StateTimeWait || e.EndpointState() == tcp.StateClose) {
		e.Abort()
	}
	return size
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
