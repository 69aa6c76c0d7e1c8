// Package isolation describes a sandbox and what makes one: the Spec (an OCI runtime spec plus
// the mounts and ids that it cannot express), the Engine that turns a Spec into a Sandbox, and the
// controls that a profile may require. It knows no engine.
//
// A Spec is a deterministic value: the kernel is met only in Engine.Start. An engine enforces
// everything that a Spec requires or refuses with ErrUnsupported, naming the control; it never
// enforces less.
package isolation
