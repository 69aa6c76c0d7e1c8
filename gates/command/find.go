package command

import (
	"path"
	"slices"
	"strings"
)

// findRule judges find: what it deletes, and what it runs on what it finds.
func findRule(c *invocation) {
	var roots []string
	i := 0
	for ; i < len(c.args); i++ {
		if strings.HasPrefix(c.args[i], "-") && !slices.Contains([]string{"-H", "-L", "-P"}, c.args[i]) || c.args[i] == "(" || c.args[i] == "!" {
			break
		}
		if c.args[i][:min(1, len(c.args[i]))] != "-" {
			roots = append(roots, c.args[i])
		}
	}
	if len(roots) == 0 {
		roots = []string{"."}
	}
	var tests []string
	for ; i < len(c.args); i++ {
		tests = append(tests, c.args[i])
		switch c.args[i] {
		case "-delete":
			for _, r := range roots {
				if !c.a.spend(runCost + len(tests)*nodeCost) {
					return
				}
				c.finds(r, tests)
			}
		case "-exec", "-execdir", "-ok", "-okdir":
			end := i + 1
			for end < len(c.args) && c.args[end] != ";" && c.args[end] != "+" {
				end++
			}
			if end > i+1 {
				c.onEach(c.args[i+1:end], roots, tests)
			}
			i = end
		case "-name", "-iname", "-path", "-wholename":
			if !c.a.spend(len(roots) * fieldCost) {
				return
			}
			if i+1 < len(c.args) && c.looksForKeys(c.args[i+1], roots) {
				c.ask("secrets", "it looks for credentials", "")
			}
		case "-fprint", "-fprint0", "-fls", "-fprintf":
			if i+1 < len(c.args) {
				c.a.writes(c.args[i+1], "find writes")
			}
		}
	}
}

// finds judges the removal of what find finds below a root by some tests.
func (c *invocation) finds(root string, tests []string) {
	w := c.a.where(root)
	some := w == inWorkspace || w == inTmp || w == atWorkspace
	if !some && c.a.spend(1+len(tests)*nodeCost) {
		named, chosen := selective(tests)
		some = named || chosen && (w == elsewhere || w == notKnown || isAddition(c.a.abs(root))) || w == notKnown && !strings.HasPrefix(root, "/")
	}
	full := c.a.abs(root)
	logs := func(p string) bool {
		p = strings.TrimRight(p, "*")
		return strings.HasSuffix(p, "log") || strings.HasSuffix(p, "log.")
	}
	if (full == "/var/log" || below(full, "/var/log")) && slices.ContainsFunc(tests, logs) && !anyOf(tests, []string{"-mtime", "-mmin", "-ctime", "-cmin", "-atime", "-amin", "-newer", "-newermt", "-size", "-empty"}) {
		c.deny("log-wiping", "it removes all logs, however new", "say from which age on by -mtime")
	}
	if some {
		c.ask("find-delete", "it removes every file that it finds", "print them first; then rm the ones that are meant")
	} else {
		c.deny("find-delete", "it removes what it finds outside of the workspace", "say which by -name")
	}
}

// selective reports whether what find does behind some tests is done to files with some name alone, or at least not to all. Only
// what stands behind the last -o counts, and of what is in parentheses each alternative.
func selective(tests []string) (named, chosen bool) {
	type level struct{ allNamed, allChosen, named, chosen, not bool }
	stack := []level{{allNamed: true, allChosen: true}}
	hit := func(byName, byOther bool) {
		l := &stack[len(stack)-1]
		l.named, l.chosen, l.not = l.named || byName && !l.not, l.chosen || (byName || byOther) && !l.not, false
	}
	for i, t := range tests {
		l := &stack[len(stack)-1]
		switch t {
		case "(":
			stack = append(stack, level{allNamed: true, allChosen: true})
		case ")":
			if len(stack) > 1 {
				stack = stack[:len(stack)-1]
				hit(l.allNamed && l.named, l.allChosen && l.chosen)
			}
		case "!", "-not":
			l.not = true
		case "-o", "-or", ",":
			if len(stack) > 1 {
				l.allNamed, l.allChosen = l.allNamed && l.named && t != ",", l.allChosen && l.chosen && t != ","
			}
			l.named, l.chosen = false, false
		case "-name", "-iname", "-path", "-ipath", "-wholename", "-regex", "-iregex":
			pattern := first(tests[i+1:])
			hit(strings.Trim(pattern, "*?./[]!^") != "" && !matchesAnything(path.Base(pattern)) && !hasUnknown(pattern), false)
		case "-empty": // nothing is lost
			hit(true, false)
		case "-mtime", "-atime", "-ctime", "-mmin", "-amin", "-cmin", "-newer", "-newermt", "-size", "-user", "-group", "-inum", "-perm", "-links", "-uid", "-gid":
			hit(false, true)
		default:
			if strings.HasPrefix(t, "-") {
				l.not = false
			}
		}
	}
	return len(stack) == 1 && stack[0].named, len(stack) == 1 && stack[0].chosen
}

// chooses reports whether find does something to some files alone, by their names, times, sizes or owners.
func (c *invocation) chooses(tests []string) bool {
	named, chosen := false, false
	if c.a.spend(1 + len(tests)*nodeCost) {
		named, chosen = selective(tests)
	}
	return named || chosen
}

// removers remove what they are given, or empty it.
var removers = []string{"rm", "shred", "unlink", "dd", "truncate", "tee"}

// looksForKeys reports whether a name, or a pattern, is that of a credential; of the workspace's own files only a few are.
func (c *invocation) looksForKeys(name string, roots []string) bool {
	base := strings.ToLower(path.Base(strings.Trim(name, "*")))
	if privatePath(path.Join(c.a.c.Home, ".ssh", base), c.a.c.Home) {
		return true
	}
	outside := slices.ContainsFunc(roots, func(r string) bool { w := c.a.where(r); return w == atRoot || w == atHome || w == elsewhere })
	return outside && (slices.Contains([]string{".pem", ".key", ".p12", ".pfx", ".kdbx", ".env", ".netrc", ".pgpass", "token", "accesstokens.json", "wallet.dat"}, base) || strings.Contains(base, "credential") || strings.Contains(base, "secret") || strings.Contains(base, "token_cache"))
}

// search judges grep and its like: everything that there is, looked through for credentials.
func search(c *invocation) {
	o := parseOptions(c.args, "-e", "-A", "-B", "-C", "-m", "-f", "-g", "-t", "--include", "--exclude", "--exclude-dir", "--regexp")
	if c.name != "rg" && c.name != "ag" && !o.short['r'] && !o.short['R'] && !o.has(0, "recursive") || len(o.rest) == 0 {
		return
	}
	pattern, roots := o.value("-e", "regexp"), o.rest
	if pattern == "" {
		pattern, roots = o.rest[0], o.rest[1:]
	}
	low := strings.ToLower(pattern)
	if !slices.ContainsFunc([]string{"password", "passwd", "secret", "token", "api_key", "apikey", "private key", "access_key", "credential"}, func(s string) bool { return strings.Contains(low, s) }) {
		return
	}
	for _, r := range roots {
		if w := c.a.where(r); w == atRoot || w == atHome || w == inSystem {
			c.ask("secrets", "it looks for credentials everywhere", "search the workspace")
			return
		}
	}
}

// onEach judges a command that is run on everything below some directories that passes tests.
func (c *invocation) onEach(argv, roots, tests []string) {
	for _, r := range roots {
		if !c.a.spend(runCost + (len(tests)+len(argv))*nodeCost) {
			return
		}
		found, base, w := path.Join(r, unknownText), path.Base(argv[0]), c.a.where(r)
		switch {
		case slices.Contains(removers, base) || (base == "sudo" || base == "env") && slices.ContainsFunc(argv, func(s string) bool { return slices.Contains(removers, s) }):
			c.finds(r, tests)
			found = unknownText // where it lies is judged
		case slices.Contains([]string{"chmod", "chown", "chgrp"}, base) && w != inWorkspace && w != atWorkspace && w != inTmp && c.chooses(tests):
			c.ask("find-change", "it changes everything that it finds", "print it first")
			found = unknownText
		case c.a.abs(r) == "/": // of everything there is, it is something of the system's
			found = path.Join("/usr", unknownText)
		}
		one := make([]string, len(argv))
		for i, arg := range argv {
			one[i] = strings.ReplaceAll(arg, "{}", found)
		}
		c.a.run(one, data{}, nil, c.from)
	}
}

// matched is what ls prints of patterns: paths of which the directory is known.
func (c *invocation) matched() (string, bool) {
	var b strings.Builder
	for _, p := range parseOptions(c.args).rest {
		i := strings.IndexAny(p, "*?[")
		if i < 0 || hasUnknown(p) {
			return "", false
		}
		b.WriteString(p[:i] + unknownText + "\n")
	}
	return b.String(), b.Len() > 0
}

// listed is what find prints: a path below each of its roots that is not known any further. Of everything there is, it is one
// of the system's.
func (c *invocation) listed() (string, bool) {
	var b strings.Builder
	for _, arg := range c.args {
		if strings.HasPrefix(arg, "-") && !slices.Contains([]string{"-H", "-L", "-P"}, arg) || arg == "(" || arg == "!" {
			break
		}
		if strings.HasPrefix(arg, "-") || hasUnknown(arg) {
			continue
		}
		if c.a.abs(arg) == "/" {
			arg = "/usr"
		}
		b.WriteString(strings.TrimSuffix(arg, "/") + "/" + unknownText + "\n")
	}
	if b.Len() == 0 {
		return "./" + unknownText + "\n", true
	}
	return b.String(), true
}
