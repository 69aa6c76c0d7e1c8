// Package splice copies between connections of the userspace stack and the host's sockets, without a buffer of its own between
// the two: bytes go from the stack's packets into the socket, and from the socket into the stack's packets.
package splice
