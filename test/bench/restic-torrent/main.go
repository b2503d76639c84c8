// restic-torrent is a restic whose backup prints its progress as fast as that is read, which no restic does on demand, and stores nothing. The
// volume has a file with numbers: after so many lines restic-torrent waits until the volume has another file, with the name "after-" and the number. The last
// number ends the backup.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "restic-torrent: no command")
		os.Exit(2)
	}
	switch os.Args[1] {
	case "version":
		fmt.Println("restic 0.18.1 compiled with go1.25.1 on linux/amd64")
	case "backup":
		if err := backUp(); err != nil {
			fmt.Fprintln(os.Stderr, "Fatal:", err)
			os.Exit(1)
		}
	}
}

// backUp is called in the volume's directory.
func backUp() error {
	pauses, err := readPauses()
	if err != nil {
		return err
	}
	last := pauses[len(pauses)-1]
	total := 2 * last << 10 // so that not all is read at the last pause
	out := bufio.NewWriterSize(os.Stdout, 64<<10)
	var line []byte
	for n := 1; n <= last; n++ {
		line = fmt.Appendf(line[:0], `{"message_type":"status","seconds_elapsed":%d,"seconds_remaining":%d,"percent_done":%.4f,"total_files":%d,"files_done":%d,`+
			`"total_bytes":%d,"bytes_done":%d,"current_files":["/var/lib/data/%d/file-%d"]}`+"\n",
			n, 2*last-n, float64(n)/float64(2*last), 2*last, n, total, n<<10, n/1000, n)
		if _, err := out.Write(line); err != nil {
			return err
		}
		if n == pauses[0] {
			pauses = pauses[1:]
			if err := out.Flush(); err != nil {
				return err
			}
			waitFor("after-" + strconv.Itoa(n))
		}
	}
	_, err = fmt.Fprintf(out, `{"message_type":"summary","files_new":%d,"total_files_processed":%[1]d,"total_bytes_processed":%d,"data_added":%[2]d,"snapshot_id":"%064x"}`+"\n",
		2*last, total, last)
	return errors.Join(err, out.Flush())
}

func readPauses() ([]int, error) {
	text, err := os.ReadFile("pauses")
	if err != nil {
		return nil, err
	}
	var pauses []int
	for field := range strings.FieldsSeq(string(text)) {
		n, err := strconv.Atoi(field)
		if err != nil {
			return nil, err
		}
		pauses = append(pauses, n)
	}
	if len(pauses) == 0 {
		return nil, errors.New("no number of lines")
	}
	return pauses, nil
}

func waitFor(name string) {
	for {
		if _, err := os.Stat(name); err == nil {
			return
		}
		<-time.After(10 * time.Millisecond)
	}
}
