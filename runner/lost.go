package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/caisson-dev/caisson/quota"
	"github.com/caisson-dev/caisson/runner/flock"
)

// identity is what a feature's directory says of it, so that its record can be made again. It is written once there is a
// record: a directory that has it and no record is of a journal that was lost, and not one that was cut short.
type identity struct {
	Version   int               `json:"version"`
	ID        string            `json:"id"`
	Name      string            `json:"name"`
	Workspace string            `json:"workspace"`
	Index     int               `json:"index"`
	Direct    bool              `json:"direct,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Created   time.Time         `json:"created"`
	Origin    string            `json:"origin,omitempty"`
	Disk      quota.Bytes       `json:"disk,omitempty"`
	Inodes    quota.Count       `json:"inodes,omitempty"`
	Mechanism string            `json:"mechanism,omitempty"`
	Driver    string            `json:"driver,omitempty"`
}

// IdentityFile is the name of a feature's identity in its directory features/ID.
const IdentityFile = "feature.json"

const identityVersion = 1

// identify writes the identity of a feature that has a record.
func (x *session) identify() error {
	f := &x.feature
	text, err := json.Marshal(identity{identityVersion, f.ID, f.Name, f.Workspace, f.Index, f.Direct, f.Labels, f.Created, f.Origin,
		f.Disk, f.Inodes, f.Mechanism, f.Driver})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(x.dir, IdentityFile), text, 0o600)
}

// lost reads the identities of features without a record, oldest first.
func (s *Supervisor) lost(ctx context.Context, r *GCReport) ([]FeatureRecord, error) {
	known, err := s.known(ctx)
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(s.dir, "features", "*", IdentityFile))
	if err != nil {
		return nil, err
	}
	var list []FeatureRecord
	for _, file := range files {
		id := filepath.Base(filepath.Dir(file))
		if known[id] {
			continue
		}
		var i identity
		text, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(text, &i)
		}
		if err == nil && (i.Version != identityVersion || i.ID != id || !nameRule().MatchString(i.Name) || i.Index < 0 || i.Index > maxIndex) {
			err = errors.New("is not of this feature, or of another version")
		}
		if err != nil {
			r.Damaged = append(r.Damaged, fmt.Sprintf("%s: %v", file, err))
			continue
		}
		list = append(list, FeatureRecord{ID: i.ID, Name: i.Name, Workspace: i.Workspace, Index: i.Index, Direct: i.Direct, Labels: i.Labels,
			Created: i.Created, Origin: i.Origin, Disk: i.Disk, Inodes: i.Inodes, Mechanism: i.Mechanism, Driver: i.Driver})
	}
	slices.SortFunc(list, func(a, b FeatureRecord) int { return a.Created.Compare(b.Created) })
	return list, nil
}

// restore makes the records of features again that the journal has lost. Their tasks are lost; their checkpoints are found on
// disk by who repairs them next.
func (s *Supervisor) restore(ctx context.Context, r *GCReport) error {
	list, err := s.lost(ctx, r)
	if err != nil {
		return err
	}
	root := map[int]string{} // of each lineage: who has its index
	for i := range list {
		f := &list[i]
		l, err := flock.Inherit(ctx, lockFile(s.featureDir(f.ID)), flock.Exclusive)
		if errors.Is(err, flock.ErrLocked) || errors.Is(err, fs.ErrNotExist) {
			continue // somebody is about to record it, or to remove it
		}
		f.Lineage = root[f.Index]
		if err == nil {
			err = errors.Join(s.restoreOne(ctx, f), l.Release())
		}
		if err != nil {
			r.problem(fmt.Errorf("the feature %s in %s: %w", f.Name, s.featureDir(f.ID), err))
			continue
		}
		if f.Lineage == "" {
			root[f.Index] = f.ID
		}
		r.Recovered = append(r.Recovered, f.Name)
	}
	return nil
}

// restoreOne makes one record. Its name may have been given to another feature meanwhile.
func (s *Supervisor) restoreOne(ctx context.Context, f *FeatureRecord) error {
	name := f.Name
	for try := 2; ; try++ {
		err := s.opt.Journal.Restore(ctx, *f)
		if _, taken := s.opt.Journal.Feature(ctx, f.Name); !errors.Is(err, ErrExists) || taken != nil || try > maxNames {
			return err
		}
		f.Name = fmt.Sprintf("%.59s-%d", name, try)
	}
}
