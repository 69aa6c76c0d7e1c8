package egress

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// The benchmarks' client is this test binary, run again as a process of its own: inside a namespace, or beside it on the
// host's loopback.
const clientEnv = "CAISSON_EGRESS_BENCH_CLIENT"

// clientTime is more than a client takes by any way that works.
const clientTime = 30 * time.Second

func TestMain(m *testing.M) {
	if os.Getenv(clientEnv) != "" {
		if err := client(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// client holds a gateway, or does KIND ADDRESS PARALLEL COUNT and prints how long it took in all, and the median of one, in nanoseconds.
func client(args []string) error {
	if args[0] == "gateway" {
		return gateway()
	}
	parallel, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	count, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	defer time.AfterFunc(clientTime, func() {
		fmt.Fprintln(os.Stderr, "no end after", clientTime)
		os.Exit(1)
	}).Stop()
	one := map[string]func(string, int) ([]time.Duration, error){"up": clientUp, "down": clientDown, "connect": clientConnect, "http": clientHTTP}[args[0]]
	began := time.Now()
	var all []time.Duration
	var failed error
	var mu sync.Mutex
	var running sync.WaitGroup
	for i := range parallel {
		running.Go(func() {
			took, err := one(args[1], count/parallel+min(1, max(0, count%parallel-i)))
			mu.Lock()
			defer mu.Unlock()
			all, failed = append(all, took...), errors.Join(failed, err)
		})
	}
	running.Wait()
	total := time.Since(began)
	var median time.Duration
	if slices.Sort(all); len(all) > 0 {
		median = all[len(all)/2]
	}
	fmt.Println(int64(total), int64(median))
	return failed
}

const megabyte = 1 << 20

func clientUp(to string, count int) ([]time.Duration, error) {
	c, err := net.Dial("tcp", to)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	b := make([]byte, megabyte)
	if _, err := c.Write([]byte("u" + fmt.Sprintln(count))); err != nil {
		return nil, err
	}
	for range count {
		if _, err := c.Write(b); err != nil {
			return nil, err
		}
	}
	_, err = io.ReadFull(c, b[:1]) // it has all
	return nil, err
}

func clientDown(to string, count int) ([]time.Duration, error) {
	c, err := net.Dial("tcp", to)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if _, err := c.Write([]byte("d" + fmt.Sprintln(count))); err != nil {
		return nil, err
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, make([]byte, megabyte))
	if err == nil && n != int64(count)*megabyte {
		err = io.ErrUnexpectedEOF
	}
	return nil, err
}

func clientConnect(to string, count int) (took []time.Duration, err error) {
	for range count {
		began := time.Now()
		c, err := net.Dial("tcp", to)
		if err != nil {
			return nil, err
		}
		took = append(took, time.Since(began))
		if err := c.Close(); err != nil {
			return nil, err
		}
	}
	return took, nil
}

func clientHTTP(to string, count int) (took []time.Duration, err error) {
	h := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for range count {
		began := time.Now()
		q, err := http.NewRequest(http.MethodGet, "http://"+to+"/", http.NoBody)
		if err != nil {
			return nil, err
		}
		q.Host = "localhost"
		r, err := h.Do(q)
		if err != nil {
			return nil, err
		}
		if _, err := io.Copy(io.Discard, r.Body); err != nil || r.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("%s %w", r.Status, err)
		}
		took = append(took, time.Since(began))
		_ = r.Body.Close()
	}
	return took, nil
}

// bulk is a server for up and down.
func bulk(l net.Listener) {
	serve := func(c net.Conn) {
		defer c.Close()
		r := bufio.NewReader(c)
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		count, _ := strconv.Atoi(strings.TrimSpace(line[1:]))
		b := make([]byte, megabyte)
		if line[0] == 'd' {
			for range count {
				if _, err := c.Write(b); err != nil {
					return
				}
			}
			return
		}
		for left := count * megabyte; left > 0; {
			n, err := r.Read(b)
			if left -= n; err != nil {
				return
			}
		}
		_, _ = c.Write(b[:1])
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go serve(c)
	}
}

// way is one way out of a network namespace to the host's loopback.
type way struct {
	name string
	run  func(*exec.Cmd) error // in the namespace
	host func(port int) string
}

func ways(b testing.TB, ports ...int) []way {
	list := []way{{"loopback", (*exec.Cmd).Run, func(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }}, throughGateway(b, ports)}
	if w, ok := through(b, "10.0.2.2", "slirp4netns", "--configure", "--mtu=65520", "--netns-type=path", "NETNS", "tap0"); ok {
		list = append(list, w)
	}
	if w, ok := throughPasta(b); ok {
		list = append(list, w)
	}
	return list
}

// throughPasta makes a namespace for each run; the client measures itself. The host's loopback is where the host's own
// gateway is.
func throughPasta(b testing.TB) (way, bool) {
	route, err := exec.Command("ip", "-4", "-o", "route", "show", "default").Output()
	fields := strings.Fields(string(route))
	path, lerr := exec.LookPath("pasta")
	if err = errors.Join(err, lerr); err != nil || len(fields) < 3 || fields[1] != "via" {
		b.Logf("without pasta: %v; route %q", err, route)
		return way{}, false
	}
	return way{"pasta", func(c *exec.Cmd) error {
		args := []string{"--runas", "0", "--quiet", "--config-net", "-4", "-t", "none", "-u", "none", "-T", "none", "-U", "none", "--"}
		in := exec.Command(path, append(args, c.Args...)...)
		in.Env, in.Stdout, in.WaitDelay = c.Env, c.Stdout, 10*time.Second
		return in.Run()
	}, func(port int) string { return net.JoinHostPort(fields[2], strconv.Itoa(port)) }}, true
}

func throughGateway(b testing.TB, ports []int) way {
	p := Policy{Mode: ModeAllow, Limits: Limits{Bytes: 1 << 50, Rate: 1 << 50}}
	for _, port := range ports {
		p.Allow = append(p.Allow, "host:"+strconv.Itoa(port))
	}
	w := newWorld(b, p, func(o *Options) { o.Outside, o.Events, o.Total = Outside{}, nil, p.Limits })
	a, code := w.ask(HostName, dnsmessage.TypeA)
	if len(a) != 1 {
		b.Fatal(code)
	}
	return way{"gateway", func(c *exec.Cmd) (err error) {
		w.in(func() { err = c.Start() })
		if err != nil {
			return err
		}
		return c.Wait()
	}, func(port int) string { return net.JoinHostPort(a[0].String(), strconv.Itoa(port)) }}
}

// through starts another program's way out for a namespace of its own.
func through(b testing.TB, host, program string, args ...string) (way, bool) {
	path, err := exec.LookPath(program)
	if err != nil {
		b.Logf("without %s: %v", program, err)
		return way{}, false
	}
	jobs := make(chan func())
	ns := namespace(jobs)
	b.Cleanup(func() { close(jobs) })
	args = slices.Clone(args)
	args[slices.Index(args, "NETNS")] = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns)
	c := exec.Command(path, args...)
	c.Stderr = os.Stderr
	if err := c.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		_ = unix.Close(ns)
	})
	in := func(f func()) {
		done := make(chan struct{})
		jobs <- func() { defer close(done); f() }
		<-done
	}
	up := false
	for deadline := time.Now().Add(10 * time.Second); !up && time.Now().Before(deadline); runtime.Gosched() {
		in(func() {
			c, err := net.Dial("udp", host+":9") // a route to it
			if up = err == nil; up {
				_ = c.Close()
			}
		})
	}
	if !up {
		b.Logf("without %s: no route to %s", program, host)
		return way{}, false
	}
	return way{program, func(c *exec.Cmd) (err error) {
		in(func() { err = c.Start() })
		if err != nil {
			return err
		}
		return c.Wait()
	}, func(port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }}, true
}

// measured is one kind of traffic.
type measured struct {
	kind     string
	port     int
	parallel int
	count    int // of megabytes, connections or requests in one round of BenchmarkTable
}

// servers are what is measured against, on the host's loopback.
func servers(b testing.TB) (bulkPort, webPort int, kinds []measured) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close() })
	go bulk(l)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	b.Cleanup(web.Close)
	port, webPort := l.Addr().(*net.TCPAddr).Port, web.Listener.Addr().(*net.TCPAddr).Port
	return port, webPort, []measured{{"up", port, 1, 800}, {"up", port, 8, 800}, {"down", port, 1, 800}, {"down", port, 8, 800},
		{"connect", port, 1, 500}, {"http", webPort, 1, 500}, {"http", webPort, 8, 500}}
}

// through measures count of a kind by one way: how long it took in all, and the median of one.
func (k measured) through(w way, count int) (total, median time.Duration, err error) {
	exe, err := os.Executable()
	if err != nil {
		return 0, 0, err
	}
	c := exec.Command(exe, k.kind, w.host(k.port), strconv.Itoa(k.parallel), strconv.Itoa(max(count, k.parallel)))
	c.Env = append(os.Environ(), clientEnv+"=1")
	c.Stderr = os.Stderr
	var out strings.Builder
	c.Stdout = &out
	if err := w.run(c); err != nil {
		return 0, 0, err
	}
	_, err = fmt.Sscan(out.String(), &total, &median)
	return total, median, err
}

// figure is what a table shows of it: Gbit/s, milliseconds of the median connection, requests per second.
func (k measured) figure(total, median time.Duration, count int) float64 {
	switch k.kind {
	case "up", "down":
		return float64(count) * megabyte * 8 / float64(total)
	case "connect":
		return median.Seconds() * 1000
	}
	return float64(count) / total.Seconds()
}

// BenchmarkWays compares the ways out, in one run: go test -run - -bench Ways.
func BenchmarkWays(b *testing.B) {
	port, webPort, kinds := servers(b)
	list := ways(b, port, webPort)
	for _, k := range kinds {
		for _, w := range list {
			b.Run(fmt.Sprintf("%s/%d/%s", k.kind, k.parallel, w.name), func(b *testing.B) {
				total, median, err := k.through(w, b.N)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(total)/float64(b.N), "ns/op")
				unit := map[string]string{"up": "Gbit/s", "down": "Gbit/s", "connect": "p50-ms", "http": "ops/s"}[k.kind]
				b.ReportMetric(k.figure(total, median, b.N), unit)
			})
		}
	}
}

// BenchmarkTable prints the medians of all ways, each measured once in every round: go test -run - -bench Table -benchtime 7x.
func BenchmarkTable(b *testing.B) {
	port, webPort, kinds := servers(b)
	list := ways(b, port, webPort)
	found, broken := map[string][]float64{}, map[string]bool{}
	cell := func(k measured, w way) string { return fmt.Sprint(k.kind, k.parallel, w.name) }
	for b.Loop() {
		for _, k := range kinds {
			for _, w := range list {
				if broken[cell(k, w)] {
					continue
				}
				total, median, err := k.through(w, k.count)
				if err != nil {
					b.Logf("%s, %d, by %s: %v; it is left out from now on", k.kind, k.parallel, w.name, err)
					broken[cell(k, w)] = true
					continue
				}
				found[cell(k, w)] = append(found[cell(k, w)], k.figure(total, median, k.count))
			}
		}
	}
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		b.Fatal(err)
	}
	fmt.Printf("load %s%d processors, %d rounds, medians\n\n|", load, runtime.NumCPU(), b.N)
	for _, w := range list {
		fmt.Print(" | ", w.name)
	}
	fmt.Print(" |\n|---", strings.Repeat("|---", len(list)), "|\n")
	for _, k := range kinds {
		fmt.Printf("| %s, %d at a time", k.kind, k.parallel)
		for _, w := range list {
			values := found[cell(k, w)]
			if slices.Sort(values); len(values) == 0 {
				fmt.Print(" | –")
				continue
			}
			fmt.Printf(" | %.4g", values[len(values)/2])
		}
		fmt.Println(" |")
	}
	fmt.Println("\nup, down: Gbit/s; connect: ms; http: requests a second without keep-alive")
}

// BenchmarkStart is what a rule costs a sandbox at its start: a device, a gateway, and their end.
func BenchmarkStart(b *testing.B) {
	needRoot(b)
	r, err := Parse(Policy{Mode: ModeAllow, Allow: []string{"go"}})
	if err != nil {
		b.Fatal(err)
	}
	for range b.N {
		b.StopTimer()
		jobs := make(chan func())
		ns := namespace(jobs)
		b.StartTimer()
		tun, err := OpenTUN(ns)
		if err != nil {
			b.Fatal(err)
		}
		g, err := Start(b.Context(), Options{TUN: tun, Rule: r})
		if err != nil {
			b.Fatal(err)
		}
		if err := g.Close(); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		close(jobs)
		if err := unix.Close(ns); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
