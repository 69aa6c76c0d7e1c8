package overlay

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
)

// long reports a run with the full numbers.
func long() bool { return os.Getenv("CAISSON_TEST_LONG") != "" }

func count(t *testing.T, path string) int {
	list, err := os.ReadDir(path)
	must(t, err)
	return len(list)
}

// TestMany: checkpoints cost no descriptor, no mount and no memory that grows.
func TestMany(t *testing.T) {
	features, checkpoints := 3, 20
	if long() {
		features, checkpoints = 10, 100
	}
	b := newBox(t).create()
	b.seal("start")
	mounts := func() int {
		data, err := os.ReadFile("/proc/self/mountinfo")
		must(t, err)
		return strings.Count(string(data), "\n")
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	all := []*box{b}
	for i := range features - 1 {
		all = append(all, b.fork("start", fmt.Sprintf("g%d", i)))
	}
	fds, mounted, before := count(t, "/proc/self/fd"), mounts(), heap()
	for i := range checkpoints {
		for _, x := range all {
			x.write("a", fmt.Sprint(i))
			x.seal(fmt.Sprintf("c%d", i))
			must(t, x.l.Sync(context.Background()))
			_, err := x.l.Squash(context.Background(), false)
			must(t, err)
			_, err = x.l.Index(context.Background(), fmt.Sprintf("c%d", i))
			must(t, err)
		}
	}
	if now := count(t, "/proc/self/fd"); now > fds+3 { // the runtime's own
		t.Errorf("%d descriptors, %d before", now, fds)
	}
	if now := mounts(); now != mounted {
		t.Errorf("%d mounts, %d before", now, mounted)
	}
	if now := heap(); now > before+uint64(features*checkpoints)*8<<10 {
		t.Errorf("%d bytes of heap, %d before", now, before)
	}
	for _, x := range all {
		x.reset("c3")
		x.want("a=3")
	}
}

// TestChain: hundreds of checkpoints are few layers, and each can be had again.
func TestChain(t *testing.T) {
	n := 150
	if long() {
		n = 500
	}
	b := newBox(t).create()
	deepest := 0
	for i := range n {
		b.write("a", fmt.Sprint(i))
		b.write(fmt.Sprintf("f%d", i%7), fmt.Sprint(i))
		b.seal(fmt.Sprintf("c%d", i))
		_, err := b.l.Squash(context.Background(), false)
		must(t, err)
		deepest = max(deepest, b.l.Info().Depth)
	}
	t.Logf("%d checkpoints, at most %d layers", n, deepest)
	if deepest > 27 { // 16 + 7 + 3, and the upper
		t.Errorf("%d layers deep", deepest)
	}
	collect(b)
	b.reopen()
	for _, i := range []int{0, 1, 15, 16, 17, 100, n - 2, n - 1} {
		b.reset(fmt.Sprintf("c%d", i))
		if data, err := os.ReadFile(b.path("a")); err != nil || string(data) != fmt.Sprint(i) {
			t.Errorf("checkpoint %d shows a=%s, %v", i, data, err)
		}
	}
	for i := range n - 1 {
		must(t, b.l.Drop(context.Background(), fmt.Sprintf("c%d", i)))
	}
	b.reset(fmt.Sprintf("c%d", n-1))
	collect(b)
	if left := count(t, b.at("f")+"/layers"); left > 32 {
		t.Errorf("%d layers are left of the last checkpoint", left)
	}
	if data, err := os.ReadFile(b.path("a")); err != nil || string(data) != fmt.Sprint(n-1) {
		t.Errorf("after collecting: a=%s, %v", data, err)
	}
}
