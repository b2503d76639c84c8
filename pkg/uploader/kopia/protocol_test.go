package kopia

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxText+1)
	for name, line := range map[string]string{
		"nothing":            ``,
		"no JSON":            `panic: runtime error`,
		"no message":         `{}`,
		"two messages":       `{"result":{"totalBytes":1},"failure":{"text":"no"}}`,
		"two values":         `{"result":{"totalBytes":1}} {"result":{"totalBytes":1}}`,
		"torn":               `{"reading":{"BytesDone":1`,
		"unknown field":      `{"reading":{"BytesDone":1,"Percent":50}}`,
		"unknown message":    `{"summary":{}}`,
		"negative count":     `{"reading":{"BytesDone":-1}}`,
		"negative total":     `{"result":{"totalBytes":-1}}`,
		"overflow":           `{"reading":{"BytesDone":9223372036854775808}}`,
		"fraction":           `{"reading":{"BytesDone":1.5}}`,
		"unknown stage":      `{"reading":{"Stage":"Sleeping"}}`,
		"long item":          `{"reading":{"CurrentItem":"` + long + `"}}`,
		"long note":          `{"note":{"level":"INFO","text":"` + long + `"}}`,
		"too many paths":     `{"result":{"totalBytes":1,"failedPaths":[` + strings.Repeat(`"a",`, maxFailedPaths) + `"a"]}}`,
		"null":               `null`,
		"a null message":     `{"result":null}`,
		"an array":           `[{"result":{"totalBytes":1}}]`,
		"bytes after object": `{"result":{"totalBytes":1}}x`,
	} {
		if m, err := decode([]byte(line)); err == nil {
			t.Errorf("%s: %s gives %+v", name, line, m)
		}
	}
}

func TestMessagesSurviveTheWay(t *testing.T) {
	t.Parallel()
	for _, want := range []message{
		{Reading: &progress.Reading{
			Stage: progress.StageTransferring, BytesDone: 1, TotalBytes: 2, TotalFinal: true, FilesDone: 3, FilesTotal: 4,
			BytesUploaded: 5, Errors: 6, LastError: "a: b", CurrentItem: `new\nline`,
		}},
		{Note: &note{Level: slog.LevelWarn, Text: "hm"}},
		{Result: &result{SnapshotID: "0a", TotalBytes: 1, BytesUploaded: 2, Errors: 3, FailedPaths: []string{"a"}}},
		{Failure: &failure{Cause: "no space", Text: "full"}},
	} {
		line, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := decode(line)
		if err != nil {
			t.Errorf("%s: %v", line, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s:\n%s", line, diff)
		}
	}
}

// TestOutputStopsAtNonsense: nothing that a worker says after it has broken the protocol counts, and it is ended.
func TestOutputStopsAtNonsense(t *testing.T) {
	t.Parallel()
	for name, lines := range map[string][]string{
		"garbage":          {`fatal error: out of cheese`, `{"result":{"totalBytes":7}}`},
		"after the result": {`{"result":{"totalBytes":7}}`, `{"reading":{"BytesDone":8}}`},
		"two results":      {`{"result":{"totalBytes":7}}`, `{"result":{"totalBytes":8}}`},
		"failed and done":  {`{"failure":{"text":"no"}}`, `{"result":{"totalBytes":8}}`},
	} {
		var stopped error
		var seen []progress.Reading
		o := output{
			sink:   progress.SinkFunc(func(r progress.Reading) { seen = append(seen, r) }),
			logger: slog.New(slog.DiscardHandler), stop: func(cause error) { stopped = cause },
		}
		for _, line := range lines {
			o.line([]byte(line))
		}
		if o.malformed == nil || stopped == nil || len(seen) > 0 {
			t.Errorf("%s: %v, stopped by %v, reported %v", name, o.malformed, stopped, seen)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"reading":{"Stage":"Transferring","BytesDone":1,"TotalBytes":2}}`))
	f.Add([]byte(`{"note":{"level":"WARN","text":"x"}}`))
	f.Add([]byte(`{"result":{"snapshotID":"0a","totalBytes":1,"failedPaths":["a"]}}`))
	f.Add([]byte(`{"failure":{"cause":"no space","text":"x"}}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := decode(line)
		if err != nil {
			return
		}
		again, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		same, err := decode(again)
		if err != nil {
			t.Fatalf("%s was taken, but not what it means: %s: %v", line, again, err)
		}
		if diff := cmp.Diff(m, same); diff != "" {
			t.Error(diff)
		}
	})
}

func TestFailuresKeepTheirCause(t *testing.T) {
	t.Parallel()
	for _, want := range []error{
		uploader.ErrRepositoryNotFound, uploader.ErrWrongPassword, uploader.ErrSnapshotNotFound, uploader.ErrNoSpace,
		uploader.ErrScratchFull, uploader.ErrFlush, uploader.ErrUnsupported, uploader.ErrRepositoryIncomplete,
	} {
		f := failureOf(errors.Join(errors.New("open"), want))
		err := f.err(opBackup, strings.ToUpper)
		if !errors.Is(err, want) {
			t.Errorf("%v became %v", want, err)
		}
		if text := err.Error(); strings.Contains(text, "\n") || !strings.HasPrefix(text, "kopia backup: ") {
			t.Errorf("%q", text)
		}
	}
	if err := failureOf(&os.PathError{Op: "open", Path: "a\nb", Err: os.ErrPermission}).err(opRestore, strings.Clone); errors.Unwrap(err) != nil {
		t.Errorf("%v has a cause: %v", err, errors.Unwrap(err))
	}
}

// TestFailedFlush: what a disk did not take is not what a full one did not take, a quota's end included.
func TestFailedFlush(t *testing.T) {
	t.Parallel()
	err := syncVolume(-1)
	if !errors.Is(failureOf(err).err(opRestore, strings.Clone), uploader.ErrFlush) || !errors.Is(err, syscall.EBADF) {
		t.Errorf("no disk gives %v", err)
	}
	for _, full := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		err := failureOf(fmt.Errorf("%w: %w", uploader.ErrFlush, full)).err(opRestore, strings.Clone)
		if !errors.Is(err, uploader.ErrNoSpace) || errors.Is(err, uploader.ErrFlush) {
			t.Errorf("%v gives %v", full, err)
		}
	}
}

// TestServeRefuses: whoever calls the worker by hand is told so.
func TestServeRefuses(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if code := serve(strings.NewReader("hello"), &out); code == 0 || out.Len() > 0 {
		t.Errorf("exit code %d, said %q", code, &out)
	}
}
