//go:build faults

package faults

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// TestClockJumps: a clock that is set, as NTP does on a node that had lost it, is nobody's stall, deadline or retry.
func TestClockJumps(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{restic, kopia} {
		t.Run(uploader+"/backup", func(t *testing.T) {
			r := newRow(t, "clock jumps 6 hours ahead and back in a backup, %s", uploader)
			t.Parallel()
			f, source := largeVolume(t, uploader)
			clock := f.startWithClock(slowUpload)
			pvb := f.newBackup(source, "data", uploader)
			f.create(pvb)
			f.jump(r, clock, pvb)
			f.restoreAndCompare(pvb)
		})
		t.Run(uploader+"/restore", func(t *testing.T) {
			r := newRow(t, "clock jumps 6 hours ahead and back in a restore, %s", uploader)
			t.Parallel()
			f, source := largeVolume(t, uploader)
			first := f.start()
			stored := snapshotOf(f.complete(f.backUp(source, uploader)))
			first.stop()
			clock := f.startWithClock(slowDownload)
			target := f.waitingPod("target", "data")
			pvr := f.newRestore(target, "data", stored)
			f.create(pvr)
			f.jump(r, clock, pvr)
			f.checkRestored(f.volume(source, "data"), f.volume(target, "data"), uploader)
		})
	}
}

// startWithClock starts an agent whose clock can be set.
func (f *fixture) startWithClock(flags ...string) *clock {
	f.t.Helper()
	c := &clock{}
	f.startWith(agentOptions{flags: flags, loaded: c.takeOver})
	f.t.Cleanup(c.close)
	return c
}

// jump sets the clock of the agent ahead when it begins to work on o, and back when it has told of bytes by the new time.
// The work must not mind.
func (f *fixture) jump(r *row, c *clock, o client.Object) {
	f.t.Helper()
	const hours = 6 * time.Hour
	ahead := func(v version) bool { return time.Until(v.snapshot.Heartbeat) > hours-10*time.Minute }
	f.until(o, "begun", func(v version) bool { return v.phase == inProgress })
	c.set(f.t, hours)
	since := time.Now()
	f.until(o, "told by the new time", func(v version) bool { return ahead(v) && v.snapshot.BytesDone > 0 && !v.terminal() })
	c.set(f.t, 0)
	r.recovered(since)
	if v := f.complete(o); ahead(v) {
		f.t.Errorf("its end is told by the wrong time: %v", v)
	}
	for _, v := range f.history.of(o) {
		if v.snapshot.Attempt > 1 || v.snapshot.State == progress.StateStalled {
			f.t.Errorf("the clock disturbed it: %v", v)
		}
	}
}

// clock is the wall clock of one process. The kernel puts the function that tells the time into the memory of each
// process (the vDSO); this one adds to what the kernel says.
type clock struct {
	memory *os.File
	offset int64 // the address of the seconds to add
}

// wallClock is clock_gettime, with the seconds to add to CLOCK_REALTIME after it.
var wallClock = []byte{
	0xb8, 0xe4, 0, 0, 0, // mov eax, SYS_clock_gettime
	0x0f, 0x05, // syscall
	0x85, 0xff, // test edi, edi: CLOCK_REALTIME is 0
	0x75, 0x0a, // jne to ret
	0x48, 0x8b, 0x0d, 6, 0, 0, 0, // mov rcx, [rip+6]: what comes after the padding
	0x48, 0x01, 0x0e, // add [rsi], rcx
	0xc3, // ret
	0, 0, // padding
	0, 0, 0, 0, 0, 0, 0, 0,
}

// takeOver replaces the function in a process that has not begun to run.
func (c *clock) takeOver(pid int) error {
	start, end, err := vdsoOf(pid)
	if err != nil {
		return err
	}
	if c.memory, err = os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0); err != nil {
		return err
	}
	image := make([]byte, end-start)
	if _, err := c.memory.ReadAt(image, start); err != nil {
		return fmt.Errorf("read the vDSO: %w", err)
	}
	file, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return fmt.Errorf("read the vDSO: %w", err)
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return fmt.Errorf("read the vDSO: %w", err)
	}
	i := slices.IndexFunc(symbols, func(s elf.Symbol) bool { return s.Name == "__vdso_clock_gettime" })
	if i < 0 || symbols[i].Size < uint64(len(wallClock)) {
		return fmt.Errorf("no place in the vDSO's __vdso_clock_gettime (symbol %d of %d)", i, len(symbols))
	}
	address := start + int64(symbols[i].Value)
	c.offset = address + int64(len(wallClock)) - 8
	_, err = c.memory.WriteAt(wallClock, address)
	return err
}

// set makes the clock run ahead of the kernel's.
func (c *clock) set(t *testing.T, ahead time.Duration) {
	t.Helper()
	if _, err := c.memory.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(ahead/time.Second)), c.offset); err != nil {
		t.Fatal(err)
	}
}

func (c *clock) close() { _ = c.memory.Close() } // the process is gone

// vdsoOf returns where a process has its vDSO.
func vdsoOf(pid int) (start, end int64, err error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(maps)) {
		if strings.HasSuffix(strings.TrimSpace(line), "[vdso]") {
			_, err := fmt.Sscanf(line, "%x-%x", &start, &end)
			return start, end, err
		}
	}
	return 0, 0, fmt.Errorf("process %d has no vDSO", pid)
}
