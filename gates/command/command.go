// Package command reads shell commands before they run, and says which of them nobody should run by mistake.
//
// It is an early, explained refusal; the sandbox is the wall. What it decides about is the syntax tree after everything
// that can be resolved has been: variables, quoting, braces, substitutions whose output is known, wrappers, pipes into
// interpreters, files that the same line wrote or downloaded. It never looks for words in text, so that a commit message may
// speak of what a command must not do. What cannot be resolved is asked about, or refused, according to where it stands.
package command

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"
)

// Verdict is what a command line comes to: the worst of what it does.
type Verdict string

// The verdicts. Ask without a person to ask is a refusal, unless the profile says otherwise.
const (
	Allow Verdict = "allow"
	Ask   Verdict = "ask"
	Deny  Verdict = "deny"
)

func (v Verdict) rank() int { return slices.Index([]Verdict{Allow, Ask, Deny}, v) }

// Mode is how commands are judged.
type Mode string

// The modes.
const (
	ModeBlock Mode = "block" // what the rules know is refused
	ModeAllow Mode = "allow" // only Config.Allow runs; the rules hold too, and what they would ask about is denied
	ModeOff   Mode = "off"
)

// Modes are all of them.
func Modes() []Mode { return []Mode{ModeBlock, ModeAllow, ModeOff} }

// DefaultMaxBytes is how long a command line may be.
const DefaultMaxBytes = 64 << 10

// Config is a policy. The zero value is the block list with its defaults.
type Config struct {
	Mode     Mode
	Allow    []string // for ModeAllow: exact command words, after resolution; ">" for redirections that write
	MaxBytes int      // 0: DefaultMaxBytes
	Cwd      string   // the workspace, by an absolute path; "": /workspace
	Dir      string   // where the command begins; "": Cwd
	Home     string   // "": /home/user
	Env      []string // NAME=VALUE: what is known of the environment; other variables may have any value
	// Open reads a script that a command names, at most max bytes of it; nil: none can be read.
	Open func(path string, max int) ([]byte, error)
}

// Finding is one rule that a command line hit.
type Finding struct {
	Rule    string  `json:"rule"`
	Verdict Verdict `json:"verdict"`
	Line    uint    `json:"line"`   // from 1; of the outermost text
	Column  uint    `json:"column"` // from 1, in bytes
	Text    string  `json:"text"`   // the command, as it was resolved
	Message string  `json:"message"`
	Safer   string  `json:"safer,omitempty"`
}

// Result is the verdict on a command line, with what led to it; the worst first.
type Result struct {
	Verdict  Verdict   `json:"verdict"`
	Findings []Finding `json:"findings,omitempty"`
}

// Analyze judges one command line. It runs nothing, and takes time linear in the text.
func Analyze(text string, c Config) Result {
	if c.Mode == ModeOff {
		return Result{Verdict: Allow}
	}
	a := newAnalyzer(c.filled())
	a.whole(text)
	return a.result()
}

// filled has the defaults in the place of what is not set.
func (c Config) filled() Config {
	c.MaxBytes = cmp.Or(c.MaxBytes, DefaultMaxBytes)
	c.Cwd, c.Home = cmp.Or(c.Cwd, "/workspace"), cmp.Or(c.Home, "/home/user")
	c.Dir = cmp.Or(c.Dir, c.Cwd)
	return c
}

// whole judges the outermost text.
func (a *analyzer) whole(text string) {
	defer func() { // what breaks the analysis is refused
		if p := recover(); p != nil {
			a.find(Deny, "internal", text, fmt.Sprintf("it cannot be judged: %v", p), "say it more simply")
		}
	}()
	a.budget += len(text) * byteCost
	text, a.odd = standIns(text)
	a.parse(text, data{})
	for _, name := range slices.Sorted(maps.Keys(a.funcs.all())) {
		if !a.called[name] { // by whoever reads the text in
			a.doubtful(func() data { return a.stmt(a.funcs.at(name), data{}) })
		}
	}
}

// AnalyzeArgs judges a command that is run without a shell.
func AnalyzeArgs(args []string, c Config) Result {
	quoted := make([]string, len(args))
	for i, arg := range args {
		q, err := syntax.Quote(arg, syntax.LangBash)
		if err != nil {
			return Result{Verdict: Deny, Findings: []Finding{{Rule: "unparsable", Verdict: Deny, Line: 1, Column: 1, Text: fmt.Sprintf("%.80q", arg),
				Message: "an argument that no shell can hold"}}}
		}
		quoted[i] = q
	}
	return Analyze(strings.Join(quoted, " "), c)
}

// What an analysis may cost is bounded by the length of the text, whatever the text does: baseCost for any, and byteCost for
// each byte. A unit is about a quarter of a microsecond; what the parts cost was measured.
const (
	baseCost    = 8000
	byteCost    = 4
	stmtCost    = 6
	runCost     = 12
	fieldCost   = 4
	nodeCost    = 1
	braceCost   = 8
	parseCost   = 60 // of a text within a text
	openCost    = 8
	textPerCost = 64 // bytes that are copied or searched for one unit

	maxDepth    = 24   // texts within texts, commands within commands
	maxNesting  = 200  // parentheses within parentheses: the parser is recursive
	maxFields   = 4096 // words of a command
	maxBraces   = 256  // words of a brace expansion
	maxFindings = 32
	maxShown    = 160       // bytes of a command in a finding
	maxText     = 256 << 10 // of what flows through a pipe
)

// unknown stands for what cannot be resolved, in a value.
const unknown = '\uE000'

const unknownText = string(unknown)

func hasUnknown(s string) bool { return strings.ContainsRune(s, unknown) }

// show writes a value for people.
func show(s string) string {
	const most, room = maxShown, maxShown - 3
	s = original(strings.ReplaceAll(s, unknownText, "…"))
	if len(s) <= most {
		return s
	}
	end := room
	for end > room-utf8.UTFMax && !utf8.RuneStart(s[end]) { // what has no start is no UTF-8
		end--
	}
	return s[:end] + "…"
}

// parse judges a text as a shell would read it, and returns what it would write, if that is known.
func (a *analyzer) parse(text string, in data) data {
	switch {
	case len(text) > a.c.MaxBytes && len(original(text)) > a.c.MaxBytes:
		a.find(Deny, "too-long", text, fmt.Sprintf("more than %d bytes cannot be judged", a.c.MaxBytes), "write a script, and run that")
		return data{}
	case strings.ContainsAny(text, "\x00"+unknownText):
		a.find(Deny, "unparsable", text, "the text is no shell text: it holds bytes that no command has", "")
		return data{}
	case a.depth >= maxDepth || nesting(text) > maxNesting:
		a.find(Deny, "too-deep", text, "commands within commands within commands", "say it directly")
		return data{}
	case a.depth > 0 && !a.spend(parseCost+len(text)*byteCost/2):
		return data{}
	}
	a.depth++
	defer func() { a.depth-- }()
	file, err := a.parser.Parse(strings.NewReader(text), "")
	if err != nil {
		if pe, ok := errors.AsType[syntax.ParseError](err); ok {
			a.at(pe.Pos)
		}
		a.find(Deny, "unparsable", text, "no shell can read it: "+err.Error(), "correct the quoting")
		return data{}
	}
	if strings.Contains(text, "$'") {
		escaped(file)
	}
	return a.stmts(file.Stmts, in)
}

// nesting is how deep parentheses lie in each other, at the most: quotes and comments are not looked at.
func nesting(text string) (deepest int) {
	depth := 0
	for i := range len(text) {
		switch text[i] {
		case '(':
			depth++
			deepest = max(deepest, depth)
		case ')':
			depth = max(depth-1, 0)
		}
	}
	return deepest
}

// at sets the position that findings name: within a text within a text it stays where the outer one stands.
func (a *analyzer) at(p syntax.Pos) {
	if a.depth <= 1 && p.IsValid() {
		before, _ := slices.BinarySearch(a.odd, int(p.Offset()))
		onLine, _ := slices.BinarySearch(a.odd, int(p.Offset())-int(p.Col())+1)
		a.line, a.column = p.Line(), p.Col()-uint(before-onLine)*(utf8.UTFMax-1)
	}
}

// find adds a finding, once.
func (a *analyzer) find(v Verdict, rule, text, message, safer string) {
	if a.doubts > 0 && rule != "too-complex" {
		if v == Ask {
			return
		}
		v = Ask
	}
	if v == Ask && a.c.Mode == ModeAllow { // what is not on the list for certain is not on it
		v = Deny
	}
	f := Finding{Rule: rule, Verdict: v, Line: max(a.line, 1), Column: max(a.column, 1), Text: show(text), Message: message, Safer: safer}
	milder := slices.IndexFunc(a.findings, func(f Finding) bool { return f.Verdict.rank() < v.rank() })
	switch {
	case slices.Contains(a.findings, f):
	case len(a.findings) < maxFindings:
		a.findings = append(a.findings, f)
	case milder >= 0:
		a.findings = append(slices.Delete(a.findings, milder, milder+1), f)
	}
	a.worst = max(a.worst, v.rank())
}

func (a *analyzer) result() Result {
	slices.SortStableFunc(a.findings, func(x, y Finding) int { return y.Verdict.rank() - x.Verdict.rank() })
	return Result{Verdict: []Verdict{Allow, Ask, Deny}[a.worst], Findings: a.findings}
}

// said is as much of the text as a finding shows: a command of many words may have one for each of them.
func (c *invocation) said() string {
	b := c.name
	for _, arg := range c.args {
		if b += " " + arg; len(b) > maxShown {
			break
		}
	}
	return b
}
