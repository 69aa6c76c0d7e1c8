//go:build !linux

package flock

// Table is which processes held which locks at one moment: nothing, where the system does not say.
type Table map[string][]int

// Holders is nil here.
func Holders() Table { return nil }

// Alive is false here.
func (Table) Alive(string) bool { return false }

// Others is false here.
func (Table) Others(string) bool { return false }

// abandoned reports whether no living process holds a lock on path: nobody knows here.
func abandoned(string) bool { return false }
