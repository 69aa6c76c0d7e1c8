package gates

// group is patterns with the one reason for them.
type group struct {
	why      string
	patterns []string
}

// protectedGroups are what the host executes or trusts without being asked: when a directory is entered or
// opened in an editor, when an agent starts, at any git command. A pattern is a doublestar glob relative to
// the workspace; letters' case and look-alikes do not matter (see fold). Build files that run when somebody
// builds are normal work and not here.
var protectedGroups = []group{
	{"git runs what a repository's own files say: hooks, filters, fsmonitor, aliases", []string{
		"**/.git/**", "**/.githooks/**", "**/.git-hooks/**", "**/.husky/**",
		"**/.pre-commit-config.y{a,}ml", "**/{.,}lefthook{-local,}.{yml,yaml,toml,json}", "**/.lefthook{-local,}/**",
		"**/.overcommit.yml", "**/.{,simple-}git-hooks.{js,cjs,mjs,json}", "**/.huskyrc*",
	}},
	{"a shell runs it when the directory is entered", []string{
		"**/.envrc", "**/.autoenv{,.zsh}", "**/.smartcd/**", "**/{.,}mise{.local,}.toml", "**/{.,}mise/config{,.*}.toml", "**/.config/mise{,.toml,/**}", "**/.rtx.toml",
	}},
	{"an editor runs it, or starts programs that it names, when the workspace is opened", []string{
		"**/.vscode/{tasks,settings,launch,mcp}.json", "**/*.code-workspace",
		"**/.devcontainer/**", "**/.devcontainer.json",
		"**/.idea/**", "**/.run/*.run.xml", "**/.fleet/**", "**/.zed/**",
		"**/.{vimrc,exrc,nvimrc,nvim.lua,lvimrc,vimspector.json}", "**/_{vimrc,exrc}", "**/.vim/**",
		"**/.dir-locals{,-2}.el", "**/.helix/**",
	}},
	{"a coding agent runs it, or starts servers that it names", []string{
		"**/.claude/{settings,settings.*}.json", "**/.claude/{hooks,plugins,agents,skills}/**", "**/.claude.json", "**/.mcp.json",
		"**/.cursor/{mcp,hooks,environment,permissions,cli}.json", "**/.cursor/hooks/**",
		"**/.codex/**", "**/.gemini/**", "**/.qwen/**", "**/.opencode/**", "**/opencode.json{,c}",
		"**/.aider{.,}*", "**/{.,}crush.json", "**/.continue/**", "**/.roo/mcp.json", "**/.windsurf/{mcp,hooks}.json", "**/.amazonq/**", "**/.kiro/{hooks,settings}/**",
		"**/.github/{hooks,copilot}/**", "**/.goose/**",
	}},
	{"a debugger or interpreter runs it when it starts in the directory", []string{
		"**/.gdbinit", "**/.lldbinit", "**/.Rprofile", "**/.RData", "**/.octaverc", "**/.irbrc", "**/.pryrc", "**/.radare2rc",
	}},
	{"it says what the sandbox itself may do", []string{"**/.caisson.y{a,}ml"}},
	{"where the workspace is a home directory, the host runs or trusts it at login", []string{
		".{bashrc,bash_profile,bash_login,bash_logout,bash_aliases,profile,zshrc,zshenv,zprofile,zlogin,zlogout,kshrc,mkshrc,cshrc,tcshrc,login}",
		".{xprofile,xinitrc,xsession,xsessionrc,pam_environment,inputrc,forward,emacs,tmux.conf,screenrc,netrc,pypirc,pythonrc,psqlrc,sqliterc,wgetrc,curlrc,gitconfig}",
		".{ssh,gnupg,aws,kube,docker,emacs.d,oh-my-zsh,zsh,bashrc.d}/**",
		".config/{autostart,systemd,environment.d,fish,git,nvim,Code,Cursor,zsh,containers,gh,gcloud}/**",
		".local/{bin,share/applications,share/systemd,share/dbus-1,share/code-server}/**",
	}},
}

// watchedGroups are what runs later, but only because somebody asks for it, or what steers a reader. They are
// reported, not refused.
var watchedGroups = []group{
	{"the project's CI runs it, with the project's secrets", []string{
		".github/{workflows,actions}/**", ".github/{dependabot,CODEOWNERS}*", "**/CODEOWNERS",
		".gitlab-ci.y{a,}ml", ".gitlab/**", ".circleci/**", ".travis.y{a,}ml", "Jenkinsfile*", "azure-pipelines*.y{a,}ml",
		"bitbucket-pipelines.yml", ".drone.y{a,}ml", ".woodpecker{/**,.y{a,}ml}", ".buildkite/**", ".{forgejo,gitea}/workflows/**",
		".teamcity/**", "{.,}appveyor.yml", ".cirrus.{yml,star}", ".semaphore/**", "cloudbuild.y{a,}ml", "buildspec.yml", ".pre-commit-hooks.yaml",
	}},
	{"it chooses the program, registry or plugin that a build tool uses", []string{
		"**/.npmrc", "**/.yarnrc{,.yml}", "**/.yarn/{releases,plugins}/**", "**/.pnp.{cjs,js}", "**/.pnp.loader.mjs", "**/.pnpmfile.cjs", "**/bunfig.toml",
		"**/.cargo/config{,.toml}", "**/{pip.conf,.pip/**,.pypirc}", "**/.bazelrc", "**/.bazeliskrc", "tools/bazel", "**/.buckconfig*",
		"**/.mvn/**", "**/gradle/wrapper/**", "**/.bundle/config", "**/{nuget,NuGet}.config", "**/.tool-versions",
		"**/sitecustomize.py", "**/usercustomize.py",
	}},
	{"shells and programs load it as their environment", []string{"**/.env{,.*}", "**/.envrc.*"}},
	{"git obeys it together with the user's own configuration", []string{"**/.gitmodules", "**/.gitattributes"}},
	{"a coding agent takes it for instructions", []string{
		"**/{CLAUDE,CLAUDE.local,AGENTS,AGENT,GEMINI,CODEX,WARP}.md", "**/.claude/**", "**/.cursor/**", "**/.cursorrules", "**/.windsurf/**", "**/.windsurfrules",
		"**/.clinerules{,/**}", "**/.roo/**", "**/.kiro/**", "**/.junie/**", ".github/copilot-instructions.md", ".github/{instructions,prompts,agents}/**", "**/.goosehints",
	}},
	{"a desktop or file manager may run it", []string{"**/*.desktop", "**/autorun.inf", "**/desktop.ini", "**/*.lnk", "**/*.url"}},
	{"an editor offers to run or install it", []string{"**/.vscode/**", "**/*.sublime-project", "**/.nova/**", "**/.theia/**"}},
}

// systemTrees hold the host's programs, which only root writes. A link into them leaves the workspace but
// gives nothing away; Python's virtual environments are full of them.
var systemTrees = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix/store", "/gnu/store", "/dev/null"}

// DefaultProtected returns the patterns whose change is refused.
func DefaultProtected() []string { return flatten(protectedGroups) }

// DefaultWatched returns the patterns whose change is reported.
func DefaultWatched() []string { return flatten(watchedGroups) }

func flatten(gs []group) (all []string) {
	for _, g := range gs {
		all = append(all, g.patterns...)
	}
	return all
}

// reasons is why each built-in pattern is there.
func reasons() map[string]string {
	m := map[string]string{}
	for _, gs := range [][]group{watchedGroups, protectedGroups} {
		for _, g := range gs {
			for _, p := range g.patterns {
				m[p] = g.why
			}
		}
	}
	return m
}
