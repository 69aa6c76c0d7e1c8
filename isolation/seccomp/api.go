package seccomp

import "github.com/opencontainers/runtime-spec/specs-go"

// Default returns the profile of a process without capabilities.
func Default() *specs.LinuxSeccomp { return &specs.LinuxSeccomp{DefaultAction: specs.ActErrno} }
