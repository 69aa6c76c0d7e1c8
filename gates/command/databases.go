package command

import (
	"regexp"
	"slices"
	"strings"
	"sync"
)

func databaseRules(t table) {
	for _, name := range []string{"psql", "mysql", "mariadb", "sqlcmd", "sqlplus", "mongo", "mongosh", "redis-cli", "valkey-cli", "cqlsh", "clickhouse-client", "dropdb", "dropuser", "mysqladmin", "bq", "influx", "duckdb", "cockroach", "usql", "pg_restore", "rails", "rake", "prisma", "php-artisan"} {
		t[name] = database
	}
	for _, name := range []string{"keydb-cli", "iredis", "mongorestore", "cypher-shell", "beeline", "hive", "impala-shell", "trino", "presto", "snowsql", "sqlcl", "pgcli", "mycli", "litecli", "isql", "tsql", "hbase", "flyway", "liquibase", "alembic",
		"knex", "mix", "diesel", "sqlx", "goose", "dbmate", "typeorm", "sequelize", "flask", "turso"} {
		t[name] = database
	}
	t["pg_dropcluster"], t["pg_resetwal"], t["pg_ctl"] = databaseServer, databaseServer, databaseServer
}

// destroys finds what loses data whatever else the statement says.
var destroys = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?is)\b(drop\s+(table|database|schema|user|role|index|view|collection|keyspace|owned)|truncate(\s+table)?\s+\w|alter\s+table\s+\S+\s+drop\s+(column|partition)|flushall|flushdb|dropdatabase|reset\s+master|detach\s+delete)|` +
		`\.drop\(|^\s*drop\s+['"]|\b(deletemany|\.remove)\(\s*\{\s*\}`)
})

// changes finds what loses data unless it says of which rows.
var changes = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?is)\b(delete\s+([\w.*,\x60]+\s+){0,4}from\s+\S|update\s+\S+\s+set\s)`)
})

// rows are a condition, and one that every row meets.
var (
	rows    = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?is)\bwhere\b`) })
	allRows = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?is)\bwhere\s+(true|1|1\s*=\s*1|'(\w*)'\s*=\s*'\w*')\s*($|"|'$)`)
	})
)

// losesData reports whether one of several statements loses data.
func (a *analyzer) losesData(text string) bool {
	for s := range strings.SplitSeq(text, ";") {
		if a.matches(destroys(), s) || a.matches(changes(), s) && (!rows().MatchString(s) || allRows().MatchString(s)) {
			return true
		}
	}
	return false
}

// withoutLiterals is a statement without texts in it that the database only keeps or compares. Where a quote may be something
// else, or a text is run, it is the statement itself.
func (a *analyzer) withoutLiterals(text string) string {
	if !strings.Contains(text, "'") || strings.ContainsAny(text, "\\\"`#$") || strings.Contains(text, "--") || strings.Contains(text, "/*") || a.matches(runsText(), text) {
		return text
	}
	parts := strings.Split(text, "'")
	if len(parts)%2 == 0 {
		return text
	}
	for i := 1; i < len(parts); i += 2 {
		parts[i] = ""
	}
	return strings.Join(parts, "'")
}

// runsText finds what runs a text as a statement, or as a program.
var runsText = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b(call|dblink\w*|do|eval\w*|exec\w*|gexec|immediate|load_extension|openquery|openrowset|perform|prepare|\w*_to_xml\w*|program|sp_\w*|system|xp_\w*)\b`)
})

// statement is what loses data, as an argument of a program that nobody knows.
var statement = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?is)(^|;)\s*(drop\s+(table|database|schema|keyspace|user|role)\s+\S+\s*(cascade\s*)?(;|$)|drop\s+\w+\s+if\s+exists|truncate\s+(table\s+)?[\w."]+\s*(cascade\s*)?(;|$)|delete\s+from\s+[\w."]+\s*(;|$))`)
})

var (
	sqlComment = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?s)/\*(?:[^!].*?)??\*/|(^|\s)--\s[^\n]*`) })
	// shellFromSQL are the ways of databases and their clients to a shell.
	shellFromSQL = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?im)\\!|\bxp_cmdshell\b|\bcopy\b[^;]*\b(from|to)\s+program\b|^\s*\\(o|g|w)\s*\||^\s*\.(shell|system)\b|^\s*\.(read|import|once|output|excel)\s+["']?\||^\s*system\s+\w|\bload_extension\s*\(|\bsys_(exec|eval)\s*\(|\bsystem\.exec\b`)
	})
	// filesFromSQL are their ways to the server's files and users.
	filesFromSQL = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?is)\binto\s+(outfile|dumpfile)\b|\bcopy\b[^;]*\bto\s+'/|\b(pg_read_file|lo_export|lo_import|load_file)\s*\(|\bgrant\s+all\b|\balter\s+(user|role)\b|\bcreate\s+(user|role)\b|\balter\s+system\b`)
	})
	// redisWords are what gives a server of redis other files, other masters or other code.
	redisWords = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?i)\b(config\s+set\s+(dir|dbfilename)|shutdown|debug\s+\w+|slaveof|replicaof|module\s+load|script\s+flush|function\s+flush|acl\s+setuser)\b|\b(del|unlink)\s.*` + unknownText + `|--eval\b`)
	})
)

// destroysData finds what frameworks call emptying a database.
func destroysData(text string) bool {
	for _, bad := range []string{"artisan migrate:fresh", "artisan migrate:reset", "artisan db:wipe", "manage.py flush", "manage.py reset_db", "prisma migrate reset", "prisma db push --force-reset", "db:drop", "db:reset", "migrate:refresh",
		"alembic downgrade base", "db downgrade base", "mix ecto.drop", "mix ecto.reset", "flyway clean", "liquibase drop-all", "liquibase dropAll", "migrate:rollback --all", "schema:drop", "database:drop", "diesel database reset", "sqlx database drop",
		"sqlx database reset", "goose reset", "dbmate drop", "undo:all"} {
		if strings.Contains(text, bad) {
			return true
		}
	}
	return false
}

func database(c *invocation) {
	if slices.Contains([]string{"bq", "influx", "turso"}, c.name) {
		manages(c)
	}
	words := strings.Join(c.args, " ")
	named := c.statementFiles()
	if c.in.long {
		c.tooLong()
	}
	switch {
	case c.name == "dropdb" || c.name == "dropuser" || c.name == "mysqladmin" && slices.Contains(c.args, "drop"), c.name == "pg_restore" && parseOptions(c.args).has('c', "clean"),
		destroysData(c.name + " " + words):
		c.deny("database", "it destroys a database", "")
	case c.name == "mongorestore" && slices.Contains(c.args, "--drop"), c.name == "mysqladmin" && slices.Contains(c.args, "shutdown"):
		c.ask("database", "it replaces or stops a database", "")
	case slices.Contains([]string{"redis-cli", "valkey-cli", "keydb-cli", "iredis"}, c.name) && c.a.matches(redisWords(), words):
		c.ask("database", "it changes the server, or removes what cannot be told", "")
	case c.in.from == fromNetwork || slices.ContainsFunc(named, func(p string) bool { return c.a.files[c.a.abs(p)].from == fromNetwork }):
		c.ask("download-run", "it runs statements from the network", "download, read, then run")
	}
	for _, text := range []string{c.in.text, words} {
		c.statements(text)
	}
	for _, p := range named {
		c.statementFile(p)
	}
	for _, text := range c.args { // what stands behind a statement is no part of it
		if strings.ContainsAny(text, " \t\n") && text != words {
			c.statements(text)
		}
	}
}

// statementOptions are the options whose value is a file of statements.
var statementOptions = map[string][]string{
	"psql": {"-f", "--file"}, "usql": {"-f", "--file"}, "pgcli": {"-f", "--file"}, "cockroach": {"-f", "--file"}, "cqlsh": {"-f", "--file"}, "cypher-shell": {"-f", "--file"}, "impala-shell": {"-f", "--query_file"}, "snowsql": {"-f", "--filename"},
	"trino": {"-f", "--file"}, "presto": {"-f", "--file"}, "influx": {"-f", "--file"}, "mongo": {"-f", "--file"}, "mongosh": {"-f", "--file"}, "hive": {"-f", "-i"}, "beeline": {"-f", "-i"}, "prisma": {"--file"},
	"sqlite3": {"-init"}, "duckdb": {"-init", "-f"}, "sqlcmd": {"-i"}, "isql": {"-i"}, "clickhouse-client": {"--queries-file"}, "redis-cli": {"--eval"}, "valkey-cli": {"--eval"}, "keydb-cli": {"--eval"},
}

// statementFiles are the files of statements that a client's command line names.
func (c *invocation) statementFiles() (files []string) {
	options := statementOptions[c.name]
	if c.name == "cockroach" && !slices.Contains(c.args, "sql") { // its other commands write to such a file
		options = nil
	}
	for i, arg := range c.args {
		for _, option := range options {
			value, joined := strings.CutPrefix(arg, option)
			switch {
			case arg == option && i+1 < len(c.args):
				files = append(files, c.args[i+1])
			case joined && value != "" && (option[1] != '-' && len(option) == 2 || value[0] == '='):
				files = append(files, strings.TrimPrefix(value, "="))
			}
		}
		switch {
		case slices.Contains([]string{"sqlplus", "sqlcl"}, c.name) && len(arg) > 1 && arg[0] == '@':
			files = append(files, strings.TrimLeft(arg, "@"))
		case strings.HasPrefix(c.name, "mongo") && strings.HasSuffix(arg, ".js"):
			files = append(files, arg)
		}
	}
	return files
}

// statementFile judges the statements of a file, and of those that it reads in.
func (c *invocation) statementFile(file string) {
	p := c.a.abs(file)
	if name := "statements " + p; !slices.Contains(c.a.calling, name) && len(c.a.calling) < maxDepth {
		c.a.calling = append(c.a.calling, name)
		c.statements(c.named(p))
		c.a.calling = c.a.calling[:len(c.a.calling)-1]
	}
}

// readsFile finds where a client's own command reads a file of statements in.
var readsFile = func() map[string]func() *regexp.Regexp {
	clients := map[string]func() *regexp.Regexp{}
	for command, names := range map[string][]string{
		`\\(?:ir?|include(?:_relative)?)\s+`: {"psql", "usql", "pgcli", "cockroach"},
		`(?:source|\\\.)\s+`:                 {"mysql", "mariadb", "mycli", "cqlsh", "hive"},
		`\.read\s+`:                          {"sqlite3", "duckdb", "litecli"},
		`@@?`:                                {"sqlplus", "sqlcl"},
	} {
		pattern := sync.OnceValue(func() *regexp.Regexp {
			return regexp.MustCompile(`(?im)(?:^(?:-[ce])?|;)\s*` + command + `["']?([^\s"';|]+)`)
		})
		for _, name := range names {
			clients[name] = pattern
		}
	}
	return clients
}()

// statements judges statements, and a client's own commands.
func (c *invocation) statements(text string) {
	if (strings.Contains(text, "/*") || strings.Contains(text, "--")) && c.a.spend(len(text)/2) {
		text = sqlComment().ReplaceAllString(text, " ")
	}
	switch {
	case text == "":
	case c.a.losesData(c.a.withoutLiterals(text)):
		c.deny("database", "the statement loses data", "say which rows with WHERE, in a transaction")
	case c.a.matches(shellFromSQL(), text):
		c.deny("editor-shell", "the client, or the server, is told to start a shell", "")
	case c.a.matches(filesFromSQL(), text):
		c.ask("database", "the statement reaches the server's files or its users", "")
	}
	c.includes(text)
	if _, command, ok := strings.Cut(text, " "); ok && c.name == "sqlite3" && (strings.HasPrefix(text, ".shell ") || strings.HasPrefix(text, ".system ")) {
		c.a.inShell(c, command)
	}
}

// includes judges the files that a text reads in.
func (c *invocation) includes(text string) {
	pattern := readsFile[c.name]
	if pattern == nil || !strings.ContainsAny(text, `\.@`) && !strings.Contains(strings.ToLower(text), "source") || !c.a.spend(1+len(text)/2) {
		return
	}
	for _, m := range pattern().FindAllStringSubmatch(text, maxItems) {
		c.statementFile(m[1])
	}
}

func databaseServer(c *invocation) {
	if c.name == "pg_ctl" && !anyOf(c.args, []string{"stop", "kill", "promote", "unregister"}) {
		return
	}
	c.ask("database", "it stops a database, or resets its files", "")
}
