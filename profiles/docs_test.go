package profiles

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestDocumentationIsTrue: every key, flag and example of docs/profiles.md, and no key that there is not.
func TestDocumentationIsTrue(t *testing.T) {
	data, err := os.ReadFile("../docs/profiles.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	_, table, _ := strings.Cut(text, "\n## Keys\n")
	table, _, _ = strings.Cut(table, "\n## ")
	// ".devices" after `gates.paths.setuid` is short for its siblings.
	rows := strings.Split(table, "\n")
	for i, row := range rows {
		if prefix := regexp.MustCompile("`(gates\\.\\w+)\\.").FindStringSubmatch(row); prefix != nil {
			rows[i] = regexp.MustCompile("`\\.(\\w+)`").ReplaceAllString(row, "`"+prefix[1]+".$1`")
		}
	}
	table = strings.Join(rows, "\n")
	for _, k := range keys() {
		if !strings.Contains(table, "`"+k.path+"`") {
			t.Errorf("%s is not documented", k.path)
		}
		if k.flag != "" && !strings.Contains(table, "`--"+k.flag+"`") {
			t.Errorf("--%s is not documented", k.flag)
		}
	}
	for _, flag := range regexp.MustCompile(`(?m)^\|[^|]*\|([^|]*)\|`).FindAllStringSubmatch(table, -1) {
		for _, name := range regexp.MustCompile("`--([a-z-]+)`").FindAllStringSubmatch(flag[1], -1) {
			if _, err := Load(LoadOptions{Flags: map[string][]string{name[1]: nil}}); err != nil {
				t.Errorf("--%s is documented, but: %v", name[1], err)
			}
		}
	}

	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(text, -1)
	if len(examples) < 5 {
		t.Fatalf("%d examples", len(examples))
	}
	for i, example := range examples {
		name, dir := "example", "user"
		if i == len(examples)-1 {
			name, dir = WorkspaceFile, "workspace"
		}
		if strings.Contains(example[1], "\nprotected") && strings.Contains(example[1], "extends: default") {
			name, dir = "default", "system"
		}
		root := tree(t, map[string]string{dir + "/" + strings.TrimSuffix(name, ".yaml") + ".yaml": example[1]})
		o := options(root)
		if dir == "user" {
			o.Name = name
		}
		if e := load(t, o); e.Digest == load(t, LoadOptions{}).Digest {
			t.Errorf("this example changes nothing:\n%s", example[1])
		}
	}
}

// TestDocumentedMistakes: the output shown is the real one.
func TestDocumentedMistakes(t *testing.T) {
	data, err := os.ReadFile("../docs/profiles.md")
	if err != nil {
		t.Fatal(err)
	}
	_, err = parse("typo.yaml", []byte("extends: build\nlimits:\n  memroy: 1g\n  pids: 0512\n"))
	if err == nil || !strings.Contains(string(data), "validate typo.yaml\n"+err.Error()+"\n") {
		t.Errorf("documented is not what comes out:\n%v", err)
	}
}
