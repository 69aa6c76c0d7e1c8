// Package wire is what cmd/vmtest and its init program in the virtual machine say to each other:
// a Config in the initramfs, and a stream of Messages over a serial port of its own, so that what the
// kernel prints on the console cannot mix with it.
package wire

import "time"

// ConfigPath is where init finds the Config, as JSON.
const ConfigPath = "/vmtest/config.json"

// Port is the guest's serial port that carries the Messages, one JSON object per line.
const Port = "/dev/ttyS1"

// Disk is one of the machine's virtio disks.
type Disk struct {
	Device, Dir string // where it is, and is mounted
	Type        string
	Options     string   // of the mount; only those with project quota have any
	Mkfs        []string // the program and its arguments
	Bytes       int64    // size of the sparse image
}

// Disks are what every machine has: its root, and two whose file systems have project quota, which many kernels that
// tests run on outside lack.
var Disks = []Disk{
	{"/dev/vda", "/", "ext4", "", []string{"mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1"}, 24 << 30},
	{"/dev/vdb", "/mnt/ext4", "ext4", "prjquota", []string{"mkfs.ext4", "-q", "-F", "-O", "quota,project", "-E", "quotatype=prjquota,lazy_itable_init=1"}, 2 << 30},
	{"/dev/vdc", "/mnt/xfs", "xfs", "prjquota", []string{"mkfs.xfs", "-q", "-f"}, 2 << 30},
}

// QuotaVariable is the environment variable that tells tests where project quota is, with colons between.
const QuotaVariable = "CAISSON_TEST_PRJQUOTA"

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
