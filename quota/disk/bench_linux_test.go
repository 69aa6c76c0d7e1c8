package disk

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/quota"
)

// BenchmarkUnit is what a task pays for its unit: made from the template, opened, thrown away or closed.
func BenchmarkUnit(b *testing.B) {
	dir := b.TempDir()
	needs(b, Ext4, dir)
	s := openStore(b, dir)
	l := Limits{Bytes: quota.GiB, Inodes: count(200_000)}
	if err := s.Warm(b.Context(), Ext4, l); err != nil {
		b.Fatal(err)
	}
	for _, end := range []string{"discard", "close", "open"} {
		b.Run(end, func(b *testing.B) {
			var made, ended []time.Duration
			for n := 0; b.Loop(); n++ {
				id := fmt.Sprint(end, n)
				began := time.Now()
				u, err := s.Create(b.Context(), id, Ext4, l)
				if err != nil {
					b.Fatal(err)
				}
				made = append(made, time.Since(began))
				if err := os.WriteFile(filepath.Join(u.Dir(), "x"), []byte("x"), 0o600); err != nil {
					b.Fatal(err)
				}
				if end == "open" {
					u.Close()
					if u, err = s.Open(b.Context(), id); err != nil {
						b.Fatal(err)
					}
				}
				began = time.Now()
				if end == "discard" {
					err = u.Discard()
				} else {
					err = u.Close()
				}
				ended = append(ended, time.Since(began))
				if err != nil {
					b.Fatal(err)
				}
				if err := s.Remove(b.Context(), id); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(ms(made), "ms-create")
			b.ReportMetric(ms(ended), "ms-end")
		})
	}
}

// ms is the median in milliseconds.
func ms(list []time.Duration) float64 {
	slices.Sort(list)
	return float64(list[len(list)/2]) / 1e6
}
