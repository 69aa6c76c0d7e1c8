package command

import (
	"fmt"
	"slices"
)

// maxOpened is how many bytes of files one text may have judged, in lengths of the longest text: a few bytes can name a long
// one again and again. As much may flow through its pipes.
const maxOpened = 4

// headBytes is how much of a file tells whether a shell runs it.
const headBytes = 256

// opened is a file that the configuration can read. It is read once.
type opened struct {
	text  string // all of it when it is short
	limit int    // how much was asked for
	there bool
}

// open reads as much of a file.
func (a *analyzer) open(file string, limit int) opened {
	f, ok := a.disk[file]
	if a.c.Open == nil || hasUnknown(file) || ok && (!f.there || f.limit >= limit) || !a.spend(openCost) {
		return f
	}
	b, err := a.c.Open(original(file), limit)
	f = opened{string(b), limit, err == nil}
	a.disk[file] = f
	return f
}

// content is what a file holds, with what it may cost to judge that. used is how much of files was taken for the same purpose.
// long: there is more of it, or of all of them, than is judged.
func (a *analyzer) content(file string, used *int) (text string, long, ok bool) {
	if a.c.Open == nil || hasUnknown(file) {
		return "", false, false
	}
	if *used > maxOpened*a.c.MaxBytes {
		return "", true, true
	}
	f := a.open(file, a.c.MaxBytes+1)
	if !f.there {
		return "", false, false
	}
	if len(f.text) > a.c.MaxBytes {
		*used += a.c.MaxBytes / maxOpened // for reading it
		return "", true, true
	}
	if *used += len(f.text); *used > maxOpened*a.c.MaxBytes {
		return "", true, true
	}
	text = readable(f.text)
	a.budget += parseCost + len(text)*(byteCost+byteCost/2) // it is a text within a text
	return text, false, true
}

// read is what lies in a file that flows somewhere.
func (a *analyzer) read(target string) data {
	p := a.abs(target)
	if d, ok := a.files[p]; ok {
		return d
	}
	if secretPath(p, a.c.Home) {
		return data{from: fromSecret}
	}
	text, long, ok := a.content(p, &a.piped)
	if !ok || long {
		return data{text: unknownText, long: long}
	}
	return literal(text)
}

// openScript judges a script that the configuration can read, as shell text when a shell runs it. What is no shell text is
// none of ours.
func (a *analyzer) openScript(c *invocation, file string, shell bool) {
	name := "script " + file
	if slices.Contains(a.calling, name) {
		return
	}
	if head := a.open(file, headBytes); !shell && (!head.there || !shellScript([]byte(head.text))) {
		return
	}
	text, long, ok := a.content(file, &a.judged)
	switch {
	case !ok:
		return
	case long: // a generated one, such as configure
		c.tooLong()
		return
	}
	a.calling = append(a.calling, name)
	defer func() { a.calling = a.calling[:len(a.calling)-1] }()
	a.isolated(func() data { return a.parse(text, data{}) })
}

// named is the text of a file that a program is told to run, as far as it is known.
func (c *invocation) named(file string) string {
	p := c.a.abs(file)
	if d, ok := c.a.files[p]; ok {
		return d.text
	}
	text, long, _ := c.a.content(p, &c.a.judged)
	if long {
		c.tooLong()
	}
	return text
}

// tooLong asks about a file that is not judged.
func (c *invocation) tooLong() {
	c.ask("long-script", fmt.Sprintf("more than %d bytes of a file, and %d of several, are not judged", c.a.c.MaxBytes, maxOpened*c.a.c.MaxBytes), "")
}
