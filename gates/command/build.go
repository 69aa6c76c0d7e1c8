package command

import (
	"cmp"
	"encoding/json"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
)

func buildRules(t table) {
	t["make"], t["gmake"], t["cmake"], t["tar"], t["gtar"], t["bsdtar"] = makeRule, makeRule, cmake, tarRule, tarRule, tarRule
	t["unzip"], t["cpio"], t["7z"], t["sponge"], t["patch"], t["sort"] = unzip, unzip, unzip, tee, patch, patch
}

// makeRule judges make when it is told on its command line, or by what it reads, what to run.
func makeRule(c *invocation) {
	o := parseOptions(c.args, "-C", "-f", "-I", "-j", "-l", "-o", "-W", "--directory", "--file", "--makefile", "--eval")
	for _, arg := range o.rest {
		name, value, _ := strings.Cut(arg, "=")
		name = strings.TrimRight(name, ":+?!")
		shell := slices.Contains(shells, path.Base(value))
		if (name == "SHELL" && !shell || name == ".SHELLFLAGS" || name == "MAKEFLAGS" && strings.Contains(value, "eval")) && value != "" {
			c.a.inShell(c, value)
			c.deny("make-exec", "it makes every line of the makefile run another program", "leave it out")
		}
	}
	if text, ok := o.long["eval"]; ok {
		c.recipes(text)
		c.ask("make-exec", "a part of the makefile stands on the command line", "write it into the makefile")
	}
	for _, name := range []string{"GNUmakefile", "makefile", "Makefile"} { // that the same text has written
		c.makefile(path.Join(o.value("-C", "directory"), name))
	}
	switch file := o.long["-f"] + o.long["file"] + o.long["makefile"]; {
	case file == "-" || file == "/dev/stdin":
		if c.in.known {
			c.recipes(c.in.text)
		}
		c.stdinMakefile()
	case file != "":
		c.makefile(file)
	}
}

// makefile judges one that the same text has made.
func (c *invocation) makefile(file string) {
	if d, ok := c.a.files[c.a.abs(file)]; ok && d.known {
		c.recipes(d.text)
	} else if ok && d.from >= fromDecoder {
		c.deny("download-run", "it runs a makefile that was just downloaded or decoded", "read it first")
	}
}

func (c *invocation) stdinMakefile() {
	if c.in.from >= fromDecoder {
		c.deny("download-run", "it runs a makefile from the network, or one that was hidden by an encoding", "read it first")
		return
	}
	c.ask("stdin-script", "it runs what it reads", "write a makefile and name it")
}

// recipes judges the commands of a makefile: lines that begin with a tab, what stands behind a rule's semicolon, and $(shell …).
func (c *invocation) recipes(text string) {
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
		command, recipe := strings.CutPrefix(line, "\t")
		if !recipe {
			_, command, recipe = strings.Cut(line, ";")
		}
		if command = strings.TrimLeft(command, " \t@-+"); recipe && strings.TrimSpace(command) != "" {
			c.a.inShell(c, strings.ReplaceAll(command, "$$", "$"))
		}
		if _, call, found := strings.Cut(line, "$(shell "); found {
			c.a.inShell(c, strings.TrimSuffix(strings.TrimSpace(call), ")"))
		}
	}
}

// scripts judges the scripts of a package.json that the same text has written.
func (c *invocation) scripts() {
	var manifest struct{ Scripts map[string]string }
	if d := c.a.files[c.a.abs("package.json")]; !d.known || json.Unmarshal([]byte(original(d.text)), &manifest) != nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(manifest.Scripts)) {
		c.a.inShell(c, readable(manifest.Scripts[name]))
	}
}

// cmake judges its tool mode, which has commands of every kind.
func cmake(c *invocation) {
	i := slices.Index(c.args, "-E")
	if i < 0 || i+1 >= len(c.args) {
		return
	}
	name, args := c.args[i+1], c.args[i+2:]
	tool := func(words ...string) { c.a.run(append(words, args...), c.in, c.env, c.from) }
	switch name {
	case "rm", "touch", "tar":
		tool(name)
	case "remove":
		tool("rm")
	case "remove_directory":
		tool("rm", "-rf")
	case "copy", "copy_directory", "copy_if_different", "copy_directory_if_different":
		tool("cp")
	case "rename":
		tool("mv")
	case "create_symlink", "create_hardlink":
		tool("ln")
	case "env", "time":
		tool(name)
	case "chdir":
		if len(args) > 1 {
			c.a.run(args[1:], c.in, c.env, c.from)
		}
	}
}

// patch judges tools that write the file that they name.
func patch(c *invocation) {
	o := parseOptions(c.args, "-o", "-p", "-i", "-d", "-k", "-t", "-S", "-T", "--output", "--input", "--strip", "--directory")
	if dir := o.value("-d", "directory"); c.name == "patch" && dir != "" {
		c.a.writes(path.Join(dir, "x"), "patching")
	}
	for _, p := range append([]string{o.value("-o", "output")}, o.rest[:min(len(o.rest), 1)]...) {
		if c.name == "patch" || p == o.value("-o", "output") {
			c.a.writes(p, c.name+" to")
		}
	}
}

// split judges what writes files of which the last operand is the beginning of the name.
func split(c *invocation) {
	o := parseOptions(c.args, "-b", "-l", "-n", "-a", "-C", "-f", "-t", "--bytes", "--lines", "--number", "--suffix-length", "--prefix", "--additional-suffix")
	if n := len(o.rest); n > 1 && c.name == "split" {
		c.a.writes(o.rest[n-1]+"aa", "split to")
	}
	if p := o.value("-f", "prefix"); p != "" && c.name == "csplit" {
		c.a.writes(p+"00", "split to")
	}
}

func sudoedit(c *invocation) {
	for _, p := range parseOptions(c.args, "-u", "-g").rest {
		c.a.writes(p, "editing")
	}
	c.ask("administration", "it edits a file with another user's rights", "")
}

// compressors are what tar may run without a question.
var compressors = []string{"gzip", "pigz", "bzip2", "pbzip2", "lbzip2", "xz", "pixz", "zstd", "zstdmt", "pzstd", "lz4", "lzma", "lzip", "plzip", "lzop", "brotli", "compress"}

// tarRule judges tar: what it runs, where it unpacks, and what it packs.
func tarRule(c *invocation) {
	o := parseOptions(c.args, "-C", "-f", "-I", "-F", "-T", "-X", "--directory", "--file", "--use-compress-program", "--checkpoint-action", "--to-command", "--rsh-command", "--rmt-command", "--info-script",
		"--new-volume-script")
	program := o.value("-I", "use-compress-program")
	if words := strings.Fields(program); len(words) > 0 && !slices.Contains(compressors, path.Base(words[0])) {
		c.a.inShell(c, program)
		c.deny("tar-exec", "tar runs another command", "name a compressor")
	}
	for _, text := range []string{o.value("-F", "info-script"), o.value("", "new-volume-script"), o.value("", "to-command"), o.value("", "rsh-command"), o.value("", "rmt-command")} {
		if text != "" {
			c.a.inShell(c, text)
			c.deny("tar-exec", "tar runs another command", "leave it out")
		}
	}
	if strings.Contains(o.value("", "checkpoint-action"), "exec") {
		c.deny("tar-exec", "tar runs another command", "leave it out")
	}
	if o.has('P', "absolute-names") && !c.creates(o) {
		c.ask("outside-write", "the archive says where it unpacks to", "leave -P out")
	}
	if o.has(0, "remove-files") {
		for _, p := range o.rest {
			c.removes(p, true, true)
		}
	}
	if dir := o.value("-C", "directory"); dir != "" && !c.creates(o) {
		c.a.writes(path.Join(dir, "x"), "unpacking to")
	}
	if archive, ok := c.a.files[c.a.abs(o.value("-f", "file"))]; !c.creates(o) && (c.in.from == fromNetwork || ok && archive.from == fromNetwork || c.archived(o)) {
		c.a.fetched = append(c.a.fetched, c.a.abs(o.value("-C", "directory")))
	}
	if c.creates(o) {
		for _, p := range o.rest {
			if secretPath(c.a.abs(p), c.a.c.Home) {
				c.ask("secrets", "it packs credentials", "")
				c.packed(o)
			}
		}
	}
}

// archived reports whether an archive that is named without a flag, as in tar xf x.tar, comes from the network.
func (c *invocation) archived(o options) bool {
	return slices.ContainsFunc(o.rest, func(p string) bool { return c.a.files[c.a.abs(p)].from == fromNetwork })
}

// unzip judges what unpacks somewhere.
func unzip(c *invocation) {
	o := parseOptions(c.args, "-d", "-D", "-o", "--directory")
	dir := cmp.Or(o.long["-d"], o.long["-D"], o.long["directory"])
	if c.name == "cpio" {
		dir = parseOptions(c.args, "-D", "-F", "-I", "-O", "--directory").value("-D", "directory")
	}
	if c.name == "7z" {
		dir = o.long["-o"]
	}
	if dir != "" && (c.name != "cpio" || o.short['i']) {
		c.a.writes(path.Join(dir, "x"), "unpacking to")
	}
	if c.archived(o) || c.in.from == fromNetwork {
		c.a.fetched = append(c.a.fetched, c.a.abs(dir))
	}
}

// packed keeps in mind that an archive holds credentials.
func (c *invocation) packed(o options) {
	file := o.value("-f", "file")
	if file == "" && len(o.rest) > 1 && strings.Contains(o.rest[0], "f") { // tar cf x.tar …
		file = o.rest[1]
	}
	if file != "" && file != "-" {
		c.a.files[c.a.abs(file)] = data{from: fromSecret}
	}
}

func (c *invocation) creates(o options) bool {
	return o.has('c', "create") || len(o.rest) > 0 && strings.HasPrefix(o.rest[0], "c") && len(o.rest[0]) < 6
}

// sedExec is the command e, at the beginning of a command of sed.
var sedExec = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(^|[;{}\n])\s*([0-9$]+(,[0-9$]+)?|/[^/]*/)?\s*!?e(\s|$)`)
})

// sedWrite is the command w with its file.
var sedWrite = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?:^|[;{}\n])\s*[0-9$,]*\s*!?w\s*(/\S+)`) })

// substitution is what stands behind the first s/…/…/ of a script of sed: its flags, and the file of w.
func substitution(script string) (flags, file string) {
	script = strings.TrimLeft(script, "0123456789,$! \t")
	if len(script) < 4 || script[0] != 's' {
		return "", ""
	}
	parts := 0
	for i := 2; i < len(script); i++ {
		switch script[i] {
		case '\\':
			i++
		case script[1]:
			if parts++; parts == 2 {
				rest := script[i+1:]
				flags = rest[:len(rest)-len(strings.TrimLeft(rest, "gpiIemM0123456789"))]
				file, _ = strings.CutPrefix(rest[len(flags):], "w")
				if len(file) == len(rest)-len(flags) {
					return flags, ""
				}
				return flags, strings.TrimSpace(file)
			}
		}
	}
	return "", ""
}

func sed(c *invocation) {
	o := parseOptions(c.args, "-e", "-f", "-l", "--expression", "--file")
	if file := o.value("-f", "file"); file == "-" || file == "/dev/stdin" {
		c.stdinScript()
	} else if c.runsFetched(file); file != "" && c.a.matches(sedExec(), c.named(file)) {
		c.ask("sed-exec", "a command of the script runs another (e)", "")
	}
	if o.has('i', "in-place") {
		for i, p := range o.rest {
			_, e := o.long["-e"]
			_, f := o.long["-f"]
			if i == 0 && !e && !f {
				continue
			}
			c.a.writes(p, editing)
		}
	}
	for _, s := range append(slices.Clone(o.rest[:min(len(o.rest), 1)]), o.long["-e"], o.long["expression"]) {
		s = strings.TrimSpace(s)
		if m := sedWrite().FindStringSubmatch(s); m != nil {
			c.a.writes(m[1], "sed writes")
		}
		flags, file := substitution(s)
		c.a.writes(file, "sed writes")
		if c.a.spend(len(s)/textPerCost+1) && strings.Contains(flags, "e") {
			c.deny("sed-exec", "sed runs what it reads (e)", "")
		}
		if c.a.matches(sedExec(), s) {
			c.deny("sed-exec", "sed runs another command (e)", "")
		}
		if strings.HasPrefix(s, "1e ") || strings.HasPrefix(s, "e ") || s == "e" || s == "1e" || strings.HasSuffix(s, "/e") && strings.HasPrefix(s, "s") {
			c.deny("sed-exec", "sed runs what it reads (e)", "")
		}
	}
}
