// Package plain is the plain side of the property test: a directory that everything is done to as well as to an overlay
// ([Model]), what is done ([Gen]), and how two trees are compared ([Listing]).
package plain
