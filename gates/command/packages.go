package command

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
)

func packageRules(t table) {
	for name := range packageManagers {
		t[name] = packages
	}
	for _, name := range []string{"gcc", "g++", "cc", "c++", "clang", "clang++", "tcc", "ld", "rustc"} {
		t[name] = compiler
	}
	t["dpkg-deb"] = packages
	t["go"], t["apt-key"], t["add-apt-repository"], t["update-alternatives"], t["apt-add-repository"], t["trust"], t["keytool"] = goRule, sources, sources, sources, sources, sources, sources
}

// packageManagers are those of systems, with the words that remove.
var packageManagers = map[string][]string{
	"apt": {"remove", "purge", "autoremove", "autopurge"}, "apt-get": {"remove", "purge", "autoremove", "autopurge"}, "aptitude": {"remove", "purge"}, "dpkg": nil, "rpm": nil,
	"yum": {"remove", "erase", "autoremove"}, "dnf": {"remove", "erase", "autoremove"}, "microdnf": {"remove"}, "zypper": {"remove", "rm"}, "pacman": nil, "yay": nil, "apk": {"del"}, "emerge": nil,
	"snap": {"remove"}, "flatpak": {"uninstall", "remove"}, "brew": {"uninstall", "remove", "rm"}, "pkg": {"delete", "remove"}, "xbps-remove": nil, "opkg": {"remove"}, "nix-env": nil, "nix-collect-garbage": nil,
	"guix": {"gc", "remove"}, "port": {"uninstall"},
}

// needed are packages without which a system does not run, or nobody comes in.
var needed = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(libc6|glibc|musl|systemd|sysvinit|init|bash|dash|busybox|coreutils|util-linux|login|passwd|sudo|openssl|libssl.*|openssh-server|linux-image.*|linux-generic|kernel.*|grub.*|apt|dpkg|rpm|yum|dnf|pacman|python3?|perl-base|` +
		`network-manager|NetworkManager|iproute2|netplan.*|udev|dbus|e2fsprogs)$`)
})

// packages judges package managers of systems: what they remove, from where they install, and what they are told to run.
func packages(c *invocation) {
	o := parseOptions(c.args, "-o", "--option", "-c", "--config-file", "-t", "--root", "--eval", "-E", "-x", "--extract")
	for i, arg := range c.args {
		if setting, ok := strings.CutPrefix(arg, "-o"); ok || arg == "--option" {
			if setting == "" || arg == "--option" {
				setting = first(c.args[i+1:])
			}
			if name, value, _ := strings.Cut(setting, "="); strings.Contains(name, "Invoke") || strings.Contains(name, "Pre-Install-Pkgs") {
				c.a.inShell(c, value)
				c.deny("package-exec", "the package manager is told to run a command", "leave it out")
			}
		}
	}
	if text := o.value("-E", "eval"); c.name == "rpm" && strings.Contains(text, "%(") {
		_, text, _ = strings.Cut(text, "%(")
		c.a.inShell(c, strings.TrimSuffix(text, ")"))
	}
	if dir := o.rest; strings.HasPrefix(c.name, "dpkg") && (o.has('x', "extract") || o.short['X']) && len(dir) > 0 {
		c.a.writes(path.Join(dir[len(dir)-1], "x"), "unpacking to")
	}
	if o.has(0, "allow-untrusted", "allow-unauthenticated", "no-gpg-check", "nogpgcheck", "no-gpg-checks", "force-yes", "nosignature", "nodigest", "root") {
		c.ask("package", "it installs without a look at who made it, or into another root", "leave the option out")
	}
	for _, p := range o.rest {
		if c.fromAddress(p); c.a.files[c.a.abs(p)].from == fromNetwork {
			c.ask("download-run", "it installs what was just downloaded, and runs its scripts", "install it from a repository")
		}
	}
	if !c.removesPackages(o) {
		return
	}
	if anyOf(c.args, []string{"--force-all", "--nodeps", "--allow-remove-essential", "--force-remove-essential", "--force-depends"}) || slices.ContainsFunc(o.rest, func(p string) bool { return c.a.matches(needed(), p) }) ||
		c.name == "pacman" && strings.Count(strings.Join(c.args, " "), "d") > 1 && o.short['d'] {
		c.deny("package-remove", "it removes what the system needs", "")
		return
	}
	c.ask("package-remove", "it removes programs of the machine", "")
}

func (c *invocation) removesPackages(o options) bool {
	switch c.name {
	case "dpkg":
		return o.has('r', "remove", "purge") || o.short['P']
	case "rpm", "nix-env":
		return o.has('e', "erase", "uninstall")
	case "pacman", "yay":
		return o.has('R', "remove")
	case "emerge":
		return o.has('C', "unmerge") || o.has('c', "depclean")
	case "nix-collect-garbage":
		return o.has('d', "delete-old")
	case "xbps-remove":
		return true
	}
	return slices.Contains(packageManagers[c.name], first(o.rest)) || o.has(0, "purge") && first(o.rest) == "remove"
}

// fromAddress asks about a package that is named by where it lies.
func (c *invocation) fromAddress(word string) {
	if strings.HasPrefix(word, "-") {
		return
	}
	if c.a.files[c.a.abs(word)].from == fromNetwork || word == "/dev/stdin" && c.in.from == fromNetwork {
		c.ask("download-run", "it installs what was just downloaded", "install it from a registry")
	}
	if scheme, _, ok := strings.Cut(word, "://"); ok && scheme != "file" && !strings.ContainsAny(scheme, " =/") {
		c.ask("download-run", "it installs or runs what lies at an address, without a registry between", "name a package and its version")
	}
}

// sources judges whom a package manager trusts, and which programs stand behind usual names.
func sources(c *invocation) {
	switch {
	case c.name == "update-alternatives":
		if o := parseOptions(c.args); o.has(0, "install", "set", "set-selections") {
			c.ask("administration", "it puts another program behind a name", "")
		}
	case c.name == "keytool" && !slices.Contains(c.args, "-import") && !slices.Contains(c.args, "-importcert"):
	case c.in.from == fromNetwork:
		c.ask("package-source", "it trusts whoever sends a key", "read the key first")
	case !slices.Contains([]string{"list", "finger", "--list", "-L", "--help", ""}, first(c.args)):
		c.ask("package-source", "it trusts another source of packages", "")
	}
}

// compiler judges compilers: what they are told to run, and where the text comes from that they make a program of.
func compiler(c *invocation) {
	o := parseOptions(c.args, "-o", "-x", "-I", "-L", "-l", "-D", "-U", "-T")
	for i, arg := range c.args {
		switch {
		case arg == "-wrapper" && i+1 < len(c.args):
			c.a.run(strings.Split(c.args[i+1], ","), data{}, nil, c.from)
			c.ask("compiler-exec", "it runs the compiler by way of another command", "leave it out")
		case strings.HasPrefix(arg, "-fplugin=") || arg == "-plugin" || arg == "-load":
			c.ask("compiler-exec", "it loads machine code into the compiler", "leave it out")
		case strings.HasPrefix(arg, "-B") && len(arg) > 2 && c.a.where(arg[2:]) == inTmp:
			c.ask("compiler-exec", "the parts of the compiler come from a directory where anybody writes", "leave it out")
		case arg == "-run" && c.name == "tcc" && slices.Contains(c.args, "-"):
			c.stdinScript()
			return
		}
	}
	from := fromNowhere
	for _, p := range o.rest {
		from = max(from, c.a.files[c.a.abs(p)].from)
	}
	if slices.Contains(c.args, "-") {
		from = max(from, c.in.from)
	}
	if out := o.long["-o"]; from > fromHost {
		if out == "" {
			out = "a.out"
		}
		c.a.files[c.a.abs(out)] = data{from: from}
	}
}

// goRule judges the options with which the go command runs another program, and settings that stay.
func goRule(c *invocation) {
	if first(c.args) == "run" && slices.ContainsFunc(c.args, func(p string) bool { return c.a.files[c.a.abs(p)].from == fromNetwork }) {
		c.deny("download-run", "it runs what was just downloaded", "download, read, then run")
	}
	for i, arg := range c.args {
		name, value, joined := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if len(arg) < 2 || arg[0] != '-' || !slices.Contains([]string{"exec", "toolexec", "vettool"}, name) {
			continue
		}
		if !joined {
			value = first(c.args[i+1:])
		}
		if words := strings.Fields(value); len(words) > 0 {
			c.a.run(words, data{}, nil, c.from)
			if slices.Contains(shells, path.Base(words[0])) || c.a.where(words[0]) == inTmp {
				c.ask("compiler-exec", "it runs every tool by way of another command", "leave it out")
			}
		}
	}
	if len(c.args) > 1 && c.args[0] == "env" && slices.Contains(c.args, "-w") {
		c.ask("persistence", "it changes the tool for everything that comes later", "set it for one command: GOFLAGS=… go build")
	}
}
