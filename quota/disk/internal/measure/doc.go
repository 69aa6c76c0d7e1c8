// Package measure adds up what a tree that nobody bounds takes, while others change it and may not want it to be known.
package measure
