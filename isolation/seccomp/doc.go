// Package seccomp holds the system call policy of a sandbox and the compiler that turns it, or any other
// specs.LinuxSeccomp, into a BPF program for the kernel. The profile is data that every engine can read; the
// compiler is the native engine's.
//
// # What a profile means
//
// A rule matches a call when its name does and all its argument conditions hold; several rules of one name
// are alternatives. When rules with different actions match one call, the strictest action wins, whatever
// their order (kill process, kill thread, trap, errno, log, allow: the kernel's own order for several
// filters); among equally strict ones the first listed. A call that no rule matches gets the default action,
// except that a call newer than our table answers ENOSYS where the default is an errno, so that a C library
// falls back instead of giving up.
//
// Calls of a foreign architecture kill the process; those of x32, an ABI that shares amd64's audit number,
// answer ENOSYS.
//
// # Arguments
//
// The kernel shows a filter all 64 bits of an argument, but reads an int parameter's low 32 bits only. A
// filter that compares 64 bits is passed by setting a high bit (CVE-2019-7303, CVE-2019-10063), so the rules
// of Default compare the low 32 bits of every such parameter. They only ever allow: engines disagree about
// a refusal listed beside an allowance of the same call (libseccomp lets an unconditional rule swallow
// conditional ones), and about alternatives they do not.
package seccomp

//go:generate go run gen.go
