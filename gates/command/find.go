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
	for ; i < len(c.args); i++ {
		switch c.args[i] {
		case "-delete":
			for _, r := range roots {
				if w := c.a.where(r); w == inWorkspace || w == inTmp || w == atWorkspace {
					c.ask("find-delete", "it removes every file that it finds", "print them first; then rm the ones that are meant")
				} else {
					c.deny("find-delete", "it removes what it finds outside of the workspace", "")
				}
			}
		case "-exec", "-execdir", "-ok", "-okdir":
			end := i + 1
			for end < len(c.args) && c.args[end] != ";" && c.args[end] != "+" {
				end++
			}
			if end > i+1 {
				c.onEach(c.args[i+1:end], roots)
			}
			i = end
		case "-name", "-iname", "-path", "-wholename":
			if i+1 < len(c.args) && privatePath(path.Join(c.a.c.Home, ".ssh", path.Base(strings.TrimRight(c.args[i+1], "*"))), c.a.c.Home) {
				c.ask("secrets", "it looks for credentials", "")
			}
		case "-fprint", "-fprint0", "-fls", "-fprintf":
			if i+1 < len(c.args) {
				c.a.writes(c.args[i+1], "find writes")
			}
		}
	}
}

// onEach judges a command that is run on everything below some directories.
func (c *invocation) onEach(argv, roots []string) {
	for _, r := range roots {
		if c.a.abs(r) == "/" { // of everything there is, it is something of the system's
			r = "/usr"
		}
		one := make([]string, len(argv))
		for i, arg := range argv {
			one[i] = strings.ReplaceAll(arg, "{}", path.Join(r, unknownText))
		}
		if base := path.Base(argv[0]); base == "rm" || base == "shred" || base == "unlink" || base == "sudo" || base == "env" || base == "dd" || base == "truncate" || base == "tee" {
			if w := c.a.where(r); w == atWorkspace || w == inTmp || w == inWorkspace {
				if slices.Contains(argv, "rm") || slices.Contains(argv, "shred") || base == "unlink" || base == "dd" || base == "truncate" || base == "tee" {
					c.ask("find-delete", "it removes everything that it finds", "print it first; then rm what is meant")
				}
			}
			if w := c.a.where(r); w == elsewhere || w == inSystem || w == atRoot || w == atHome {
				if slices.Contains(argv, "rm") || slices.Contains(argv, "shred") || base == "unlink" {
					c.deny("find-delete", "it removes what it finds outside of the workspace", "")
				}
			}
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
