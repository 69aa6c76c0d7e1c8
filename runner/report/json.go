package report

import (
	"encoding/json"
	"io"
)

// writeJSON writes the report itself, on one line.
func writeJSON(w io.Writer, r *Report) error { return encode(w, r, "") }

// encode writes JSON. Bytes that are no UTF-8 become U+FFFD; paths have their own bytes beside them.
func encode(w io.Writer, v any, indent string) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	return e.Encode(v)
}
