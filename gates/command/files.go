package command

import (
	"cmp"
	"path"
	"slices"
	"strings"
	"sync"
)

// table has the rules: what judges a command, by its name.
type table map[string]func(*invocation)

var (
	tableOnce sync.Once
	tableMade table
)

// rules is the table, which is made at its first use: most runs of a program need none of it.
func rules() table {
	tableOnce.Do(func() {
		tableMade = table{}
		for _, add := range []func(table){fileRules, buildRules, repositoryRules, interpreterRules, networkRules, systemRules, wrapperRules, launcherRules, packageRules, serviceRules, databaseRules} {
			add(tableMade)
		}
	})
	return tableMade
}

func fileRules(t table) {
	for name, rule := range map[string]func(*invocation){
		"rm": rm, "rmdir": rm, "unlink": rm, "shred": shred, "srm": shred, "wipe": shred,
		"dd": dd, "mv": mv, "cp": cp, "install": cp, "ln": ln, "tee": tee, "truncate": truncate, "chmod": chmod, "chown": chown, "chgrp": chown, "chattr": chattr, "chflags": chattr, "setfacl": chown,
		"rsync": rsync, "sed": sed, "touch": touch, "trash": rm, "trash-put": rm, "split": split, "csplit": split, "sudoedit": sudoedit,
		"wipefs": disk, "fdisk": disk, "sfdisk": disk, "cfdisk": disk, "gdisk": disk, "sgdisk": disk, "parted": disk, "blkdiscard": disk, "mkswap": disk, "hdparm": disk, "diskutil": disk,
		"cryptsetup": disk, "pvremove": disk, "vgremove": disk, "lvremove": disk, "zpool": disk, "badblocks": disk, "nvme": disk, "mdadm": disk, "nwipe": disk, "vgchange": disk, "lvchange": disk, "pvcreate": disk, "vgcreate": disk, "sg_format": disk, "btrfs": disk, "newfs": disk,
	} {
		t[name] = rule
	}
}

// rm judges removals.
func rm(c *invocation) {
	o := parseOptions(c.args)
	recursive := o.has('r', "recursive") || o.short['R']
	if o.has(0, "no-preserve-root") {
		c.deny("remove-root", "it removes the root directory", "")
		return
	}
	if o.has(0, "help") || o.has(0, "version") {
		return
	}
	for _, p := range o.rest {
		c.removes(p, recursive, o.has('f', "force"))
	}
	if recursive && c.a.substituted {
		c.ask("remove-unknown", "what it removes is computed by another command", "name the directory")
	}
	for name := range c.env {
		if recursive && strings.Contains(c.a.source, "$"+name) {
			c.ask("remove-unknown", "$"+name+" still has its old value here", "set it in a command of its own")
		}
	}
}

// removes judges one path that is removed.
func (c *invocation) removes(p string, recursive, forced bool) {
	a := c.a
	full := a.abs(p)
	if historyFile(full) {
		c.deny("history", "it removes the shell's history", "")
		return
	}
	if systemLog(full) || recursive && below(full, "/var/log") {
		c.deny("log-wiping", "it removes logs", "")
		return
	}
	if _, inside, found := strings.Cut(full+"/", "/.git/"); found && recursive {
		if inside == "" || slices.Contains([]string{"objects/", "refs/", "refs/heads/", "*/"}, inside) {
			c.deny("remove-repository", "it removes the repository's history", "")
		} else {
			c.ask("remove-repository", "it removes a part of the repository", "")
		}
		return
	}
	w := a.where(p)
	const safer = "name a directory inside of the workspace, as in rm -rf ./build"
	switch {
	case w == atRoot:
		c.deny("remove-root", "it removes a root directory, or one that the workspace lies in", safer)
	case w == atHome:
		c.deny("remove-home", "it removes a home directory", safer)
	case isCache(full, a.c.Home) || !recursive && stale(full):
		c.ask("remove-outside", "it removes something outside of the workspace", safer)
	case w == inSystem || w == inLocal && recursive && !isAddition(full):
		c.deny("remove-system", "it removes a part of the system", safer)
	case w == atWorkspace && recursive:
		c.deny("remove-workspace", "it removes the whole workspace", safer)
	case w == atWorkspace && p != "." && p != "..":
		c.ask("remove-workspace", "it removes every file of the workspace's", safer)
	case w == notKnown && recursive && c.from >= fromNetwork:
		c.deny("remove-unknown", "the network says what it removes", "name the directory")
	case w == notKnown && recursive:
		c.ask("remove-unknown", "what it removes cannot be told beforehand", "name the directory, or check that the variable is set: ${DIR:?}")
	case w == elsewhere && recursive && forced && a.shallow(full):
		c.deny("remove-outside", "it removes a directory outside of the workspace", safer)
	case w == inTmp && hasUnknown(full): // mktemp made it
	case w == elsewhere || w == inTmp || w == inLocal:
		c.ask("remove-outside", "it removes something outside of the workspace", safer)
	case full != c.a.c.Cwd && strings.Trim(p, "0123456789") == "":
		c.ask("remove-number", "a number: is a redirection meant?", "./"+p)
	}
}

// isCache reports whether a path lies in what a tool can fetch or build again, or in what small images do without.
func isCache(p, home string) bool {
	in := func(dir string) bool { return p == dir || below(p, dir) }
	return slices.ContainsFunc([]string{"/var/cache", "/var/lib/apt/lists", "/usr/share/doc", "/usr/share/info", "/usr/share/locale", "/usr/share/man"}, in) ||
		slices.ContainsFunc([]string{".cache", ".npm", ".yarn", ".pnpm-store", ".cargo/registry", ".gradle/caches", ".m2/repository", "go/pkg", ".local/share/Trash", "Library/Caches"}, func(dir string) bool {
			return in(path.Join(cmp.Or(homeAround(p, home), home), dir))
		})
}

// stale reports whether a path is a mark that a process leaves behind when it dies.
func stale(p string) bool {
	ext := path.Ext(p)
	return (below(p, "/run") || below(p, "/var")) && !strings.ContainsAny(p, "*?["+unknownText) && (ext == ".pid" || ext == ".lock" || path.Base(p) == "lock" || path.Base(p) == "lock-frontend")
}

// isAddition reports whether a path is something by itself that was added to a system, and not all that is there.
func isAddition(p string) bool {
	known, _, _ := strings.Cut(p, unknownText)
	known, _, _ = strings.Cut(known, "*")
	if dir, name := path.Split(strings.TrimRight(known, "/")); dir == "/usr/local/" && slices.Contains([]string{"bin", "etc", "games", "include", "lib", "libexec", "man", "sbin", "share", "src"}, name) { // all that is there
		return false
	}
	return slices.ContainsFunc([]string{"/opt", "/srv", "/usr/local", "/usr/src", "/var/opt", "/var/www"}, func(dir string) bool { return below(strings.TrimRight(known, "/"), dir) })
}

// shallow reports whether a directory, or all that is in it, lies immediately below the root or a home directory.
func (a *analyzer) shallow(p string) bool {
	for matchesAnything(path.Base(p)) {
		p = path.Dir(p)
	}
	dir := path.Dir(p)
	return dir == "/" || dir == homeAround(dir, a.c.Home)
}

func shred(c *invocation) {
	for _, p := range parseOptions(c.args, "-n", "-s", "--iterations", "--size", "--random-source").rest {
		c.removes(p, true, true)
		c.a.writes(p, "overwriting")
	}
	if c.a.worst < Ask.rank() && len(c.args) > 0 {
		c.ask("shred", "what it overwrites cannot be had back, also not from a checkpoint's medium", "rm")
	}
}

func disk(c *invocation) {
	o := parseOptions(c.args)
	if o.has('l', "list") || o.has('h', "help") || o.has('V', "version") || len(o.rest) == 0 && c.name != "nwipe" || c.name == "sfdisk" && o.has('d', "dump") || c.name == "hdparm" && strings.Trim(strings.Join(c.args[:len(c.args)-1], ""), "-iItTgC") == "" ||
		slices.Contains([]string{"zpool", "btrfs", "nvme", "mdadm", "diskutil", "parted", "cryptsetup"}, c.name) && slices.Contains([]string{"list", "status", "filesystem", "subvolume", "info", "print", "-l"}, o.rest[0]) && !slices.Contains(o.rest, "delete") {
		return
	}
	if !slices.Contains([]string{"zpool", "btrfs", "nvme", "mdadm", "diskutil", "cryptsetup", "pvremove", "vgremove", "lvremove"}, c.name) && c.onImage(o.rest) {
		return
	}
	if p := c.a.abs(first(o.rest)); c.name == "badblocks" && !o.short['w'] && !o.short['n'] || c.name == "mkswap" && !strings.HasPrefix(p, "/dev/") && !hasUnknown(p) {
		c.ask("disk", "it reads all of a disk, or makes a file swap space", "")
		return
	}
	c.deny("disk", "it changes a disk or its partitions", "work on an image file in the workspace")
}

// mkfs judges what makes file systems.
func mkfs(c *invocation) {
	if o := parseOptions(c.args, "-t", "-L", "-b", "-m", "-O", "-E", "-U", "--type"); (len(o.rest) > 0 || !o.has(0, "help", "version")) && !c.onImage(o.rest) {
		c.deny("format", "it makes a new file system over what is there", "work on an image file in the workspace")
	}
}

// onImage reports whether the first operand is a file of the workspace, or of /tmp.
func (c *invocation) onImage(operands []string) bool {
	p := first(operands)
	if !strings.ContainsAny(p, "./") || hasUnknown(p) {
		return false
	}
	w := c.a.where(p)
	return w == inWorkspace || w == inTmp
}

func dd(c *invocation) {
	for _, arg := range c.args {
		if p, ok := strings.CutPrefix(arg, "of="); ok {
			c.a.writes(p, "dd to")
			c.a.wrote(p, data{})
		}
		if p, ok := strings.CutPrefix(arg, "if="); ok && strings.HasPrefix(p, "/dev/") && !slices.Contains([]string{"/dev/zero", "/dev/urandom", "/dev/random", "/dev/null", "/dev/stdin", "/dev/cdrom", "/dev/dvd"}, p) && !strings.HasPrefix(p, "/dev/sr") {
			c.deny("device-read", "it copies a device", "")
		}
	}
	if text := " " + strings.Join(c.args, " "); slices.ContainsFunc([]string{" if=/dev/zero", " if=/dev/urandom", " if=/dev/random"}, func(s string) bool { return strings.Contains(text, s) }) && strings.Contains(text, " of=") && !strings.Contains(text, " count=") {
		c.ask("disk-full", "it writes until nothing is left of the disk", "count=N")
	}
}

// targets splits the words of cp and mv into sources and target.
func targets(args []string) (sources []string, target string) {
	o := parseOptions(args, "-t", "-S", "--target-directory", "--suffix", "-m", "-o", "-g", "--mode", "--owner", "--group")
	if t, ok := o.long["-t"]; ok {
		return o.rest, t
	}
	if t, ok := o.long["target-directory"]; ok {
		return o.rest, t
	}
	if len(o.rest) < 2 {
		return o.rest, ""
	}
	return o.rest[:len(o.rest)-1], o.rest[len(o.rest)-1]
}

func mv(c *invocation) {
	sources, target := targets(c.args)
	for _, s := range sources {
		if target == "/dev/null" {
			c.deny("remove-null", "what is moved to /dev/null is lost", "")
			return
		}
		switch w := c.a.where(s); {
		case w == atRoot || w == atHome || w == inSystem:
			c.deny("move-system", "it moves away what is not the task's", "")
		case w == atWorkspace:
			c.ask("move-workspace", "it moves the whole workspace", "")
		case c.a.foreign(s):
			c.ask("move-outside", "it moves away what is not the task's", "")
		}
		if path.Base(c.a.abs(s)) == ".git" || repositoryFile(c.a.abs(s)) {
			c.ask("repository-write", "it moves the repository away", "")
		}
		c.copied(s, target)
	}
	c.lands(sources, target, "mv to")
}

func cp(c *invocation) {
	sources, target := targets(c.args)
	for _, s := range sources {
		if c.copied(s, target); s == "/dev/null" {
			c.a.emptied(target)
		}
	}
	c.lands(sources, target, "copying to")
	if c.name == "install" && setuid(parseOptions(c.args, "-m", "--mode").long["-m"]) {
		c.deny("setuid", "it makes a program that runs as somebody else", "")
	}
}

// lands judges where things arrive: at the target or, when that is a directory that everybody knows, below it.
func (c *invocation) lands(sources []string, target, how string) {
	w := c.a.where(target)
	if w != atRoot && w != atHome && (w != inSystem || !slices.Contains(local, c.a.abs(target))) && !strings.HasSuffix(target, "/") {
		c.a.writes(target, how)
		return
	}
	for _, s := range sources {
		c.a.writes(path.Join(target, path.Base(s)), how)
	}
}

// copied keeps in mind what a file holds when it gets another name.
func (c *invocation) copied(from, to string) {
	if to != "" && toolPath(c.a.abs(from)) {
		for _, p := range []string{to, path.Join(to, path.Base(from))} {
			c.a.programs[c.a.abs(p)] = path.Base(from)
		}
	}
	d, ok := c.a.files[c.a.abs(from)]
	if !ok && secretPath(c.a.abs(from), c.a.c.Home) {
		d, ok = data{from: fromSecret}, true
	}
	if !ok || to == "" {
		return
	}
	for _, p := range []string{c.a.abs(to), c.a.abs(path.Join(to, path.Base(from)))} {
		if c.a.files[p] = d; startsShells(p, c.a.c.Home) {
			c.a.runsLater(p, d)
		}
	}
}

func ln(c *invocation) {
	sources, target := targets(c.args)
	how := linking
	if o := parseOptions(c.args, "-t", "-S"); o.has('f', "force") {
		how = "linking over"
	}
	c.lands(sources, target, how)
	for _, s := range sources {
		if s == "/dev/null" && target != "" && historyFile(c.a.abs(target)) {
			c.deny("history", "it throws the shell's history away", "")
		}
		c.copied(s, target)
		c.linked(s, target)
	}
}

func tee(c *invocation) {
	o := parseOptions(c.args)
	how := "tee to"
	if o.has('a', "append") && c.name == "tee" {
		how = appending
	}
	for _, p := range o.rest {
		c.a.writes(p, how)
		c.a.wrote(p, c.in)
	}
}

func truncate(c *invocation) {
	for _, p := range parseOptions(c.args, "-s", "-r", "--size", "--reference").rest {
		c.a.writes(p, "truncating")
		c.a.emptied(p)
	}
}
