package redact

// bitmap is a set of four bytes in a row, by a hash: what it has may also be something else.
type bitmap [1 << 10]uint64

func slot(gram uint32) uint32 { return gram * 0x9E3779B1 >> 16 }

func (f *bitmap) set(gram uint32) {
	h := slot(gram)
	f[h>>6] |= 1 << (h & 63)
}

// find returns where in b[i:end] four bytes of the set may begin, or the first place with fewer than four; else end.
func (f *bitmap) find(b []byte, i, end int) int {
	for ; i < end && i+4 <= len(b); i++ {
		h := slot(uint32(b[i]) | uint32(b[i+1])<<8 | uint32(b[i+2])<<16 | uint32(b[i+3])<<24)
		if f[h>>6]>>(h&63)&1 != 0 {
			return i
		}
	}
	return min(i, end)
}

// findFolded is find for letters of either case; the set has small ones.
func (f *bitmap) findFolded(b []byte, i, end int) int {
	for ; i < end && i+4 <= len(b); i++ {
		h := slot((uint32(b[i]) | uint32(b[i+1])<<8 | uint32(b[i+2])<<16 | uint32(b[i+3])<<24) | fold)
		if f[h>>6]>>(h&63)&1 != 0 {
			return i
		}
	}
	return min(i, end)
}

// fold makes capital letters small; digits and most signs stay.
const fold = 0x20202020

// gram is the four bytes at i.
func gram[T string | []byte](s T, i int) uint32 {
	return uint32(s[i]) | uint32(s[i+1])<<8 | uint32(s[i+2])<<16 | uint32(s[i+3])<<24
}
