// Package hostile is a program that tries to get out of the sandbox it runs in. isolationtest runs it inside;
// the test binary itself is that program, so that nothing has to be built where there is no compiler.
//
// Each attempt is a Case in a table: data, with the answers that count as a refusal. They run in
// child processes, because an attempt may end in SIGSYS. Attempts are made
// so that one that succeeds does no harm to the host: kernel switches are opened and not written, the clock is
// set to what it is.
package hostile
