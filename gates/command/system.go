package command

import (
	"regexp"
	"slices"
	"strings"
	"sync"
)

func systemRules(t table) {
	for _, name := range []string{"date", "hwclock", "timedatectl"} {
		t[name] = clock
	}
	for _, name := range []string{"shift", "read", "getopts", "wait", "printf"} {
		t[name] = setsVariables
	}
	for _, name := range []string{"mapfile", "readarray", "complete", "compgen", "bind", "enable"} {
		t[name] = callbacks
	}
	for _, name := range []string{"shutdown", "reboot", "halt", "poweroff", "init", "telinit", "kexec", "rmmod", "newusers", "rtcwake", "iptables-restore", "ip6tables-restore", "insmod", "modprobe", "swapoff", "swapon", "setenforce", "sysctl", "visudo", "useradd", "adduser",
		"userdel", "deluser", "usermod", "groupadd", "groupdel", "groupmod", "gpasswd", "passwd", "chpasswd", "vipw", "pw", "chsh", "chfn", "auditctl", "auditd", "apparmor_parser", "ldapadd", "ldapmodify", "ldapdelete", "ldappasswd", "aa-disable", "aa-teardown", "setcap", "grub-install", "update-grub", "efibootmgr",
		"dpkg-reconfigure", "update-rc.d", "chkconfig", "sysrc", "launchctl", "loginctl", "crontab", "at", "batch", "systemctl", "service", "rc-service", "iptables", "ip6tables", "nft", "ufw", "firewall-cmd", "pfctl", "history",
		"journalctl", "logrotate", "kill", "killall", "pkill", "skill", "mount", "umount", "losetup", "pivot_root", "unset", "set", "shopt", "ulimit", "keyctl", "security", "csrutil", "spctl", "dmesg", "killall5", "defaults", "capsh"} {
		t[name] = admin
	}
	for _, name := range []string{"terraform", "tofu", "terragrunt", "pulumi", "kubectl", "oc", "helm", "aws", "gcloud", "gsutil", "az", "heroku", "flyctl", "fly", "doctl", "eksctl", "kops", "cdk", "sam", "serverless", "vercel", "netlify",
		"docker", "podman", "nerdctl", "docker-compose", "crictl", "ctr", "vagrant", "virsh", "lxc", "multipass", "ansible", "ansible-playbook", "nomad", "consul", "vault", "etcdctl", "openstack", "linode-cli", "hcloud", "rclone", "s3cmd", "mc", "b2", "wrangler", "supabase", "firebase"} {
		t[name] = cloud
	}
	for _, name := range []string{"cargo", "twine", "gem", "pip", "pip3", "mvn", "gradle", "dotnet", "nuget"} {
		t[name] = publishRule
	}
}

// admin judges what administers a machine.
func admin(c *invocation) {
	sub := first(parseOptions(c.args).rest)
	text := strings.Join(c.args, " ")
	deny := func(message string) { c.deny("administration", message, "") }
	switch c.name {
	case "shutdown", "reboot", "halt", "poweroff", "init", "telinit", "kexec":
		if c.name == "shutdown" && slices.Contains(c.args, "-c") { // it calls one off
			return
		}
		if c.name != "init" && c.name != "telinit" && !slices.Contains(c.args, "--help") || sub == "0" || sub == "6" || sub == "1" {
			c.deny("power", "it stops the machine", "")
		}
	case "crontab", "at", "batch":
		scheduled(c)
	case "systemctl", "service", "rc-service", "launchctl", "update-rc.d", "chkconfig", "sysrc", "loginctl":
		serviceRule(c, text)
	case "history":
		if parseOptions(c.args).has('c') || parseOptions(c.args).has('d') {
			c.deny("history", "it clears the shell's history", "")
		} else if o := parseOptions(c.args, "-w"); o.long["-w"] == "/dev/null" {
			c.deny("history", "it throws the shell's history away", "")
		} else if o.long["-w"] != "" {
			c.a.writes(o.long["-w"], "history to")
		}
	case "unset", "set", "shopt", "ulimit":
		setsVariables(c)
		if slices.ContainsFunc(c.args, func(s string) bool { return strings.HasPrefix(s, "HIST") }) || strings.Contains(text, "+o history") {
			c.deny("history", "it switches the shell's history off", "")
		}
	case "dmesg":
		if o := parseOptions(c.args); o.has('C', "clear") || o.has('c', "read-clear") {
			c.deny("log-wiping", "it removes logs", "")
		}
	case "journalctl":
		if c.a.matches(vacuum(), text) {
			c.deny("log-wiping", "it leaves next to nothing of the logs", "")
		} else if strings.Contains(text, "--vacuum") || strings.Contains(text, "--rotate") || strings.Contains(text, "--flush") {
			c.ask("log-wiping", "it removes or moves logs", "")
		}
	case "kill", "killall", "pkill", "skill", "fuser":
		killRule(c)
	case "iptables", "ip6tables", "nft", "ufw", "firewall-cmd", "pfctl":
		firewall(c)
	case "sysctl":
		kernelSettings(c)
	case "mount", "umount", "losetup", "pivot_root":
		if len(c.args) > 0 && (c.name == "umount" || !slices.Contains(c.args, "-l")) && c.name != "mount" || c.name == "mount" && len(c.args) > 1 {
			c.ask("mount", "it changes what is mounted", "")
		}
	case "ldapadd", "ldapmodify", "ldapdelete", "ldappasswd":
		c.ask("infrastructure", "it changes a directory that others use", "")
	case "passwd", "capsh", "security", "defaults", "keyctl", "setcap", "logrotate", "swapon", "swapoff", "dpkg-reconfigure", "modprobe", "visudo", "useradd", "adduser", "usermod", "groupadd", "groupmod", "gpasswd", "chsh", "chfn", "chpasswd":
		administers(c)
	default:
		if !slices.Contains(c.args, "--help") && !slices.Contains(c.args, "--version") {
			deny("it changes the machine: users, modules, start-up or protection")
		}
	}
}

func clock(c *invocation) {
	o := parseOptions(c.args, "-d", "-r", "-f", "--date", "--reference", "--file")
	sub := first(o.rest)
	if o.has('s', "set") || c.name == "date" && sub != "" && sub[0] != '+' || c.name == "hwclock" && len(c.args) > 0 && !o.has('r', "show") || strings.HasPrefix(sub, "set-") {
		c.ask("administration", "it changes the clock", "")
	}
}

func serviceRule(c *invocation, text string) {
	o := parseOptions(c.args, "-t", "-p", "-u", "-H", "--type", "--property")
	for _, word := range o.rest {
		switch word {
		case "poweroff", "reboot", "halt", "kexec", "suspend", "hibernate", "emergency", "rescue", "isolate":
			c.deny("power", "it stops the machine", "")
		case "link", "load", "bootstrap", "submit", "enable-linger":
			c.deny("persistence", "what it sets up runs later, outside of this task", "")
		case "enable", "reenable", "preset", "add-wants", "add-requires":
			if strings.Contains(text, "/") {
				c.deny("persistence", "what it sets up runs later, outside of this task", "")
			}
			c.ask("persistence", "the service runs whenever the machine does", "")
		case "unload", "bootout", "remove", "terminate-user", "terminate-session", "kill-user", "kill-session", "set-property", "edit", "revert":
			c.deny("service-stop", "it stops a service of the machine", "")
		case "stop", "disable", "mask", "kill":
			if slices.ContainsFunc(o.rest, vital) {
				c.deny("service-stop", "it stops what protects the machine, or what others need of it", "")
			}
			c.ask("service-stop", "it stops a service of the machine", "")
		case "start", "restart", "reload", "try-restart", "daemon-reload", "set-default", "onestart":
			c.ask("service", "it changes a service of the machine", "")
		}
	}
	if (c.name == "update-rc.d" || c.name == "chkconfig") && len(o.rest) > 1 && slices.Contains([]string{"defaults", "on", "add"}, o.rest[1]) {
		c.ask("persistence", "the service runs whenever the machine does", "")
	}
	if c.name == "sysrc" && strings.Contains(text, "=") {
		c.deny("persistence", "what it sets up runs later", "")
	}
}

func killRule(c *invocation) {
	for i, arg := range c.args {
		if arg == "1" || arg == "-1" && i > 0 && c.name == "kill" {
			c.deny("kill-all", "it ends everything, or the first process", "")
			return
		}
	}
	if o := parseOptions(c.args); c.name == "fuser" && o.has('k', "kill") && o.has('m', "mount") {
		c.deny("kill-all", "it ends whatever uses a file system", "")
	}
	if c.name == "kill" || c.name == "fuser" {
		return
	}
	if slices.ContainsFunc(parseOptions(c.args, "-s", "--signal", "-u", "-g", "-t", "-P").rest, vital) {
		c.deny("kill-service", "it ends a service of the machine", "")
		return
	}
	if parseOptions(c.args).has('u') {
		c.ask("kill-user", "it ends everything of a user", "")
	}
}

// cloudWords are what destroys, by tool; a rule matches when all its words are there, in order.
var cloudWords = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(terraform|tofu|terragrunt|pulumi|cdk|sam|serverless|vagrant|sls) .*\b(destroy|delete|remove|down)\b|^(terraform|tofu|terragrunt) .*(state rm|workspace delete|force-unlock)|` +
		`^(kubectl|oc) (.* )?(delete|replace --force)\b|^helm (.* )?(uninstall|delete|del)\b|` +
		`^aws .*\b(terminate-|delete-|remove-|deregister-|purge-|rb|disable-|detach-|s3 rm .*--recursive|put-bucket-policy|modify-.*--publicly|schedule-key-deletion|create-access-key)|` +
		`^(gcloud|az|doctl|openstack|linode-cli|hcloud|eksctl|kops|heroku|flyctl|fly|vercel|netlify|supabase|firebase|wrangler) .*\b(delete|destroy|purge|remove|rm|reset|apps:destroy|pg:reset|addons:destroy|deallocate)\b|` +
		`^(gsutil|s3cmd|mc|b2) .*\b(rm|rb|del|remove|delete-file)\b|^rclone .*(delete|purge|sync)\b|^(docker|podman|nerdctl) .*\b(system prune .*(-[a-z]*a|--all|--volumes)|volume rm|volume prune|swarm leave --force|system reset)\b|` +
		`^(virsh) .*(destroy|undefine|vol-delete)|^(lxc|multipass) .*delete|^etcdctl .*del|^vault .*(delete|destroy|kv metadata delete|operator seal)|^(consul|nomad) .*(delete|stop -purge|system gc)`)
})

// cloudChanges are what changes something elsewhere that can be had again, or is everyday work on it.
var cloudChanges = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(terraform|tofu|terragrunt) .*-auto-approve|^(kubectl|oc) (.* )?(delete (-f|-k|--filename|--kustomize|(pods?|po|jobs?)[ /])|drain|cordon|scale .*--replicas=0|rollout undo)|^helm (.* )?rollback\b|` +
		`^aws .*\b(stop-instances|s3 rm|s3 sync .*--delete)|^(docker|podman|nerdctl) .*\b(system|network|image|builder) prune\b|^(docker-compose|(docker|podman|nerdctl) compose) .*down .*(-v|--volumes)`)
})

// sweeping is with which such a change takes everything along.
var sweeping = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\s(--all|--all-namespaces|-A)\b|--recursive|destroy|\bsystem prune .*(-[a-z]*a|--all|--volumes)`)
})

func cloud(c *invocation) {
	text := c.text()
	for _, arg := range c.args {
		if w := c.a.where(arg); (c.name == "aws" && (first(c.args) == "s3" || first(c.args) == "s3api") || c.name == "gsutil" || c.name == "rclone") && (w == atHome || w == atRoot) {
			c.deny("exfiltration", "it sends out everything that there is", "")
		}
		if secretPath(c.a.abs(arg), c.a.c.Home) && !strings.HasPrefix(arg, "-") && !slices.Contains([]string{"kubectl", "oc", "docker", "podman"}, c.name) {
			c.deny("exfiltration", "it sends credentials out", "")
		}
	}
	own := c.args // not those of a command behind --
	if i := slices.Index(own, "--"); i >= 0 {
		own = own[:i]
	}
	switch {
	case strings.Contains(text, "--dry-run") && !strings.Contains(text, "--dry-run=none") || slices.Contains(own, "--help") || slices.Contains(own, "-h") && c.name != "docker":
	case c.a.matches(cloudChanges(), text) && c.deed() != looks && !sweeping().MatchString(text):
		c.ask("infrastructure", "it changes what runs elsewhere", "look first: plan, get, list, --dry-run")
	case (c.a.matches(cloudWords(), text) || c.a.matches(cloudChanges(), text)) && c.deed() != looks:
		c.deny("infrastructure", "it destroys what runs elsewhere", "look first: plan, get, list, --dry-run")
	case (c.name == "kubectl" || c.name == "oc") && (slices.Contains(c.args, "secret") || slices.Contains(c.args, "secrets")) && slices.Contains(c.args, "get"):
		c.ask("secrets", "it reads credentials", "")
	case slices.Contains([]string{"docker", "podman", "nerdctl", "docker-compose"}, c.name):
		container(c, text)
	case (c.name == "kubectl" || c.name == "oc") && slices.Contains([]string{"apply", "exec", "run", "cp", "edit", "patch", "replace", "create", "proxy", "set", "scale", "debug", "attach"}, first(parseOptions(c.args, "-n", "--namespace", "--context", "--kubeconfig", "--cluster", "--user").rest)):
		c.ask("infrastructure", "it changes or enters what runs elsewhere", "")
	case c.name == "helm" && slices.Contains(c.args, "--post-renderer"):
		texts(c)
		fallthrough
	case (c.name == "terraform" || c.name == "tofu" || c.name == "pulumi") && (first(c.args) == "apply" || first(c.args) == "up"), strings.HasPrefix(c.name, "ansible") && !slices.ContainsFunc(c.args, func(s string) bool { return strings.HasPrefix(s, "--list-") || s == "--syntax-check" || s == "--check" }):
		c.ask("infrastructure", "it changes what runs elsewhere", "plan first")
	default:
		manages(c)
	}
	if c.name == "wrangler" || c.name == "supabase" || c.name == "heroku" {
		database(c)
	}
}

func container(c *invocation, text string) {
	for i, arg := range c.args {
		value := ""
		switch {
		case arg == "-v" || arg == "--volume" || arg == "--mount":
			if i+1 < len(c.args) {
				value = c.args[i+1]
			}
		case strings.HasPrefix(arg, "--volume=") || strings.HasPrefix(arg, "--mount=") || strings.HasPrefix(arg, "-v") && len(arg) > 2:
			_, value, _ = strings.Cut(strings.TrimPrefix(arg, "-v"), "=")
			if value == "" {
				value = strings.TrimPrefix(arg, "-v")
			}
		}
		if strings.Contains(value, "docker.sock") {
			c.ask("container-escape", "it gives a container the daemon", "")
		}
		if strings.HasPrefix(value, "/:") || strings.HasPrefix(value, "/etc") && !strings.HasPrefix(value, "/etc/localtime:") && !strings.HasPrefix(value, "/etc/timezone:") || strings.HasPrefix(value, "/root") || strings.Contains(value, "source=/,") || strings.Contains(value, "src=/,") {
			c.deny("container-escape", "it gives a container the host's files or the daemon", "mount the directory that is needed")
		}
	}
	for _, bad := range []string{"--privileged", "--pid=host", "--pid host", "--net=host --", "--cap-add=ALL", "--cap-add=SYS_ADMIN", "--cap-add SYS_ADMIN", "--userns=host", "--security-opt=seccomp=unconfined", "--device=/dev/sd"} {
		if strings.Contains(text, " "+bad) {
			c.deny("container-escape", "it gives a container rights over the host", "leave "+bad+" out")
		}
	}
	words := parseOptions(c.args, "-f", "-p", "-H", "-c", "-t", "--file", "--project-name", "--host", "--context", "--profile").rest
	if first(words) == "compose" || len(words) > 1 && slices.Contains([]string{"builder", "buildx", "network", "stack", "service", "node", "secret", "config", "plugin", "volume", "image", "context"}, words[0]) {
		words = words[1:]
	}
	switch first(words) {
	case "exec", "run", "unshare", "rm", "rmi", "remove", "kill", "stop", "push", "prune", "container":
		c.ask("container", "what runs in a container is not judged", "")
	case "build", "install", "import":
		for _, word := range words[1:] {
			c.fromAddress(word)
		}
	case "cp":
		if n := len(words); n > 2 && !strings.Contains(words[n-1], ":") {
			c.a.writes(words[n-1], "copying to")
		}
		if slices.ContainsFunc(words[1:], func(w string) bool {
			_, p, _ := strings.Cut(w, ":")
			return privatePath(p, "/root") || privatePath(c.a.abs(w), c.a.c.Home)
		}) {
			c.ask("secrets", "it reads or writes credentials", "")
		}
	}
}

// publishRule judges package managers.
func publishRule(c *invocation) {
	sub := first(parseOptions(c.args).rest)
	if c.name == "yarn" && sub == "npm" { // yarn's newer name for it
		sub = first(parseOptions(c.args[1:]).rest)
	}
	if c.name == "cargo" && sub == "watch" {
		texts(c)
	}
	switch sub {
	case "unpublish", "yank", "deprecate", "owner":
		c.deny("publish", "it takes a package away from others", "")
	case "install", "i", "add", "run":
		for _, word := range c.args {
			c.fromAddress(word)
		}
		if slices.Contains(c.args, "--trusted-host") {
			c.ask("download-run", "it installs from a host that nobody vouches for", "leave it out")
		}
	case "config", "sources":
		if anyOf(c.args, []string{"set", "--add", "-a", "--set"}) {
			c.ask("persistence", "it changes the tool for everything that comes later", "")
		}
	case "token":
		c.ask("secrets", "it reads or makes credentials", "")
	case "publish", "deploy", "upload", "push", "dist-tag", "access":
		if slices.Contains(c.args, "--dry-run") {
			return
		}
		c.ask("publish", "it publishes", "use --dry-run first")
	}
}

// dangerousVariable judges an assignment that makes other programs run something; from is the worst source of its value.
func (a *analyzer) dangerousVariable(name, value string, from source) {
	if from >= fromNetwork && slices.Contains(steering, name) {
		for part := range strings.SplitSeq(value, ":") {
			if part == unknownText { // with more to it, such as a version, it may be a known place
				a.find(Deny, "remote-command", name+"="+value, "the network says what runs", "look at it first")
				break
			}
		}
	}
	if strings.HasPrefix(value, "() {") {
		a.find(Ask, "preload", name+"="+value, "it makes a function of the shells that follow", "")
	}
	switch name {
	case "PS0", "PS1", "PS2", "PS3", "PS4":
		a.later(value)
	case "CC", "CXX", "LD", "AR", "MAKE", "SHELL", "RUSTC_WRAPPER":
		if strings.Contains(value, " ") && !hasUnknown(value) {
			a.isolated(func() data { return a.parse(value, data{}) })
		}
	case "PYTHONPATH", "PERL5LIB", "RUBYLIB", "NODE_PATH", "CLASSPATH", "GCONV_PATH", "LUA_PATH":
		if a.where(value) == inTmp && strings.HasPrefix(value, "/") || name == "GCONV_PATH" {
			a.find(Ask, "search-path", name+"="+value, "whoever can write there decides what runs", "name directories of the workspace")
		}
	case "MAKEFLAGS", "GNUMAKEFLAGS":
		if strings.Contains(value, "--eval") {
			a.find(Ask, "make-exec", name+"="+value, "a part of the makefile stands in a variable", "write it into the makefile")
		}
	case "LD_PRELOAD", "LD_AUDIT", "DYLD_INSERT_LIBRARIES", "BASH_ENV", "ENV", "PROMPT_COMMAND", "PERL5OPT", "PYTHONSTARTUP", "RUBYOPT", "NODE_OPTIONS", "JAVA_TOOL_OPTIONS":
		if value != "" && !tuning(name, value) {
			a.find(Ask, "preload", name+"="+value, "it makes every program run something else first", "")
		}
	case "PATH", "LD_LIBRARY_PATH":
		for dir := range strings.SplitSeq(value, ":") {
			if a.c.Mode == ModeAllow && name == "PATH" {
				a.find(Deny, "search-path", name+"="+value, "with another search path the allowed words are other programs", "leave it out")
			} else if !strings.HasPrefix(dir, "/") && !strings.HasPrefix(dir, unknownText) || a.where(dir) == inTmp {
				a.find(Ask, "search-path", name+"="+value, "whoever can write there decides what runs", "name directories by absolute paths outside of /tmp")
			}
		}
	case "GIT_SSH", "GIT_SSH_COMMAND", "GIT_EXTERNAL_DIFF", "GIT_PROXY_COMMAND", "GIT_ASKPASS", "GIT_EXEC_PATH", "GIT_TEMPLATE_DIR", "GIT_CONFIG_COUNT", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_PARAMETERS":
		switch {
		case value == "/dev/null" || value == "true":
		case name == "GIT_SSH_COMMAND" && plainSSH(value):
			a.find(Ask, "git-exec", name+"="+value, "git reaches other machines by another key, or another way", "")
		default:
			a.find(Deny, "git-exec", name+"="+value, "it makes git run a command", "")
		}
	case "PAGER", "GIT_PAGER", "MANPAGER", "EDITOR", "VISUAL", "GIT_EDITOR", "GIT_SEQUENCE_EDITOR", "LESSOPEN", "BROWSER":
		value = strings.TrimLeft(value, "|- ") // of LESSOPEN
		if !slices.Contains([]string{"", "cat", "less", "more", "true", ":", "vi", "vim", "nano", "emacs", "code --wait"}, value) {
			a.isolated(func() data { return a.inShell(&invocation{a: a, name: name, args: []string{value}}, value) })
			if tool, _, _ := strings.Cut(value, " "); strings.HasPrefix(name, "GIT_") && !slices.Contains([]string{"less", "more", "cat", "head", "sed", "delta", "bat", "vim", "vi", "nano", "emacs", "code"}, tool) {
				a.find(Ask, "git-exec", name+"="+value, "it makes git run a command", "")
			}
		}
	}
}

// plainSSH reports whether a text runs ssh with options that run nothing here.
func plainSSH(text string) bool {
	low := strings.ToLower(text)
	return strings.HasPrefix(low, "ssh ") && !strings.ContainsAny(text, ";|&$`<>()\n") && !slices.ContainsFunc([]string{"command", "exec", "pkcs11", "securitykeyprovider", " -f", "include", "-w"}, func(s string) bool { return strings.Contains(low, s) })
}

// setsVariables follows builtins that change variables and parameters.
func setsVariables(c *invocation) {
	a := c.a
	switch c.name {
	case "unset":
		for _, name := range parseOptions(c.args).rest {
			a.set(name, "", fromNowhere)
		}
	case "set":
		if i := slices.Index(c.args, "--"); i >= 0 {
			a.params = c.args[i+1:]
		} else if arg := first(c.args); arg != "" && arg[0] != '-' && arg[0] != '+' {
			a.params = c.args
		}
	case "shift":
		if len(a.params) > 0 {
			a.params = a.params[1:]
		}
	case "read", "mapfile", "readarray", "getopts", "wait":
		line := unknownText
		if first, _, _ := strings.Cut(c.in.text, "\n"); c.in.known && c.name == "read" && hasUnknown(first) { // a path of which the beginning is known
			line = first
		}
		for _, name := range parseOptions(c.args, "-p", "-t", "-n", "-N", "-d", "-u", "-i", "-a").rest {
			a.set(name, line, c.in.from)
		}
		a.set("REPLY", unknownText, c.in.from)
		a.set("MAPFILE", unknownText, c.in.from)
	case "printf":
		if len(c.args) > 1 && c.args[0] == "-v" {
			a.set(c.args[1], unknownText, c.from)
		}
	}
}
