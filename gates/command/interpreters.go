package command

import (
	"bytes"
	"cmp"
	"regexp"
	"slices"
	"strings"
	"sync"
)

func interpreterRules(t table) {
	for _, name := range shells {
		t[name] = shellRule
	}
	for name, flags := range map[string]string{"python": "c", "python2": "c", "python3": "c", "pypy": "c", "pypy3": "c", "perl": "eE", "ruby": "e", "node": "ep", "nodejs": "ep", "deno": "", "bun": "e",
		"php": "rRBE", "lua": "e", "luajit": "e", "tclsh": "", "wish": "", "osascript": "e", "rscript": "e", "r": "e", "julia": "e", "groovy": "e", "guile": "c", "ghc": "e", "elixir": "e", "erl": "", "raku": "e", "jshell": "", "irb": "", "ts-node": "e", "tsx": "e",
		"scala": "e", "kotlin": "e", "octave": "", "ocaml": "e", "swift": "e", "sbcl": "", "racket": "e", "clojure": "e", "clj": "e", "bb": "e", "crystal": "", "nim": "", "jrunscript": "e", "ipython": "c", "ipython3": "c", "sage": "c", "gjs": "c", "qjs": "e",
		"janet": "e", "fennel": "e", "gnuplot": "e", "m4": "", "gimp": "b", "rakudo": "e", "perl6": "e", "escript": "", "micropython": "c", "pwsh": "", "powershell": "", "js": "e", "csi": "e", "maxima": "", "ghci": ""} {
		t[name] = func(c *invocation) { interpreter(c, flags) }
	}
	t["java"] = java
	for _, name := range []string{"awk", "gawk", "mawk", "nawk"} {
		t[name] = awk
	}
	for _, name := range []string{"vim", "vi", "nvim", "ex", "ed", "emacs", "less", "more", "man", "lldb", "view", "rvim", "rview", "gvim", "vimdiff", "nmap", "zip", "ftp", "sqlite3", "nvi", "nano", "cpan"} {
		if _, taken := t[name]; !taken {
			t[name] = editor
		}
	}
}

// shellRule judges a shell that is given something to run.
func shellRule(c *invocation) {
	if slices.Contains([]string{"--version", "--help"}, first(c.args)) {
		return
	}
	if c.checks("-n", "sh", "bash", "dash", "ash", "ksh", "mksh", "zsh") {
		return
	}
	i := 0
	for ; i < len(c.args); i++ {
		arg := c.args[i]
		if arg == "--" {
			i++
			break
		}
		if len(arg) < 2 || arg[0] != '-' && arg[0] != '+' {
			break
		}
		if arg == "-o" || arg == "+o" || arg == "-O" || arg == "--rcfile" || arg == "--init-file" {
			i++
			continue
		}
		if arg[0] == '-' && arg[1] != '-' && strings.Contains(arg, "c") {
			for i++; i < len(c.args) && len(c.args[i]) > 1 && c.args[i][0] == '-'; i++ {
			}
			if i < len(c.args) {
				c.shellText(c.args[i], c.args[i+1:])
			}
			return
		}
		if arg[0] == '-' && arg[1] != '-' && strings.Contains(arg, "s") {
			i = len(c.args)
			break
		}
	}
	if i < len(c.args) && c.args[i] != "-" {
		c.scriptFile(c.args[i])
		return
	}
	c.stdinScript()
}

// checks reports whether an interpreter of some name is only to read a file, and run nothing of it.
func (c *invocation) checks(option string, interpreters ...string) bool {
	return len(c.args) == 2 && c.args[0] == option && slices.Contains(interpreters, c.name) && !strings.HasPrefix(c.args[1], "-") && !strings.HasPrefix(c.args[1], "+") && c.from < fromNetwork
}

// shellText judges -c TEXT with its parameters.
func (c *invocation) shellText(text string, params []string) {
	saved, zero := c.a.params, c.a.vars.at("0")
	c.a.params = []string{}
	if len(params) > 0 {
		c.a.params = params[1:]
		c.a.set("0", params[0], c.from)
	}
	c.a.inShell(c, text)
	c.a.params = saved
	c.a.vars.set("0", zero)
}

// scriptFile judges a script that is named.
func (c *invocation) scriptFile(file string) {
	p, shell := c.a.abs(file), slices.Contains(shells, c.name) || c.name == "source" || c.name == "."
	if d, ok := c.a.files[p]; ok {
		switch {
		case shell || d.from > fromNowhere:
			c.a.script(c, d, shell)
		case d.known:
			c.inline(d.text)
		}
		return
	}
	switch {
	case file == "/dev/stdin" || file == "/proc/self/fd/0" || file == "/dev/fd/0":
		c.stdinScript()
	case strings.HasPrefix(file, "http://") || strings.HasPrefix(file, "https://"):
		c.deny("download-run", "it runs what it downloads", "download, read, then run")
	case strings.HasPrefix(file, unknownText) && c.from >= fromNetwork:
		c.deny("download-run", "the network says what it runs", "look at it first")
	case hasUnknown(p):
		c.ask("unknown-script", "which script runs cannot be told beforehand", "name it")
	default:
		if shell {
			c.a.openScript(c, p, true)
		}
		c.fromFetched(p)
	}
}

// runsFetched judges a file that a program is told to run, when it comes from the network.
func (c *invocation) runsFetched(file string) {
	if file != "" && c.a.files[c.a.abs(file)].from == fromNetwork {
		c.deny("download-run", "it runs what was just downloaded", "download, read, then run")
	}
}

// java asks about programs that the same text has downloaded, as manuals have it, and not about others.
func java(c *invocation) {
	if i := slices.Index(c.args, "-jar"); i >= 0 && c.a.files[c.a.abs(first(c.args[i+1:]))].from == fromNetwork {
		c.ask("download-run", "it runs what was just downloaded", "download, read, then run")
	}
	c.stranger()
}

// stdinScript judges an interpreter that reads what it runs.
func (c *invocation) stdinScript() {
	d := c.in
	switch {
	case d.from == fromNetwork:
		c.deny("download-run", "it runs what comes from the network", "download it to a file, read it, then run it")
	case d.from == fromDecoder && !d.known:
		c.deny("decoded-command", "it runs what was hidden by an encoding", "write it as it is")
	case d.known && hasUnknown(d.text) && slices.Contains(shells, c.name): // names of files, of which a part is known
		c.a.isolated(func() data { return c.a.parse(strings.ReplaceAll(d.text, unknownText, "unknown"), data{}) })
		c.ask("stdin-script", "it runs what it reads, which cannot be told beforehand", "write a script and name it")
	case strings.HasSuffix(d.text, "\n"+unknownText) && slices.Contains(shells, c.name): // whole lines, and perhaps more
		c.a.inShell(c, strings.TrimSuffix(d.text, unknownText))
		c.ask("stdin-script", "it runs what it reads, which may say more by then", "write a script and name it")
	case hasUnknown(d.text) && d.text != unknownText && slices.Contains(shells, c.name):
		c.a.inShell(c, d.text)
	case hasUnknown(d.text) && d.text != unknownText:
		c.inline(d.text)
	case d.known && d.text != "" && slices.Contains(shells, c.name):
		if d.from == fromDecoder {
			c.ask("decoded-command", "it runs what was hidden by an encoding", "write it as it is")
		}
		c.a.isolated(func() data { return c.a.parse(d.text, data{}) })
	case d.known && d.text != "":
		c.inline(d.text)
	case d.known:
	default:
		if !c.interactive() {
			c.ask("stdin-script", "it runs what it reads, which cannot be told beforehand", "write a script and name it")
		}
	}
}

// interactive reports whether nothing is piped in.
func (c *invocation) interactive() bool { return c.in == (data{}) && len(c.args) == 0 && !c.piped() }

func (c *invocation) piped() bool { return c.a.piping > 0 }

// interpreter judges a language's interpreter: code on the command line or standard input, or a script.
func interpreter(c *invocation, flags string) {
	if destroysData(strings.Join(c.args, " ")) {
		c.deny("database", "it empties the application's database", "")
	}
	if i := slices.IndexFunc(c.args, func(s string) bool { return evaluates(c.name, s) }); i >= 0 && (c.name == "pwsh" || c.name == "powershell") {
		c.inline(strings.Join(c.args[i+1:], " ")) // PowerShell's other options take values
		return
	}
	if c.checks("-l", "php") || c.checks("-c", "ruby") {
		return
	}
	for i := 0; i < len(c.args); i++ {
		arg := c.args[i]
		switch {
		case arg == "-m" && strings.HasPrefix(c.name, "py"):
			c.module(c.args[i+1:])
			return
		case (arg == "eval" || arg == "run") && c.name == "deno":
			if arg == "eval" && i+1 < len(c.args) {
				c.inline(c.args[i+1])
				return
			}
		case evaluates(c.name, arg):
			if i+1 < len(c.args) {
				c.inline(c.args[i+1])
			}
			return
		case strings.HasPrefix(arg, "--") && strings.Contains(arg, "=") && evaluates(c.name, arg[:strings.IndexByte(arg, '=')]):
			c.inline(arg[strings.IndexByte(arg, '=')+1:])
			return
		case exact(c.name) && len(arg) > 2 && arg[0] == '-':
		case len(arg) > 1 && arg[0] == '-' && arg[1] != '-':
			j := strings.IndexAny(arg[1:], flags+valueFlags(c.name))
			if j < 0 {
				continue
			}
			letter, value := arg[j+1], arg[j+2:]
			if value == "" && i+1 < len(c.args) {
				i++
				value = c.args[i]
			}
			if strings.IndexByte(flags, letter) >= 0 {
				c.inline(value)
				return
			}
		case arg == "-":
			c.stdinScript()
			return
		case arg != "" && arg[0] != '-':
			c.scriptFile(arg)
			return
		}
	}
	if (c.piped() || c.in != (data{})) && !anyOf(c.args, []string{"--version", "-version", "-V", "-v", "--help", "-h"}) {
		c.stdinScript()
	}
}

// exact reports whether a language has its own long options with one dash, and no letters in one word.
func exact(name string) bool {
	return !strings.HasPrefix(name, "py") && !slices.Contains([]string{"perl", "ruby", "node", "nodejs", "bun", "php", "lua", "luajit", "raku"}, name)
}

// evaluates reports whether code stands behind a long option, or a subcommand.
func evaluates(name, arg string) bool {
	switch name {
	case "nim", "crystal":
		return arg == "e" || arg == "eval"
	case "pwsh", "powershell": // any case, any beginning
		low := strings.ToLower(arg)
		return low == "-c" || len(low) > 1 && (strings.HasPrefix("-command", low) || strings.HasPrefix("-encodedcommand", low)) || low == "-ec" || low == "-enc"
	}
	return slices.Contains([]string{"--eval", "--print", "-eval", "--execute", "--execute-string", "--batch-string"}, arg)
}

// module judges python -m NAME.
func (c *invocation) module(args []string) {
	switch first(args) {
	case "pty", "telnetlib", "smtpd":
		c.deny("interpreter-process", "it starts a shell", "")
	case "code":
		c.stdinScript()
	case "pdb", "cProfile", "profile", "trace", "runpy":
		if rest := parseOptions(args[1:], "-o", "-s", "-c").rest; len(rest) > 0 {
			c.scriptFile(rest[0])
		}
	case "pip":
		c.a.run(args, c.in, c.env, c.from)
	case "timeit":
		for _, code := range parseOptions(args[1:], "-n", "-r", "-s", "-u").rest {
			c.inline(code)
		}
	case "http.server", "SimpleHTTPServer", "pyftpdlib":
		if dir := cmp.Or(parseOptions(args[1:], "-b", "-d", "--bind", "--directory").value("-d", "directory"), c.a.cwd()); c.a.where(dir) != inWorkspace && c.a.where(dir) != atWorkspace {
			c.ask("upload", "it shows files outside of the workspace to the network", "serve a directory of the workspace")
		}
	}
}

// valueFlags are the letters after which an interpreter takes the rest of the word, or the next one, for a value.
func valueFlags(name string) string {
	switch {
	case strings.HasPrefix(name, "py"):
		return "WX"
	case name == "perl":
		return "MmI"
	case name == "ruby":
		return "rIEC"
	case name == "node" || name == "nodejs" || name == "lua":
		return "r"
	case name == "php":
		return "dz"
	}
	return ""
}

// starts finds code that starts processes or opens sockets. It looks at another language's text, where it errs to the safe
// side: inline code is asked about anyhow.
var starts = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b(os\s*\.\s*(system|popen|exec\w*|spawn\w*|posix_spawn|fork|remove|unlink|rmdir|removedirs)|subprocess|popen[23]?|pty\s*\.|commands\s*\.\s*getoutput|` +
		`shutil\s*\.\s*rmtree|socket|urllib|httplib|http\.client|requests\s*\.|ftplib|smtplib|paramiko|child_process|execSync|spawnSync|execFile|rmSync|rmdirSync|unlinkSync|net\s*\.\s*(connect|createConnection|Socket)|` +
		`https?\s*\.\s*(get|request)|fetch\s*\(|Process\s*\.\s*spawn|IO\s*\.\s*popen|Open3|Kernel\s*\.\s*(system|exec)|TCPSocket|Net::HTTP|open-uri|FileUtils\s*\.\s*rm|Remove-Item|Start-Process|Invoke-Expression|Invoke-WebRequest|Net\.WebClient|FromBase64String|iex\s|Sys\s*\.\s*(command|remove)|System\s*\.\s*cmd|os:cmd|run-program|syscmd|ProcessBuilder|sys\.process|fsockopen|proc_open|shell_exec|passthru|pcntl_exec|curl_exec|` +
		`IO::Socket|LWP|io\s*\.\s*popen|os\.execute|do shell script|__import__|ctypes|getattr\s*\(\s*os|importlib|marshal\s*\.|b64decode|decode_base64|base64|codecs\s*\.\s*decode|fromhex|unhexlify|zlib\s*\.\s*decompress|eval\s*\(|exec\s*\(|compile\s*\()|` +
		`\.(createServer|createConnection|createSocket)\s*\(|require\(["'](node:)?(https?|net|tls)["']\)\s*\.\s*(get|request|connect)|\btls\s*\.\s*connect|telnetlib|\b(httpx|aiohttp)\s*\.\s*\w|multiprocessing\s*\.\s*(Process|Pool)|` +
		`open_connection|create_subprocess|start_server|ServerProxy|socketserver|HTTPServer|%x\s*[({[]|\bopen\s*\(?\s*(\$?\w+\s*,\s*)?["'](\s*\||-\||[^"'|]*\|\s*["'])|file_get_contents\s*\(\s*["']https?://|(^|[;{&|(]\s*)(system|exec)\s+[$@]|` +
		`\bfork\s*(;|&&|\|\||$|\s(while|until|for|if|unless|or|and)\b)|\b(system|exec|fork|qx|spawn|unlink|rmtree)\s*[("'{\x60]|\x60[^\x60]+\x60|/dev/tcp/`)
})

// names is what only names a module, or asks it for something that starts and opens nothing.
var names = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^[ \t]*import[ \t]+\w+([ \t]*,[ \t]*\w+)*[ \t]*$|\bre\.compile\(|\burllib\.parse\b|\bimportlib\.(metadata|resources)\b|\bsocket\.(gethostname|getfqdn)\(\)|` +
		`\b\w+\.__(version|file|path|name|doc)__\b|\bbase64\.(urlsafe_)?b(16|32|64|85)encode\(|\.eval\(\s*\)`)
})

// withoutNames is code with nothing in the place of names that start nothing.
func (c *invocation) withoutNames(code string) string {
	if !c.a.spend(1 + len(code)/2) {
		return code
	}
	out := []byte(code)
	for _, m := range names().FindAllStringIndex(strings.ReplaceAll(code, ";", "\n"), -1) {
		copy(out[m[0]:m[1]], bytes.Repeat([]byte(";"), m[1]-m[0]))
	}
	return string(out)
}

// inline judges code in another language on the command line.
func (c *invocation) inline(code string) {
	switch {
	case c.from == fromNetwork:
		c.deny("download-run", "it runs code from the network", "download, read, then run")
	case c.a.matches(starts(), c.withoutNames(code)):
		c.deny("interpreter-process", "inline code starts processes, opens sockets, removes files or hides what it does", "write a script into the workspace and run it")
	default:
		c.ask("inline-code", "inline code is not judged", "write a script into the workspace and run it")
	}
}

// editor judges programs that can be told to run a shell.
func editor(c *invocation) {
	o := parseOptions(c.args, "-P", "--pager", "--unzip-command")
	for i, arg := range c.args {
		if arg == "-TT" && i+1 < len(c.args) {
			o.long["unzip-command"] = c.args[i+1]
		}
	}
	if c.name == "zip" && o.has('m', "move") {
		for _, p := range o.rest[min(1, len(o.rest)):] {
			c.removes(p, true, true)
		}
	}
	if text := cmp.Or(o.long["-P"], o.long["pager"], o.long["unzip-command"]); (c.name == "man" || c.name == "zip") && text != "" && !slices.Contains([]string{"cat", "less", "more", "unzip"}, text) {
		c.a.inShell(c, text)
		c.deny("editor-shell", "the program is told to run another", "leave it out")
	}
	for i, arg := range c.args {
		value := ""
		if arg == "-S" && strings.Contains(c.name, "vi") {
			c.runsFetched(first(c.args[i+1:]))
		}
		switch {
		case strings.HasPrefix(arg, "+!") || strings.HasPrefix(arg, "+:!"):
			value = arg
		case (arg == "-c" || arg == "-o" && c.name == "lldb" || arg == "--cmd" || arg == "-ex" || arg == "--eval" || arg == "--script") && i+1 < len(c.args):
			value = c.args[i+1]
		}
		if value == "" && strings.HasSuffix(arg, "c") && i+1 < len(c.args) && len(arg) > 2 && arg[0] == '-' && arg[1] != '-' { // -sc COMMAND
			value = c.args[i+1]
		}
		value = strings.TrimLeft(value, ": ")
		if language, code, ok := strings.Cut(value, " "); ok && slices.Contains([]string{"py", "py3", "pyx", "python", "python3", "lua", "ruby", "perl", "tcl"}, language) || c.name == "emacs" && strings.HasPrefix(value, "(") {
			c.inline(cmp.Or(code, value))
		}
		if strings.HasPrefix(value, "!") || strings.Contains(value, "shell") || strings.Contains(value, "call-process") || strings.Contains(value, "system(") || strings.HasPrefix(value, "+!") || strings.Contains(value, "os.execute") {
			c.deny("editor-shell", "the program is told to start a shell", "run the command itself")
		}
	}
	if slices.Contains([]string{"vim", "vi", "nvim", "ex", "ed", "emacs", "nvi", "nano"}, c.name) {
		for _, p := range parseOptions(c.args, "-c", "-S", "-u", "--cmd").rest {
			if w := c.a.where(p); p != "" && p[0] != '+' && (w == inSystem || w == inLocal || w == elsewhere && c.in != (data{}) || persistent(c.a.abs(p), c.a.c.Home)) {
				c.ask("system-write", "it edits a file that is not the task's", "")
			}
		}
	}
	if slices.Contains([]string{"ed", "ex", "cpan", "ftp", "gdb"}, c.name) && c.in.known && strings.Contains("\n"+c.in.text, "\n!") {
		c.deny("editor-shell", "the program is told to start a shell", "")
	}
	if c.name == "sqlite3" {
		database(c)
	}
}
