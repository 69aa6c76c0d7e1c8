//go:build linux

package main

import (
	"os/exec"
	"time"

	"github.com/caisson-dev/caisson/cmd/vmtest/wire"
)

// pipeGrace bounds how long a process that a test left behind may hold the output open.
const pipeGrace = 10 * time.Second

// runTest runs one test binary and reports what it prints and how it ends.
func runTest(r *reporter, t wire.Test, env []string) {
	r.send(wire.Message{Kind: wire.Begin, Package: t.Package})
	out := output{r, t.Package}
	c := exec.Command(t.Binary, t.Args...)
	c.Dir, c.Env, c.WaitDelay = t.Dir, env, pipeGrace
	c.Stdout, c.Stderr = out, out
	start := time.Now()
	err := c.Run()
	end := wire.Message{Kind: wire.End, Package: t.Package, Took: time.Since(start)}
	if err != nil {
		end.Error = err.Error()
	}
	r.send(end)
}

// output reports what is written to it. As stdout and stderr are the same writer, exec.Cmd uses one pipe
// for both and keeps their order.
type output struct {
	r   *reporter
	pkg string
}

func (o output) Write(p []byte) (int, error) {
	o.r.send(wire.Message{Kind: wire.Output, Package: o.pkg, Output: p})
	return len(p), nil
}
