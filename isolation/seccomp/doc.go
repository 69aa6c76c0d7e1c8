// Package seccomp holds the system call policy of a sandbox and the compiler that turns it, or any other
// specs.LinuxSeccomp, into a BPF program for the kernel. The profile is data that every engine can read; the
// compiler is the native engine's.
package seccomp
