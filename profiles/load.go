package profiles

// LoadOptions says where policy comes from.
type LoadOptions struct {
	Name string // a profile's name; empty: CAISSON_PROFILE, else the File's extends, else "default"
	File string // of --profile; trusted unless it lies in the workspace

	// Workspace is the directory whose .caisson.yaml may narrow; files below it are never trusted. Empty: none.
	Workspace string

	// Flags are the texts of flags by name without dashes ("memory": {"512m"}), in the order given. FlagValues makes it.
	Flags map[string][]string
	Env   []string // KEY=VALUE, the caller's environment: CAISSON_*, HOME

	UserDir, SystemDir string // directories of NAME.yaml; empty: none. DefaultDirs gives the usual ones
}

// Load returns the policy that holds. Errors in a file are *Error, several joined.
func Load(o LoadOptions) (*Effective, error) { return nil, nil }
