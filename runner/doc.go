// Package runner is the supervisor: it takes a task from submit to promote.
package runner
