//go:build anchor

// Package anchor keeps go.mod complete until every package that needs these has landed.
package anchor

import (
	_ "github.com/aymanbagabas/go-udiff"
	_ "github.com/bmatcuk/doublestar/v4"
	_ "github.com/containerd/cgroups/v3/cgroup1"
	_ "github.com/containerd/cgroups/v3/cgroup2"
	_ "github.com/creack/pty"
	_ "github.com/elastic/go-seccomp-bpf/arch"
	_ "github.com/moby/profiles/seccomp"
	_ "github.com/oklog/ulid/v2"
	_ "github.com/opencontainers/runtime-spec/specs-go"
	_ "github.com/rogpeppe/go-internal/testscript"
	_ "github.com/spf13/cobra"
	_ "github.com/spf13/viper"
	_ "golang.org/x/net/bpf"
	_ "golang.org/x/sync/errgroup"
	_ "golang.org/x/sys/unix"
	_ "golang.org/x/term"
	_ "gopkg.in/yaml.v3"
	_ "modernc.org/sqlite"
)
