package snapshottest

// cases are what Run runs.
var cases = []struct {
	name string
	run  func(w *world)
}{}
