package command

import (
	"fmt"
	"slices"
)

// maxOpened is how many bytes of files one text may have judged, in lengths of the longest text: a few bytes can name a long
// one again and again.
const maxOpened = 4

// opened is a file that the configuration can read, with what it may cost to judge it. long: there is more of it than is judged.
func (a *analyzer) opened(file string) (text string, long, ok bool) {
	if a.c.Open == nil || hasUnknown(file) {
		return "", false, false
	}
	b, err := a.c.Open(original(file), a.c.MaxBytes+1)
	if err != nil {
		return "", false, false
	}
	if a.bytes += len(b); len(b) > a.c.MaxBytes || a.bytes > maxOpened*a.c.MaxBytes {
		return string(b), true, true
	}
	a.budget += parseCost + len(b)*(byteCost+byteCost/2) // it is a text within a text
	return string(b), false, true
}

// openScript judges a script that the configuration can read, as shell text when a shell runs it. What is no shell text is
// none of ours.
func (a *analyzer) openScript(c *invocation, file string, shell bool) {
	name := "script " + file
	if slices.Contains(a.calling, name) {
		return
	}
	text, long, ok := a.opened(file)
	switch {
	case !ok || !shell && !shellScript([]byte(text)):
		return
	case long: // a generated one, such as configure
		c.ask("long-script", fmt.Sprintf("more than %d bytes of a script, and %d of several, are not judged", a.c.MaxBytes, maxOpened*a.c.MaxBytes), "")
		return
	}
	a.calling = append(a.calling, name)
	defer func() { a.calling = a.calling[:len(a.calling)-1] }()
	a.isolated(func() data { return a.parse(readable(text), data{}) })
}
