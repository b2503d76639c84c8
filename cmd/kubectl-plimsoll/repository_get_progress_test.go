package main

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/filerequest/protocol"
)

// TestGetProgress: what comes slowly has lines with bytes, rate and time left; what is there at once has none.
func TestGetProgress(t *testing.T) {
	t.Parallel()
	get := func(kind string, seconds int) (lines string) {
		synctest.Test(t, func(t *testing.T) {
			from, to := io.Pipe()
			header := http.Header{protocol.HeaderType: {kind}, protocol.HeaderSize: {"41943040"}}
			answer := &fileAnswer{t.Context(), &http.Response{Header: header, Body: from}}
			var out bytes.Buffer
			stop := answer.showProgress(&out, "dump.sql", 10<<20)
			go func() {
				<-time.After(time.Second / 2) // between the looks
				for range seconds {
					_, _ = to.Write(make([]byte, 1<<20)) // the reader stays until the end
					<-time.After(time.Second)
				}
				_ = to.Close()
			}()
			if n, err := io.Copy(io.Discard, answer); n != int64(seconds)<<20 || err != nil {
				t.Errorf("%d bytes, %v", n, err)
			}
			stop()
			lines = out.String()
		})
		return lines
	}
	if lines := get(protocol.TypeFile, 2); lines != "" {
		t.Errorf("of what is there at once: %s", lines)
	}
	lines := get(protocol.TypeFile, 15)
	if strings.Count(lines, "\n") != 2 || !strings.Contains(lines, "dump.sql  Transferring    57%  23.0 MiB of 40.0 MiB  1.0 MiB/s  ETA 1") {
		t.Errorf("of a file: %s", lines)
	}
	if lines := get(protocol.TypeDirectory, 15); !strings.Contains(lines, "dump.sql  Transferring      -  23.0 MiB  1.0 MiB/s") {
		t.Errorf("of a directory: %s", lines)
	}
}
