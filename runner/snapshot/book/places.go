package book

import (
	"errors"
	"fmt"
	"sync"

	"github.com/caisson-dev/caisson/runner/snapshot"
)

var errNotThere = errors.New("it is not there")

// Places finds the directories of layers, also of other features. It is safe for concurrent use.
type Places struct {
	Feature, Dir string                                       // our own
	Find         func(feature string) (dir string, err error) // the others'; nil: there are none

	mu    sync.Mutex
	known map[string]string
}

// Know notes where a feature's layers are.
func (p *Places) Know(feature, dir string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known == nil {
		p.known = map[string]string{}
	}
	p.known[feature] = dir
}

// Layer returns the directory of a layer of any feature. Errors wrap snapshot.ErrUnusableLayers.
func (p *Places) Layer(ref snapshot.LayerRef) (string, error) {
	if ref.Feature == p.Feature {
		return LayerDir(p.Dir, ref.Layer), nil
	}
	p.mu.Lock()
	dir, known := p.known[ref.Feature]
	p.mu.Unlock()
	if known {
		return LayerDir(dir, ref.Layer), nil
	}
	fail := func(why error) error {
		return fmt.Errorf("%w: layer %d of feature %s: %w", snapshot.ErrUnusableLayers, ref.Layer, ref.Feature, why)
	}
	if p.Find == nil {
		return "", fail(errNotThere)
	}
	dir, err := p.Find(ref.Feature)
	if err != nil {
		return "", fail(err)
	}
	p.Know(ref.Feature, dir)
	return LayerDir(dir, ref.Layer), nil
}
