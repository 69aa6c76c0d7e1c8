package command

import "strings"

// setuid reports whether a mode gives a program somebody else's rights.
func setuid(mode string) bool { return special(mode, "4567", "u") }

// setgid reports whether a mode gives a group's rights to a program, or the group to what comes into a directory.
func setgid(mode string) bool { return special(mode, "2367", "g") }

// special reports whether the first of a mode's four digits is one of some, or whether it sets s for somebody.
func special(mode, digits, who string) bool {
	if mode = octal(mode); strings.Trim(mode, "01234567") == "" {
		return len(mode) >= 4 && strings.ContainsAny(mode[len(mode)-4:len(mode)-3], digits)
	}
	for clause := range strings.SplitSeq(mode, ",") {
		if i := strings.IndexAny(clause, "+="); i >= 0 && strings.Contains(clause[i:], "s") && (i == 0 || strings.ContainsAny(clause[:i], who+"a")) {
			return true
		}
	}
	return false
}

// octal is a mode in digits without what may stand before them.
func octal(mode string) string {
	if digits := strings.TrimLeft(mode, "=+"); digits != "" && strings.Trim(digits, "01234567") == "" {
		return digits
	}
	return mode
}

// open reports whether a mode lets everybody write.
func open(mode string) bool {
	if mode = octal(mode); mode != "" && strings.Trim(mode, "01234567") == "" {
		last := mode[len(mode)-1]
		return last == '2' || last == '3' || last == '6' || last == '7'
	}
	for clause := range strings.SplitSeq(mode, ",") {
		if i := strings.IndexAny(clause, "+="); i >= 0 && strings.Contains(clause[i:], "w") && (i == 0 || strings.ContainsAny(clause[:i], "oa")) {
			return true
		}
	}
	return false
}

func chmod(c *invocation) {
	var mode string
	var paths []string
	recursive := false
	for _, arg := range c.args {
		switch {
		case arg == "--recursive" || len(arg) > 1 && arg[0] == '-' && arg[1] != '-' && strings.Contains(arg, "R"):
			recursive = true
		case strings.HasPrefix(arg, "--") || mode == "" && len(arg) > 1 && arg[0] == '-' && strings.Trim(arg, "-cfvhHLP") == "":
		case mode == "":
			mode = arg
		default:
			paths = append(paths, arg)
		}
	}
	switch {
	case setuid(mode):
		c.deny("setuid", "it makes a program that runs as somebody else", "")
	case setgid(mode):
		c.ask("setuid", "it gives the rights of a group, or the group itself, to others", "")
	}
	for _, p := range paths {
		switch w := c.a.where(p); {
		case w == atRoot || w == inSystem || w == atHome:
			c.deny("chmod-system", "it changes the modes of what is not the task's", "")
		case open(mode) && recursive && w == atWorkspace:
			c.deny("chmod-open", "it lets everybody write to the whole workspace", "give the mode that is needed to what needs it: chmod u+x FILE")
		case open(mode) && recursive && w == inLocal:
			c.deny("chmod-open", "it lets everybody write to what was added to the system", "give the mode that is needed to what needs it: chmod u+x FILE")
		case open(mode):
			c.ask("chmod-open", "everybody may write there afterwards", "chmod u+w")
		case c.a.foreign(p):
			c.ask("chmod-outside", "it changes the modes of what is not the task's", "")
		}
	}
}

func chown(c *invocation) {
	o := parseOptions(c.args, "-m", "-M", "-x", "--reference")
	for i, p := range o.rest {
		if i == 0 && c.name != "setfacl" {
			continue
		}
		if w := c.a.where(p); w == atRoot || w == inSystem || w == atHome {
			c.deny("chown-system", "it changes the owner of what is not the task's", "")
			return
		}
	}
	c.ask("chown", "it changes owners", "")
}

func chattr(c *invocation) {
	for _, p := range parseOptions(c.args).rest {
		if w := c.a.where(p); w == inSystem || w == atRoot || w == atHome {
			c.deny("chattr-system", "it changes the attributes of what is not the task's", "")
			return
		}
	}
	c.ask("chattr", "it makes files that cannot be changed, or takes that from them", "")
}
