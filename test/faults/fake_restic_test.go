//go:build faults

package faults

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fakePrefix begins the names under which the test binary plays a restic that misbehaves in its backups. What follows is
// the name of a misbehavior.
const fakePrefix = "restic-fake-"

// misbehaviors are what a real restic cannot be brought to do.
var misbehaviors = map[string]func(){
	"hang": func() {
		signal.Ignore(syscall.SIGINT, syscall.SIGTERM)
		fmt.Println(`{"message_type":"status","percent_done":0.5,"total_files":2,"files_done":1,"total_bytes":1000,"bytes_done":500}`)
		<-time.After(time.Hour)
	},
	"garbage": func() {
		for i := range 10_000 {
			fmt.Printf("{\"message_type\":\"status\",%d\x00\xff\xfe\x1b[2K}\n[]\nnull\n\"\\ud800\"\n", i)
			fmt.Fprintf(os.Stderr, "\xff\x00garbage \x1b]0;title\a%d\n", i)
		}
	},
	"long-line": func() {
		block := []byte(strings.Repeat("x", 1<<20))
		for range 1 << 10 {
			_, _ = os.Stdout.Write(block)
		}
	},
	"crash": func() { panic("made by the fault suite") },
	"hog": func() {
		var all [][]byte
		for {
			block := make([]byte, 16<<20)
			for i := 0; i < len(block); i += 4096 {
				block[i] = 1
			}
			all = append(all, block)
			if len(all)%16 == 0 {
				fmt.Println(`{"message_type":"status","percent_done":0.5,"total_files":2,"files_done":1,"total_bytes":1000,"bytes_done":500}`)
			}
		}
	},
}

// playRestic plays restic if that is the name of this process, and does not return then.
func playRestic() {
	misbehavior, ok := strings.CutPrefix(filepath.Base(os.Args[0]), fakePrefix)
	if !ok {
		return
	}
	switch os.Args[1] {
	case "version":
		fmt.Println("restic 0.18.1 compiled with go1.25.1 on linux/amd64")
	case "backup":
		misbehaviors[misbehavior]()
	}
	os.Exit(0)
}

// fakeRestic returns the path of a restic that misbehaves.
func (f *fixture) fakeRestic(misbehavior string) string {
	f.T.Helper()
	return linkToSelf(f.T, filepath.Join(f.Dir, fakePrefix+misbehavior))
}

func linkToSelf(tb testing.TB, path string) string {
	tb.Helper()
	self, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	if err := os.Symlink(self, path); err != nil {
		tb.Fatal(err)
	}
	return path
}
