package command

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// place is what kind of place a path is, as far as losing it goes.
type place int

const (
	inWorkspace place = iota
	inTmp
	atWorkspace // the workspace itself, or all of it
	elsewhere   // somebody else's directory
	notKnown
	inLocal // what somebody added to a system
	inSystem
	atHome // a home directory as a whole, or all of it
	atRoot
)

// system is where the operating system lies.
var system = []string{"/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/opt", "/proc", "/root", "/run", "/sbin", "/srv", "/sys", "/usr", "/var",
	"/Library", "/System", "/Applications", "/private/etc", "/snap", "/home", "/Users", "/mnt", "/media"}

// local is where what somebody added to a system lies: programs, data and settings that are not the task's, but the system runs without.
var local = []string{"/etc", "/media", "/mnt", "/opt", "/srv", "/usr/local", "/usr/share", "/usr/src", "/var/cache", "/var/lib", "/var/lock", "/var/log", "/var/mail", "/var/opt", "/var/spool", "/var/www",
	"/proc/sys/fs", "/proc/sys/net", "/proc/sys/vm", "/sys/class/backlight", "/sys/class/leds", "/dev/pts"}

// guarded is what there says who may do what, what starts by itself, and what every program loads, by the beginnings of its paths.
var guarded = []string{"/etc/anacron", "/etc/apparmor", "/etc/audit", "/etc/cron", "/etc/crypttab", "/etc/dhcp/dhclient-e", "/etc/inetd", "/etc/kubernetes/manifests", "/etc/network/if-", "/etc/NetworkManager/dispatcher", "/etc/update-motd.d", "/etc/X11/Xsession", "/etc/xinetd", "/etc/default/grub", "/etc/doas", "/etc/fstab", "/etc/group",
	"/etc/grub", "/etc/gshadow", "/etc/init", "/etc/kernel", "/etc/ld.so.preload", "/etc/login", "/etc/modprobe", "/etc/modules", "/etc/pam", "/etc/passwd", "/etc/polkit", "/etc/rc", "/etc/security", "/etc/selinux",
	"/etc/shadow", "/etc/shells", "/etc/subgid", "/etc/subuid", "/etc/sudo", "/etc/systemd", "/etc/udev", "/etc/xdg/autostart", "/etc/zsh", "/proc/sys/fs/binfmt_misc", "/var/lib/docker", "/var/lib/dpkg", "/var/lib/kubelet",
	"/var/lib/rpm", "/var/lib/systemd", "/var/spool/cron"}

// inGuarded reports whether a path is guarded; so may be one of which only the beginning is known.
func inGuarded(p string) bool {
	known, _, partial := strings.Cut(p, unknownText)
	if !partial && slices.Contains([]string{".bak", ".backup", ".old", ".orig"}, path.Ext(p)) { // nothing reads it
		return false
	}
	return slices.ContainsFunc(guarded, func(g string) bool { return strings.HasPrefix(p, g) || partial && strings.HasPrefix(g, known) })
}

// isLocal reports whether a path lies in what somebody added to a system, or is all of that; terminals, printers and serial lines
// are among it.
func isLocal(p string) bool {
	return strings.HasPrefix(p, "/dev/tty") || strings.HasPrefix(p, "/dev/lp") || strings.HasPrefix(p, "/proc/") && path.Base(path.Dir(p)) == "fd" || slices.Contains([]string{"/media", "/mnt", "/opt", "/srv", "/usr/local", "/usr/src", "/var/www"}, p) || slices.ContainsFunc(local, func(d string) bool { return below(p, d) }) && !inGuarded(p)
}

// homeAround is the home directory that a path lies in, or is; "" when it is none.
func homeAround(p, home string) string {
	for _, h := range []string{home, "/root"} {
		if p == h || below(p, h) {
			return h
		}
	}
	for _, dir := range []string{"/home/", "/Users/"} {
		if rest, ok := strings.CutPrefix(p, dir); ok && rest != "" {
			name, _, _ := strings.Cut(rest, "/")
			return dir + name
		}
	}
	return ""
}

// foreign reports whether a path lies in what is another user's, or was added to a system.
func (a *analyzer) foreign(p string) bool {
	w, home := a.where(p), homeAround(a.abs(p), a.c.Home)
	return w == inLocal || w == elsewhere && home != "" && home != a.c.Home
}

// tmpDirs are nobody's for long; what lies in /run/caisson is the feature's own.
var tmpDirs = []string{"/tmp", "/var/tmp", "/dev/shm", "/private/tmp", "/run/caisson"}

// where says what kind of place a path is.
func (a *analyzer) where(p string) place {
	if p == "" {
		return inWorkspace
	}
	if strings.HasPrefix(p, unknownText) { // it may be absolute
		return notKnown
	}
	for {
		dir, last := path.Split(strings.TrimRight(p, "/"))
		if !matchesAnything(last) {
			break
		}
		if p = dir; p == "" {
			p = "."
		}
	}
	full := a.abs(p)
	if hasUnknown(full) {
		return a.whereUnknown(full)
	}
	switch {
	case full == "/" || full == "/*":
		return atRoot
	case slices.ContainsFunc(tmpDirs, func(d string) bool { return full == d || below(full, d) }):
		return inTmp
	case full == a.c.Cwd:
		return atWorkspace
	case below(full, a.c.Cwd):
		return inWorkspace
	case full == homeAround(full, a.c.Home) || full == "/home" || full == "/Users":
		return atHome
	case below(a.c.Cwd, full):
		return atRoot // a parent of the workspace
	case homeAround(full, a.c.Home) != "":
		return elsewhere
	case isLocal(full):
		return inLocal
	}
	for _, s := range system {
		if full == s || below(full, s) {
			return inSystem
		}
	}
	return elsewhere
}

// matchesAnything reports whether a pattern has no letter of its own, such as *, .*, ???? and [a-z]*.
func matchesAnything(pattern string) bool {
	wild, class := false, false
	for _, r := range pattern {
		switch {
		case class:
			class = r != ']'
		case r == '[':
			wild, class = true, true
		case r == '*' || r == '?':
			wild = true
		case r != '.':
			return false
		}
	}
	return wild
}

// whereUnknown says what kind of place a path is of which only a part is known.
func (a *analyzer) whereUnknown(full string) place {
	known, rest, _ := strings.Cut(full, unknownText)
	switch {
	case below(known, "/tmp/x") || strings.HasPrefix(known, "/tmp/"):
		return inTmp
	case known == a.c.Cwd+"/" && rest == "": // if it is empty, all of the workspace
		return notKnown
	case strings.HasPrefix(known, a.c.Cwd+"/"):
		return inWorkspace
	case known == "/" && rest == "": // a variable alone, or one that may be empty before /
		return notKnown
	case strings.HasPrefix(known, cmp.Or(homeAround(known, a.c.Home), "?")+"/"):
		return elsewhere
	case isLocal(full):
		return inLocal
	}
	for _, s := range system {
		if strings.HasPrefix(known, s+"/") {
			return inSystem
		}
	}
	return notKnown
}

func below(p, dir string) bool {
	dir = strings.TrimSuffix(dir, "/")
	return len(p) > len(dir) && p[len(dir)] == '/' && p[:len(dir)] == dir
}

// secretPath reports whether a path holds credentials.
func secretPath(p, home string) bool {
	if strings.HasSuffix(p, ".pub") { // the half of a key that others may have
		return false
	}
	rel := p
	for _, h := range []string{home, "/root"} {
		if r, ok := strings.CutPrefix(p, h+"/"); ok {
			rel = "~/" + r
		}
	}
	if strings.HasPrefix(p, "/home/") || strings.HasPrefix(p, "/Users/") {
		if parts := strings.SplitN(p, "/", 4); len(parts) == 4 {
			rel = "~/" + parts[3]
		}
	}
	if strings.HasPrefix(p, "/proc/") && strings.HasSuffix(p, "/environ") {
		return true
	}
	for _, s := range []string{"/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/ssl/private", "/proc/self/environ", "/run/secrets", "/var/run/secrets", "/etc/passwd", "/etc/ssh/ssh_host",
		"~/.ssh", "~/.aws", "~/.gnupg", "~/.netrc", "~/.git-credentials", "~/.docker/config.json", "~/.kube", "~/.config/gcloud", "~/.azure", "~/.npmrc", "~/.pypirc", "~/.cargo/credentials",
		"~/.config/gh", "~/.password-store", "~/.mozilla", "~/.config/google-chrome", "~/.bash_history", "~/.zsh_history", "~/.pgpass", "~/.my.cnf", "~/.vault-token", "~/.terraform.d", "~/.oci", "~/Library/Keychains"} {
		if strings.HasPrefix(rel, s) && (len(rel) == len(s) || rel[len(s)] == '/' || strings.HasSuffix(s, "credentials") || strings.HasSuffix(s, "host")) {
			return true
		}
	}
	base := path.Base(p)
	return base == ".env" || strings.HasPrefix(base, ".env.") && base != ".env.example" || strings.HasPrefix(base, "id_rsa") || strings.HasPrefix(base, "id_ed25519") || strings.HasSuffix(base, ".pem") && strings.Contains(base, "key")
}

// privatePath reports whether a path holds what nobody has to read: of secretPath, what is a credential and nothing else.
func privatePath(p, home string) bool {
	base := path.Base(p)
	for _, dir := range []string{".ssh", ".aws", ".gnupg"} { // all of it
		if strings.HasSuffix(path.Dir(p), "/"+dir) && (hasUnknown(base) || matchesAnything(base)) && secretPath(p, home) {
			return true
		}
	}
	return (strings.HasPrefix(base, "id_") || strings.HasPrefix(p, "/proc/") || slices.Contains([]string{".ssh", ".aws", ".gnupg", "shadow", "gshadow", "sudoers", "credentials", ".netrc", ".git-credentials", ".pgpass",
		".vault-token", "application_default_credentials.json", "secring.gpg", "credentials.db", "access_tokens.db"}, base) || historyFile(p) || strings.HasSuffix(p, "/.docker/config.json") || strings.HasSuffix(p, "/.kube/config") || strings.HasSuffix(p, "/.config/gh/hosts.yml")) && secretPath(p, home)
}

// startup are what shells run when they start, and settings those and what other tools of a user's read.
var startup = []string{".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile", ".zshrc", ".zprofile", ".zshenv", ".zlogin", ".kshrc"}

func settings(p, home string) bool {
	rel, ok := strings.CutPrefix(p, homeAround(p, home)+"/")
	return ok && (slices.Contains(startup, rel) || slices.Contains([]string{".gitconfig", ".inputrc", ".npmrc", ".ssh/config", ".vimrc"}, rel) || below(rel, ".config/git"))
}

// persistent is what runs again later: written once, it outlives the sandbox's supervision.
func persistent(p, home string) bool {
	for _, h := range []string{home, "/root"} {
		if r, ok := strings.CutPrefix(p, h+"/"); ok {
			p = "~/" + r
		}
	}
	if strings.HasPrefix(p, "/home/") || strings.HasPrefix(p, "/Users/") {
		if parts := strings.SplitN(p, "/", 4); len(parts) == 4 {
			p = "~/" + parts[3]
		}
	}
	if settings(p, "~") {
		return true
	}
	for _, s := range []string{"~/.config/fish", "~/.config/autostart", "~/.config/systemd", "~/.ssh/authorized_keys", "~/.ssh/rc", "~/.pam_environment",
		"~/.xinitrc", "~/.xprofile", "~/Library/LaunchAgents", "~/.local/share/systemd", "/var/spool/cron", "/var/at"} {
		if p == s || strings.HasPrefix(p, s+"/") {
			return true
		}
	}
	return strings.Contains(p, "/.git/hooks/") || strings.HasSuffix(p, "/.git/config") || strings.HasSuffix(p, "/.envrc")
}

// How a shell itself writes, and what does not replace all that is there.
const (
	redirection = "redirection to"
	appending   = "appending to"
	editing     = "sed -i on"
	linking     = "linking at"
)

// writes judges a path that a command writes to.
func (a *analyzer) writes(target, how string) {
	if descriptor(target) || target == "" {
		return
	}
	text := how + " " + target
	if len(a.links) > 0 {
		target = cmp.Or(a.links[a.abs(target)], target)
	}
	p, w := a.abs(target), a.where(target)
	switch {
	case a.c.Mode == ModeAllow && (how == redirection || how == appending) && !slices.Contains(a.c.Allow, ">"):
		a.find(Deny, "not-allowed", text, "a redirection that writes is not on the list of what is allowed", "")
	case strings.HasPrefix(p, "/dev/") && w == inSystem:
		a.find(Deny, "device-write", text, "it writes to a device", "")
	case (strings.HasPrefix(p, "/proc/") || strings.HasPrefix(p, "/sys/")) && w == inSystem:
		a.find(Deny, "kernel-write", text, "it changes the kernel", "")
	case historyFile(p):
		a.find(Deny, "history", text, "it rewrites the shell's history", "")
	case settings(p, a.c.Home) && (how == appending || how == linking || how == editing || !slices.Contains(startup, path.Base(p))):
		a.find(Ask, "persistence", text, "shells or tools read the file later, outside of this task", "keep it in the workspace")
	case a.away > 0 && how == appending && strings.HasSuffix(p, "/.ssh/authorized_keys"): // what ssh-copy-id does
		a.find(Ask, "persistence", text, "it lets somebody in there", "")
	case persistent(p, a.c.Home):
		a.find(Deny, "persistence", text, "the file is run again later, outside of this task", "keep it in the workspace")
	case repositoryFile(p):
		a.find(Ask, "repository-write", text, "it writes into the repository behind git's back", "let git do it")
	case systemLog(p) && how != appending:
		a.find(Deny, "log-wiping", text, "it overwrites a log", "")
	case w == inSystem && how == linking && !inGuarded(p):
		a.find(Ask, "system-write", text, "it adds to a directory of the system", "link inside of the workspace")
	case w == inSystem:
		a.find(Deny, "system-write", text, "it writes to a directory of the system", "write into the workspace or /tmp")
	case w == atRoot || w == atHome:
		a.find(Deny, "system-write", text, "it overwrites a directory that is not the task's", "")
	case w == elsewhere || w == inLocal:
		a.find(Ask, "outside-write", text, "it writes outside of the workspace", "write into the workspace or /tmp")
	}
}

// repositoryFile reports whether a path lies in what git keeps, besides its notes for people.
func repositoryFile(p string) bool {
	_, inside, found := strings.Cut(p, "/.git/")
	return found && !strings.HasPrefix(inside, "info/") && !strings.HasSuffix(inside, "_EDITMSG") && !strings.HasSuffix(inside, "_MSG") && !strings.HasPrefix(inside, "caisson")
}

// systemLog reports whether a path is a log that the system itself keeps, or may be one.
func systemLog(p string) bool {
	name, ok := strings.CutPrefix(p, "/var/log/")
	return p == "/var/log" || ok && (strings.ContainsAny(name, "*?["+unknownText) || slices.ContainsFunc([]string{"apt", "audit", "auth", "boot", "btmp", "cron", "daemon", "debug", "dmesg", "dpkg", "faillog", "journal", "kern", "lastlog", "mail",
		"messages", "secure", "sudo", "syslog", "tallylog", "user", "utmp", "wtmp", "yum"}, func(l string) bool { return strings.HasPrefix(name, l) }) && !strings.HasPrefix(name, "cron.log"))
}

func historyFile(p string) bool {
	base := path.Base(p)
	return strings.HasPrefix(base, ".") && strings.HasSuffix(base, "_history") || base == ".history" || base == "fish_history"
}

func touch(c *invocation) {
	for _, p := range parseOptions(c.args, "-t", "-d", "-r", "--date", "--reference").rest {
		switch {
		case c.a.where(p) == inSystem:
			c.deny("system-write", "it changes a directory of the system", "")
		case c.a.foreign(p):
			c.ask("outside-write", "it changes what is not the task's", "")
		}
	}
}

// descriptor reports whether a path stands for a stream that is there already.
func descriptor(target string) bool {
	return slices.Contains([]string{"/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty", "/dev/full"}, target) || strings.HasPrefix(target, "/dev/fd/")
}

// abs is a path as the kernel would find it; unknown when the working directory is.
func (a *analyzer) abs(p string) string {
	if rest, ok := strings.CutPrefix(p, "~"); ok && (rest == "" || rest[0] == '/') {
		p = a.c.Home + rest
	}
	if name, rest, _ := strings.Cut(strings.TrimPrefix(p, "~"), "/"); strings.HasPrefix(p, "~") && syntax.ValidName(name) { // ~alice
		p = homeOf(name) + "/" + rest
	}
	switch {
	case path.IsAbs(p):
	case strings.HasPrefix(p, unknownText): // it may be absolute
		p = "/" + p
	default:
		p = a.cwd() + "/" + p
	}
	if _, rest, found := strings.Cut(p, unknownText); found && strings.Contains(rest, "..") { // who knows where that leads
		return nowhere
	}
	clean := path.Clean(p)
	if len(a.links) > 0 && len(p) < maxSearched {
		return a.behindLinks(clean, strings.HasSuffix(p, "/"))
	}
	return clean
}

// linked keeps in mind where a symbolic link leads.
func (c *invocation) linked(to, at string) {
	if o := parseOptions(c.args, "-t", "-S"); !o.has('s', "symbolic") || hasUnknown(to) {
		return
	}
	if at == "" {
		at = path.Base(to)
	}
	link := c.a.abs(at)
	if strings.HasPrefix(to, "/") {
		c.a.links[link] = path.Clean(to)
	} else {
		c.a.links[link] = path.Join(path.Dir(link), to)
	}
}

// behindLinks is a path behind the links that stand in it; with a slash at its end also behind itself.
func (a *analyzer) behindLinks(p string, slash bool) string {
	for i := 1; i <= len(p); i++ {
		if i < len(p) && p[i] == '/' || i == len(p) && slash {
			if to, ok := a.links[p[:i]]; ok {
				return path.Join(to, p[i:])
			}
		}
	}
	return p
}

// homeOf is a user's home directory.
func homeOf(name string) string {
	if name == "root" {
		return "/root"
	}
	return "/home/" + name
}

// cwdName is what the working directory is kept under, and nowhere one that is not known.
const (
	cwdName = "cwd"
	nowhere = "/" + unknownText
)

func (a *analyzer) cwd() string { return a.dir.at(cwdName) }
