package native

import (
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// op is one system call as the child's interpreter reads it: 72 bytes, known to the assembly.
type op struct {
	nr    uintptr
	args  [6]uintptr
	flags uintptr
	ret   uintptr
}

// Flags of an op, known to the assembly.
const (
	opSoft    = 1 << iota // a failure is recorded, and the script goes on
	opRef0                // args[0] is the address of an earlier op's result
	opRef2                // args[2] likewise
	opNonzero             // a result of 0 is a failure: the lifeline's other end is gone
	opLeave               // a positive result ends the script with success: the process that forked
	opAgain               // EAGAIN is no failure
)

// result says where a script stopped. step is -1 until then.
type result struct{ step, errno int64 }

// A plan is a child's set-up as data: named system calls in order. It is built by value, rendered by String
// for the golden tests, and compiled once into ops.
type plan struct {
	steps []step
	keep  []any // what the ops point to

	stop stopper
}

// stopper, when at is positive, makes the child say on fd that it is about to do step at, and wait for an answer.
// The tests kill the supervisor there.
type stopper struct{ at, fd int }

type step struct {
	name  string
	nr    uintptr
	flags uintptr
	args  []any // see plan.arg
}

// ref is the result of an earlier step of the same plan: the number of the step.
type ref int

// hostFD is a descriptor of the supervisor that the child finds under the same number.
type hostFD struct {
	name string
	fd   int
}

func (p *plan) add(name string, nr uintptr, args ...any) ref {
	if p.stop.at > 0 && len(p.steps) == p.stop.at {
		p.steps = append(p.steps,
			step{name: "stopped", nr: unix.SYS_WRITE, args: []any{p.stop.fd, "s", 1}},
			step{name: "wait to go on", nr: unix.SYS_READ, args: []any{p.stop.fd, make([]byte, 1), 1}})
	}
	p.steps = append(p.steps, step{name: name, nr: nr, args: args})
	return ref(len(p.steps) - 1)
}

// flag sets flags of the newest step.
func (p *plan) flag(f uintptr) { p.steps[len(p.steps)-1].flags |= f }

// soft adds a step whose failure does not matter.
func (p *plan) soft(name string, nr uintptr, args ...any) {
	p.add(name, nr, args...)
	p.flag(opSoft)
}

// call adds a step for a caller that either records or executes (see executor).
func (p *plan) call(name string, nr uintptr, args ...any) (any, error) {
	return p.add(name, nr, args...), nil
}

// script is a compiled plan in memory that the child shares with us, also when it shares nothing else.
type script struct {
	plan *plan
	mem  []byte
	ops  []op
	res  *result
}

// compile lays the plan out. The caller calls free when the child has ended or executed.
func (p *plan) compile() (*script, error) {
	head := int(unsafe.Sizeof(result{}))
	size := head + len(p.steps)*int(unsafe.Sizeof(op{}))
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("script memory: %w", err)
	}
	s := &script{plan: p, mem: mem}
	s.res = (*result)(unsafe.Pointer(&mem[0]))
	s.res.step = -1
	s.ops = unsafe.Slice((*op)(unsafe.Pointer(&mem[head])), len(p.steps))
	for i, st := range p.steps {
		o := &s.ops[i]
		o.nr, o.flags = st.nr, st.flags
		for k, a := range st.args {
			o.args[k] = s.arg(o, k, a)
		}
	}
	return s, nil
}

// arg turns one argument into a register: numbers as they are, strings and bytes by address, refs by the
// address of the result that they stand for.
func (s *script) arg(o *op, k int, a any) uintptr {
	switch v := a.(type) {
	case ref:
		switch k {
		case 0:
			o.flags |= opRef0
		case 2:
			o.flags |= opRef2
		default:
			panic("native: a reference can only be argument 0 or 2")
		}
		return uintptr(unsafe.Pointer(&s.ops[v].ret))
	case nil:
		return 0
	}
	r, keep := register(a)
	if keep != nil {
		s.plan.keep = append(s.plan.keep, keep)
	}
	return r
}

// register gives an argument that needs no script as a register, and what must be kept alive for it.
func register(a any) (r uintptr, keep any) {
	switch v := a.(type) {
	case nil:
		return 0, nil
	case int:
		return uintptr(v), nil
	case uintptr:
		return v, nil
	case uint32:
		return uintptr(v), nil
	case syscall.Signal:
		return uintptr(v), nil
	case hostFD:
		return uintptr(v.fd), nil
	case string:
		b := append([]byte(v), 0)
		return uintptr(unsafe.Pointer(&b[0])), b
	case []byte:
		return uintptr(unsafe.Pointer(&v[0])), v
	case *unix.OpenHow:
		return uintptr(unsafe.Pointer(v)), v
	case *unix.MountAttr:
		return uintptr(unsafe.Pointer(v)), v
	case *unix.Rlimit:
		return uintptr(unsafe.Pointer(v)), v
	case *unix.SockFprog:
		return uintptr(unsafe.Pointer(v)), v
	case *capHeader:
		return uintptr(unsafe.Pointer(v)), v
	case *capData:
		return uintptr(unsafe.Pointer(v)), v
	case *sharedPID:
		return uintptr(unsafe.Pointer(v)), v
	case *unix.Msghdr:
		return uintptr(unsafe.Pointer(v)), v
	case strv:
		return v.register()
	}
	panic(fmt.Sprintf("native: argument of type %T", a))
}

// strv is an argument vector: a NULL-terminated array of C strings.
type strv []string

func (v strv) register() (uintptr, any) {
	ptrs := make([]*byte, len(v)+1)
	for i, s := range v {
		ptrs[i] = &append([]byte(s), 0)[0]
	}
	return uintptr(unsafe.Pointer(&ptrs[0])), ptrs
}

// free gives the script's memory back.
func (s *script) free() {
	if s.mem != nil {
		_ = unix.Munmap(s.mem) // it is our own mapping: the call cannot fail
		s.mem, s.ops, s.res = nil, nil, nil
	}
	runtime.KeepAlive(s.plan)
}

// err is the failure of the child, by the name of the step.
func (s *script) err() error {
	if s.res.step < 0 {
		return nil
	}
	return &StepError{Step: s.plan.steps[s.res.step].name, Index: int(s.res.step), Errno: syscall.Errno(s.res.errno)}
}

// StepError is a step of a sandbox's set-up that the kernel refused.
type StepError struct {
	Step  string
	Index int
	Errno syscall.Errno
}

func (e *StepError) Error() string {
	return fmt.Sprintf("set-up step %d (%s): %v", e.Index, e.Step, e.Errno)
}

// Unwrap gives the errno.
func (e *StepError) Unwrap() error { return e.Errno }

// String renders the plan for golden tests and debugging: one line per step, nothing that differs between runs.
func (p *plan) String() string {
	var b strings.Builder
	for i, st := range p.steps {
		fmt.Fprintf(&b, "%3d %s", i, st.name)
		for _, a := range st.args {
			b.WriteString(" " + renderArg(a))
		}
		if st.flags&opSoft != 0 {
			b.WriteString(" (soft)")
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func renderArg(a any) string {
	switch v := a.(type) {
	case nil:
		return "0"
	case ref:
		return fmt.Sprintf("$%d", int(v))
	case hostFD:
		return "<" + v.name + ">"
	case string:
		return fmt.Sprintf("%q", v)
	case strv:
		return fmt.Sprintf("%q", []string(v))
	case int:
		return fmt.Sprintf("%d", v)
	case uintptr:
		return fmt.Sprintf("%#x", v)
	case uint32:
		return fmt.Sprintf("%d", v)
	case *unix.OpenHow:
		return fmt.Sprintf("{flags %#x resolve %#x}", v.Flags, v.Resolve)
	case *unix.MountAttr:
		return fmt.Sprintf("{set %#x clear %#x}", v.Attr_set, v.Attr_clr)
	case *unix.Rlimit:
		return fmt.Sprintf("{%d %d}", v.Cur, v.Max)
	case *unix.SockFprog:
		return fmt.Sprintf("{%d instructions}", v.Len)
	}
	return fmt.Sprintf("<%T>", a)
}
