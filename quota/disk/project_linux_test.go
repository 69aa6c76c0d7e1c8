package disk

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/internal/testenv"
	"github.com/caisson-dev/caisson/quota"
)

// projectHosts are directories on file systems with project quota; cmd/vmtest has an ext4 and an xfs.
const projectHosts = "CAISSON_TEST_PRJQUOTA"

func TestProject(t *testing.T) {
	hosts := filepath.SplitList(os.Getenv(projectHosts))
	if len(hosts) == 0 {
		testenv.Need(t, "prjquota", errors.New(projectHosts+" names no directory; run cmd/vmtest"))
	}
	for _, host := range hosts {
		t.Run(strings.Trim(host, "/"), func(t *testing.T) {
			dir, err := os.MkdirTemp(host, "")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			needs(t, Project, dir)
			all := Probe(t.Context(), dir)
			if m, err := Choose(all, Limits{Bytes: quota.GiB, Inodes: count(200_000)}, true, false); err != nil || m != Project {
				t.Errorf("%s, %v: it would not be chosen: %+v", m, err, all)
			}
			checkProject(t, openStore(t, dir))
		})
	}
}

func checkProject(t *testing.T, s *Store) {
	limit, inodes := 60*quota.MiB, quota.Count(1000)
	small := Limits{Bytes: limit, Inodes: &inodes}
	t.Run("bytes", func(t *testing.T) { checkBytes(t, create(t, s, "bytes", Project, small), limit) })
	t.Run("inodes", func(t *testing.T) { checkInodes(t, create(t, s, "inodes", Project, small), inodes) })
	t.Run("ballast", func(t *testing.T) {
		checkBallast(t, create(t, s, "ballast", Project, Limits{Bytes: 10 * quota.MiB, Inodes: count(500)}))
	})
	t.Run("resize", func(t *testing.T) {
		u := create(t, s, "resize", Project, small)
		if err := u.Resize(t.Context(), Limits{Bytes: 2 * limit, Inodes: count(2000)}); err != nil {
			t.Fatal(err)
		}
		checkLimits(t, u, 2*limit, 2000)
		if err := os.WriteFile(filepath.Join(u.Dir(), "x"), make([]byte, 20*quota.MiB), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := u.Resize(t.Context(), Limits{Bytes: 10 * quota.MiB, Inodes: &inodes}); !errors.Is(err, ErrResize) {
			t.Error(err)
		}
	})
	t.Run("again", func(t *testing.T) {
		if err := create(t, s, "again", Project, small).Close(); err != nil {
			t.Fatal(err)
		}
		u, err := s.Open(t.Context(), "again")
		if err != nil {
			t.Fatal(err)
		}
		checkBytes(t, u, limit)
		if err := u.Discard(); err != nil {
			t.Error(err)
		}
	})
	for _, id := range []string{"bytes", "inodes", "ballast", "resize"} {
		if err := s.Remove(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	// A process that died between the mark and the record leaves an id; Clean takes its limits away.
	if err := os.WriteFile(s.marker(0x40000001), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	done, err := s.Clean(t.Context())
	left, _ := filepath.Glob(filepath.Join(s.state, "disk", projectPrefix+"*"))
	if err != nil || len(done) != 1 || len(left) != 0 {
		t.Error(done, left, err)
	}
}
