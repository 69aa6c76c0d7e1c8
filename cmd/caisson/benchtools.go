package main

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// tool is one program that can run `true` in a sandbox.
type tool struct {
	group, what string
	missing     string // why it cannot be measured
	args        func(i int) []string
	env         []string
	cleanup     func()
}

// processes measures whole processes of one tool: one after the other, then many at once.
func (b *bencher) processes(ctx context.Context, t tool) error {
	if t.cleanup != nil {
		defer t.cleanup()
	}
	values, err := b.repeat(t.what, func(i int) ([]float64, error) {
		start := time.Now()
		err := b.run(ctx, t, i+warmups(b.o.n))
		return []float64{milliseconds(time.Since(start))}, err
	})
	if err != nil {
		return err
	}
	b.add(figure{Group: t.group, Name: "process", What: "`" + t.what + "`", Unit: "ms"}, values[0])
	if b.o.atOnce == 0 || t.group == "host" {
		return nil
	}
	return b.atOnce(t.group, fmt.Sprintf("%d × `%s` at once, until the last has ended", b.o.atOnce, t.what),
		func(i int) error { return b.run(ctx, t, 1000000+i) })
}

// atOnceRounds is how often a figure of many at once is measured.
const atOnceRounds = 3

// atOnce measures f many times at once; it gets a different number each time.
func (b *bencher) atOnce(group, what string, f func(i int) error) error {
	b.line.set(fmt.Sprintf("%s: %d at once", group, b.o.atOnce))
	var values []float64
	for round := range atOnceRounds {
		start := time.Now()
		if err := parallel(b.o.atOnce, func(i int) error { return f(round*b.o.atOnce + i) }); err != nil {
			return err
		}
		values = append(values, time.Since(start).Seconds())
	}
	b.add(figure{Group: group, Name: "at_once", What: what, Unit: "s"}, values)
	return nil
}

// toolTime is how long one run of a tool may take: a daemon that does not answer must not hold up the rest.
const toolTime = time.Minute

func (b *bencher) run(ctx context.Context, t tool, i int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, toolTime, fmt.Errorf("no end after %s", toolTime))
	defer cancel()
	args := t.args(i)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), t.env...)
	cmd.Dir = b.workspace()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out.Bytes()))
	}
	return nil
}

// parallel calls f n times at once and returns the first error.
func parallel(n int, f func(i int) error) error {
	errs := make(chan error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs <- f(i) })
	}
	wg.Wait()
	for range n {
		if err := <-errs; err != nil {
			return err
		}
	}
	return nil
}

// tools is everything that may be measured as a whole process, in the order of benchGroups.
func (b *bencher) tools(ctx context.Context) []tool {
	return []tool{
		{group: "host", what: "true", args: func(int) []string { return []string{"true"} }},
		b.caissonVersion(), b.caissonRun(), b.bwrap(), b.runc(), b.docker(ctx),
	}
}

func (b *bencher) caissonVersion() tool {
	t := tool{group: "host", what: "caisson version"}
	self, err := os.Executable()
	if err != nil {
		t.missing = err.Error()
	}
	t.args = func(int) []string { return []string{self, "version"} }
	return t
}

func (b *bencher) caissonRun() tool {
	t := tool{group: "caisson", what: "caisson run --rm -- true"}
	self, err := os.Executable()
	if err != nil {
		t.missing = err.Error()
	}
	t.env = []string{"CAISSON_STATE=" + filepath.Join(b.dir, "state")}
	t.args = func(int) []string { return []string{self, "run", "--rm", "--", "true"} }
	return t
}

// rootBinds are the host's program directories: those that are links on this host, and the others.
func rootBinds() (links map[string]string, dirs []string) {
	links = map[string]string{}
	for _, d := range []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt"} {
		if to, err := os.Readlink(d); err == nil {
			links[d] = to
		} else if _, err := os.Stat(d); err == nil {
			dirs = append(dirs, d)
		}
	}
	return links, dirs
}

func (b *bencher) bwrap() tool {
	t := tool{group: "bwrap", what: "bwrap --unshare-all … true"}
	path, err := exec.LookPath("bwrap")
	if err != nil {
		t.missing = "not installed"
	}
	args := []string{path, "--unshare-all", "--new-session", "--die-with-parent", "--cap-drop", "ALL"}
	links, dirs := rootBinds()
	for _, d := range dirs {
		args = append(args, "--ro-bind", d, d)
	}
	for path, to := range links {
		args = append(args, "--symlink", to, path)
	}
	args = append(args, "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
		"--bind", b.workspace(), "/workspace", "--chdir", "/workspace", "true")
	t.args = func(int) []string { return args }
	return t
}

func (b *bencher) runc() tool {
	t := tool{group: "runc", what: "runc run … true"}
	path, err := exec.LookPath("runc")
	if err != nil {
		t.missing = "not installed"
		return t
	}
	if os.Geteuid() != 0 {
		t.missing = "needs root"
		return t
	}
	bundle := filepath.Join(b.dir, "runc")
	if err := b.runcBundle(path, bundle); err != nil {
		t.missing = err.Error()
	}
	t.args = func(i int) []string {
		id := "caisson-bench-" + strconv.Itoa(os.Getpid()) + "-" + strconv.Itoa(i)
		return []string{path, "--root", filepath.Join(b.dir, "runc-state"), "run", "--bundle", bundle, id}
	}
	return t
}

// runcBundle makes runc's own default spec run true on the host's programs.
func (b *bencher) runcBundle(runc, bundle string) error {
	root := filepath.Join(bundle, "rootfs")
	links, dirs := rootBinds()
	for _, d := range append(dirs, "/workspace", "/proc", "/dev", "/sys") {
		if err := os.MkdirAll(root+d, 0o755); err != nil {
			return err
		}
	}
	for path, to := range links {
		if err := os.Symlink(to, root+path); err != nil {
			return err
		}
	}
	if out, err := exec.Command(runc, "spec", "--bundle", bundle).CombinedOutput(); err != nil {
		return fmt.Errorf("runc spec: %w: %s", err, out)
	}
	file := filepath.Join(bundle, "config.json")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var spec map[string]any
	if err := json.Unmarshal(text, &spec); err != nil {
		return err
	}
	process, _ := spec["process"].(map[string]any)
	process["terminal"], process["args"], process["cwd"] = false, []string{"true"}, "/workspace"
	mounts, _ := spec["mounts"].([]any)
	bind := func(source, target, mode string) {
		mounts = append(mounts, map[string]any{
			"type": "bind", "source": source, "destination": target, "options": []string{"rbind", mode, "nosuid", "nodev"},
		})
	}
	for _, d := range dirs {
		bind(d, d, "ro")
	}
	bind(b.workspace(), "/workspace", "rw")
	spec["mounts"] = mounts
	if text, err = json.Marshal(spec); err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}

const dockerImage = "caisson-bench:busybox"

func (b *bencher) docker(ctx context.Context) tool {
	t := tool{group: "docker", what: "docker run --rm --network none … true"}
	if !b.wants("docker") {
		return t
	}
	path, err := exec.LookPath("docker")
	if err != nil {
		t.missing = "not installed"
		return t
	}
	setUp, cancel := context.WithTimeout(ctx, toolTime)
	defer cancel()
	if exec.CommandContext(setUp, path, "version", "--format", "{{.Server.Version}}").Run() != nil {
		t.missing = "no daemon answers"
		return t
	}
	busybox, err := staticBusybox()
	if err != nil {
		t.missing = err.Error()
		return t
	}
	if err := importImage(setUp, path, busybox, filepath.Join(b.dir, "docker")); err != nil {
		t.missing = err.Error()
		return t
	}
	t.cleanup = func() {
		// A cancelled bench removes its image too.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), toolTime)
		defer cancel()
		_ = exec.CommandContext(ctx, path, "rmi", "--force", dockerImage).Run()
	}
	t.args = func(int) []string {
		return []string{path, "run", "--rm", "--network", "none", dockerImage, "/bin/busybox", "true"}
	}
	return t
}

func staticBusybox() (string, error) {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return "", fmt.Errorf("no busybox to make an image of")
	}
	f, err := elf.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return "", fmt.Errorf("%s is not statically linked", path)
		}
	}
	return path, nil
}

func importImage(ctx context.Context, docker, busybox, dir string) error {
	if err := os.MkdirAll(filepath.Join(dir, "bin"), 0o755); err != nil {
		return err
	}
	text, err := os.ReadFile(busybox)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "bin", "busybox"), text, 0o755); err != nil {
		return err
	}
	tar := exec.CommandContext(ctx, "tar", "-C", dir, "-cf", "-", "bin")
	load := exec.CommandContext(ctx, docker, "import", "-", dockerImage)
	if load.Stdin, err = tar.StdoutPipe(); err != nil {
		return err
	}
	if err := tar.Start(); err != nil {
		return err
	}
	if out, err := load.CombinedOutput(); err != nil {
		return errors.Join(fmt.Errorf("docker import: %w: %s", err, out), tar.Wait())
	}
	return tar.Wait()
}
