// restic-fake is a restic that misbehaves in its backups. What follows the prefix in the name of its process is the name of a misbehavior.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const prefix = "restic-fake-"

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

func main() {
	misbehave, ok := misbehaviors[strings.TrimPrefix(filepath.Base(os.Args[0]), prefix)]
	if !ok || len(os.Args) < 2 {
		fmt.Fprintf(os.Stderr, "%s: no such misbehavior, or no command\n", os.Args[0])
		os.Exit(2)
	}
	switch os.Args[1] {
	case "version":
		fmt.Println("restic 0.18.1 compiled with go1.25.1 on linux/amd64")
	case "backup":
		misbehave()
	}
}
