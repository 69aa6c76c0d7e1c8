package command

import (
	"slices"
	"strings"
)

// gitSetting judges NAME=VALUE.
func (c *invocation) gitSetting(setting string) {
	if dangerousGitKey(setting) {
		c.deny("git-exec", "the setting makes git run a command", "leave it out")
	}
	c.gitAlias(setting)
}

// gitAlias keeps an alias that is git's own words.
func (c *invocation) gitAlias(setting string) {
	key, value, _ := strings.Cut(setting, "=")
	if name, ok := strings.CutPrefix(strings.ToLower(key), "alias."); ok && !strings.HasPrefix(value, "!") && first(strings.Fields(value)) != name {
		c.a.aliases.set("git "+name, value)
	}
}

// gitRuns judges options and addresses with which git runs a command.
func (c *invocation) gitRuns(sub string, o options) {
	for name, value := range o.long {
		if name == "upload-pack" || name == "receive-pack" || name == "exec" && sub != "rebase" || name == "ext-diff" || name == "open-files-in-pager" || strings.HasPrefix(value, "ext::") {
			c.deny("git-exec", "the option makes git run a command", "leave it out")
		}
	}
	for _, p := range o.rest {
		if strings.HasPrefix(p, "ext::") || strings.HasPrefix(p, "fd::") || strings.Contains(p, "://-") || strings.HasPrefix(p, "-oProxyCommand") {
			c.deny("git-exec", "the address makes git run a command", "use https://")
		}
	}
}

// gitWrites judges the files that git is told to write.
func (c *invocation) gitWrites(sub string, o options) {
	files := []string{o.long["output"], o.long["output-directory"]}
	switch sub {
	case "archive", "format-patch":
		files = append(files, o.long["-o"])
	case "bundle":
		if len(o.rest) > 1 && o.rest[0] == "create" {
			files = append(files, o.rest[1])
		}
	}
	for _, p := range files {
		c.a.writes(p, "git writes")
	}
}

// hub is gh's elder, and git for everything else.
func hub(c *invocation) {
	if _, ok := gitRules[first(c.args)]; ok {
		git(c)
		return
	}
	forge(c)
}

func forge(c *invocation) {
	text := strings.Join(c.args, " ")
	if first(c.args) == "gist" && (c.in.from == fromSecret || slices.ContainsFunc(c.args, func(s string) bool { return secretPath(c.a.abs(s), c.a.c.Home) })) {
		c.deny("exfiltration", "it sends credentials out", "")
	}
	if c.name == "hub" && first(c.args) == "delete" {
		c.deny("forge", "it removes or opens what others use", "")
	}
	if first(c.args) == "alias" && strings.Contains(text, "!") {
		c.maybeText(strings.TrimLeft(c.args[len(c.args)-1], "!"))
	}
	for _, bad := range []string{"repo delete", "repo archive", "release delete", "secret delete", "secret set", "ssh-key add", "auth token", "repo edit --visibility", "api -X DELETE", "api --method DELETE"} {
		if strings.HasPrefix(text, bad) || strings.Contains(text, " "+bad) {
			c.deny("forge", "it removes or opens what others use", "")
			return
		}
	}
	if slices.Contains([]string{"gist", "pr", "issue", "release"}, first(c.args)) && len(c.args) > 1 && slices.Contains([]string{"create", "merge", "close", "upload", "edit", "delete"}, c.args[1]) ||
		slices.Contains([]string{"extension", "ext", "workflow", "run", "cache", "variable", "label", "codespace", "repo"}, first(c.args)) && len(c.args) > 1 && slices.Contains([]string{"install", "delete", "cancel", "disable", "set", "rename", "transfer", "sync", "run"}, c.args[1]) ||
		first(c.args) == "api" && anyOf(c.args, []string{"-f", "-F", "--field", "--raw-field", "--input", "PUT", "POST", "PATCH", "-XPUT", "-XPOST", "-XPATCH", "-XDELETE", "--method=DELETE", "--method=PUT", "--method=POST", "--method=PATCH"}) {
		c.ask("forge", "it publishes", "")
	}
}

func hg(c *invocation) {
	o := parseOptions(c.args)
	if c.name == "bfg" || c.name != "svn" && first(c.args) == "push" && o.has('f', "force", "deleted") {
		c.deny("git-history", "it rewrites history that others may have", "")
	}
	if o.has('C', "clean", "remove-unversioned") || first(c.args) == "delete" && strings.Contains(strings.Join(c.args, " "), "://") {
		c.ask("discard", "it throws away what was not committed, or removes it for others", "")
	}
	switch first(c.args) {
	case "strip", "purge", "revert", "rollback", "abandon":
		c.ask("discard", "it throws away what was not committed", "")
	}
}
