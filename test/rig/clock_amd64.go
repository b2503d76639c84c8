package rig

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
)

// Clock is the wall clock of one process. The kernel puts the function that tells the time into the memory of each
// process (the vDSO); this one adds to what the kernel says.
type Clock struct {
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

// TakeOver replaces the function in a process that has not begun to run.
func (c *Clock) TakeOver(pid int) error {
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

// Set makes the clock run ahead of the kernel's.
func (c *Clock) Set(tb testing.TB, ahead time.Duration) {
	tb.Helper()
	if _, err := c.memory.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(ahead/time.Second)), c.offset); err != nil {
		tb.Fatal(err)
	}
}

// Close lets go of the process.
func (c *Clock) Close() { _ = c.memory.Close() } // the process is gone

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
