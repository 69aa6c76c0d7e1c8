package command

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
)

func awk(c *invocation) {
	o := parseOptions(c.args, "-F", "-i", "--include", "-e", "--source", "-l", "--load", "-v", "-f", "--file", "--field-separator", "--assign")
	file := o.long["-f"] + o.long["file"]
	if file == "-" || file == "/dev/stdin" {
		c.stdinScript()
		return
	}
	c.runsFetched(file)
	if file != "" {
		c.commandsOf(c.named(file))
	}
	if o.value("-l", "load") != "" {
		c.ask("preload", "it loads machine code", "")
	}
	code := o.value("-e", "source")
	switch {
	case file != "" && code == "" || len(o.rest) == 0 && code == "":
		return
	case code == "":
		code = o.rest[0]
	}
	if o.value("-i", "include") == "inplace" {
		for _, p := range o.rest[min(len(o.rest), 1):] {
			c.a.writes(p, "awk on")
		}
	}
	whole := code
	if c.from != fromNetwork {
		code = c.commandsOf(code)
	}
	if c.a.spend(len(code)) {
		for _, m := range awkWrite().FindAllStringSubmatch(code, maxItems) {
			c.a.writes(m[1], "awk writes")
		}
	}
	bare := withoutStrings(code)
	switch {
	case strings.Contains(strings.ReplaceAll(bare, " ", ""), "system(") || strings.Contains(code, "/inet/") || c.a.matches(awkPipe(), bare):
		c.deny("interpreter-process", "the program starts processes or opens sockets", "let the shell do that, where it can be seen")
	case c.from == fromNetwork && hasUnknown(code):
		c.deny("download-run", "it runs a program from the network", "download, read, then run")
	case hasUnknown(code):
		c.ask("unresolved", "the program cannot be told beforehand", "")
	case code != whole && c.a.matches(awkSystem(), whole):
		c.deny("interpreter-process", "the program starts processes", "let the shell do that, where it can be seen")
	case code != whole:
		c.ask("inline-code", "the program starts processes", "let the shell do that, where it can be seen")
	}
}

// awkWrite is what a program of awk prints to.
var awkWrite = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`>\s*"([^"]+)"`) })

// awkCommand is a whole command in an awk program: system("…"), print | "…", "…" | getline.
var awkCommand = sync.OnceValue(func() *regexp.Regexp {
	const text = `"((?:[^"\\\n]|\\.)*)"\s*`
	return regexp.MustCompile(`\bsystem\s*\(\s*` + text + `\)|\|&?\s*` + text + `(?:[;}\n]|$)|(?:^|[{;(&|!\n])\s*` + text + `\|&?\s*getline\b`)
})

// awkSystem is a whole command that is not the end of a pipe.
var awkSystem = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\bsystem\s*\(\s*"[^"]`) })

// commandsOf judges the commands of an awk program that can be read there, and returns the rest of it.
func (c *invocation) commandsOf(code string) string {
	if !strings.Contains(code, "|") && !strings.Contains(code, "system") || !c.a.spend(1+len(code)/2) {
		return code
	}
	return awkCommand().ReplaceAllStringFunc(code, func(m string) string {
		text := m[strings.IndexByte(m, '"')+1 : strings.LastIndexByte(m, '"')]
		if strings.Contains(text, "system(") || strings.Contains(text, "/inet/") || strings.ContainsAny(text, "\n") { // a quote may stand in a pattern
			return m
		}
		if tool, _, _ := strings.Cut(strings.TrimSpace(text), " "); slices.Contains(shells, path.Base(tool)) { // what it is given is a script
			return m
		}
		c.a.inShell(c, strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(text))
		return ";"
	})
}

var awkPipe = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\|&?\s*getline|\|&?\s*"|"\s*\|\s*getline|\|\s*[a-z_]+\s*[;}]`)
})

// withoutStrings is an awk program with nothing in its strings, patterns and comments, so that a | in them is none. Where it
// cannot be told what a / begins it is the program itself.
func withoutStrings(code string) string {
	var out strings.Builder
	lastQuote := strings.LastIndexByte(code, '"')
	for i := 0; i < len(code); i++ {
		switch ch := code[i]; {
		case ch == '#':
			for i+1 < len(code) && code[i+1] != '\n' {
				i++
			}
		case ch == '"' || ch == '/' && beginsPattern(out.String()):
			end := i + 1
			for end < len(code) && code[end] != ch {
				if code[end] == '\n' || ch == '/' && code[end] == '[' { // a bracket may hold a /
					return code
				}
				if code[end] == '\\' {
					end++
				}
				end++
			}
			if end >= len(code) {
				return code
			}
			out.WriteString(`""`)
			i = end
		case ch == '\\', ch == '/' && i < lastQuote: // it may divide, or begin a pattern that holds the quote
			return code
		default:
			out.WriteByte(ch)
		}
	}
	return strings.ReplaceAll(out.String(), "||", " ")
}

// beginsPattern reports whether a / behind some program begins a pattern, and does not divide.
func beginsPattern(before string) bool {
	before = strings.TrimRight(before, " \t")
	return before == "" || strings.ContainsRune("{};,(!~&|?:=\n", rune(before[len(before)-1]))
}
