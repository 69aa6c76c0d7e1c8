//go:build !linux

package delta

// Manifest is what an upper layer looked like.
type Manifest struct{}
