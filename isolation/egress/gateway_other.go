//go:build !linux

package egress

import (
	"context"
	"errors"
	"net/netip"
	"os"
)

// errPlatform is why there is no gateway.
var errPlatform = errors.New("a gateway needs Linux")

// Gateway is Linux' alone.
type Gateway struct{}

// SetUp refuses.
func SetUp(_, _ *os.File) error { return errPlatform }

// Start refuses.
func Start(context.Context, Options) (*Gateway, error) { return nil, errPlatform }

// SetRule does nothing.
func (*Gateway) SetRule(int, *Rule) {}

// Drain does nothing.
func (*Gateway) Drain(int) {}

// Publish refuses.
func (*Gateway) Publish(Publish) (netip.AddrPort, func(), error) {
	return netip.AddrPort{}, nil, errPlatform
}

// Usage is none.
func (*Gateway) Usage() Usage { return Usage{} }

// Close does nothing.
func (*Gateway) Close() error { return nil }
