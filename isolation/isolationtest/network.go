//go:build linux

package isolationtest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/isolation"
)

var networkTests = []test{
	{"device", (*suite).testDevice, nil},
	{"device of a live sandbox", (*suite).testLateDevice, nil},
	{"device is gone", (*suite).testDeviceGone, nil},
	{"namespaces are apart", (*suite).testNamespacesApart, nil},
	{"closed has no network", (*suite).testNoNetwork, nil},
}

// testDevice is the name of the devices that the tests make.
const testDevice = "test0"

// network asks for the descriptors and makes a device of them; its addresses are left out, for the engine to be tested.
func (b *box) network(t *testing.T) *isolation.Network {
	t.Helper()
	n, err := b.Network(t.Context())
	if errors.Is(err, isolation.ErrUnsupported) {
		testenv.Need(t, "tun", err)
	}
	must(t, err)
	t.Cleanup(func() { _ = n.Close() })
	r, err := unix.NewIfreq(testDevice)
	must(t, err)
	r.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	must(t, unix.IoctlIfreq(int(n.TUN.Fd()), unix.TUNSETIFF, r))
	// The socket is of the same namespace: it knows the device, and may raise it.
	must(t, unix.IoctlIfreq(int(n.Netlink.Fd()), unix.SIOCGIFFLAGS, r))
	r.SetUint16(r.Uint16() | unix.IFF_UP)
	must(t, unix.IoctlIfreq(int(n.Netlink.Fd()), unix.SIOCSIFFLAGS, r))
	return n
}

// interfaces are the names that a command inside sees, sorted.
func (b *box) interfaces(t *testing.T) []string {
	t.Helper()
	list := strings.Fields(b.help(t, "interfaces"))
	slices.Sort(list)
	return list
}

// interfaces prints the names of the network devices, and changes none.
func interfaces([]string) error {
	list, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, i := range list {
		fmt.Println(i.Name)
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	r, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, r); err == nil {
		return errors.New("a command inside could switch lo off")
	}
	return unix.Close(s)
}

func (s *suite) testDevice(t *testing.T) {
	b := s.start(t)
	if got := b.interfaces(t); !slices.Equal(got, []string{"lo"}) {
		t.Errorf("at first there is %q", got)
	}
	b.network(t)
	if got := b.interfaces(t); !slices.Equal(got, []string{"lo", testDevice}) {
		t.Errorf("with a device there is %q", got)
	}
	if list, err := net.Interfaces(); err != nil || slices.ContainsFunc(list, func(i net.Interface) bool { return i.Name == testDevice }) {
		t.Errorf("the device is the host's (%v)", err)
	}
}

// testLateDevice makes one while a command runs, which sees it, and can be done again when the first has gone.
func (s *suite) testLateDevice(t *testing.T) {
	b := s.start(t)
	x, _ := b.ready(t, b.process(t, "pause"))
	for range 2 {
		n := b.network(t)
		if got := b.interfaces(t); !slices.Contains(got, testDevice) {
			t.Errorf("there is %q", got)
		}
		must(t, n.Close())
	}
	must(t, x.Signal(unix.SIGKILL))
	wait(t, x)
}

// testDeviceGone closes the other end, as a supervisor's death does: no network is left, and above all no other one.
func (s *suite) testDeviceGone(t *testing.T) {
	b := s.start(t)
	must(t, b.network(t).Close())
	if got := b.interfaces(t); !slices.Equal(got, []string{"lo"}) {
		t.Errorf("without its other end there is %q", got)
	}
}

// testNamespacesApart makes the same device in two sandboxes, one after the other's end and beside it.
func (s *suite) testNamespacesApart(t *testing.T) {
	for range 2 {
		a, b := s.start(t), s.start(t)
		a.network(t)
		if got := b.interfaces(t); !slices.Equal(got, []string{"lo"}) {
			t.Errorf("beside a sandbox with a device there is %q", got)
		}
		b.network(t)
		must(t, a.Close(t.Context()))
		must(t, b.Close(t.Context()))
	}
}

func (s *suite) testNoNetwork(t *testing.T) {
	b := s.start(t)
	must(t, b.Close(t.Context()))
	if n, err := b.Network(t.Context()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a closed sandbox gives %v, %v", n, err)
	}
}
