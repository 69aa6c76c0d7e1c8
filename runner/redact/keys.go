package redact

import "strings"

// kind is what a name says of the value beside it.
type kind int

const (
	harmless kind = iota
	weak          // a token, a key: one word that looks like it
	strong        // a password, a secret: whatever it is, in several words too
	header        // Authorization, Cookie: all of the line
)

// judgeKey says what a name says. It reads the words that it is made of: with _, - and . between them, or capital letters.
// The last word decides whether it is about the secret (secret_name, token_file) or is one.
func judgeKey[T string | []byte](name T) kind {
	var buf [maxKey]byte
	w := words{text: trimKey(buf[:0], name)}
	switch string(w.text) {
	case "PWD", "OLDPWD": // of a shell: directories
		return harmless
	}
	if k := headerName(string(w.text)); k != harmless {
		return k
	}
	best, n := harmless, 0
	var last, before []byte
	for word := w.next(); len(word) > 0; word = w.next() {
		k := judgeWord(string(word))
		switch {
		case k == harmless && isKey(string(word)) && keyOf(string(before)):
			k = weak
		case k == harmless && n > 0 && string(word) == "pass":
			k = strong
		}
		best = max(best, k)
		last, before = word, word
		n++
	}
	if best == harmless || about(string(last)) || w.file(last) {
		return harmless
	}
	return best
}

// maxKey is how long a name may be, in bytes.
const maxKey = 128

// trimKey is the part of a name that has its words; a number at its end says which of several it is.
func trimKey[T string | []byte](buf []byte, name T) []byte {
	from, to := 0, min(len(name), maxKey)
	for from < to && !isWordByte(name[from]) {
		from++
	}
	for to > from && (!isWordByte(name[to-1]) || name[to-1] >= '0' && name[to-1] <= '9') {
		to--
	}
	for i := from; i < to; i++ {
		buf = append(buf, name[i])
	}
	return buf
}

// words takes a name apart, in place.
type words struct {
	text []byte
	at   int
}

// next is the next word in small letters; empty at the end. Where a dot is before it, it may be what a file ends in.
func (w *words) next() (word []byte) {
	b := w.text
	for w.at < len(b) && !isWordByte(b[w.at]) {
		w.at++
	}
	start, i := w.at, w.at
	for ; i < len(b) && isWordByte(b[i]); i++ {
		if i > start && isUpper(b[i]) && (!isUpper(b[i-1]) || i+1 < len(b) && b[i+1] >= 'a' && b[i+1] <= 'z') {
			break // dbPassword, DBPassword
		}
	}
	w.at, word = i, b[start:i]
	for j, c := range word {
		if isUpper(c) {
			word[j] = c | 0x20
		}
	}
	return word
}

// file says that the name is that of a file, by its last word: token.go.
func (w *words) file(last []byte) bool {
	before := len(w.text) - len(last)
	if before < 1 || w.text[before-1] != '.' {
		return false
	}
	switch string(last) {
	case "go", "c", "h", "cc", "cpp", "cs", "js", "ts", "jsx", "tsx", "mjs", "vue", "py", "rb", "rs", "java", "kt", "swift", "php", "sh", "pl", "ex", "hs",
		"scala", "yml", "yaml", "json", "toml", "xml", "html", "css", "txt", "md", "log", "conf", "cfg", "ini", "lock", "o", "a", "so", "class", "proto", "sql", "tmpl":
		return true
	}
	return false
}

func isUpper(c byte) bool { return c >= 'A' && c <= 'Z' }

func isWordByte(c byte) bool {
	return c >= 'a' && c <= 'z' || isUpper(c) || c >= '0' && c <= '9'
}

// headerName knows headers of HTTP whose value is all of the line.
func headerName(name string) kind {
	switch len(name) {
	case len("Authorization"), len("Proxy-Authorization"), len("Cookie"), len("Set-Cookie"), len("X-Api-Key"), len("X-Auth-Token"):
	default:
		return harmless
	}
	switch strings.ToLower(name) {
	case "authorization", "proxy-authorization", "proxy_authorization", "http_authorization", "cookie", "set-cookie", "set-cookie2", "http_cookie":
		return header
	}
	return harmless
}

// judgeWord knows the words that say it alone.
func judgeWord(w string) kind {
	switch w {
	case "password", "passwords", "passwd", "passphrase", "passcode", "pwd", "secret", "secrets", "pgpass", "mnemonic", "passwort", "motdepasse", "contrasena":
		return strong
	case "token", "tokens", "jwt", "pat", "bearer", "auth", "authorization", "credential", "credentials", "creds", "cred",
		"sig", "signature", "cookie", "cookies", "sessionid", "sid", "session", "apikeys", "csrf", "xsrf", "otp", "totp":
		return weak
	}
	for _, end := range [...]string{"password", "passwd", "passphrase", "secret", "pwd"} {
		if strings.HasSuffix(w, end) {
			return strong
		}
	}
	for _, end := range [...]string{"token", "apikey", "secretkey", "privatekey", "accesskey", "authkey", "accountkey", "credentials", "sessionid"} {
		if strings.HasSuffix(w, end) {
			return weak
		}
	}
	return harmless
}

// isKey says that a word is key, of which there are many that are none.
func isKey(w string) bool { return w == "key" || w == "keys" }

// keyOf are the words that make a key a secret.
func keyOf(before string) bool {
	switch before {
	case "api", "access", "secret", "private", "priv", "signing", "sign", "encryption", "encrypt", "master", "auth", "account", "storage", "license",
		"licence", "ssh", "deploy", "service", "webhook", "client", "shared", "admin", "app", "application", "write", "ingest", "ingestion", "hmac",
		"aes", "rsa", "ecdsa", "gpg", "pgp", "tls", "ssl", "consumer", "subscription", "integration", "security", "session", "cookie", "jwt", "token",
		"data", "root", "recovery", "unseal", "wireguard", "wg", "preshared", "psk", "host", "stripe", "sendgrid", "mailgun", "openai", "anthropic",
		"twilio", "datadog", "dd", "algolia", "gemini", "mistral", "groq", "maps":
		return true
	}
	return false
}

// about are last words of names of something else: where a secret lies, what kind it is, how many.
func about(w string) bool {
	switch w {
	case "name", "names", "file", "files", "filename", "path", "paths", "dir", "directory", "url", "uri", "urls", "endpoint", "host", "type", "types",
		"kind", "length", "len", "size", "count", "counts", "limit", "limits", "total", "max", "min", "policy", "policies", "ttl", "age", "expiry",
		"expires", "expiration", "expired", "in", "at", "timeout", "version", "versions", "enabled", "disabled", "required", "optional", "allowed",
		"manager", "provider", "providers", "arn", "ref", "refs", "field", "fields", "env", "header", "headers", "prefix", "suffix", "format",
		"algorithm", "alg", "algo", "class", "store", "storage", "backend", "method", "methods", "mode", "engine", "id", "ids", "index", "error",
		"errors", "status", "state", "usage", "used", "cost", "rate", "ratio", "strength", "complexity", "rotation", "reset", "prompt", "hint",
		"label", "placeholder", "description", "title", "regex", "pattern", "rule", "rules", "scope", "scopes", "service", "server", "source",
		"sources", "mount", "mounts", "volume", "volumes", "created", "updated", "changed", "modified", "valid", "invalid", "validation", "check",
		"issuer", "audience", "bucket", "table", "column", "location", "region", "plugin", "helper", "handler", "module", "package", "user", "username", "users", "email", "domain", "realm", "port", "sock", "socket",
		"agent", "pid", "time", "date", "day", "days", "hours", "minutes", "seconds", "ms", "ns", "cache", "command", "cmd", "script", "lines":
		return true
	}
	return false
}
