// Package tun makes a TUN device in a network namespace, with addresses and the only route, of descriptors that were opened
// there: who makes it need not be inside.
package tun
