// Package kernel is the oracle of the tests: it mounts layers as the engine does, and lists what then shows.
package kernel
