package runner

import (
	"bytes"
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
// record, and again when what it says has changed.
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
	TTL       time.Duration     `json:"ttl_ns,omitempty"`
	Idle      time.Duration     `json:"idle_ns,omitempty"`
	Retired   bool              `json:"retired,omitempty"` // it was removed: its layers are kept for forks
	Profile   json.RawMessage   `json:"profile,omitempty"` // the effective one that holds for it: Journal.Policy
}

// identityFile is the name of a feature's identity in its directory features/ID.
const identityFile = "feature.json"

const identityVersion = 1

// identify has the directory of a feature, which has a record, say what it is. Its lock is held.
func (s *Supervisor) identify(ctx context.Context, f *FeatureRecord) error {
	profile, err := s.opt.Journal.Policy(ctx, f.ID)
	if err != nil && !errors.Is(err, ErrNotFound) { // what a store has lost nobody knows
		return err
	}
	text, err := json.Marshal(identity{identityVersion, f.ID, f.Name, f.Workspace, f.Index, f.Direct, f.Labels, f.Created, f.Origin,
		f.Disk, f.Inodes, f.Mechanism, f.Driver, f.TTL, f.Idle, f.Retired, profile})
	if err != nil {
		return err
	}
	path := filepath.Join(s.featureDir(f.ID), identityFile)
	if was, err := os.ReadFile(path); err == nil && bytes.Equal(was, text) {
		return nil
	}
	if err := os.WriteFile(path+".tmp", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

// identifyOld does so for a feature of an older version, unless somebody works on it, who does it himself.
func (s *Supervisor) identifyOld(ctx context.Context, f *FeatureRecord) error {
	dir := s.featureDir(f.ID)
	if _, err := os.Lstat(filepath.Join(dir, identityFile)); err == nil || !hadRecord(dir) || f.Damaged != "" {
		return nil
	}
	l, err := flock.Inherit(ctx, lockFile(dir), flock.Exclusive)
	if errors.Is(err, flock.ErrLocked) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(s.identify(ctx, f), l.Release())
}

// hadRecord reports whether a feature's directory is of one that had a record once, and not of one whose making was cut
// short: these two are written later. Older versions wrote only the one.
func hadRecord(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, identityFile))
	if err != nil {
		_, err = os.Lstat(machineID(dir))
	}
	return err == nil
}

// OnDisk lists the ids of the features in a state directory, sorted, whether its store knows them or not.
func OnDisk(state string) ([]string, error) {
	dirs, err := os.ReadDir(filepath.Join(state, "features"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var ids []string
	for _, d := range dirs {
		if hadRecord(filepath.Join(state, "features", d.Name())) {
			ids = append(ids, d.Name())
		}
	}
	return ids, err
}

// strays are the features that the store has lost, by id; known are those that it has.
func (s *Supervisor) strays(ctx context.Context) (ids []string, known map[string]FeatureRecord, err error) {
	if ids, err = OnDisk(s.dir); err != nil { // before the journal is asked: what is made meanwhile is none
		return nil, nil, stateFailure(err)
	}
	if known, err = s.known(ctx); err != nil {
		return nil, nil, err
	}
	return slices.DeleteFunc(ids, func(id string) bool { _, ok := known[id]; return ok }), known, nil
}

// forkLost reports whether the store has lost a fork that may need layers of a feature.
func (s *Supervisor) forkLost(ctx context.Context, of *FeatureRecord) (bool, error) {
	ids, _, err := s.strays(ctx)
	return slices.ContainsFunc(ids, func(id string) bool {
		f, err := s.read(id)
		return err != nil || f.Origin != "" && f.Index == of.Index
	}), err
}

// lost reads the identities of features without a record, oldest first.
func (s *Supervisor) lost(ids []string, r *GCReport) (list []FeatureRecord) {
	for _, id := range ids {
		f, err := s.read(id)
		if err != nil {
			r.problem(fmt.Errorf("%s is a feature that the store has lost, and does not say which: %w; put the store back from a copy, or remove the directory",
				s.featureDir(id), err))
			continue
		}
		list = append(list, *f)
	}
	slices.SortFunc(list, func(a, b FeatureRecord) int { return a.Created.Compare(b.Created) })
	return list
}

// read is what a feature's directory says of it.
func (s *Supervisor) read(id string) (*FeatureRecord, error) {
	var i identity
	text, err := os.ReadFile(filepath.Join(s.featureDir(id), identityFile))
	if err == nil {
		err = json.Unmarshal(text, &i)
	}
	if err == nil && (i.Version != identityVersion || i.ID != id || !nameRule().MatchString(i.Name) || i.Index < 0 || i.Index > maxIndex) {
		err = fmt.Errorf("its %s is not of this feature, or of another version", identityFile)
	}
	if err != nil {
		return nil, err
	}
	return &FeatureRecord{ID: i.ID, Name: i.Name, Workspace: i.Workspace, Index: i.Index, Direct: i.Direct, Labels: i.Labels,
		Created: i.Created, Origin: i.Origin, Disk: i.Disk, Inodes: i.Inodes, Mechanism: i.Mechanism, Driver: i.Driver,
		TTL: i.TTL, Idle: i.Idle, Retired: i.Retired, Profile: i.Profile}, nil
}

// restore makes the records of features again that the journal has lost. Their tasks are lost; their checkpoints are found on
// disk by who repairs them next.
func (s *Supervisor) restore(ctx context.Context, r *GCReport) error {
	ids, known, err := s.strays(ctx)
	if err != nil {
		return err
	}
	list := s.lost(ids, r)
	// Who has an index: files have its ids. One that was given away meanwhile is shared, as by forks.
	root := map[int]string{}
	for _, f := range known {
		root[f.Index] = f.Lineage
	}
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
		if !f.Retired {
			r.Recovered = append(r.Recovered, f.Name)
		}
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
