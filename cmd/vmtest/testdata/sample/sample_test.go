// Package sample is what TestHarness runs in the machine.
package sample

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

func TestPass(t *testing.T) {
	controllers, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []string{"cpu", "memory", "pids"} {
		if !strings.Contains(string(controllers), c) {
			t.Errorf("no controller %s: %s", c, controllers)
		}
	}
	if data, err := os.ReadFile("testdata/hello"); err != nil || string(data) != "hello\n" {
		t.Errorf("testdata: %q, %v", data, err)
	}
	if got := os.Getenv("CAISSON_TEST_REQUIRE"); got != "sample" {
		t.Errorf("CAISSON_TEST_REQUIRE = %q", got)
	}
	for i := range 20000 {
		fmt.Println("line", i)
	}
}

func TestFail(t *testing.T) { t.Error("red") }

func TestKernelPanic(t *testing.T) {
	if err := os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0); err != nil {
		t.Fatal(err)
	}
	_ = syscall.Pause()
}

func TestHang(t *testing.T) { _ = syscall.Pause() }

func TestPowerOff(t *testing.T) { _ = syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF) }
