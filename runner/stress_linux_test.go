package runner_test

import (
	"sync"
	"testing"

	"github.com/caisson-dev/caisson/internal/leaktest"
	"github.com/caisson-dev/caisson/runner"
)

// Tasks that come and go, several at once, leave nothing, however they end.
func TestNothingStays(t *testing.T) {
	b := newNative(t, runner.Options{})
	scripts := []string{"true", "exit 1", "sleep 60 & true", "echo x > added", "kill -9 $$"}
	var mu sync.Mutex
	var ids []string
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 25 {
				r := b.sh(scripts[i%len(scripts)])
				r.Remove = true
				res, err := b.Run(t.Context(), r)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				ids = append(ids, res.FeatureID)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	found, err := leaktest.Find(ids...)
	if err != nil || len(found) > 0 {
		t.Error(found, err)
	}
	b.clean(t)
}
