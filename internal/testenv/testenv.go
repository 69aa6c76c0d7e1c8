// Package testenv accounts for skipped tests. CAISSON_TEST_REQUIRE is a comma-separated list of features that this
// machine is known to have, or "all"; a test that would be skipped for want of one of them fails instead, so that a
// broken machine does not look like a green run.
package testenv

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Variable is the name of the environment variable that Need reads.
const Variable = "CAISSON_TEST_REQUIRE"

// features is the closed vocabulary of what a test may need.
var features = []string{
	"root", "cgroups", "userns", "overlay", "idmap", "vm", "docker", "runc", "bwrap", "go", "make", "node", "unprivileged", "tun", "curl",
	"git", "npm", "apt-get", "dig", // clients of the network
	// Disks: loop devices with ext4, images of other file systems, project quota (in the virtual machine only, mostly), and
	// a host without overlayfs, overlays on mounts that are attached nowhere (kernel 6.15).
	"loop", "btrfs", "xfs", "prjquota", "nooverlay", "detached",
	// Of the file system of temporary directories: attributes of chattr(1), access control lists.
	"chattr", "acl",
	"xz", // the compressor
}

// Features returns every feature that Need knows.
func Features() []string { return slices.Clone(features) }

// Need ends the test when err is not nil: it is skipped, or fails when the environment requires the feature. err says
// why the feature is missing here. An unknown feature fails always.
func Need(t testing.TB, feature string, err error) {
	t.Helper()
	switch {
	case !slices.Contains(features, feature):
		t.Fatalf("testenv: unknown feature %q", feature)
	case err == nil:
	case required(feature, os.Getenv(Variable)):
		t.Fatalf("%s is required by %s but missing: %v", feature, Variable, err)
	default:
		t.Skipf("needs %s: %v", feature, err)
	}
}

func required(feature, list string) bool {
	for name := range strings.SplitSeq(list, ",") {
		if name = strings.TrimSpace(name); name == feature || name == "all" {
			return true
		}
	}
	return false
}
