package profiles

import (
	"io"

	"github.com/spf13/pflag"

	"github.com/caisson-dev/caisson/isolation"
)

// DefaultDirs returns where profiles of the user and of the system lie, given the caller's environment.
func DefaultDirs(env []string) (user, system string) { return "", "" }

// SplitRef tells a profile's name from a file: a reference with a path separator or the ending .yaml or .yml is a file.
func SplitRef(ref string) (name, file string) { return "", "" }

// Builtin returns the names of the built-in profiles, sorted.
func Builtin() []string { return nil }

// Parse reads one profile; name is for errors. Values that the file does not set are zero.
func Parse(name string, data []byte) (*Profile, error) { return nil, nil }

// Validate checks an effective profile's values against each other.
func (p *Profile) Validate() error { return nil }

// Schema returns the JSON Schema of a profile file.
func Schema() []byte { return nil }

// Info is a profile that can be named.
type Info struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Extends     string `json:"extends,omitempty"`
	Source      string `json:"source"`          // "built-in" or the file's path
	Error       string `json:"error,omitempty"` // why the file cannot be loaded
}

// List returns every profile that o's directories and the program hold, those that win first among equal names.
func List(o LoadOptions) ([]Info, error) { return nil, nil }

// WriteText writes the policy as a profile file whose comments are the origins.
func (e *Effective) WriteText(w io.Writer) error { return nil }

// Unsupported returns an *isolation.UnsupportedError for what the policy asks and this version cannot enforce.
func (e *Effective) Unsupported() error { return nil }

// IDs returns the command's uid and gid inside.
func (p *Profile) IDs() (uid, gid uint32) { return 0, 0 }

// Vars returns the variables that env and pass_env give to a command; host is the caller's environment.
func (p *Profile) Vars(host []string) map[string]string { return nil }

// CacheMounts returns the caches that exist as read-only mounts; "~/x" becomes /home/user/x.
func (p *Profile) CacheMounts(home string) []Mount { return nil }

// MountCheck is what a mount's source is checked against.
type MountCheck struct {
	StateDir  string
	Workspace string
	Home      string // stands for ~ in a source
}

// CheckMount returns the resolved source of m, or a *MountError when it must not be shown inside.
func CheckMount(m Mount, o MountCheck) (source string, err error) { return "", nil }

// MountError says why a mount is refused.
type MountError struct{ Source, Reason, Remedy string }

func (e *MountError) Error() string { return "cannot mount " + e.Source + ": " + e.Reason }

// AddFlags registers the flag of every key that has one.
func AddFlags(fs *pflag.FlagSet) {}

// FlagValues returns what was given to the flags of AddFlags, for LoadOptions.Flags.
func FlagValues(fs *pflag.FlagSet) map[string][]string { return nil }

// Error is a mistake in a profile, a flag or a variable.
type Error struct {
	Source  string // a file's path, "flag --memory", "env CAISSON_MEMORY"
	Line    int    // 0: unknown, or not a file
	Key     string // "limits.memory"; empty: the whole file
	Message string
	Remedy  string
}

func (e *Error) Error() string { return "" }

var _ isolation.Control
