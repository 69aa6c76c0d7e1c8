package quota

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/internal/testenv"
)

const nobody = 65534

// probeHelper prints what an unprivileged process finds, and tries it.
func probeHelper() int {
	c, err := Probe()
	if err != nil {
		var u *UnavailableError
		if !errors.As(err, &u) || !errors.Is(err, ErrUnavailable) {
			fmt.Println("other error:", err)
			return 1
		}
		fmt.Printf("unavailable: %s\nremedy: %s\n", u.Reason, u.Remedy)
		return 0
	}
	g, err := c.New("probe", validLimits())
	if err != nil {
		fmt.Println("New:", err)
		return 1
	}
	leaf, err := g.Leaf("init", nil)
	if err != nil {
		fmt.Println("Leaf:", err)
		return 1
	}
	e, err := leaf.Entry()
	if err != nil {
		fmt.Println("Entry:", err)
		return 1
	}
	c2 := helper(context.Background(), "sleep") // ends at once: its stdin is empty
	if e.V2 != nil {
		c2.SysProcAttr = childIn(e)
	}
	out, err := c2.CombinedOutput()
	fmt.Printf("available: %s\nchild: %s%v\n", c.Root(), out, err)
	if err := errors.Join(e.Close(), g.Remove(context.Background()), c.Cleanup()); err != nil {
		fmt.Println("Remove:", err)
		return 1
	}
	return 0
}

func TestProbeUnprivileged(t *testing.T) {
	probed(t)
	testenv.Need(t, "root", needRoot())
	out, err := helper(bounded(t), "probe", fmt.Sprint(nobody)).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, want := range []string{"unavailable: ", "remedy: run it as root", "permission denied"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the refusal lacks %q:\n%s", want, out)
		}
	}
}

// TestProbeDelegated gives a group to an unprivileged user whose process is in it.
func TestProbeDelegated(t *testing.T) {
	c := probed(t)
	testenv.Need(t, "root", needRoot())
	g := newGroup(t, c, validLimits())
	leaf := newLeaf(t, g, "scope", nil)
	for _, tr := range c.trees {
		files := []string{"", "/tasks"}
		if c.Mode() == ModeV2 {
			files = []string{"", "/cgroup.procs", "/cgroup.subtree_control", "/cgroup.threads"}
		}
		for _, f := range files {
			if err := os.Chown(tr.dir(leaf.Path())+f, nobody, nobody); err != nil {
				t.Fatal(err)
			}
		}
	}
	// The parents belong to root, so "caisson" at the top must not be taken for ours.
	want := "available: " + c.Root() + strings.TrimPrefix(leaf.Path(), parentName) + "/" + parentName
	for i := range 2 {
		out, err := inLeaf(t, leaf, "probe", fmt.Sprint(nobody)).CombinedOutput()
		if err != nil {
			t.Fatalf("run %d: %v: %s", i, err, out)
		}
		if !strings.Contains(string(out), want+"\n") || !strings.Contains(string(out), "ready\n<nil>") {
			t.Errorf("run %d: the delegated process says:\n%s\nwant %s", i, out, want)
		}
		if c.Mode() == ModeV2 { // the second process is born where the first has moved to
			leaf = &Leaf{g: g, path: leaf.Path() + "/" + supervisorName}
		}
	}
}

func TestForeignProcesses(t *testing.T) {
	if got := foreignTo(t.TempDir(), []int{os.Getpid(), 1, 0, 4711}); !slices.Equal(got, []int{1, 0, 4711}) {
		t.Errorf("foreign processes %v", got)
	}
}

func needRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("not root")
	}
	return nil
}
