package files

import "testing"

func TestImmutable(t *testing.T) {
	keys := ImmutableConfig{Keys: map[string][]string{"package.json": {"scripts.*", "engines"}, "**/*.yaml": {"spec.*.image", `"a.b".c`}, "*.toml": {"tool.x.y"}}}
	paths := ImmutableConfig{Paths: []string{"LICENSE", "migrations/**", "!migrations/draft/**"}}
	const pkg = `{"name": "x", "scripts": {"test": "go test", "n": 1}, "engines": {"node": ">=20", "v": [1, 2]}}`
	for _, c := range []struct {
		name     string
		config   ImmutableConfig
		old, now files
		want     string
	}{
		{"new migration", paths, files{"migrations/1": "x"}, files{"migrations/1": "x", "migrations/2": "y"}, ""},
		{"old migration", paths, files{"migrations/1": "x"}, files{"migrations/1": "y"}, "block path migrations/1"},
		{"deleted", paths, files{"LICENSE": "x", "migrations/1": "x"}, files{}, "block path LICENSE, block path migrations/1"},
		{"its mode", paths, files{"LICENSE": "x"}, files{"+x LICENSE": "x"}, "block path LICENSE"},
		{"replaced", paths, files{"LICENSE": "x"}, files{"LICENSE": "link:/etc/motd"}, "block path LICENSE"},
		{"by another case", paths, files{"License": "x"}, files{"License": "y"}, "block path License"},
		{"taken out", paths, files{"migrations/draft/1": "x"}, files{"migrations/draft/1": "y"}, ""},
		{"a directory above", ImmutableConfig{Paths: []string{"a/b/c"}}, files{"a": "dir", "a/b": "dir"}, files{"a": "link:d"}, "block path a, block path a/b"},
		{"nothing named", ImmutableConfig{}, nil, files{"a": "x"}, "error nothing is immutable"},

		{"other keys", keys, files{"package.json": pkg}, files{"package.json": `{"name": "y", "scripts": {"test": "go test", "n": 1}, "engines": {"node": ">=20", "v": [1, 2]}}`}, ""},
		{"order, layout, escapes, numbers", keys, files{"package.json": pkg}, files{"package.json": "{\n\"engines\": {\"v\": [1.0, 2e0], \"node\": \"\\u003e=20\"},\n \"scripts\": {\"n\": 1, \"test\": \"go test\"}}"}, ""},
		{"a value", keys, files{"package.json": pkg}, files{"package.json": "{\"engines\": {\"node\": \">=20\", \"v\": [1, 2]},\n\"scripts\": {\n\"n\": 1,\n\"test\": \"true\"}}"}, "block key package.json:4"},
		{"the order of a list", keys, files{"package.json": pkg}, files{"package.json": `{"scripts": {"test": "go test", "n": 1}, "engines": {"node": ">=20", "v": [2, 1]}}`}, "block key package.json:1"},
		{"a key more", keys, files{"package.json": pkg}, files{"package.json": `{"scripts": {"test": "go test", "n": 1, "postinstall": "evil"}, "engines": {"node": ">=20", "v": [1, 2]}}`}, "block key package.json:1"},
		{"a key less", keys, files{"package.json": pkg}, files{"package.json": `{"scripts": {"test": "go test"}, "engines": {"node": ">=20", "v": [1, 2]}}`}, "block key package.json:1"},
		{"another type", keys, files{"package.json": pkg}, files{"package.json": `{"scripts": {"test": "go test", "n": "1"}, "engines": {"node": ">=20", "v": [1, 2]}}`}, "block key package.json:1"},
		{"a key twice", keys, files{"package.json": pkg}, files{"package.json": `{"scripts": {"test": "evil"}, "scripts": {"test": "go test", "n": 1}, "engines": {"node": ">=20", "v": [1, 2]}}`}, "block unreadable package.json"},
		{"broken", keys, files{"package.json": pkg}, files{"package.json": "{"}, "block unreadable package.json"},
		{"deleted with keys", keys, files{"package.json": pkg}, files{}, "block path package.json"},
		{"a link now", keys, files{"package.json": pkg}, files{"package.json": "link:other"}, "block path package.json"},
		{"a new file", keys, nil, files{"package.json": pkg}, ""},
		{"unreadable", keys, files{"package.json": pkg}, files{"package.json": "unreadable"}, "block unread package.json"},

		{"YAML: comments, anchors, quotes", keys, files{"k/d.yaml": "spec:\n  a: {image: x:1}\n  b:\n    image: y\n"}, files{"k/d.yaml": "# new\nspec:\n  b: {image: \"y\", more: 1}\n  a: &x\n    image: 'x:1'\nother: *x\n"}, ""},
		{"YAML: a value", keys, files{"k/d.yaml": "spec:\n  a: {image: x:1}\n  b:\n    image: y\n"}, files{"k/d.yaml": "spec:\n  a: {image: x:1}\n  b:\n    image: z\n"}, "block key k/d.yaml:4"},
		{"YAML: in a list", keys, files{"d.yaml": "spec:\n- image: a\n- image: b\n"}, files{"d.yaml": "spec:\n- image: b\n- image: a\n"}, "block key d.yaml:2, block key d.yaml:2"},
		{"YAML: a key with a dot", keys, files{"d.yaml": "a.b: {c: 1}\na: {b: {c: 1}}\n"}, files{"d.yaml": "a.b: {c: 2}\na: {b: {c: 2}}\n"}, "block key d.yaml:1"},
		{"YAML: not a number", keys, files{"d.yaml": "spec: {a: {image: .nan}}\n"}, files{"d.yaml": "spec: {a: {image: .nan}}\nx: 1\n"}, "block key d.yaml:1"},
		{"TOML", keys, files{"p.toml": "[tool.x]\ny = 1 # one\nz = 1\n"}, files{"p.toml": "[tool]\nx = {z = 2, y = 0x1}\n"}, ""},
		{"TOML: a value", keys, files{"p.toml": "[tool.x]\ny = 1\n"}, files{"p.toml": "[tool.x]\ny = 2\n"}, "block key p.toml:2"},
	} {
		g, err := Immutable(c.config)
		expect(t, c.name, judge(t, g, err, changed(c.old, c.now)), c.want)
	}
}

func TestLock(t *testing.T) {
	gomod := func(requirements string) string { return "module x // comment\n\ngo 1.26\n\n" + requirements }
	for _, c := range []struct {
		name     string
		config   LockConfig
		old, now files
		want     string
	}{
		{"both", LockConfig{}, files{"go.mod": gomod("require a v1\n"), "go.sum": "1"}, files{"go.mod": gomod("require a v2\n"), "go.sum": "2"}, ""},
		{"manifest alone", LockConfig{}, files{"go.mod": gomod("require a v1\n"), "go.sum": "1"}, files{"go.mod": gomod("require (\n\ta v1\n\tb v1 // indirect\n)\n"), "go.sum": "1"}, "block stale go.mod"},
		{"lock alone", LockConfig{}, files{"go.mod": gomod("require a v1\n"), "go.sum": "1"}, files{"go.mod": gomod("require a v1\n"), "go.sum": "2"}, "block alone go.sum"},
		{"lock with a manifest that asks for the same", LockConfig{}, files{"go.mod": gomod("require a v1\n"), "go.sum": "1"}, files{"go.mod": gomod("require (\n\ta v1 // indirect\n)\n"), "go.sum": "2"}, "block alone go.sum"},
		{"no dependencies", LockConfig{}, nil, files{"go.mod": gomod("")}, ""},
		{"only a directory", LockConfig{}, nil, files{"go.mod": gomod("replace a => ../a\n")}, ""},
		{"new without a lock", LockConfig{}, nil, files{"package.json": `{"dependencies": {"a": "1"}}`}, "block missing package.json"},
		{"new with a lock", LockConfig{}, nil, files{"package.json": `{"dependencies": {"a": "1"}}`, "yarn.lock": "1"}, ""},
		{"new lock alone", LockConfig{}, nil, files{"Cargo.lock": "1"}, "block alone Cargo.lock"},
		{"lock deleted", LockConfig{}, files{"Gemfile": "gem 'a'\n", "Gemfile.lock": "1"}, files{"Gemfile": "gem 'b'\n"}, "block missing Gemfile"},
		{"all deleted", LockConfig{}, files{"Gemfile": "gem 'a'\n", "Gemfile.lock": "1"}, files{}, ""},
		{"only scripts", LockConfig{}, files{"package.json": `{"scripts": {"a": "b"}, "dependencies": {"a": "1"}}`, "package-lock.json": "1"}, files{"package.json": `{"dependencies": {"a": "1"}, "scripts": {"a": "c"}}`, "package-lock.json": "1"}, ""},
		{"workspace", LockConfig{}, files{"package-lock.json": "1", "p/package.json": `{}`}, files{"package-lock.json": "2", "p/package.json": `{"devDependencies": {"a": "1"}}`}, ""},
		{"workspace, stale", LockConfig{}, files{"Cargo.lock": "1", "crates/a/Cargo.toml": ""}, files{"Cargo.lock": "1", "crates/a/Cargo.toml": "[target.'cfg(unix)'.dependencies]\na = '1'\n"}, "block stale crates/a/Cargo.toml"},
		{"Python", LockConfig{}, files{"pyproject.toml": "[project]\ndependencies = ['a']\n", "uv.lock": "1"}, files{"pyproject.toml": "[project]\nversion = '2'\ndependencies = ['a', 'b']\n", "uv.lock": "1"}, "block stale pyproject.toml"},
		{"Python, another key", LockConfig{}, files{"pyproject.toml": "[project]\ndependencies = ['a']\n", "uv.lock": "1"}, files{"pyproject.toml": "[project]\nversion = '2'\ndependencies = ['a']\n", "uv.lock": "1"}, ""},
		{"poetry", LockConfig{}, files{"pyproject.toml": "[tool.poetry.dependencies]\na = '1'\n", "poetry.lock": "1"}, files{"pyproject.toml": "[tool.poetry.dependencies]\na = '2'\n", "poetry.lock": "2"}, ""},
		{"Composer", LockConfig{}, files{"composer.json": `{"require": {"a": "1"}}`, "composer.lock": "1"}, files{"composer.json": `{"require": {"a": "2"}}`, "composer.lock": "1"}, "block stale composer.json"},
		{"Gemfile: a comment", LockConfig{}, files{"Gemfile": "gem 'a'\n", "Gemfile.lock": "1"}, files{"Gemfile": "# why\ngem 'a'\n", "Gemfile.lock": "1"}, ""},
		{"vendored", LockConfig{}, nil, files{"node_modules/a/package.json": `{"dependencies": {"a": "1"}}`, "vendor/b/go.mod": gomod("require a v1\n")}, ""},
		{"ignored", LockConfig{Ignored: []string{"examples"}}, nil, files{"examples/package.json": `{"dependencies": {"a": "1"}}`}, ""},
		{"no manifest", LockConfig{}, nil, files{"package.json": `{"dependencies": `}, "block unreadable package.json"},
		{"unreadable", LockConfig{}, nil, files{"go.mod": "unreadable"}, "block unread go.mod"},
	} {
		g, err := Lock(c.config)
		expect(t, c.name, judge(t, g, err, changed(c.old, c.now)), c.want)
	}
}
