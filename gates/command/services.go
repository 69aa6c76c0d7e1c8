package command

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"
)

func serviceRules(t table) {
	for _, name := range []string{"argocd", "flux", "istioctl", "kind", "minikube", "k3d", "k3s", "microk8s", "kubeadm", "lxc-destroy", "vboxmanage", "qm", "pct", "restic", "rustic", "kopia", "borg", "duplicity", "oci", "ibmcloud", "aliyun", "tccli", "scw", "civo",
		"railway", "kafka-topics", "kafka-topics.sh", "rabbitmqctl", "rabbitmqadmin", "hdfs", "hadoop", "gcutil", "sls", "bosh", "cf", "dokku", "juju", "rancher", "vcluster"} {
		t[name] = manages
	}
	t["k"], t["kubecolor"], t["xxd"], t["uudecode"] = kubectl, kubectl, decoder, decoder
	for _, name := range []string{"ip", "ifconfig", "ifdown", "route", "nmcli", "hostnamectl", "rc-update", "lastlog", "dockerd", "fuser", "kmod"} {
		t[name] = machine
	}
	for _, name := range []string{"zfs", "dmsetup", "flashrom", "debugfs", "resize2fs", "e2fsck", "fsck", "fsck.ext4", "tune2fs", "xfs_repair", "lvreduce", "lvresize", "vgreduce"} {
		t[name] = volumes
	}
	for _, name := range []string{"gpg", "gpg2", "pass", "secret-tool", "op", "bw", "lpass", "ssh-keygen", "ssh-add"} {
		t[name] = keys
	}
	for _, name := range []string{"croc", "wormhole", "ffsend", "transfer", "ftpput", "smbclient", "bore", "lt", "localtunnel", "tailscale", "serveo"} {
		t[name] = senders
	}
	for _, name := range []string{"getent", "resolvectl", "kdig", "dog", "delv", "traceroute", "tracepath", "mtr"} {
		t[name] = remote
	}
}

// What the words of a service's tool do: the first that is a verb decides.
var (
	reading    = []string{"get", "list", "ls", "describe", "show", "status", "view", "plan", "inspect", "help", "version", "explain", "diff", "validate", "search", "ps", "read", "access", "print", "wait", "lint"}
	naming     = []string{"logs", "log", "top", "history", "info", "check", "test", "cat", "head"} // names as well
	nounFirst  = []string{"aws", "gcloud", "az", "oci", "aliyun", "tccli", "ibmcloud", "openstack", "doctl", "scw", "hcloud", "linode-cli"}
	destroying = []string{"delete", "del", "destroy", "purge", "terminate", "rm", "rmr", "rmp", "rmi", "rb", "remove", "drop", "wipe", "erase", "undefine", "unregister", "unregistervm", "uninstall", "reset", "flush", "nuke", "decommission", "prune", "forget"}
	changing   = []string{"put", "attach", "detach", "authorize", "revoke", "grant", "leave", "send", "stop", "disable", "modify", "deregister", "release", "schedule", "invoke", "assign", "assignment", "binding", "suspend", "cancel", "taint", "change", "mv", "move", "ch",
		"seal", "install", "upgrade", "plugin", "remove-all-but-n-full", "start-session", "shutdown", "deploy", "push", "import", "restart", "reboot", "approve", "reconcile"}
	acting      = []string{"exec", "run", "apply", "create", "cp", "edit", "patch", "replace", "scale", "set", "proxy", "ssh", "sync", "up", "start"}
	rightsWords = []string{"iam", "role", "rolebinding", "clusterrolebinding", "service-account", "firewall-rules"}
)

// serviceValues are options of such tools whose value is the next word.
var serviceValues = []string{"-n", "--namespace", "--context", "--profile", "--region", "--project", "--subscription", "--kubeconfig", "-l", "--selector", "-o", "--output", "--filter", "--query", "--cluster", "--user", "-g", "--resource-group", "--bootstrap-server"}

// secretWord reports whether a word names what is a credential.
func secretWord(word string) bool {
	low := strings.ToLower(word)
	return low == "kv" || !strings.Contains(low, "login") && slices.ContainsFunc([]string{"secret", "token", "password", "keyvault"}, func(s string) bool { return strings.Contains(low, s) })
}

// verbs are the parts of a word that may be its verb: the first and the last, of delete-bucket, db:drop, DeleteInstance.
func verbs(word string) (parts []string) {
	words := strings.FieldsFunc(word, func(r rune) bool { return r == '-' || r == '_' || r == ':' })
	if len(words) == 0 {
		return []string{"", "", ""}
	}
	head := words[0]
	if i := strings.IndexFunc(head[1:], unicode.IsUpper); i > 0 {
		head = head[:i+1]
	}
	return []string{strings.ToLower(head), strings.ToLower(words[len(words)-1]), strings.ToLower(word)}
}

func anyOf(list, of []string) bool {
	return slices.ContainsFunc(list, func(s string) bool { return slices.Contains(of, s) })
}

// manages judges a tool that manages what runs or lies elsewhere, by its verb.
func manages(c *invocation) {
	if i := slices.Index(c.args, "kubectl"); i >= 0 { // minikube's, and the like
		rest := c.args[i+1:]
		if first(rest) == "--" {
			rest = rest[1:]
		}
		c.a.run(append([]string{"kubectl"}, rest...), c.in, c.env, c.from)
		return
	}
	if slices.Contains(c.args, "ssh") {
		c.ask("remote", "it works on another machine, where nothing is held back", "")
		texts(c)
	}
	if anyOf(c.args, []string{"exec", "shell", "unshare"}) {
		insideRule(c)
		c.ask("container", "what runs in a container is not judged", "")
		return
	}
	switch c.deed() {
	case ruins:
		c.deny("infrastructure", "it destroys what runs or lies elsewhere", "look first: get, list, --dry-run")
	case readsSecret:
		c.ask("secrets", "it reads credentials", "")
	case alters:
		c.ask("infrastructure", "it changes what runs elsewhere, or who may", "")
	}
}

// deed is what a tool for services is told to do.
type deed int

const (
	unclear deed = iota
	looks
	readsSecret
	alters
	ruins
)

// deed looks for the first word that is a verb. Destroying is also told by options, as in hdfs dfs -rm.
func (c *invocation) deed() deed {
	secret, rights, plain, skip := slices.Contains(c.args, "--with-decryption"), false, 0, false
	for _, word := range append([]string{c.name}, c.args...) {
		option := strings.HasPrefix(word, "-")
		v := verbs(strings.TrimLeft(word, "-"))
		switch {
		case skip && !option:
			skip = false
			continue
		case word == "--":
			return unclear
		case option:
			skip, v = slices.Contains(serviceValues, word), []string{"", "", v[2]}
		default:
			if plain++; plain > 6 || strings.ContainsAny(word, "/= ") {
				continue
			}
		}
		secret, rights = secret || secretWord(word), rights || anyOf(v[2:], rightsWords)
		switch {
		case anyOf(v, destroying):
			return ruins
		case option:
		case secret && anyOf(v, []string{"get", "show", "access", "read", "print"}):
			return readsSecret
		case anyOf(v, reading), plain == 2 && anyOf(v, naming) && !slices.Contains(nounFirst, c.name):
			return looks
		case rights && (anyOf(v, acting) || anyOf(v, []string{"add", "update"})):
			return alters
		case anyOf(v, changing):
			return alters
		case anyOf(v[2:], acting):
			return unclear
		}
	}
	return unclear
}

// decoder keeps in mind that a file holds what was decoded.
func decoder(c *invocation) {
	o := parseOptions(c.args, "-o", "-c", "-l", "-s")
	out := o.long["-o"]
	if c.name == "xxd" && o.short['r'] && len(o.rest) > 1 {
		out = o.rest[1]
	}
	if out != "" {
		c.a.writes(out, "decoding to")
		c.a.wrote(out, data{from: fromDecoder})
	}
}

func kubectl(c *invocation) {
	c.a.run(append([]string{"kubectl"}, c.args...), c.in, c.env, c.from)
}

// machine judges what changes a machine's network, its name and what it starts.
func machine(c *invocation) {
	o := parseOptions(c.args, "-n", "-f")
	words := o.rest
	has := func(list ...string) bool { return anyOf(words, list) }
	switch {
	case c.name == "ip" && len(words) > 2 && words[0] == "netns" && words[1] == "exec":
		c.a.run(c.args[min(slices.Index(c.args, "exec")+2, len(c.args)-1):], c.in, c.env, c.from)
	case c.name == "fuser":
		if o.has('k', "kill") && o.has('m', "mount") {
			c.deny("kill-all", "it ends whatever uses a file system", "")
		}
	case c.name == "kmod" && len(words) > 0 && !has("list", "static-nodes"):
		c.deny("administration", "it changes the kernel", "")
	case c.name == "lastlog" && o.has('C', "clear"):
		c.deny("log-wiping", "it removes logs", "")
	case c.name == "rc-update" && has("add", "del", "delete"):
		c.deny("persistence", "what it sets up runs later, outside of this task", "")
	case c.name == "ifdown" && len(words) > 0, has("down", "del", "delete", "flush", "off", "disconnect") && c.name != "hostnamectl":
		c.deny("administration", "it takes the machine off the network", "")
	case has("add", "set", "change", "replace", "up", "modify", "set-hostname", "hostname") && len(words) > 1, c.name == "dockerd":
		c.ask("administration", "it changes the machine", "")
	}
}

// disks are devices that hold what others have written: disks, their parts, and the machine's memory.
var disks = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^/dev/(sd[a-z]|hd[a-z]|vd[a-z]|xvd[a-z]|nvme[0-9]|mmcblk[0-9]|dm-[0-9]|md[0-9]|disk|mapper/|mem$|kmem$|port$)`)
})

// devices asks about programs that are given a disk, besides those that only look at what kind of disk it is.
func (c *invocation) devices() {
	if slices.Contains([]string{"ls", "lsblk", "blkid", "df", "stat", "file", "smartctl", "udevadm", "findmnt", "du", "test", "[", "[[", "echo", "printf", "readlink", "realpath", "find", "grep", "lsof", "fdisk", "sfdisk", "parted", "hdparm", "nvme", "blockdev"}, c.name) {
		return
	}
	for _, arg := range c.args { // what has spaces is text that speaks of one
		if strings.Contains(arg, "/dev/") && !strings.ContainsAny(arg, " \t\n") && c.a.spend(nodeCost) && disks().MatchString(c.a.abs(arg[strings.Index(arg, "/dev/"):])) {
			c.ask("device-read", "it is given a disk, or the machine's memory", "")
			return
		}
	}
}

// volumes judges tools for volumes and file systems.
func volumes(c *invocation) {
	o := parseOptions(c.args)
	device := slices.ContainsFunc(o.rest, func(p string) bool { return strings.HasPrefix(c.a.abs(p), "/dev/") })
	switch c.name {
	case "zfs", "dmsetup":
		if !anyOf(o.rest, []string{"destroy", "rollback", "remove", "remove_all", "wipe_table", "suspend"}) {
			return
		}
	case "flashrom":
		if !o.has('w', "write") && !o.has('E', "erase") {
			return
		}
	case "lvreduce", "lvresize", "vgreduce":
	default:
		if !device || o.short['n'] || o.short['N'] || c.name == "tune2fs" && o.short['l'] || c.name == "debugfs" && !o.short['w'] {
			return
		}
	}
	c.deny("disk", "it changes a disk, a volume or a file system", "work on an image file in the workspace")
}

// keys judges tools that keep credentials.
func keys(c *invocation) {
	sub := first(parseOptions(c.args).rest)
	switch c.name {
	case "gpg", "gpg2":
		if slices.ContainsFunc(c.args, func(s string) bool {
			return strings.HasPrefix(s, "--export-secret") || strings.HasPrefix(s, "--delete-secret")
		}) {
			c.ask("secrets", "it takes out, or away, secret keys", "")
		}
	case "ssh-keygen", "ssh-add":
		if o := parseOptions(c.args, "-D", "-s", "-w"); c.name == "ssh-keygen" && o.long["-D"] != "" || c.name == "ssh-add" && o.long["-s"] != "" {
			c.ask("preload", "it loads machine code", "")
		}
	default:
		if !slices.Contains([]string{"", "ls", "list", "find", "init", "generate", "git", "help", "version", "search", "status", "login", "signin", "run", "sync"}, sub) {
			c.ask("secrets", "it reads credentials", "")
		}
		c.stranger()
	}
}

// senders judges what carries files to somebody, or opens a port to everybody.
func senders(c *invocation) {
	o := parseOptions(c.args, "-c", "-U", "-u", "-p", "-P", "-W", "-a")
	switch {
	case slices.Contains([]string{"bore", "lt", "localtunnel", "serveo"}, c.name):
		c.deny("tunnel", "it opens this machine to the world", "")
	case c.name == "tailscale" && slices.Contains([]string{"status", "ip", "version", "ping", "netcheck", ""}, first(o.rest)):
	case c.name == "tailscale":
		c.ask("tunnel", "it opens this machine to others", "")
	case c.name == "smbclient":
		for _, words := range strings.Split(o.long["-c"], ";") {
			if list := strings.Fields(words); len(list) > 1 && strings.HasSuffix(list[0], "put") {
				c.upload(list[1:2])
			}
		}
	case slices.Contains([]string{"send", "tx", "upload"}, first(o.rest)):
		c.upload(o.rest[1:])
	case c.name == "ftpput" || c.name == "transfer":
		c.upload(o.rest[min(len(o.rest), 1):])
	}
}

// destroysFramework reports whether a program of the workspace is told to empty the application's database.
func (c *invocation) destroysFramework(file string) {
	if destroysData(path.Base(file) + " " + strings.Join(c.args, " ")) {
		c.deny("database", "it empties the application's database", "")
	}
}
