package redact

import (
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// took is the processor's time for a text: others may work on this machine.
func took(r *Redactor, text []byte) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const thread = 1 // RUSAGE_THREAD
	var before, after syscall.Rusage
	_ = syscall.Getrusage(thread, &before)
	discard(r, text)
	_ = syscall.Getrusage(thread, &after)
	return time.Duration(after.Utime.Nano() - before.Utime.Nano() + after.Stime.Nano() - before.Stime.Nano())
}

// TestLinear: no input makes it slow. Each is compared with twice as much of it, and with plain output.
func TestLinear(t *testing.T) {
	const size = 1 << 20
	r := known()
	r.Know(Value{"SELF", strings.Repeat("a", 400) + "b"})
	plain := took(r, buildOutput(size))
	for name, unit := range map[string]string{
		"names":         "password",
		"fields":        "password=",
		"fields apart":  "token: ",
		"empty fields":  "password= \n",
		"quotes":        "password=\"",
		"open quotes":   "token=\"a ",
		"URLs":          "a://",
		"users":         "a://b:",
		"escapes":       "\\",
		"escaped":       "\"password\\\":\\\"",
		"keys":          "-----BEGIN PRIVATE KEY-----",
		"begins":        "----BEGIN ",
		"ends":          "-----BEGIN PRIVATE KEY----------END ",
		"separators":    "secret=a,b,",
		"ampersands":    "secret=&&",
		"brackets":      "(password [token {secret ",
		"self":          "a",
		"JSON":          "{\"token\":\"a\",\"secret\":1},",
		"blocks":        "password: |\n",
		"blank":         "password: |\n \n",
		"tokens":        "ghp_",
		"JWTs":          "eyJa.",
		"values":        "7919-correct/hors",
		"bearers":       "Bearer a",
		"single quotes": "secret='\\''",
		"headers":       "Cookie: ",
		"dashes":        "-",
		"spaces":        "password         ",
	} {
		t.Run(name, func(t *testing.T) {
			text := []byte(strings.Repeat(unit, 2*size/len(unit)))
			took(r, text[:size/8]) // what is made once
			half, whole := took(r, text[:size]), took(r, text)
			if whole > 5*half+50*time.Millisecond {
				t.Errorf("%s for a half, %s for the whole", half, whole)
			}
			if half > 100*plain+200*time.Millisecond {
				t.Errorf("%s, and %s for plain output", half, plain)
			}
			t.Logf("%.1f MB/s", float64(size)/1e6/half.Seconds())
		})
	}
}
