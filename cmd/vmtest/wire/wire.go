// Package wire is what cmd/vmtest and its init program in the virtual machine say to each other:
// a Config in the initramfs, and a stream of Messages over a serial port of its own, so that what the
// kernel prints on the console cannot mix with it.
package wire

import "time"

// ConfigPath is where init finds the Config, as JSON.
const ConfigPath = "/vmtest/config.json"

// Port is the guest's serial port that carries the Messages, one JSON object per line.
const Port = "/dev/ttyS1"

// Config is what the virtual machine has to do.
type Config struct {
	Modules []string // kernel modules in the order of loading: paths in the initramfs
	Env     []string // the environment of every test, KEY=VALUE
	Tests   []Test
}

// Test is one test binary.
type Test struct {
	Package string // import path; names the Messages
	Binary  string // path in the initramfs
	Dir     string // working directory: holds the package's testdata
	Args    []string
}

// Kind says what a Message is about.
type Kind string

// The kinds, in the order in which they come: one Booted, then for each test Begin, any number of
// Outputs and End, then one Done.
const (
	Booted Kind = "booted"
	Begin  Kind = "begin"
	Output Kind = "output"
	End    Kind = "end"
	Done   Kind = "done"
	Broken Kind = "broken" // init itself failed; Error says how
)

// Message is one event in the virtual machine. Seq counts from 1, so that a lost one is noticed.
type Message struct {
	Seq     int
	Kind    Kind
	Package string        `json:",omitempty"`
	Output  []byte        `json:",omitempty"`
	Error   string        `json:",omitempty"` // End: how the test failed; empty when it passed
	Took    time.Duration `json:",omitempty"`
}
