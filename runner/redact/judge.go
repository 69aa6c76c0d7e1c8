package redact

import "bytes"

// wordLen is how long the word is that b begins with, as far as it matters.
func wordLen(b []byte) int {
	n := 0
	for n < len(b) && n < context && b[n] > ' ' && b[n] != 0x7f {
		n++
	}
	return n
}

// trimEnd is a word without the signs that can follow one.
func trimEnd(w []byte) []byte { return bytes.TrimRight(w, ",;)]}\"'`") }

func tagLen(w []byte) int {
	if i := bytes.IndexByte(w, '<'); i >= 0 {
		return i
	}
	return len(w)
}

// isPlaceholder says that a text stands for a value that is not there: $VAR, {{ .x }}, <password>, ****, null.
func isPlaceholder(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	if len(b) > 64 {
		return b[0] == '$' && len(b) > 1 && (b[1] == '{' || b[1] == '(')
	}
	switch {
	case b[0] == '$' && len(b) > 1 && (b[1] == '{' || b[1] == '(' || isIdentifier(b[1:])),
		bytes.HasPrefix(b, []byte("{{")), bytes.HasPrefix(b, []byte("%(")), bytes.HasPrefix(b, []byte("caisson-secret-")),
		b[0] == '<' && b[len(b)-1] == '>', b[0] == '%' && len(b) <= 3, b[0] == '%' && b[len(b)-1] == '%':
		return true
	}
	masked := 0
	for _, c := range b {
		if c == '*' || c == '.' || c == 'x' || c == 'X' || c == '#' || c == '-' {
			masked++
		}
	}
	if masked == len(b) {
		return true
	}
	var buf [64]byte
	return emptyWord(string(lowered(buf[:0], b)))
}

func lowered(buf, b []byte) []byte {
	for _, c := range b {
		if isUpper(c) {
			c |= 0x20
		}
		buf = append(buf, c)
	}
	return buf
}

// emptyWord are words that are said of a secret, and are none.
func emptyWord(w string) bool {
	switch w {
	case "true", "false", "null", "nil", "none", "undefined", "yes", "no", "on", "off", "ok", "set", "unset", "empty", "enabled", "disabled", "required",
		"optional", "missing", "invalid", "valid", "incorrect", "wrong", "expired", "changed", "updated", "created", "deleted", "accepted", "rejected",
		"denied", "failed", "hidden", "masked", "redacted", "[masked]", "[hidden]", "[filtered]", "(sensitive value)", "(sensitive)", "<sensitive>", "string", "str", "int", "bool", "boolean", "number", "object",
		"any", "text", "value", "file", "path", "error", "eof", "default", "unknown", "n/a", "todo", "prompt", "stdin", "from", "present", "absent", "skipped",
		"unchanged", "configured", "available", "unavailable", "0", "1", "-", "=", "[]", "{}", "()", "\"\"", "''", "pass", "passed", "fail", "block", "warn", "info", "allow", "deny", "found", "bytes", "[]byte", "byte", "public", "private":
		return true
	}
	return false
}

// prose says that b, of several words, speaks of a secret.
func prose(b []byte) bool {
	n := 0
	for n < len(b) && n < 24 && (b[n] >= 'a' && b[n] <= 'z' || isUpper(b[n]) || b[n] == '\'') {
		n++
	}
	if n == 0 || n == len(b) || n == 24 || b[n] != ' ' && b[n] != ',' && b[n] != ':' && b[n] != '.' {
		return false
	}
	if n+1 >= len(b) {
		return false
	}
	var buf [24]byte
	w := string(lowered(buf[:0], b[:n]))
	if emptyWord(w) {
		return true
	}
	switch w {
	case "a", "an", "the", "this", "that", "must", "should", "shall", "can", "cannot", "can't", "could", "may", "is", "isn't", "are", "was", "wasn't", "were", "be",
		"has", "have", "had", "does", "doesn't", "did", "didn't", "do", "don't", "not", "too", "for", "or", "and", "but", "if", "in", "of", "to", "at", "by", "with", "without", "when", "while", "please", "expected",
		"unexpected", "authentication", "authorization", "unauthorized", "unauthenticated", "mismatch", "unable", "error", "failure", "got", "want", "found", "cannot't", "undefined", "already",
		"use", "using", "used", "enter", "type", "no", "bad", "unsupported", "illegal", "syntax", "parse", "parsing", "reading", "writing", "loading", "loaded", "generating", "generated", "creating", "checking",
		"permission", "access", "connection", "login", "malformed", "contains", "length", "minimum", "maximum", "only", "could't", "see", "set", "will", "would", "new", "your", "you", "it", "its", "user", "key", "token", "password", "secret":
		return true
	}
	return false
}

// isScheme says that a header begins with how somebody is authenticated.
func isScheme(word []byte) bool {
	var buf [24]byte
	switch string(lowered(buf[:0], word[:min(len(word), len(buf))])) {
	case "basic", "bearer", "token", "digest", "negotiate", "ntlm", "key", "apikey":
		return true
	}
	return false
}

// isSmallNumber says that b counts something.
func isSmallNumber(b []byte) bool {
	for _, c := range b {
		if (c < '0' || c > '9') && c != '.' && c != ',' && c != '%' && c != '_' {
			return false
		}
	}
	return len(b) <= 12
}

// lower says that b is one word of small letters.
func lower(b []byte) bool {
	for _, c := range b {
		if c < 'a' || c > 'z' {
			return false
		}
	}
	return true
}

// isIdentifier says that b is a name of a program's.
func isIdentifier(b []byte) bool {
	for i, c := range b {
		if !(c >= 'a' && c <= 'z' || isUpper(c) || c == '_' || i > 0 && (c >= '0' && c <= '9' || c == '.')) {
			return false
		}
	}
	return len(b) > 0
}

// isCall says that b begins with the call of a function: getToken(…), os.Getenv(….
func isCall(b []byte) bool {
	i := bytes.IndexByte(b, '(')
	return i > 0 && isIdentifier(b[:i])
}

// isPath says that b is the path of a file, or a URL.
func isPath(b []byte) bool {
	return len(b) > 1 && (b[0] == '/' && bytes.IndexByte(b[1:], '/') > 0 && !bytes.ContainsAny(b, "+=") || b[0] == '.' && (b[1] == '/' || b[1] == '.') || b[0] == '~' && b[1] == '/') || bytes.Contains(b, []byte("://"))
}

// metavar says that a help text has b in place of a value: TOKEN, FILE, string.
func metavar(b []byte) bool {
	if b[0] == '-' || b[0] == '<' || b[0] == '[' {
		return true
	}
	for _, c := range b {
		if !isUpper(c) && c != '_' {
			return isPlaceholder(b)
		}
	}
	return len(b) < 16
}

// tokenLike says that b looks like nothing that a person would write: letters and digits, and long.
func tokenLike(b []byte) bool {
	n := 0
	for n < len(b) && isToken(b[n]) {
		n++
	}
	return n >= 8 && n == len(b) && mixed(b) && !isPath(b) && (n >= 16 || !bytes.ContainsRune(b, '.'))
}

// fieldFollows says that after the first word of b there is another field: name=, name:.
func fieldFollows(b []byte) bool {
	for i := wordLen(b); i < len(b) && i < context; {
		i += blanks(b[i:])
		n := wordLen(b[min(i, len(b)):])
		if n == 0 {
			return false
		}
		word := b[i : i+n]
		if j := bytes.IndexAny(word, "=:"); j > 0 && isIdentifier(word[:j]) {
			return true
		}
		i += n
	}
	return false
}
