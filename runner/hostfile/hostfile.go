// Package hostfile asks what Go's portable interface to files does not tell.
package hostfile
