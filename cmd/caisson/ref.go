package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// exactly and atLeast are cobra's argument checks with words that say what is missing.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != n {
			return usage("needs %s, and %d were given", what, len(args))
		}
		return nil
	}
}

func atLeast(n int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < n {
			return usage("needs %s", what)
		}
		return nil
	}
}

// age is a duration in one unit: 12s, 3m, 5h, 2d.
func age(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

// featureOf is the feature that a FEATURE[@CHECKPOINT] names.
func featureOf(ref string) string {
	feature, _, _ := strings.Cut(ref, "@")
	return feature
}
