package egress

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
)

// Header is added to requests in plain HTTP to one host: a credential that never enters the sandbox.
type Header struct {
	Host  string // a name, or HostName with Port
	Port  uint16 // 0: 80
	Name  string
	Value func() (string, error) // read when it is needed
}

// framing are the headers that say where a request ends, and to whom it goes.
var framing = []string{"Host", "Content-Length", "Transfer-Encoding", "Connection", "Upgrade", "Te", "Trailer", "Expect"}

// Check says what is wrong with a header that is to be added.
func (h Header) Check() error {
	if _, err := parseName(h.Host); err != nil {
		return fmt.Errorf("host %q: %w", h.Host, err)
	}
	if h.Port == 443 && h.Host != HostName {
		return fmt.Errorf("host %q: on port 443 TLS is spoken, inside of which nothing is added", h.Host)
	}
	if h.Name == "" || strings.ContainsFunc(h.Name, notToken) || slices.Contains(framing, http.CanonicalHeaderKey(h.Name)) {
		return fmt.Errorf("%q is no header that can be added", h.Name)
	}
	return nil
}

// maxHead bounds a request's head, in bytes.
const maxHead = 1 << 20

// requests forwards what a client sends. What is HTTP is parsed, request by request, and written anew, so that client and
// server cannot read it in two ways; each must be for the name that the connection is allowed to. Anything else passes, but
// not on port 80.
type requests struct {
	t       target
	strict  bool
	headers []Header
	proxy   *url.URL // of the host, whom dst leads to; nil: to the destination
	src     *headReader
	br      *bufio.Reader
	dst     io.Writer
	rest    func() error // forwards what is not looked at, to the end
	// An upgrade changes the protocol if the server agrees: then upgraded says so, once.
	asked    func()
	upgraded func() bool
}

// headReader fails when a head does not end.
type headReader struct {
	r    io.Reader
	left int64
}

func (h *headReader) Read(p []byte) (int, error) {
	if h.left <= 0 {
		return 0, fmt.Errorf("a request's head of more than %d bytes", maxHead)
	}
	n, err := h.r.Read(p)
	h.left -= int64(n)
	return n, err
}

func newRequests(t target, src io.Reader, dst io.Writer) *requests {
	h := &headReader{r: src, left: math.MaxInt64}
	q := &requests{t: t, strict: t.port == 80, src: h, br: bufio.NewReaderSize(h, 16<<10), dst: dst}
	q.rest = func() error { _, err := io.Copy(dst, src); return err }
	return q
}

// forward runs until the client has ended. An error that wraps errRefused is a refusal.
func (q *requests) forward() error {
	web, err := q.sniff()
	if err != nil {
		return err
	}
	if !web {
		if q.strict {
			return refuse("what is sent on port 80 is not HTTP")
		}
		return q.raw()
	}
	for first := true; ; first = false {
		if err := q.one(first); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// raw forwards what is no HTTP, or not any more.
func (q *requests) raw() error {
	b, err := q.br.Peek(q.br.Buffered())
	if err == nil {
		_, err = q.dst.Write(b)
	}
	q.br = nil
	if err != nil {
		return err
	}
	return q.rest()
}

// errRefused is what the checks of a protocol answer.
var errRefused = errors.New("refused")

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errRefused, fmt.Sprintf(format, args...))
}

// sniff reports whether the first line is that of an HTTP request. It waits for no more than it needs to know.
func (q *requests) sniff() (bool, error) {
	for n := 1; ; n++ {
		line, err := q.br.Peek(n)
		if err != nil && len(line) < n {
			if errors.Is(err, bufio.ErrBufferFull) { // words and no end
				return false, refuse("a first line of more than %d bytes", q.br.Size())
			}
			if errors.Is(err, io.EOF) {
				return request(line), nil
			}
			return false, err
		}
		n = max(n, min(q.br.Buffered(), q.br.Size()))
		line, _ = q.br.Peek(n)
		text := bytes.TrimLeft(line, "\r\n \t")
		end := bytes.IndexAny(text, blanks)
		switch word := text[:max(end, 0)]; {
		case end < 0 && (bytes.ContainsFunc(text, notToken) || len(text) > maxMethod), bytes.ContainsFunc(word, notToken):
			return false, nil
		case end >= 0 && bytes.IndexByte(text[end:], '\n') >= 0:
			return request(text), nil
		}
	}
}

// blanks are what lenient servers take for the space behind a method (RFC 9112, 3).
const blanks = " \t\v\f\r"

// maxMethod is more than any server takes for a method, in bytes.
const maxMethod = 1 << 10

// notToken reports whether a method may not hold r (RFC 9110, 5.6.2).
func notToken(r rune) bool {
	return r <= ' ' || r >= 0x7f || strings.ContainsRune("\"(),/:;<=>?@[\\]{}", r)
}

// request reports whether text begins with METHOD URI HTTP/…, or with a method of HTTP/0.9.
func request(text []byte) bool {
	line, _, _ := bytes.Cut(bytes.TrimLeft(text, "\r\n \t"), []byte("\n"))
	fields := strings.Fields(string(line))
	return len(fields) >= 3 && strings.HasPrefix(strings.ToUpper(fields[len(fields)-1]), "HTTP/") ||
		len(fields) >= 2 && strings.EqualFold(fields[0], http.MethodGet)
}

// one forwards one request.
func (q *requests) one(first bool) error {
	q.src.left = maxHead
	if err := q.skipEmpty(); err != nil {
		return err
	}
	r, err := http.ReadRequest(q.br)
	q.src.left = math.MaxInt64
	if err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			return io.EOF
		}
		return refuse("no HTTP/1 request: %v", err)
	}
	if err := q.check(r, first); err != nil {
		return err
	}
	if err := q.inject(r); err != nil {
		return err
	}
	upgrade := r.Header.Get("Upgrade") != ""
	if upgrade {
		q.asked()
	}
	if err := q.write(r); err != nil {
		return err
	}
	if upgrade && q.upgraded() {
		if err := q.raw(); err != nil {
			return err
		}
		return io.EOF
	}
	return nil
}

// skipEmpty reads the empty lines that may stand before a request (RFC 9112, 2.2).
func (q *requests) skipEmpty() error {
	for {
		b, err := q.br.Peek(1)
		if err != nil {
			return err
		}
		if b[0] != '\r' && b[0] != '\n' {
			return nil
		}
		if _, err := q.br.Discard(1); err != nil {
			return err
		}
	}
}

// check makes sure that a request is for the connection's name.
func (q *requests) check(r *http.Request, first bool) error {
	switch {
	case r.ProtoMajor != 1:
		return refuse("%s without TLS", r.Proto)
	case strings.EqualFold(r.Method, http.MethodTrace) || strings.EqualFold(r.Method, "TRACK"):
		return refuse("%s sends back what a client is not to see", r.Method)
	case strings.EqualFold(r.Method, http.MethodConnect):
		return refuse("CONNECT asks for another destination")
	case !strings.HasPrefix(r.RequestURI, "/") && r.RequestURI != "*" && (r.URL.Host == "" || r.URL.Scheme != "http"):
		return refuse("the target %.80q is neither a path nor a URL of http", r.RequestURI)
	case r.Header.Get("HTTP2-Settings") != "" || hasToken(r.Header.Values("Upgrade"), "h2c"):
		return refuse("h2c asks for HTTP/2, whose names cannot be checked")
	case r.Header.Get("Upgrade") != "" && q.proxy != nil:
		return refuse("an upgrade through the host's proxy, which would not be seen any more")
	case r.Header.Get("Upgrade") != "" && (!first || r.ContentLength != 0 || len(r.TransferEncoding) > 0):
		return refuse("an upgrade comes first on its connection, and without a body")
	}
	if r.Host == "" && r.ProtoAtLeast(1, 1) {
		return refuse("a request without Host")
	}
	host := r.Host
	if host == "" { // HTTP/1.0
		return nil
	}
	if r.URL.User != nil {
		return refuse("a URL with a password")
	}
	want := q.t.name
	port := ""
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		host, port = host[:i], host[i+1:]
	}
	if port != "" {
		if n, err := parsePort(port); err != nil || n != q.t.port {
			return refuse("Host %.80q on a connection to port %d", r.Host, q.t.port)
		}
	}
	if want == "" {
		a, err := parseAddr(strings.Trim(host, "[]"))
		if err != nil || a != q.t.addr {
			return refuse("Host %.80q on a connection to %s", r.Host, q.t.addr)
		}
		return nil
	}
	got, err := parseName(host)
	if err != nil || got != want && (want != HostName || got != "localhost") {
		return refuse("Host %.80q on a connection to %s", r.Host, want)
	}
	return nil
}

func hasToken(values []string, token string) bool {
	for _, v := range values {
		for part := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(part), token) {
				return true
			}
		}
	}
	return false
}

// inject sets the headers that belong to this destination, whatever the client wrote there.
func (q *requests) inject(r *http.Request) error {
	for _, h := range q.headers {
		port := h.Port
		if port == 0 {
			port = 80
		}
		if h.Host != q.t.name || port != q.t.port {
			continue
		}
		value, err := h.Value()
		if err != nil {
			return refuse("the header %s cannot be had", h.Name)
		}
		r.Header.Set(h.Name, value)
	}
	return nil
}

// write writes a request as it was understood.
func (q *requests) write(r *http.Request) error {
	uri := r.RequestURI
	if !strings.HasPrefix(uri, "/") {
		uri = r.URL.RequestURI() // the absolute form is for proxies
	}
	if q.proxy != nil {
		uri = "http://" + strings.TrimSuffix(q.t.String(), ":80") + strings.TrimPrefix(uri, "*") // RFC 9112, 3.2.4
		r.Header.Del("Proxy-Authorization")
		if value := credentials(q.proxy); value != "" {
			r.Header.Set("Proxy-Authorization", value)
		}
	}
	head := &bytes.Buffer{}
	fmt.Fprintf(head, "%s %s HTTP/%d.%d\r\n", r.Method, uri, r.ProtoMajor, min(r.ProtoMinor, 1))
	if r.Host != "" {
		fmt.Fprintf(head, "Host: %s\r\n", r.Host)
	}
	sized := r.Header.Get("Content-Length") != ""
	r.Header.Del("Content-Length")
	r.Header.Del("Proxy-Connection")
	chunked := len(r.TransferEncoding) > 0
	switch {
	case chunked:
		r.Header.Set("Transfer-Encoding", "chunked")
	case sized || r.ContentLength > 0:
		r.Header.Set("Content-Length", fmt.Sprint(max(r.ContentLength, 0)))
	}
	for name := range r.Trailer {
		r.Header.Add("Trailer", name)
	}
	if err := r.Header.Write(head); err != nil {
		return err
	}
	head.WriteString("\r\n")
	if _, err := q.dst.Write(head.Bytes()); err != nil {
		return err
	}
	if !chunked {
		_, err := io.Copy(q.dst, r.Body)
		return errors.Join(err, r.Body.Close())
	}
	w := httputil.NewChunkedWriter(q.dst)
	if _, err := io.Copy(w, r.Body); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	end := &bytes.Buffer{}
	if err := r.Trailer.Write(end); err != nil {
		return err
	}
	end.WriteString("\r\n")
	_, err := q.dst.Write(end.Bytes())
	return errors.Join(err, r.Body.Close())
}

// switches reads what a response begins with and reports whether the server changes the protocol.
func switches(r io.Reader) (yes bool, read []byte, err error) {
	read = make([]byte, 64)
	n, err := io.ReadAtLeast(r, read, len("HTTP/1.1 101"))
	read = read[:n]
	fields := strings.Fields(string(read))
	return len(fields) >= 2 && strings.HasPrefix(fields[0], "HTTP/1.") && fields[1] == "101", read, err
}
