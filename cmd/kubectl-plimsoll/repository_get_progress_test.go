package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
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

// slowServer answers as the server does, with a mebibyte each second.
type slowServer struct{ seconds int }

func (s slowServer) RoundTrip(r *http.Request) (*http.Response, error) {
	from, to := io.Pipe()
	answer := &http.Response{StatusCode: http.StatusOK, Header: http.Header{protocol.HeaderType: {protocol.TypeDirectory}}, Trailer: http.Header{}, Body: from, Request: r}
	if strings.HasSuffix(r.URL.Path, protocol.Volumes) {
		answer.Trailer.Set(protocol.TrailerEnd, protocol.End{Complete: true}.Encode())
		go func() {
			_ = errors.Join(json.NewEncoder(to).Encode(protocol.Volume{PodVolumeBackup: "p", SnapshotID: "2", Volume: "data"}), to.Close())
		}()
		return answer, nil
	}
	sum := sha256.Sum256(make([]byte, s.seconds<<20))
	answer.Trailer.Set(protocol.TrailerEnd, protocol.End{Complete: true, SHA256: hex.EncodeToString(sum[:])}.Encode())
	go func() {
		<-time.After(time.Second / 2)
		for range s.seconds {
			_, _ = to.Write(make([]byte, 1<<20)) // the reader stays until the end
			<-time.After(time.Second)
		}
		_ = to.Close()
	}()
	return answer, nil
}

// TestGetProgressOfStdout: an archive that goes on through a pipe has lines, too, and not in the archive.
func TestGetProgressOfStdout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &fileSession{request: &v1alpha1.FileRequest{}, token: "token", address: "http://server", http: &http.Client{Transport: slowServer{15}}}
		var out, errOut bytes.Buffer
		o := &repositoryGet{path: "d", dest: toStdout, out: &out, errOut: &errOut}
		if err := o.run(t.Context(), s); err != nil || out.Len() != 15<<20 {
			t.Errorf("%d bytes, %v", out.Len(), err)
		}
		if lines := errOut.String(); strings.Count(lines, "\n") != 2 || !strings.Contains(lines, "d  Transferring      -  13.0 MiB  1.0 MiB/s") {
			t.Errorf("lines: %s", lines)
		}
	})
}
