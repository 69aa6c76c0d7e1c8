package copytree_test

import (
	"os"
	"testing"

	"github.com/caisson-dev/caisson/runner/snapshot/copytree"
	"github.com/caisson-dev/caisson/runner/snapshot/snapshottest"
)

var harness = snapshottest.Harness{Name: "copy", Create: copytree.Create, Open: copytree.Open, Fork: copytree.Fork, Repair: copytree.Repair}

func TestMain(m *testing.M) { snapshottest.Main(m, harness) }

func TestSuite(t *testing.T) { snapshottest.Run(t, harness) }

// TestRandom does a few thousand operations; CAISSON_TEST_LONG=1 makes them 10,000 with a seed of its own each.
func TestRandom(t *testing.T) {
	seeds, ops := 3, 600
	switch {
	case os.Getenv("CAISSON_TEST_LONG") != "":
		seeds, ops = 3, 10000
	case testing.Short():
		seeds, ops = 1, 400
	}
	for seed := range seeds {
		snapshottest.Random(t, harness, int64(seed), ops)
	}
}

// TestKill kills a child 40 times; CAISSON_TEST_LONG=1: 500 times.
func TestKill(t *testing.T) {
	kills := 40
	switch {
	case os.Getenv("CAISSON_TEST_LONG") != "":
		kills = 500
	case testing.Short():
		kills = 10
	}
	snapshottest.Kill(t, harness, kills)
}

// TestFilesystems runs the suite where layers may lie.
func TestFilesystems(t *testing.T) {
	for _, fs := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fs, func(t *testing.T) {
			snapshottest.OnImage(t, fs)
			t.Run("suite", func(t *testing.T) { snapshottest.Run(t, harness) })
			t.Run("random", func(t *testing.T) { snapshottest.Random(t, harness, 77, 300) })
		})
	}
}

// TestFull runs out of blocks, inodes and quota in the middle of everything.
func TestFull(t *testing.T) {
	t.Run("blocks", func(t *testing.T) {
		snapshottest.OnImage(t, "ext4-small")
		snapshottest.Full(t, harness, 4096)
	})
	t.Run("inodes", func(t *testing.T) {
		snapshottest.OnImage(t, "ext4-small")
		snapshottest.Full(t, harness, 0)
	})
	t.Run("quota", func(t *testing.T) {
		snapshottest.Limited(t, 48<<20)
		snapshottest.Full(t, harness, 16<<10)
	})
}
