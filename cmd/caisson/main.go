// Command caisson runs untrusted work in a sandbox against a directory, shows what it changed, and applies
// or discards the change.
//
// Each command is one file: flags become an options struct, and runX(ctx, app, options) does the work.
// Every ending goes through exit.go, which holds the one table from verdict to exit code.
package main

import (
	"context"
	"os"
	"runtime/debug"
)

func main() {
	debug.SetGCPercent(gcPercent)
	os.Exit(realMain())
}

// gcPercent lets the heap grow to five times what is live: most commands end before the first collection, which
// would cost a short one a tenth of its time.
const gcPercent = 400

// realMain is main without os.Exit, so that tests can register it as a command.
func realMain() int {
	a := newApp(os.Args[1:])
	cmd, err := newRootCommand(a).ExecuteContextC(context.Background())
	a.command = cmd.CommandPath() // also where the flags or arguments were refused
	return a.finish(err)
}
