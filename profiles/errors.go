package profiles

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Error is a mistake in a profile, a flag or a variable. Load and Parse join several.
type Error struct {
	Source  string // a file's path, "flag --memory", "env CAISSON_MEMORY"
	Line    int    // from 1; 0: unknown, or not a file
	Key     string // "limits.memory"; empty: the whole source
	Message string
	Remedy  string // what to do about it, where that is not plain from the message; no part of Error()

	at string // of a value's part, where its place is known
}

func (e *Error) Error() string {
	var b strings.Builder
	if e.Source != "" {
		b.WriteString(e.Source)
		if e.Line > 0 {
			fmt.Fprintf(&b, ":%d", e.Line)
		}
		b.WriteString(": ")
	}
	if e.Key != "" {
		b.WriteString(e.Key + ": ")
	}
	b.WriteString(e.Message)
	return b.String()
}

// ErrNotFound is matched by the error for a profile name that no directory and no built-in knows.
var ErrNotFound = errors.New("no such profile")

// notFoundError is an Error that errors.Is finds as ErrNotFound.
type notFoundError struct{ mistake *Error }

func (e notFoundError) Error() string        { return e.mistake.Error() }
func (e notFoundError) Is(target error) bool { return target == ErrNotFound }
func (e notFoundError) Unwrap() error        { return e.mistake }

// mistake is an Error whose source and key are not known yet; whoever knows fills them in.
func mistake(line int, format string, args ...any) *Error {
	return &Error{Line: line, Message: fmt.Sprintf(format, args...)}
}

// didYouMean returns "; did you mean x?" for the candidate nearest to word, or nothing when none is near. A dotted
// candidate is near, too, when its last part is: who writes memory may mean limits.memory.
func didYouMean(word string, candidates []string) string {
	best, bestDistance := "", max(2, len(word)/3)+1
	for _, c := range candidates {
		last := c[strings.LastIndexByte(c, '.')+1:]
		d := min(distance(word, c), distance(word, last))
		if d < bestDistance && d < len(last) {
			best, bestDistance = c, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// distance is the optimal string alignment distance of two words: insertions, deletions, substitutions and
// transpositions of neighbours count one each.
func distance(a, b string) int {
	older, old, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range old {
		old[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(old[j]+1, row[j-1]+1, old[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], older[j-2]+1)
			}
		}
		older, old, row = old, row, older
	}
	return old[len(b)]
}

// oneOf writes a closed vocabulary for an error.
func oneOf[T ~string](words []T) string {
	s := make([]string, len(words))
	for i, w := range words {
		s[i] = string(w)
	}
	return strings.Join(s, ", ")
}

// flatten returns the leaves of joined errors.
func flatten(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var list []error
		for _, e := range joined.Unwrap() {
			list = append(list, flatten(e)...)
		}
		return list
	}
	return []error{err}
}

// join puts errors of one source into the order of its lines.
func join(errs []error) error {
	slices.SortStableFunc(errs, func(a, b error) int {
		var x, y *Error
		if errors.As(a, &x) && errors.As(b, &y) && x.Source == y.Source {
			return x.Line - y.Line
		}
		return 0
	})
	return errors.Join(errs...)
}
