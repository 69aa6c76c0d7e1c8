// Package quota holds typed quantities, the limits of a feature, and the cgroups that enforce them.
//
// Cgroups says where groups can be made on this host (version 2, version 1 or hybrid, a delegated
// subtree), Group is one feature's node and Leaf one step's node beneath it:
//
//	caisson/FEATURE         the feature's limits; version 2 allows no process here
//	caisson/FEATURE/init    the sandbox's PID 1
//	caisson/FEATURE/step-1  one step: its own limits, usage, out-of-memory watch
//
// Processes enter by themselves at birth (Leaf.Entry): a sandbox's running process is never moved from outside.
// Killing and freezing work on whole trees. A quantity of zero is an error where a limit is expected,
// never "unlimited".
package quota
