// Package layer makes objects in a layer's directory: exact copies of what lies in others, and overlayfs' marks.
package layer
