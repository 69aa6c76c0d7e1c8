package layertar

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// POSIX type flags.
const (
	typeFile    = '0'
	typeLink    = '1' // hard
	typeSymlink = '2'
	typeDir     = '5'
	typeFifo    = '6'
	typePax     = 'x'
)

const (
	blockSize = 512
	maxOctal7 = 1<<21 - 1 // of the fields with seven digits
	maxOctal  = 1<<33 - 1 // with eleven
)

// header is one entry. The package writes headers itself, because archive/tar writes no sparse files and does not
// promise that its bytes stay the same.
type header struct {
	kind     byte
	name     string // of a directory with a final slash
	link     string
	mode     int64
	uid, gid uint32
	size     int64 // of what follows
	mtime    time.Time
	pax      map[string]string
}

// encode returns the header with a PAX header before it.
func (h *header) encode() []byte {
	pax := map[string]string{}
	for k, v := range h.pax {
		pax[k] = v
	}
	if !h.mtime.IsZero() {
		pax["mtime"] = paxTime(h.mtime)
	}
	name := h.name
	if sparse, ok := pax["GNU.sparse.name"]; ok {
		name = "GNUSparseFile.0/" + sparse
	} else if !plain(name) {
		pax["path"] = name
	}
	if !plain(h.link) {
		pax["linkpath"] = h.link
	}
	for key, v := range map[string]int64{"uid": int64(h.uid), "gid": int64(h.gid)} {
		if v > maxOctal7 {
			pax[key] = strconv.FormatInt(v, 10)
		}
	}
	if h.size > maxOctal {
		pax["size"] = strconv.FormatInt(h.size, 10)
	}
	var out []byte
	if len(pax) > 0 {
		records := paxRecords(pax)
		x := header{kind: typePax, name: "PaxHeaders.0/entry", mode: 0o644, size: int64(len(records))}
		out = append(out, x.block(x.name)...)
		out = append(out, pad(records)...)
	}
	return append(out, h.block(name)...)
}

// plain reports a name that the old format can hold.
func plain(name string) bool {
	return len(name) <= 100 && strings.IndexFunc(name, func(r rune) bool { return r < ' ' || r > '~' }) < 0
}

// block is the 512 bytes of the ustar format.
func (h *header) block(name string) []byte {
	b := make([]byte, blockSize)
	copy(b[0:100], name)
	octal(b[100:108], h.mode)
	octal(b[108:116], min(int64(h.uid), maxOctal7))
	octal(b[116:124], min(int64(h.gid), maxOctal7))
	octal(b[124:136], min(h.size, maxOctal))
	mtime := int64(0)
	if !h.mtime.IsZero() {
		mtime = h.mtime.Unix()
	}
	octal(b[136:148], min(max(mtime, 0), maxOctal))
	b[156] = h.kind
	copy(b[157:257], h.link)
	copy(b[257:], "ustar\x0000")
	copy(b[148:156], "        ")
	sum := int64(0)
	for _, c := range b {
		sum += int64(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return b
}

func octal(b []byte, v int64) {
	copy(b, fmt.Sprintf("%0*o", len(b)-1, v))
}

// pad fills the last block up.
func pad(b []byte) []byte {
	if n := len(b) % blockSize; n > 0 {
		b = append(b, make([]byte, blockSize-n)...)
	}
	return b
}

// paxRecords are "LENGTH KEY=VALUE\n", sorted; the length counts itself.
func paxRecords(pax map[string]string) []byte {
	keys := make([]string, 0, len(pax))
	for k := range pax {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	var b bytes.Buffer
	for _, k := range keys {
		rest := len(k) + len(pax[k]) + 3 // space, equals sign, newline
		size := rest + len(strconv.Itoa(rest))
		size = rest + len(strconv.Itoa(size))
		fmt.Fprintf(&b, "%d %s=%s\n", size, k, pax[k])
	}
	return b.Bytes()
}

// paxTime is seconds with nine digits behind the point, unless they are zero. Before 1970 it is the negative of a positive
// number, as POSIX has it.
func paxTime(t time.Time) string {
	sec, nsec, sign := t.Unix(), int64(t.Nanosecond()), ""
	if sec < 0 {
		sign = "-"
		if sec = -sec; nsec > 0 {
			sec, nsec = sec-1, 1e9-nsec
		}
	}
	if nsec == 0 {
		return fmt.Sprintf("%s%d", sign, sec)
	}
	return fmt.Sprintf("%s%d.%09d", sign, sec, nsec)
}

// xattrKey encodes an attribute's name as GNU tar does: a record's key ends at the first equals sign.
func xattrKey(name string) string {
	return "SCHILY.xattr." + strings.NewReplacer("%", "%25", "=", "%3D").Replace(name)
}

// xattrName is the reverse; ok is false for other keys.
func xattrName(key string) (name string, ok bool) {
	name, ok = strings.CutPrefix(key, "SCHILY.xattr.")
	return strings.NewReplacer("%25", "%", "%3D", "=").Replace(name), ok
}
