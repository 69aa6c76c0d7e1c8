package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the release build with -ldflags "-X main.version=…".
var version = ""

type versionInfo struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Modified bool   `json:"modified"`
	Time     string `json:"time,omitempty"`
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
}

func newVersionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit it was built from, and the platform",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return runVersion(a) },
	}
}

func runVersion(a *app) error {
	v := buildVersion()
	if a.json {
		return a.printJSON(v)
	}
	commit := v.Commit
	if v.Modified {
		commit += " (modified)"
	}
	_, err := fmt.Fprintf(a.stdout, "caisson %s\ncommit %s\n%s %s/%s\n", v.Version, commit, v.Go, v.OS, v.Arch)
	return err
}

func buildVersion() versionInfo {
	v := versionInfo{Version: version, Commit: "unknown", Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if ok {
		if v.Version == "" {
			v.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				v.Commit = s.Value
			case "vcs.modified":
				v.Modified = s.Value == "true"
			case "vcs.time":
				v.Time = s.Value
			}
		}
	}
	if v.Version == "" {
		v.Version = "(devel)"
	}
	return v
}
