package command

import (
	"bytes"
	"compress/gzip"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
)

// networkTools write what comes from the network; secretTools write the user's.
var (
	networkTools = []string{"curl", "wget", "wget2", "aria2c", "http", "https", "xh", "fetch", "nc", "ncat", "netcat", "socat", "telnet", "dig", "nslookup", "host", "ssh", "lynx", "w3m", "links", "lwp-request", "ftp", "tftp"}
	secretTools  = []string{"env", "printenv", "set", "export", "declare", "history", "pass", "secret-tool", "security", "gpg"}
	// hostTools write who and where we are.
	hostTools = []string{"whoami", "id", "hostname", "hostid", "logname", "who", "w", "last", "groups", "ifconfig", "ip", "arp"}
	// passing tools write what they read, or a part of it.
	passing = []string{"cat", "tac", "tee", "head", "tail", "sort", "uniq", "grep", "egrep", "fgrep", "rg", "sed", "awk", "gawk", "cut", "tr", "fold", "fmt", "nl", "paste", "column", "jq", "yq", "xargs", "less", "more",
		"base64", "xxd", "od", "hexdump", "gzip", "bzip2", "xz", "zstd", "tar", "zip", "openssl", "rev", "strings", "iconv", "pv", "split", "dd", "sponge", "buffer", "stdbuf", "parallel", "sha256sum", "shuf", "python3", "python", "perl"}
	// selecting tools write some lines of what they read, in some order.
	selecting = []string{"cat", "tac", "tee", "head", "tail", "sort", "uniq", "grep", "egrep", "fgrep", "rg", "shuf", "sed", "awk", "pv"}
	// encodings are decoders that have no other purpose.
	encodings = []string{"base64", "base32", "basenc", "xxd", "openssl", "gzip", "gunzip", "zcat"}
	// decoders make something else of what they read.
	decoders = []string{"base64", "base32", "basenc", "xxd", "openssl", "gzip", "gunzip", "zcat", "bzip2", "bunzip2", "bzcat", "xz", "unxz", "xzcat", "zstd", "unzstd", "zstdcat", "uudecode", "gpg", "rev", "tr", "b64decode", "ccdecrypt", "uncompress", "lz4", "brotli", "funzip", "unzip", "zlib-flate", "sed", "perl", "awk", "python3", "python"}
)

// output is what a command writes to standard output, as far as that can be told.
func (c *invocation) output() data {
	in := c.in
	if !in.known && in.from == fromNowhere && slices.Contains(passing, c.name) {
		in = c.operands(in)
	}
	if text, ok := c.computed(in); ok {
		from := max(in.from, c.from)
		if slices.Contains(encodings, c.name) && c.decoding() {
			from = max(from, fromDecoder)
		}
		return data{text: text, known: true, from: from}
	}
	if hasUnknown(in.text) && slices.Contains(selecting, c.name) {
		return in
	}
	switch {
	case slices.Contains(networkTools, c.name), c.name == "openssl" && first(c.args) == "s_client":
		return data{from: fromNetwork}
	case slices.Contains(shells, c.name) && !c.in.known && (c.piped() || slices.Contains(c.args, "-i")): // whoever writes to it reads what they like
		return data{from: fromSecret}
	case slices.Contains(secretTools, c.name) && (c.name != "env" || len(c.args) == 0):
		return data{from: max(in.from, fromSecret)}
	case slices.Contains(hostTools, c.name) && (c.name != "id" || len(c.args) == 0), c.name == "uname" && anyOf(c.args, []string{"-a", "-n", "--all", "--nodename"}): // not a number of id -u
		return data{from: fromHost}
	case slices.Contains(decoders, c.name) && c.decoding():
		return data{from: max(in.from, fromDecoder)}
	case slices.Contains(passing, c.name):
		return data{from: max(in.from, c.read().from)}
	}
	return data{from: c.echoed()}
}

// echoed is where the words of a command that is not known come from; it may well write them.
func (c *invocation) echoed() source {
	if slices.Contains([]string{"echo", "printf"}, c.name) {
		return c.from
	}
	return fromNowhere
}

// operands is what files that are named hold, for tools that read them instead of standard input.
func (c *invocation) operands(in data) data {
	if o := parseOptions(c.args); len(o.rest) == 1 && o.rest[0] == "/dev/null" {
		return data{known: true}
	}
	if d := c.read(); d != (data{}) {
		return d
	}
	return in
}

// read joins the files that a command names.
func (c *invocation) read() data {
	out := data{}
	first := true
	for _, p := range parseOptions(c.args).rest {
		if !c.a.spend(fieldCost) {
			break
		}
		full := c.a.abs(p)
		d, ok := c.a.files[full]
		if !ok && secretPath(full, c.a.c.Home) {
			d, ok = data{from: fromSecret}, true
		}
		if !ok && c.name == "cat" { // somebody may have written to it by then
			if text, long, found := c.a.content(full, &c.a.piped); found {
				d, ok = data{text: text + unknownText, long: long}, true
			}
		}
		if !ok || d.long && out.long { // nothing is known behind the first that is too long
			continue
		}
		if first {
			out, first = d, false
			continue
		}
		out = join(out, d)
	}
	return out
}

// decoding reports whether a decoder decodes, as told by its options.
func (c *invocation) decoding() bool {
	o := parseOptions(c.args)
	switch c.name {
	case "base64", "base32", "basenc":
		return o.has('d', "decode") || o.short['D']
	case "xxd":
		return o.short['r']
	case "openssl":
		return slices.Contains(c.args, "-d") || first(c.args) == "smime"
	case "gzip", "bzip2", "xz", "zstd", "lz4", "brotli", "gpg":
		return o.has('d', "decompress", "uncompress", "decrypt")
	case "tr", "sed", "perl", "awk", "python3", "python", "rev":
		return c.in.known || c.in.from >= fromDecoder
	}
	return true
}

// computed is the output of commands that only write words, or change what they read in a way that is known.
func (c *invocation) computed(in data) (string, bool) {
	if slices.ContainsFunc(c.args, hasUnknown) {
		return "", false
	}
	switch c.name {
	case "echo":
		return c.echo()
	case "printf":
		if len(c.args) == 0 {
			return "", true
		}
		text, err := formatted(strings.TrimPrefix(c.args[0], "--"), c.args[1:])
		return text, err == nil
	case "mktemp":
		return c.temporary()
	case "find":
		return c.listed()
	case "ls":
		return c.matched()
	case "pwd":
		return c.a.cwd() + "\n", !hasUnknown(c.a.cwd())
	case "true", "false", ":", "cd", "mkdir", "export", "unset", "alias", "test", "[", "sleep", "wait", "touch", "rm", "chmod":
		return "", true
	case "which", "command", "type", "whence":
		return c.found()
	case "basename":
		return path.Base(first(c.args)) + "\n", len(c.args) == 1
	case "dirname":
		return path.Dir(first(c.args)) + "\n", len(c.args) == 1
	case "whoami", "id", "hostname", "uname", "date":
		return "", false
	}
	if !in.known {
		return "", false
	}
	return c.filtered(in.text)
}

// temporary is the path that mktemp makes, as far as it can be known.
func (c *invocation) temporary() (string, bool) {
	o := parseOptions(c.args, "-p", "--tmpdir", "--suffix")
	dir := o.value("-p", "tmpdir")
	template := "tmp.XXXXXXXXXX"
	if len(o.rest) > 0 {
		template = o.rest[0]
	}
	if dir == "" && (len(o.rest) == 0 || o.short['t'] || o.has(0, "tmpdir")) {
		dir = "/tmp"
	}
	return path.Join(dir, strings.TrimRight(template, "X")+unknownText) + "\n", true
}

func (c *invocation) echo() (string, bool) {
	args, escapes, newline := c.args, false, "\n"
	for len(args) > 0 && len(args[0]) > 1 && args[0][0] == '-' && strings.Trim(args[0][1:], "neE") == "" {
		escapes = escapes || strings.Contains(args[0], "e")
		if strings.Contains(args[0], "n") {
			newline = ""
		}
		args = args[1:]
	}
	text := strings.Join(args, " ")
	if escapes {
		plain, err := formatted(strings.ReplaceAll(text, "%", "%%"), nil)
		if err != nil {
			return "", false
		}
		text = plain
	}
	return text + newline, true
}

// found is the path of a program: where it is usual.
func (c *invocation) found() (string, bool) {
	for _, arg := range c.args {
		if arg != "" && arg[0] != '-' {
			return "/usr/bin/" + path.Base(arg) + "\n", true
		}
	}
	return "", false
}

// filtered is what a filter makes of text.
func (c *invocation) filtered(text string) (string, bool) {
	o := parseOptions(c.args, "-n", "-c", "-d", "-f", "-w", "-i", "-o")
	switch c.name {
	case "cat", "tee", "stdbuf", "pv", "sponge":
		return text, true
	case "rev":
		lines := strings.SplitAfter(text, "\n")
		for i, l := range lines {
			body := []rune(strings.TrimSuffix(l, "\n"))
			slices.Reverse(body)
			lines[i] = string(body) + l[len(strings.TrimSuffix(l, "\n")):]
		}
		return strings.Join(lines, ""), true
	case "tac":
		lines := strings.SplitAfter(strings.TrimSuffix(text, "\n")+"\n", "\n")
		slices.Reverse(lines)
		return strings.Join(lines, ""), true
	case "base64", "base32", "xxd", "openssl", "gzip", "gunzip", "zcat":
		return c.decoded(text)
	case "tr":
		return translate(text, parseOptions(c.args))
	case "head":
		return strings.Join(strings.SplitAfter(text, "\n")[:min(strings.Count(text, "\n")+1, lineCount(o))], ""), o.long["-c"] == ""
	}
	return "", false
}

func lineCount(o options) int {
	n, err := strconv.Atoi(o.long["-n"])
	if err != nil || n < 0 {
		return 10
	}
	return n
}

// decoded is what a decoder makes of text; encoders are not followed.
func (c *invocation) decoded(text string) (string, bool) {
	packed := strings.Join(strings.Fields(text), "")
	var out []byte
	var err error
	switch {
	case !(&invocation{name: c.name, args: c.args, in: data{known: true}}).decoding():
		return "", false
	case c.name == "base64", c.name == "openssl" && (slices.Contains(c.args, "-base64") || slices.Contains(c.args, "base64") || slices.Contains(c.args, "-a")):
		out, err = base64.RawStdEncoding.DecodeString(strings.TrimRight(packed, "="))
	case c.name == "base32":
		out, err = base32.StdEncoding.DecodeString(packed)
	case c.name == "xxd" && parseOptions(c.args).short['p']:
		out, err = hex.DecodeString(packed)
	case c.name == "gzip" || c.name == "gunzip" || c.name == "zcat":
		var r *gzip.Reader
		if r, err = gzip.NewReader(strings.NewReader(original(text))); err == nil {
			out, err = io.ReadAll(io.LimitReader(r, maxText))
		}
	default:
		return "", false
	}
	if err != nil || bytes.ContainsRune(out, unknown) {
		return "", false
	}
	return readable(string(out)), true
}

// translate is tr with sets that are written out, or ranges.
func translate(text string, o options) (string, bool) {
	if len(o.rest) == 0 || o.short['s'] || o.short['c'] || o.short['C'] {
		return "", false
	}
	from := charset(o.rest[0])
	if o.short['d'] {
		return strings.Map(func(r rune) rune {
			if slices.Contains(from, r) {
				return -1
			}
			return r
		}, text), true
	}
	if len(o.rest) < 2 || len(from) == 0 {
		return "", false
	}
	to := charset(o.rest[1])
	if len(to) == 0 {
		return "", false
	}
	return strings.Map(func(r rune) rune {
		if i := slices.Index(from, r); i >= 0 {
			return to[min(i, len(to)-1)]
		}
		return r
	}, text), true
}

func charset(set string) (out []rune) {
	for name, members := range map[string]string{"[:lower:]": "a-z", "[:upper:]": "A-Z", "[:digit:]": "0-9", `\n`: "\n", `\t`: "\t"} {
		set = strings.ReplaceAll(set, name, members)
	}
	r := []rune(set)
	for i := 0; i < len(r) && len(out) < 4096; i++ {
		if i+2 < len(r) && r[i+1] == '-' && r[i] <= r[i+2] {
			for x := r[i]; x <= r[i+2] && len(out) < 4096; x++ {
				out = append(out, x)
			}
			i += 2
			continue
		}
		out = append(out, r[i])
	}
	return out
}
