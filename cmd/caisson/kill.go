package main

import (
	"context"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

func newKillCommand(a *app) *cobra.Command {
	var signal string
	cmd := &cobra.Command{
		Use:   "kill FEATURE…",
		Short: "Send a signal to what runs in live features",
		Long: `Send a signal to the command that runs in a live feature. KILL, without --signal, kills everything in its running task.
The feature stays: caisson stop ends it.`,
		Args: atLeast(1, "a feature"), ValidArgsFunction: a.completeFeatures(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			sig, err := parseSignal(signal)
			if err != nil {
				return err
			}
			return a.each(cmd.Context(), "signalled", args, func(ctx context.Context, s service, ref string) error {
				return s.Kill(ctx, ref, sig)
			})
		},
	}
	cmd.Flags().StringVarP(&signal, "signal", "s", "KILL", "its name, with or without SIG, or its number")
	return cmd
}

// parseSignal reads TERM, SIGTERM, term or 15.
func parseSignal(text string) (syscall.Signal, error) {
	if n, err := strconv.Atoi(text); err == nil {
		if n < 1 || n > 64 {
			return 0, usage("--signal %d: must be 1 to 64", n)
		}
		return syscall.Signal(n), nil
	}
	name := strings.ToUpper(text)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if n := signalNumber(name); n != 0 {
		return n, nil
	}
	return 0, usage("--signal %q: there is no such signal", text)
}
