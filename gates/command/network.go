package command

import (
	"net/url"
	"path"
	"slices"
	"strings"
)

func networkRules(t table) {
	for _, name := range []string{"curl", "wget", "wget2", "aria2c", "axel", "lwp-download", "http", "https", "xh", "lwp-request", "fetch", "lynx", "links", "w3m"} {
		t[name] = download
	}
	for _, name := range []string{"nc", "ncat", "netcat", "nc.openbsd", "nc.traditional", "socat", "telnet", "cryptcat", "pwncat", "openssl"} {
		t[name] = pipeTool
	}
	for _, name := range []string{"ssh", "scp", "sftp", "ftp", "lftp", "tftp", "sshpass", "mosh", "autossh", "dig", "nslookup", "host", "drill", "ping", "whois", "mail", "mailx", "s-nail", "sendmail", "mutt", "swaks", "ngrok", "cloudflared", "devtunnel", "frpc", "chisel", "tcpdump", "nmap", "masscan", "ssh-copy-id", "sshuttle", "iodine", "ptunnel", "dnscat2", "telnetd", "wg-quick", "openvpn", "msfvenom", "msfconsole", "hydra", "john", "hashcat", "sqlmap", "nikto", "gobuster", "arpspoof", "hping3", "xmrig", "aircrack-ng"} {
		t[name] = remote
	}
}

// metadata are the addresses where clouds keep a machine's credentials.
func metadata(word string) bool {
	for _, m := range []string{"169.254.169.254", "metadata.google.internal", "100.100.100.200", "fd00:ec2::254", "169.254.170.2"} {
		if strings.Contains(word, m) {
			return true
		}
	}
	return false
}

// download judges curl, wget and their like: what they fetch into files is the network's, what they send is looked at.
func download(c *invocation) {
	values := []string{"-o", "-O", "-X", "-H", "-d", "-F", "-T", "-u", "-A", "-e", "-b", "-c", "-x", "-m", "-w", "-K", "-E", "-P", "-U", "-i", "-t", "-Q", "-r", "-z", "-y", "-Y", "-C",
		"--output", "--request", "--header", "--data", "--data-binary", "--data-raw", "--data-urlencode", "--form", "--upload-file", "--user", "--user-agent", "--referer", "--cookie", "--cookie-jar", "--proxy", "--max-time",
		"--write-out", "--config", "--cert", "--key", "--cacert", "--post-file", "--post-data", "--body-file", "--body-data", "--method", "--directory-prefix", "--output-document", "--connect-timeout", "--retry", "--resolve", "--url", "--use-askpass", "--json", "--form-string", "--unix-socket"}
	if c.name != "curl" { // -O takes a value, -i and -c do not mean the same
		values = slices.DeleteFunc(slices.Clone(values), func(s string) bool {
			return slices.Contains([]string{"-d", "-F", "-c", "-b", "-C", "-r", "-E", "-K", "-H", "-x", "-m", "-w", "-X", "-T", "-u"}, s)
		})
	} else {
		values = slices.DeleteFunc(slices.Clone(values), func(s string) bool { return s == "-O" || s == "-i" })
	}
	o := parseOptions(c.args, values...)
	for _, arg := range c.args {
		if metadata(arg) {
			c.deny("metadata", "it asks the cloud's metadata service for credentials", "")
		}
	}
	for _, name := range []string{"-o", "output", "output-document"} {
		if p := o.long[name]; p != "" && p != "-" {
			c.fetched(p)
		}
	}
	if p := o.long["-O"]; p != "" && p != "-" && c.name != "curl" {
		c.fetched(p)
	}
	for _, u := range append(o.rest, o.long["url"]) {
		if p, err := url.Parse(u); err == nil && p.Path != "" && !hasUnknown(u) {
			c.a.files[c.a.abs(path.Join(o.value("-P", "directory-prefix"), path.Base(p.Path)))] = data{from: fromNetwork}
		}
	}
	c.schemes(o)
	if method := strings.ToUpper(o.value("-X", "request") + o.long["method"]); method == "DELETE" || first(o.rest) == "DELETE" {
		c.deletes(slices.DeleteFunc(append(slices.Clone(o.rest), o.long["url"]), func(s string) bool { return s == "DELETE" }))
	}
	if slices.Contains([]string{"http", "https", "xh"}, c.name) {
		c.sendsItems(o.rest)
	}
	c.sendsWith(o)
	if cfg := o.long["-K"] + o.long["config"]; cfg != "" {
		c.ask("unresolved", "what is asked for stands in a file", "")
	}
	if ask := o.long["use-askpass"]; ask != "" {
		c.a.run([]string{ask}, data{}, nil, fromNowhere)
	}
}

// sendsItems judges the items of httpie's requests, such as file@PATH, and what it reads.
func (c *invocation) sendsItems(words []string) {
	if c.in.from == fromSecret {
		c.uploads(c.in)
	}
	for _, word := range words {
		if name, file, ok := strings.Cut(word, "@"); ok && file != "" && !strings.Contains(name, "/") && !strings.Contains(name, ".") {
			c.upload([]string{file})
		}
	}
}

// deletes judges addresses that are asked to delete what they stand for.
func (c *invocation) deletes(addresses []string) {
	for _, address := range addresses {
		u, err := url.Parse(address)
		if err == nil && u.Host == "" { // without a scheme
			u, err = url.Parse("http://" + address)
		}
		switch {
		case err == nil && slices.Contains([]string{"_all", "*"}, path.Base(u.Path)):
			c.deny("database", "it deletes everything that is stored there", "")
		case address == "" || err == nil && loopback(u.Hostname()):
		default:
			c.ask("remote", "it deletes something on another machine", "")
		}
	}
}

func (c *invocation) fetched(p string) {
	c.a.writes(p, "download to")
	if startsShells(c.a.abs(p), c.a.c.Home) {
		c.a.runsLater(p, data{from: fromNetwork})
	}
	c.a.files[c.a.abs(p)] = data{from: fromNetwork}
}

// sendsWith judges the options with which a request carries something out.
func (c *invocation) sendsWith(o options) {
	for _, name := range []string{"-d", "-F", "-T", "data", "data-binary", "data-raw", "data-urlencode", "form", "upload-file", "post-file", "post-data", "body-file", "body-data", "json"} {
		v, ok := o.long[name]
		if !ok {
			continue
		}
		file, named := v, name == "-T" || name == "upload-file" || name == "post-file" || name == "body-file"
		if i := strings.IndexByte(v, '@'); i >= 0 && name != "data-raw" {
			file, named = v[i+1:], true
		}
		if _, p, ok := strings.Cut(v, "=<"); ok && (name == "-F" || name == "form") {
			file, named = p, true
		}
		if named && strings.HasPrefix(file, "<") {
			file = file[1:]
		}
		switch {
		case named && (file == "-" || file == "/dev/stdin"):
			c.uploads(c.in)
		case named:
			c.upload([]string{file})
		case (c.from == fromSecret || c.from == fromDecoder) && c.holds(v):
			c.deny("exfiltration", "it sends out what a command has read", "")
		case hasUnknown(v):
			c.ask("upload", "what it sends cannot be told beforehand", "")
		}
	}
	for _, arg := range o.rest {
		if c.from == fromSecret && hasUnknown(arg) || c.from == fromDecoder && hasUnknown(arg) {
			c.carries("the address")
		}
		if c.from == fromHost && partUnknown(arg) {
			c.ask("exfiltration", "the address says who and where we are", "")
		}
	}
	if v := o.long["-u"] + o.long["user"]; c.from == fromSecret && hasUnknown(v) {
		c.ask("exfiltration", "a request carries a key to another machine", "see that it is the key's own service")
	}
	for _, v := range append(c.headers(), "cookie:"+o.long["-b"]+o.long["cookie"], "referer:"+o.long["-e"]+o.long["referer"], "user-agent:"+o.long["-A"]+o.long["user-agent"]) {
		switch header, _, _ := strings.Cut(strings.ToLower(v), ":"); {
		case !hasUnknown(v):
		case c.from == fromSecret:
			c.carries("the header " + header)
		case c.from == fromHost:
			c.ask("exfiltration", "a header says who and where we are", "")
		}
	}
}

// headers are the values of all options that add one.
func (c *invocation) headers() (list []string) {
	for i, arg := range c.args {
		switch {
		case (arg == "-H" || arg == "--header") && i+1 < len(c.args):
			list = append(list, c.args[i+1])
		case strings.HasPrefix(arg, "-H") || strings.HasPrefix(arg, "--header="):
			list = append(list, strings.TrimPrefix(strings.TrimPrefix(arg, "--header="), "-H"))
		}
	}
	return list
}

// holds reports whether a word may hold what is secret among the words of its command.
func (c *invocation) holds(word string) bool {
	if hasUnknown(word) || c.a.substituted {
		return true
	}
	for name := range strings.FieldsSeq(c.a.source) {
		if v, ok := c.a.vars.get(strings.TrimPrefix(name, "$")); ok && v.from > fromHost && v.String() != "" && strings.Contains(word, v.String()) {
			return true
		}
	}
	return false
}

// carries judges a request that holds what is secret: the key of a service is made to be sent to it, what is read from somewhere is not.
func (c *invocation) carries(what string) {
	if !c.a.substituted && c.from == fromSecret && c.keysOnly() && (what == "the address" || slices.ContainsFunc([]string{"authorization", "token", "key", "auth"}, func(s string) bool { return strings.HasSuffix(what, s) })) {
		c.ask("exfiltration", what+" carries a key to another machine", "see that it is the key's own service")
		return
	}
	c.deny("exfiltration", what+" carries out what a command has read", "")
}

// keysOnly reports whether the secrets among a command's words are keys for requests, by the names of their variables.
func (c *invocation) keysOnly() bool {
	for name := range strings.FieldsSeq(c.a.source) {
		if !c.a.spend(nodeCost) {
			return false
		}
		if name, ok := strings.CutPrefix(name, "$"); ok && secretName(name) {
			if up := strings.ToUpper(name); strings.HasPrefix(up, "AWS_") || !strings.Contains(up, "TOKEN") && !strings.Contains(up, "API_KEY") && !strings.Contains(up, "APIKEY") {
				return false
			}
		}
		if v, ok := c.a.vars.get(strings.TrimPrefix(name, "$")); ok && v.from > fromNowhere { // it was read from somewhere
			return false
		}
	}
	return true
}

// partUnknown reports whether an address has a part that is not known, besides a whole host.
func partUnknown(address string) bool {
	if _, p, ok := strings.Cut(address, "://"); ok {
		address = p
	}
	host, rest, _ := strings.Cut(address, "/")
	host, _, _ = strings.Cut(host, ":")
	return hasUnknown(rest) || hasUnknown(host) && host != unknownText
}

// schemes judges addresses of curl's that are no web's.
func (c *invocation) schemes(o options) {
	for _, address := range o.rest {
		scheme, p, _ := strings.Cut(address, "://")
		switch scheme {
		case "file":
			if secretPath(c.a.abs(p), c.a.c.Home) {
				c.ask("secrets", "it reads credentials", "leave them where they are")
			}
		case "gopher", "telnet", "dict", "smtp", "ldap":
			c.ask("network-pipe", "it speaks to a service that is no web server", "")
		}
	}
	if strings.Contains(o.value("", "unix-socket"), "docker.sock") {
		c.deny("container-escape", "it speaks to the daemon of containers", "")
	}
}

// upload judges files that are sent out.
func (c *invocation) upload(files []string) {
	for _, f := range files {
		p := c.a.abs(f)
		d, ok := c.a.files[p]
		if secretPath(p, c.a.c.Home) || ok && d.from == fromSecret {
			c.deny("exfiltration", "it sends credentials out", "")
			return
		}
	}
	c.ask("upload", "it sends a file out", "")
}

func (c *invocation) uploads(d data) {
	switch d.from {
	case fromSecret:
		c.deny("exfiltration", "it sends out credentials or the environment", "")
	default:
		if d != (data{}) || c.piped() {
			c.ask("upload", "it sends out what it reads", "")
		}
	}
}

// pipeTool judges programs that join a connection with a process.
func pipeTool(c *invocation) {
	text := strings.Join(c.args, " ")
	o := parseOptions(c.args, "-p", "-s", "-w", "-x", "-X", "-e", "-c", "-i", "-q")
	switch c.name {
	case "openssl":
		if first(c.args) == "s_client" {
			c.uploads(c.in)
			if c.in.from == fromNowhere && c.piped() {
				c.ask("network-pipe", "it joins a pipe with the network", "")
			}
		}
		return
	case "socat":
		up := strings.ToUpper(text)
		switch {
		case strings.Contains(up, "EXEC:") || strings.Contains(up, "SYSTEM:") || strings.Contains(up, "SHELL:"):
			c.deny("reverse-shell", "it joins a process with the network", "")
		default:
			c.ask("network-pipe", "it joins what it reads with the network", "")
		}
		return
	}
	_, exec := o.long["-e"]
	_, shell := o.long["-c"]
	switch {
	case exec || shell && c.name != "telnet" || o.has(0, "exec", "sh-exec", "lua-exec"):
		c.deny("reverse-shell", "it joins a process with the network", "")
	case o.has('z'):
	case c.in.from == fromSecret:
		c.deny("exfiltration", "it sends out credentials or the environment", "")
	case c.in != (data{}) || c.piped() || o.has('l', "listen") || len(o.rest) > 1:
		c.ask("network-pipe", "it joins what it reads with the network", "")
	}
}

// remote judges what works on other machines, or asks them.
func remote(c *invocation) {
	switch c.name {
	case "whois":
		if o := parseOptions(c.args, "-h", "-p", "--host", "--port"); o.value("-h", "host") != "" {
			c.ask("network-pipe", "it sends its words to a host of somebody's choice", "")
		}
		fallthrough
	case "dig", "nslookup", "host", "drill", "ping", "getent", "resolvectl", "kdig", "dog", "delv", "traceroute", "tracepath", "mtr":
		if p := parseOptions(c.args, "-p").long["-p"]; c.name == "ping" && (hasUnknown(p) || c.from > fromHost && c.from < fromNetwork) {
			c.deny("exfiltration", "what fills the packets carries data out", "")
		}
		for _, arg := range c.args {
			if hasUnknown(arg) && strings.Contains(arg, ".") || c.from > fromHost && strings.Contains(arg, ".") {
				c.deny("dns-exfiltration", "the name that is asked for carries data out", "")
				return
			}
			if strings.Count(arg, "") > 64 && strings.Contains(arg, ".") {
				c.ask("dns-exfiltration", "the name that is asked for is long enough to carry data out", "")
			}
		}
	case "scp", "sftp", "ftp", "lftp", "tftp":
		o := parseOptions(c.args, "-P", "-i", "-o", "-F", "-l", "-S", "-c", "-J", "-b")
		for _, option := range []string{"-S", "-o"} {
			if v := o.long[option]; option == "-S" && v != "" || strings.Contains(strings.ToLower(v), "proxycommand") {
				c.deny("ssh-exec", "the option runs a command", "")
			}
		}
		if n := len(o.rest); n > 1 && strings.Contains(o.rest[n-1], ":") {
			c.upload(o.rest[:n-1])
			return
		}
		c.ask("remote", "it copies between machines", "")
	case "ssh", "mosh", "autossh", "sshpass":
		sshRule(c)
	case "mail", "mailx", "s-nail", "sendmail", "mutt", "swaks":
		c.uploads(c.in)
		if slices.ContainsFunc(c.args, func(s string) bool { return secretPath(c.a.abs(s), c.a.c.Home) }) {
			c.deny("exfiltration", "it sends credentials out", "")
		}
		c.ask("upload", "it sends mail", "")
	case "ngrok", "cloudflared", "devtunnel", "frpc", "chisel", "sshuttle", "iodine", "ptunnel", "dnscat2", "telnetd":
		c.deny("tunnel", "it opens this machine to the world", "")
	default:
		c.ask("scan", "it looks at the network", "")
	}
}

func sshRule(c *invocation) {
	o := parseOptions(c.args, "-p", "-i", "-o", "-F", "-l", "-L", "-R", "-D", "-J", "-W", "-b", "-c", "-E", "-m", "-S")
	for _, arg := range c.args {
		low := strings.ToLower(arg)
		if strings.Contains(low, "proxycommand") || strings.Contains(low, "localcommand") || strings.Contains(low, "knownhostscommand") {
			c.deny("ssh-exec", "the option runs a command here", "")
			return
		}
	}
	if o.long["-R"] != "" {
		c.deny("tunnel", "it opens this machine to another", "")
		return
	}
	if c.in.from == fromSecret {
		c.deny("exfiltration", "it sends credentials out", "")
		return
	}
	if i := slices.IndexFunc(c.args, func(s string) bool { return s == "-V" }); i >= 0 {
		return
	}
	if len(o.rest) > 1 && c.name == "ssh" {
		c.a.away++
		c.a.inShell(c, strings.Join(o.rest[1:], " "))
		c.a.away--
	}
	c.ask("remote", "it works on another machine, where nothing is held back", "")
}

func rsync(c *invocation) {
	o := parseOptions(c.args, "-e", "--rsh", "--exclude", "--include", "--filter", "-f")
	if o.has(0, "delete", "delete-after", "delete-before", "delete-excluded", "remove-source-files") {
		c.ask("rsync-delete", "it removes what the other side does not have", "run it with --dry-run first")
	}
	if sh := o.long["-e"] + o.long["rsh"]; sh != "" && !strings.HasPrefix(sh, "ssh") {
		c.a.inShell(c, sh)
		c.ask("ssh-exec", "it reaches the other side by way of a command", "leave it out")
	}
	if n := len(o.rest); n > 1 {
		if to := o.rest[n-1]; strings.Contains(to, ":") {
			c.upload(o.rest[:n-1])
		} else {
			c.a.writes(to, "rsync to")
		}
	}
}
