// Package isolationtest is the suite that every isolation.Engine passes: the contract of Engine, Sandbox,
// Process and Execution, and a hostile program that tries to get out.
//
// The package under test gives its TestMain to the suite, because the test binary is also the program that
// runs inside the sandboxes; so the suite needs no compiler, no shell and no tool where it runs:
//
//	func TestMain(m *testing.M) { isolationtest.Main(m) }
//
//	func TestSuite(t *testing.T) {
//		isolationtest.Run(t, func(t *testing.T) isolation.Engine { … }, isolationtest.Options{Seccomp: seccomp.Default()})
//	}
//
// Run works as root and as an unprivileged user; what only one of them can do is tested only there.
package isolationtest
