package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// buildRounds is how often the build is measured on each side, in turns.
const buildRounds = 3

// buildScript builds Go's own go command, about 250 packages, with an empty cache: $1 is the go program, $2 a
// directory on disk for everything that the build writes.
const buildScript = `mkdir -p "$2/tmp" && GOCACHE="$2/cache" GOTMPDIR="$2/tmp" exec "$1" build -o "$2/out" cmd/go`

// build measures a real build inside, with disk quota and a checkpoint after it, against outside. It takes minutes.
func (b *bencher) build(ctx context.Context) error {
	goroot, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("no go: %w", err) // it was asked for by name
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	root := strings.TrimSpace(string(goroot))
	env := []string{"GOENV=off", "GOFLAGS=", "GOPROXY=off", "GOTOOLCHAIN=local", "CGO_ENABLED=0"}
	args := []string{self, "run", "--rm", "--cpus", strconv.Itoa(runtime.NumCPU()), "--memory", "8g", "--pids-limit", "4096"}
	if !strings.HasPrefix(root, "/usr/") && !strings.HasPrefix(root, "/opt/") { // which a sandbox sees anyway
		args = append(args, "-v", root+":"+root)
	}
	for _, e := range env {
		args = append(args, "-e", e)
	}
	program := filepath.Join(root, "bin", "go")
	inside := tool{
		group: "build", args: func(int) []string {
			return append(args, "--", "sh", "-c", buildScript, "build", program, "/home/user/build")
		},
		env: []string{"CAISSON_STATE=" + filepath.Join(b.dir, "build-state")},
	}
	outside := tool{
		group: "build", args: func(i int) []string {
			return []string{"sh", "-c", buildScript, "build", program, filepath.Join(b.dir, "build", strconv.Itoa(i))}
		},
		env: env,
	}
	var seconds [2][]float64
	for i := range buildRounds {
		for side, t := range []tool{outside, inside} {
			b.line.set(fmt.Sprintf("build %d of %d, %s", i+1, buildRounds, [...]string{"outside", "inside"}[side]))
			start := time.Now()
			if err := b.run(ctx, t, i); err != nil {
				return err
			}
			seconds[side] = append(seconds[side], time.Since(start).Seconds())
		}
		if err := os.RemoveAll(filepath.Join(b.dir, "build")); err != nil {
			return err
		}
	}
	for side, f := range []figure{
		{Name: "build_outside", What: "`go build cmd/go`, cold cache, outside"},
		{Name: "build_inside", What: "`go build cmd/go`, cold cache, in a sandbox"},
	} {
		f.Group, f.Unit = "build", "s"
		b.add(f, seconds[side])
	}
	return nil
}
