package command

import (
	"cmp"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// administers judges everyday work on users, modules and settings of a machine.
func administers(c *invocation) {
	o := parseOptions(c.args, "-u", "--uid")
	switch uid := o.value("-u", "uid"); {
	case c.name == "visudo" && o.has('c', "check"), c.name == "swapon" && o.has('s', "show", "summary"), c.name == "passwd" && o.has('S', "status"):
	case c.name == "modprobe" && o.has('r', "remove"), (c.name == "useradd" || c.name == "usermod" || c.name == "adduser") && (uid == "0" || o.has('o', "non-unique")):
		c.deny("administration", "it gives a second root, or takes a module away", "")
	default:
		c.ask("administration", "it changes the machine", "")
	}
}

// firewall judges what opens and closes a machine to the network.
func firewall(c *invocation) {
	closing := []string{"-F", "--flush", "-X", "-D", "--delete", "-P", "--policy", "-R", "disable", "reset", "delete", "flush", "default", "-d"}
	listing := []string{"status", "list", "-L", "-S", "--list", "--list-rules", "--list-all", "--state", "--get-zones", "show", "--version", "version"}
	has := func(words []string) bool {
		return slices.ContainsFunc(c.args, func(s string) bool {
			return slices.Contains(words, s) || len(s) > 2 && s[0] == '-' && slices.Contains(words, s[:2]) && s[1] != '-'
		})
	}
	switch {
	case len(c.args) == 0 || has(listing) && !has(closing):
	case has(closing) || slices.ContainsFunc(c.args, func(s string) bool { return strings.HasPrefix(s, "--remove") || strings.HasPrefix(s, "--panic") }):
		c.deny("firewall", "it takes rules of the firewall away", "")
	default:
		c.ask("firewall", "it changes the firewall", "")
	}
}

// scheduled judges what is to run later, by its text where that is known.
func scheduled(c *invocation) {
	o, d := parseOptions(c.args, "-u", "-f", "-t", "-q"), c.in
	if file := cmp.Or(o.long["-f"], first(o.rest)); file != "" && file != "-" && (c.name == "crontab" || o.long["-f"] != "") {
		d = c.a.read(file)
	}
	switch {
	case o.has('l', "list") || o.short['V']:
		return
	case c.name == "crontab" && o.short['r']:
		c.deny("persistence", "it removes everything that is to run later", "")
		return
	case c.name == "crontab" && o.short['e'] && c.in == (data{}):
	case d.from == fromNetwork:
		c.deny("download-run", "what comes from the network runs later", "look at it first")
		return
	case d.known && c.name != "crontab":
		c.a.isolated(func() data { return c.a.parse(d.text, data{}) })
	case c.name == "crontab": // of what is known in part, that part
		for line := range strings.Lines(d.text) {
			if hasUnknown(line) {
				continue
			}
			fields := strings.Fields(line)
			if skip := 5; len(fields) > 1 && !strings.HasPrefix(fields[0], "#") {
				if strings.HasPrefix(fields[0], "@") {
					skip = 1
				}
				c.a.inShell(&invocation{a: c.a, name: c.name, from: d.from}, strings.Join(fields[min(skip, len(fields)):], " "))
			}
		}
	}
	c.ask("persistence", "what it sets up runs later, outside of this task", "")
}

// vital reports whether a name is that of a service which protects a machine, or without which nobody reaches it.
func vital(name string) bool {
	name = strings.TrimSuffix(name, ".service")
	return slices.Contains([]string{"cron", "crond", "ssh", "sshd", "systemd", "audit", "auditd", "rsyslog", "rsyslogd", "syslog", "syslogd", "syslog-ng", "dockerd", "containerd", "NetworkManager", "network", "networking", "systemd-networkd", "systemd-journald",
		"systemd-logind", "dbus", "dbus-daemon", "firewalld", "ufw", "iptables", "nftables", "apparmor", "fail2ban", "clamav-daemon", "osqueryd", "falco", "falcon-sensor", "wazuh-agent", "wazuh-agentd", "init", ".", ".*"}, name) || strings.ContainsAny(name, "*?")
}

// kernelSettings judges sysctl: limits are set every day, what the kernel itself does is not.
func kernelSettings(c *invocation) {
	text := strings.Join(c.args, " ")
	if o := parseOptions(c.args, "-r", "--pattern"); strings.Contains(text, "kernel") && strings.Contains(text, "=") {
		c.deny("administration", "it changes the kernel's settings", "")
	} else if o.has('w', "write", "load", "system") || o.short['p'] || strings.Contains(text, "=") {
		c.ask("administration", "it changes the kernel's settings", "")
	}
}

// runsLater judges what comes into a file that every shell runs.
func (a *analyzer) runsLater(file string, d data) {
	switch {
	case d.from == fromNetwork:
		a.find(Deny, "download-run", file, "every shell runs what was downloaded there", "look at it first")
	case d.known:
		a.isolated(func() data { return a.parse(d.text, data{}) })
	}
}

// startsShells reports whether a path is a file that shells run when they start.
func startsShells(p, home string) bool {
	return slices.Contains(startup, path.Base(p)) && settings(p, home) || slices.Contains([]string{"/etc/profile", "/etc/bash.bashrc", "/etc/bashrc"}, p) || below(p, "/etc/profile.d")
}

// loopback reports whether a host is this machine.
func loopback(host string) bool {
	return slices.Contains([]string{"localhost", "127.0.0.1", "::1"}, host)
}

// steering are variables by which programs decide what they run, or what they load.
var steering = []string{"PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT", "DYLD_INSERT_LIBRARIES", "PYTHONPATH", "PERL5LIB", "RUBYLIB", "NODE_PATH", "CLASSPATH", "GCONV_PATH", "LUA_PATH", "CC", "CXX", "LD", "AR", "MAKE", "SHELL", "RUSTC_WRAPPER",
	"BASH_ENV", "ENV", "PROMPT_COMMAND", "PERL5OPT", "PYTHONSTARTUP", "RUBYOPT", "NODE_OPTIONS", "JAVA_TOOL_OPTIONS", "PAGER", "GIT_PAGER", "MANPAGER", "EDITOR", "VISUAL", "LESSOPEN", "BROWSER"}

// vacuum is what leaves seconds, bytes or one file of the journal.
var vacuum = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`--vacuum-(time[= ](0\w*|\d+(us|ms|s|sec|seconds?))|size[= ](\d+[KkB]?|[01][Mm])|files[= ][01])( |$)`)
})

// history judges variables of the shell's history.
func (a *analyzer) history(name string) {
	if strings.HasPrefix(name, "HIST") {
		value := a.value(name)
		if value == "" || value == "0" || value == "/dev/null" || name == "HISTCONTROL" && value != "ignoredups" && value != "erasedups" && value != "ignoredups:erasedups" || name == "HISTIGNORE" {
			a.find(Deny, "history", name+"="+value, "it switches the shell's history off", "")
		}
	}
}

// tuningOptions are options in variables of interpreters that load and run nothing: whole words.
var tuningOptions = map[string]func() *regexp.Regexp{
	"NODE_OPTIONS": sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^--(max[-_](old[-_]space|semi[-_]space|http[-_]header)[-_]size=\d+|openssl-legacy-provider|no-warnings|no-deprecation|trace-(deprecation|exit|sigint|sync-io|tls|uncaught|warnings)|` +
			`enable-source-maps|experimental-vm-modules|unhandled-rejections=[a-z-]+|dns-result-order=\w+|stack-trace-limit=\d+)$`)
	}),
	"JAVA_TOOL_OPTIONS": sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^-(X(m[snx]|ss)\d+[kKmMgGtT]?|D(file\.encoding|user\.(language|country|timezone))=[\w/+-]+|Djava\.awt\.headless=\w+|XX:((Max|Initial)RAMPercentage=[\d.]+|\+(Use\w+|ExitOnOutOfMemoryError)))$`)
	}),
	"RUBYOPT": sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^(-W([012]|:[a-z_-]+)?|--yjit|--(disable|enable)[-=][a-z_,-]+)$`)
	}),
}

// tuning reports whether a variable says no more than how an interpreter is to work.
func tuning(name, value string) bool {
	words, options := strings.Fields(value), tuningOptions[name]
	return options != nil && len(words) > 0 && !slices.ContainsFunc(words, func(word string) bool { return !options().MatchString(word) })
}
