package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"database/sql"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// cmdTamper executes SQL on the store, without what keeps its log as it is.
func cmdTamper(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: tamper SQL")
	}
	db, err := sql.Open("sqlite", filepath.Join(ts.Getenv("CAISSON_STATE"), "store.db"))
	ts.Check(err)
	defer func() { ts.Check(db.Close()) }()
	var drops []string
	rows, err := db.Query("SELECT name FROM sqlite_schema WHERE type = 'trigger'")
	ts.Check(err)
	for rows.Next() {
		var name string
		ts.Check(rows.Scan(&name))
		drops = append(drops, "DROP TRIGGER "+name)
	}
	ts.Check(rows.Err())
	_, err = db.Exec(strings.Join(append(drops, args[0]), ";"))
	ts.Check(err)
}

// cmdChain checks an export as docs/audit.md says, without caisson's code; with `all` its lines must follow each other.
func cmdChain(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 || len(args) > 2 {
		ts.Fatalf("usage: chain FILE [all]")
	}
	n, last := 0, strings.Repeat("0", 64)
	lines := bufio.NewScanner(bytes.NewReader([]byte(ts.ReadFile(args[0]))))
	lines.Buffer(nil, 1<<24)
	for ; lines.Scan(); n++ {
		var e map[string]any
		d := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		d.UseNumber()
		ts.Check(d.Decode(&e))
		if got := fmt.Sprintf("%x", sha256.Sum256([]byte(e["body"].(string)))); got != e["digest"] {
			ts.Fatalf("%v: digest %s: %s", e["seq"], got, lines.Text())
		}
		text := ""
		for _, field := range []string{"prev", "seq", "count", "at_ns", "feature", "task", "step", "kind", "digest"} {
			text += fmt.Sprintln(e[field])
		}
		if got := fmt.Sprintf("%x", sha256.Sum256([]byte(text))); got != e["hash"] || len(args) == 2 && e["prev"] != last {
			ts.Fatalf("%v: hash %s, after %s: %s", e["seq"], got, last, lines.Text())
		}
		last, _ = e["hash"].(string)
	}
	ts.Check(lines.Err())
	if n == 0 {
		ts.Fatalf("%s is empty", args[0])
	}
}
