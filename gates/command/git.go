package command

import (
	"path"
	"slices"
	"strings"
)

func repositoryRules(t table) {
	gitRules = gitCommands()
	t["git"], t["gh"], t["glab"], t["hub"], t["hg"], t["svn"], t["jj"], t["bfg"] = git, forge, forge, hub, hg, hg, hg, hg
}

// gitKeys are settings with which git runs a command of somebody's choice.
var gitKeys = []string{"core.sshcommand", "core.fsmonitor", "core.pager", "core.editor", "core.hookspath", "core.gitproxy", "core.askpass", "core.alternaterefscommand",
	"sequence.editor", "diff.external", "gpg.program", "uploadpack.packobjectshook", "init.templatedir", "include.path", "http.proxy", "http.sslverify", "protocol.ext.allow", "protocol.allow", "credential.helper",
	"clean.requireforce", "core.attributesfile", "interactive.difffilter", "sendemail.smtpserver", "sendemail.sendmailcmd", "core.virtualfilesystem"}

func dangerousGitKey(setting string) bool {
	key, value, _ := strings.Cut(strings.ToLower(setting), "=")
	if slices.Contains(gitKeys, key) {
		return !(key == "core.pager" && (value == "cat" || value == "") || key == "core.editor" && (value == "true" || value == ":") || key == "credential.helper" && !strings.HasPrefix(value, "!") && !strings.HasPrefix(value, "/"))
	}
	return strings.HasPrefix(key, "alias.") && strings.HasPrefix(value, "!") || strings.HasPrefix(key, "includeif.") ||
		strings.HasPrefix(key, "filter.") || strings.HasSuffix(key, ".textconv") || strings.HasSuffix(key, ".command") || strings.HasSuffix(key, ".driver") ||
		strings.HasPrefix(key, "pager.") && value != "false" && value != "cat" && value != "" || strings.HasPrefix(key, "url.") || strings.HasPrefix(key, "credential.") && strings.HasSuffix(key, ".helper") && (strings.HasPrefix(value, "!") || strings.HasPrefix(value, "/")) ||
		strings.HasPrefix(key, "submodule.") && strings.HasPrefix(value, "!") || strings.HasPrefix(key, "remote.") && (strings.HasSuffix(key, "pack") || strings.HasSuffix(key, ".vcs")) || strings.HasPrefix(key, "http.") && strings.HasSuffix(key, ".sslverify") || strings.HasSuffix(key, ".cmd") || strings.HasSuffix(key, ".program")
}

// git judges git: what loses work, what rewrites what others have, and what makes git run something.
func git(c *invocation) {
	i := 0
	for ; i < len(c.args); i++ {
		arg := c.args[i]
		if arg == "" || arg[0] != '-' {
			break
		}
		switch {
		case arg == "-c" || arg == "--config-env" || arg == "--exec-path" || arg == "--git-dir" || arg == "--work-tree" || arg == "--namespace" || arg == "-C":
			if i++; i < len(c.args) && (arg == "-c" || arg == "--config-env") {
				c.gitSetting(c.args[i])
			}
		case strings.HasPrefix(arg, "-c") && dangerousGitKey(arg[2:]) || strings.HasPrefix(arg, "--config-env=") && dangerousGitKey(arg[len("--config-env="):]) || strings.HasPrefix(arg, "--exec-path="):
			c.deny("git-exec", "the setting makes git run a command", "leave it out")
		}
	}
	if i >= len(c.args) {
		return
	}
	sub, args := strings.ToLower(c.args[i]), c.args[i+1:]
	if hasUnknown(sub) {
		c.ask("unresolved", "which git command runs cannot be told beforehand", "")
		return
	}
	if slices.Contains(args, "--help") {
		return
	}
	o := parseOptions(args, "-m", "-F", "-C", "-c", "-b", "-B", "-u", "--message", "--file", "--exec", "--orphan", "-o", "--conflict", "-s")
	if rule, ok := gitRules[sub]; ok {
		rule(c, o, args)
	} else if text, ok := c.a.aliases.get("git " + sub); ok {
		c.a.run(slices.Concat([]string{"git"}, strings.Fields(text), args), c.in, c.env, c.from)
	}
	c.gitRuns(sub, o)
	c.gitWrites(sub, o)
}

const stash = "commit or `git stash` first"

var gitRules map[string]func(c *invocation, o options, args []string)

// gitCommands are the rules of git's own commands.
func gitCommands() map[string]func(c *invocation, o options, args []string) {
	return map[string]func(c *invocation, o options, args []string){
		"push": gitPush, "checkout": gitCheckout, "config": gitConfig,
		"reset": func(c *invocation, o options, args []string) {
			if o.has(0, "hard", "merge") || slices.ContainsFunc(args, func(s string) bool { return len(s) > 2 && strings.HasPrefix("--hard", s) }) {
				c.deny("git-discard", "it throws away what was not committed", stash)
			}
		},
		"clean": func(c *invocation, o options, _ []string) {
			if o.has('f', "force") && o.has('n', "dry-run") {
				c.ask("git-discard", "-n and -f together", "git clean -n")
			} else if o.has('f', "force") {
				c.deny("git-discard", "it removes files that git does not know", "look with git clean -n, then remove what is meant")
			}
		},
		"restore": func(c *invocation, o options, _ []string) {
			if !o.has('S', "staged") || o.has('W', "worktree") {
				c.ask("git-discard", "it throws away what was not committed", stash)
			}
		},
		"switch": func(c *invocation, o options, _ []string) {
			if o.has('f', "force", "discard-changes") || o.has('C', "force-create") {
				c.ask("git-discard", "it throws away what was not committed", stash)
			}
		},
		"stash": func(c *invocation, o options, _ []string) {
			if len(o.rest) > 0 && (o.rest[0] == "drop" || o.rest[0] == "clear") {
				c.ask("git-discard", "it throws a stash away", "")
			}
		},
		"branch": func(c *invocation, o options, _ []string) {
			if o.short['D'] || o.has('f', "force") || o.has('d', "delete") && o.has('f', "force") {
				c.ask("git-discard", "it removes or moves a branch, merged or not", "git branch -d")
			}
		},
		"worktree": func(c *invocation, o options, _ []string) {
			if len(o.rest) > 0 && o.rest[0] == "remove" && o.has('f', "force") {
				c.ask("git-discard", "it removes a work tree with what was not committed", "")
			}
		},
		"tag": func(c *invocation, o options, _ []string) {
			if o.has('d', "delete") || o.has('f', "force") {
				c.ask("git-discard", "it removes or moves a tag", "")
			}
		},
		"filter-branch": gitRewrite, "filter-repo": gitRewrite, "replace": gitRewrite,
		"reflog": func(c *invocation, o options, _ []string) {
			if len(o.rest) > 0 && (o.rest[0] == "expire" || o.rest[0] == "delete") {
				c.deny("git-history", "it removes the last way back to lost commits", "")
			}
		},
		"gc": func(c *invocation, o options, _ []string) {
			if v, ok := o.long["prune"]; ok && (v == "now" || v == "all") {
				c.ask("git-history", "it removes the last way back to lost commits", "git gc")
			}
		},
		"update-ref": func(c *invocation, o options, _ []string) {
			c.ask("git-history", "it moves or removes a reference by hand", "")
		},
		"rm": func(c *invocation, o options, _ []string) {
			if o.has(0, "cached") { // the files stay
				return
			}
			if o.has('f', "force") || slices.Contains(o.rest, ".") || slices.Contains(o.rest, "*") {
				c.ask("git-discard", "it removes files with what was not committed", "")
			}
		},
		"rebase": func(c *invocation, _ options, args []string) {
			o := parseOptions(args, "-x", "--exec")
			if text := o.long["-x"] + o.long["exec"]; text != "" {
				c.a.inShell(c, text)
			}
		},
		"bisect": func(c *invocation, _ options, args []string) {
			if len(args) > 1 && args[0] == "run" {
				c.a.run(args[1:], c.in, c.env, c.from)
			}
		},
		"add": func(c *invocation, o options, _ []string) {
			if slices.ContainsFunc(o.rest, func(p string) bool { return secretPath(c.a.abs(p), c.a.c.Home) }) {
				c.ask("secrets", "whoever has the repository has the credentials too", "name the file in .gitignore")
			}
		},
		"submodule": func(c *invocation, o options, args []string) {
			if i := slices.Index(args, "foreach"); i >= 0 {
				words := args[i+1:]
				c.a.inShell(c, strings.Join(words[(wrapper{}).options(words):], " "))
			}
			if (slices.Contains(o.rest, "deinit") || slices.Contains(o.rest, "update")) && o.has('f', "force") {
				c.ask("git-discard", "it removes a submodule with what was not committed", "")
			}
		},
		"clone": gitTemplate, "init": gitTemplate,
		"grep": func(c *invocation, _ options, args []string) {
			if slices.ContainsFunc(args, func(s string) bool { return strings.HasPrefix(s, "-O") && len(s) > 2 }) {
				c.deny("git-exec", "git grep runs a command on what it finds", "leave -O out")
			}
		},
		"checkout-index": func(c *invocation, o options, _ []string) {
			if o.has('f', "force") {
				c.ask("git-discard", "it throws away what was not committed", stash)
			}
		},
		"read-tree": func(c *invocation, _ options, args []string) {
			if slices.Contains(args, "--reset") && slices.Contains(args, "-u") {
				c.deny("git-discard", "it throws away what was not committed", stash)
			}
		},
		"prune": func(c *invocation, _ options, _ []string) {
			c.ask("git-history", "it removes lost commits for good", "git gc")
		},
		"credential": func(c *invocation, _ options, _ []string) { c.ask("secrets", "it reads or changes credentials", "") },
		"apply": func(c *invocation, o options, _ []string) {
			if o.has(0, "unsafe-paths") {
				c.ask("outside-write", "the patch may change files outside of the workspace", "leave --unsafe-paths out")
			}
		},
		"instaweb": func(c *invocation, _ options, _ []string) {
			c.ask("upload", "it shows the repository to the network", "")
		},
		"daemon": func(c *invocation, _ options, _ []string) {
			c.ask("upload", "it shows repositories to the network", "")
		},
		"maintenance": func(c *invocation, o options, _ []string) {
			if first(o.rest) == "start" {
				c.deny("persistence", "what it sets up runs later, outside of this task", "git maintenance run")
			}
		},
		"difftool": gitTool, "mergetool": gitTool,
		"send-email": func(c *invocation, _ options, _ []string) { c.ask("upload", "it sends mail", "") },
	}
}

// gitTemplate judges what makes a repository: hooks and settings may come with it.
func gitTemplate(c *invocation, _ options, args []string) {
	o := parseOptions(args, "-c", "-b", "-o", "-u", "-j", "--config", "--template", "--depth", "--branch", "--origin", "--reference", "--separate-git-dir", "--initial-branch", "--jobs")
	if dangerousGitKey(o.value("-c", "config")) {
		c.deny("git-exec", "the setting makes git run a command", "leave it out")
	}
	if _, ok := o.long["-u"]; ok {
		c.deny("git-exec", "the option makes git run a command", "leave it out")
	}
	if o.value("", "template") != "" {
		c.ask("git-exec", "hooks of the template run later", "leave it out")
	}
	if first(c.args) == "clone" && len(o.rest) > 0 {
		dir := strings.TrimSuffix(path.Base(o.rest[0]), ".git")
		if len(o.rest) > 1 {
			dir = o.rest[1]
		}
		c.a.fetched = append(c.a.fetched, c.a.abs(dir))
	}
}

func gitTool(c *invocation, _ options, args []string) {
	o := parseOptions(args, "-x", "--extcmd")
	if text := o.long["-x"] + o.long["extcmd"]; text != "" {
		c.a.inShell(c, text)
	}
}

func gitRewrite(c *invocation, _ options, _ []string) {
	c.deny("git-history", "it rewrites the repository's history", "")
}

func gitPush(c *invocation, o options, args []string) {
	o = parseOptions(args, "-o", "--push-option", "--repo", "--receive-pack", "--exec")
	rest := o.rest
	switch {
	case o.has(0, "force-with-lease", "force-if-includes") && !o.short['f'] && !slices.Contains(args, "--force"):
		c.ask("git-push-force", "it rewrites a branch that others may have", "")
	case o.short['f'] || slices.Contains(args, "--force"):
		c.deny("git-push-force", "it overwrites what others have pushed", "git push --force-with-lease")
	}
	switch {
	case o.has(0, "mirror", "prune"):
		c.deny("git-push-delete", "it removes branches of the remote", "")
	case o.has('d', "delete"):
		for _, name := range rest[min(1, len(rest)):] {
			c.deletesBranch(name)
		}
	}
	for _, spec := range rest[min(1, len(rest)):] {
		if strings.HasPrefix(spec, "+") {
			c.deny("git-push-force", "it overwrites what others have pushed", "git push --force-with-lease")
		}
		if strings.HasPrefix(spec, ":") && len(spec) > 1 {
			c.deletesBranch(spec[1:])
		}
	}
}

// deletesBranch judges the removal of a branch or tag of the remote: of one that others build on, or of somebody's own.
func (c *invocation) deletesBranch(name string) {
	name = strings.TrimPrefix(name, "refs/heads/")
	if slices.Contains([]string{"main", "master", "develop", "development", "production", "release", "stable", "staging", "trunk"}, name) || strings.ContainsAny(name, "*"+unknownText) {
		c.deny("git-push-delete", "it removes a branch of the remote that others build on", "")
		return
	}
	c.ask("git-push-delete", "it removes a branch or tag of the remote", "")
}

// gitCheckout: with a path it throws away what was not committed; with a branch it does not.
func gitCheckout(c *invocation, o options, args []string) {
	dashes := slices.Index(args, "--")
	_, b := o.long["-b"]
	_, orphan := o.long["orphan"]
	_, fromFile := o.long["pathspec-from-file"]
	_, forced := o.long["-B"]
	rest := len(o.rest)
	switch {
	case o.has('f', "force") || o.has(0, "ours", "theirs") || fromFile || forced:
	case dashes >= 0 && dashes < len(args)-1:
	case b || orphan:
		return
	case slices.Contains(o.rest, "."):
	case rest > 1:
	case rest == 1 && (strings.Contains(o.rest[0], "*") || strings.HasSuffix(o.rest[0], "/") || strings.HasPrefix(o.rest[0], "./")):
	default:
		return
	}
	c.ask("git-discard", "it throws away what was not committed", stash)
}

func gitConfig(c *invocation, o options, args []string) {
	if o.has('l', "list", "get", "get-all", "get-regexp", "show-origin") || slices.Contains([]string{"list", "get"}, first(o.rest)) {
		return
	}
	words := o.rest
	if first(words) == "set" {
		words = words[1:]
	}
	if n := len(words); n > 1 {
		c.gitAlias(words[n-2] + "=" + words[n-1])
	}
	global, risky := o.has(0, "global", "system"), false
	for i := range max(len(words)-1, 0) { // -f FILE may stand before
		risky = risky || dangerousGitKey(words[i]+"="+words[i+1])
	}
	switch {
	case len(words) < 2 || global && harmlessGitKey(words[0]) && !risky:
	case len(words) == 2 && c.plainGitSetting(words[0], words[1]) && (global || risky):
		c.ask("git-exec", "it changes where git connects to, or what it starts", "leave it out")
	case len(words) == 2 && strings.HasPrefix(strings.ToLower(words[0]), "alias.") && strings.HasPrefix(words[1], "!"):
		c.a.inShell(c, words[1][1:])
		c.ask("git-exec", "the setting makes git run a command later", "leave it out")
	case risky:
		c.deny("git-exec", "the setting makes git run a command later", "leave it out")
	case global:
		c.ask("persistence", "it changes git for every repository", "git config --local")
	}
}

// harmlessGitKey reports whether a setting says who somebody is, or how things look, and starts nothing.
func harmlessGitKey(key string) bool {
	key = strings.ToLower(key)
	return slices.Contains([]string{"user.name", "user.email", "user.signingkey", "init.defaultbranch", "core.autocrlf", "core.eol", "core.quotepath", "core.filemode", "core.longpaths", "core.ignorecase", "core.excludesfile", "push.default",
		"push.autosetupremote", "commit.gpgsign", "fetch.prune", "help.autocorrect", "merge.conflictstyle", "merge.ff", "rerere.enabled"}, key) || slices.ContainsFunc([]string{"advice.", "color.", "pull.", "rebase."}, func(p string) bool { return strings.HasPrefix(key, p) })
}

// plainGitSetting reports whether a setting names an editor or pager that everybody has, or another way to the same service.
func (c *invocation) plainGitSetting(key, value string) bool {
	key = strings.ToLower(key)
	tool, _, _ := strings.Cut(value, " ")
	switch {
	case strings.ContainsAny(value, ";|&$`<>()\n!"+unknownText):
		return false
	case key == "core.editor" || key == "core.pager" || strings.HasPrefix(key, "pager."):
		return slices.Contains(pagersAndEditors, tool) && !strings.Contains(value, " +") && !strings.Contains(value, " -c")
	case key == "core.hookspath":
		return !path.IsAbs(value) && !strings.HasPrefix(value, "~") && c.a.where(value) == inWorkspace
	case strings.HasPrefix(key, "url.") && (strings.HasSuffix(key, ".insteadof") || strings.HasSuffix(key, ".pushinsteadof")):
		return !strings.HasPrefix(key, "url.ext::")
	}
	return key == "http.proxy" || key == "https.proxy" || key == "http.sslverify" || key == "credential.helper" && !strings.HasPrefix(value, "/")
}

var pagersAndEditors = []string{"bat", "cat", "code", "delta", "emacs", "gedit", "head", "less", "more", "nano", "nvim", "sed", "subl", "vi", "vim"}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}
