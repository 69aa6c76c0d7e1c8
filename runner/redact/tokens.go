package redact

import (
	"bytes"
	"strings"
	"sync"
)

// token is a secret that says itself what it is.
type token struct {
	prefix string // as it is written
	at     int    // where in it the four bytes are that it is found by
	least  int    // how many characters follow at least
	keep   bool   // the prefix is shown
	good   func([]byte) bool
}

// tokens are the shapes of well-known tokens, as their issuers and gitleaks' rules have them.
var tokens = [...]token{
	{prefix: "ghp_", least: 30}, {prefix: "gho_", least: 30}, {prefix: "ghu_", least: 30}, {prefix: "ghs_", least: 30}, {prefix: "ghr_", least: 30},
	{prefix: "github_pat_", at: 6, least: 22}, {prefix: "dckr_pat_", at: 4, least: 20},
	{prefix: "glpat-", least: 20}, {prefix: "gldt-", least: 20}, {prefix: "glrt-", least: 20}, {prefix: "glptt-", least: 30}, {prefix: "glcbt-", least: 20},
	{prefix: "AKIA", least: 16, good: upperDigits}, {prefix: "ASIA", least: 16, good: upperDigits},
	{prefix: "xoxa-", least: 10}, {prefix: "xoxb-", least: 10}, {prefix: "xoxe-", least: 10}, {prefix: "xoxe.", least: 10}, {prefix: "xoxp-", least: 10}, {prefix: "xoxr-", least: 10}, {prefix: "xoxs-", least: 10}, {prefix: "xapp-", least: 10},
	{prefix: "sk_live_", least: 10}, {prefix: "sk_test_", least: 10}, {prefix: "rk_live_", least: 10}, {prefix: "rk_test_", least: 10}, {prefix: "whsec_", least: 20},
	{prefix: "npm_", least: 36}, {prefix: "pypi-", least: 30}, {prefix: "AIza", least: 30}, {prefix: "ya29.", least: 20}, {prefix: "GOCSPX-", least: 20},
	{prefix: "hooks.slack.com/services/", least: 20, keep: true}, {prefix: "hooks.slack.com/workflows/", least: 20, keep: true}, {prefix: "discord.com/api/webhooks/", at: 4, least: 20, keep: true},
	{prefix: "AGE-SECRET-KEY-1", at: 4, least: 50, good: upperDigits}, {prefix: "dop_v1_", least: 40}, {prefix: "doo_v1_", least: 40}, {prefix: "shpat_", least: 30}, {prefix: "shpss_", least: 30},
	{prefix: "hvs.", least: 24}, {prefix: "hvb.", least: 24}, {prefix: "dapi", least: 32, good: hexDigits}, {prefix: "ATATT3", least: 40},
	{prefix: "rubygems_", least: 40, good: hexDigits}, {prefix: "tskey-", least: 15}, {prefix: "lin_api_", least: 30}, {prefix: "glsa_", least: 32}, {prefix: "EAACEdEose0cBA", least: 10},
	{prefix: "bearer ", least: 16, keep: true, good: mixed}, {prefix: "Bearer ", least: 16, keep: true, good: mixed}, {prefix: "BEARER ", least: 16, keep: true, good: mixed},
}

// open are tokens that are found by three bytes and one more.
var open = [...]token{
	{prefix: "sk-", least: 20, good: mixed}, {prefix: "eyJ", least: 24, good: jwt}, {prefix: "SG.", least: 40, good: mixed}, {prefix: "hf_", least: 30, good: mixed},
}

// names are the four bytes, in small letters, that names of secrets have in them: enough to find them by.
const names = "pass pwd= pwd: pwd\" pwd' pwd\\ pwd> _pwd -pwd .pwd bpwd rpwd epwd secr toke cred auth cook sess mnem jwt= jwt: jwt\" _jwt -jwt " +
	"_key -key .key ikey skey tkey ekey gkey nkey rkey ykey tkey ?key &key sig= sig\" sig: ure= ure\" ure: ure' _pat _sid otp= csrf xsrf"

// triggers says where to look. It is made at the first use, in microseconds.
var triggers = sync.OnceValue(func() *bitmap {
	var set bitmap
	eachTrigger(func(g uint32, _ *token) { set.set(g) })
	return &set
})

// triggered has all that is in triggers, with the tokens that are found by it.
var triggered = sync.OnceValue(func() map[uint32][]*token {
	list := make(map[uint32][]*token, 512)
	eachTrigger(func(g uint32, t *token) {
		if tokens := list[g]; t != nil {
			list[g] = append(tokens, t)
		} else {
			list[g] = tokens
		}
	})
	return list
})

func eachTrigger(do func(g uint32, t *token)) {
	for i := range tokens {
		do(gram(tokens[i].prefix, tokens[i].at)|fold, &tokens[i])
	}
	const more = "abcdefghijklmnopqrstuvwxyz0123456789_-"
	for i := range len(more) {
		last := uint32(more[i]) << 24
		for j := range open {
			p := open[j].prefix
			do((uint32(p[0])|uint32(p[1])<<8|uint32(p[2])<<16|last)|fold, &open[j])
		}
		do((uint32(more[i])|':'<<8|'/'<<16|'/'<<24)|fold, nil)
	}
	for g := range strings.FieldsSeq(names) {
		do(gram(g, 0)|fold, nil)
	}
	do(pemGram, nil)
}

// token looks whether one of the list stands around b[i].
func (p *piece) token(list []*token, i int) (v verdict, ok bool) {
	for _, t := range list {
		start := i - t.at
		if start < 0 || !bytes.HasPrefix(p.b[start:], []byte(t.prefix)) || start > 0 && isWordByte(p.b[start-1]) && !p.escaped(start) {
			continue
		}
		from := start + len(t.prefix)
		to := from
		for to < len(p.b) && isToken(p.b[to]) && to-from < maxToken {
			to++
		}
		run := p.b[from:to]
		if len(run) < t.least || t.good != nil && !t.good(run) {
			if p.partial && to == len(p.b) {
				return verdict{waits: true, start: start, next: i + 1}, true
			}
			continue
		}
		if t.keep {
			start = from
		}
		if strings.HasSuffix(t.prefix, "SIA") || strings.HasSuffix(t.prefix, "KIA") {
			to = p.awsSecret(to)
		}
		return verdict{start: start, least: to - start, next: to, end: &ender{kind: endToken, begun: true}, mark: mark}, true
	}
	return v, false
}

// maxToken is how much of a token is looked at; the rest of it goes, too.
const maxToken = context

// escaped says that the letter before start belongs to an escape: \nghp_….
func (p *piece) escaped(start int) bool {
	return start > 1 && p.b[start-2] == '\\' && strings.IndexByte("nrt", p.b[start-1]) >= 0
}

// awsSecret is the end of the secret that stands right behind the id of an AWS key, or where the id ends.
func (p *piece) awsSecret(from int) int {
	i := from
	for i < len(p.b) && i < from+4 && strings.IndexByte(" \t:,;/\"'|", p.b[i]) >= 0 {
		i++
	}
	const size = 40
	if i == from || i+size > len(p.b) || i+size < len(p.b) && isBase64(p.b[i+size]) {
		return from
	}
	if run := p.b[i : i+size]; mixed(run) && bytes.IndexFunc(run, func(c rune) bool { return c > 0x7f || !isBase64(byte(c)) }) < 0 {
		return i + size
	}
	return from
}

// mixed says that letters and digits are among b: no word is like that.
func mixed(b []byte) bool {
	letter, digit := false, false
	for _, c := range b {
		letter = letter || c >= 'a' && c <= 'z' || isUpper(c)
		digit = digit || c >= '0' && c <= '9'
	}
	return letter && digit
}

func upperDigits(b []byte) bool {
	for _, c := range b[:16] {
		if !isUpper(c) && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

func hexDigits(b []byte) bool {
	for _, c := range b[:32] {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// jwt says that b goes on as a JSON web token does: with another part after a dot.
func jwt(b []byte) bool {
	dot := bytes.IndexByte(b, '.')
	return dot >= 8 && len(b)-dot > 8
}
