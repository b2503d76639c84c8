package protocol

import (
	"encoding/json"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", MaxText+1)
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
		"too many paths":     `{"result":{"totalBytes":1,"failedPaths":[` + strings.Repeat(`"a",`, MaxFailedPaths) + `"a"]}}`,
		"no look":            `{"result":{"totalBytes":0,"check":{"Looks":0}}}`,
		"too many packs":     `{"result":{"totalBytes":0,"check":{"Looks":1,"DamagedPacks":[` + strings.Repeat(`"a",`, 10) + `"a"]}}}`,
		"null":               `null`,
		"a null message":     `{"result":null}`,
		"an array":           `[{"result":{"totalBytes":1}}]`,
		"bytes after object": `{"result":{"totalBytes":1}}x`,
		"no data":            `{"data":""}`,
		"too much data":      `{"data":"` + strings.Repeat("AAAA", MaxData/3+1) + `"}`,
		"no path":            `{"entry":{"path":"","mode":0,"size":0,"modTime":"2026-01-02T03:04:05Z"}}`,
		"an empty target":    `{"entry":{"path":"YQ==","mode":0,"size":0,"modTime":"2026-01-02T03:04:05Z","target":""}}`,
		"no change":          `{"change":{"content":true}}`,
		"two entries":        `{"change":{"from":{"path":"YQ==","mode":0,"size":0,"modTime":"2026-01-02T03:04:05Z"},"to":{"path":"Yg==","mode":0,"size":0,"modTime":"2026-01-02T03:04:05Z"}}}`,
		"a negative size":    `{"entry":{"path":"YQ==","mode":0,"size":-1,"modTime":"2026-01-02T03:04:05Z"}}`,
	} {
		if m, err := Decode([]byte(line)); err == nil {
			t.Errorf("%s: %s gives %+v", name, line, m)
		}
	}
}

func TestMessagesSurviveTheWay(t *testing.T) {
	t.Parallel()
	for _, want := range []Message{
		{Reading: &progress.Reading{
			Stage: progress.StageTransferring, BytesDone: 1, TotalBytes: 2, TotalFinal: true, FilesDone: 3, FilesTotal: 4,
			BytesUploaded: 5, Errors: 6, LastError: "a: b", CurrentItem: `new\nline`,
		}},
		{Note: &Note{Level: slog.LevelWarn, Text: "hm"}},
		{Result: &Result{SnapshotID: "0a", TotalBytes: 1, BytesUploaded: 2, Errors: 3, FailedPaths: []string{"a"}}},
		{Failure: &Failure{Cause: "no space", Text: "full"}},
		{Entry: &Entry{Path: []byte("a\xff\n"), Mode: os.ModeSymlink | 0o777, ModTime: time.Unix(1, 2).UTC(), Target: []byte("/\xfe")}},
		{Change: &Change{From: &Entry{Path: []byte("a\xff"), Size: 1, ModTime: time.Unix(1, 2).UTC(), UID: 3, GID: 4}, To: &Entry{Path: []byte("a\xff"), ModTime: time.Unix(1, 3).UTC()}, Content: true}},
		{Data: []byte("\x00\xff\n")},
	} {
		line, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode(line)
		if err != nil {
			t.Errorf("%s: %v", line, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s:\n%s", line, diff)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"reading":{"Stage":"Transferring","BytesDone":1,"TotalBytes":2}}`))
	f.Add([]byte(`{"note":{"level":"WARN","text":"x"}}`))
	f.Add([]byte(`{"forgotten":{"state":"refused","why":"it has the pin \"legal\""}}`))
	f.Add([]byte(`{"result":{"totalBytes":0,"totalFiles":2,"lost":["0a"]}}`))
	f.Add([]byte(`{"result":{"totalBytes":0,"check":{"Looks":2,"Damaged":1,"DamagedPacks":["p0a"],"Note":"x"}}}`))
	f.Add([]byte(`{"result":{"snapshotID":"0a","totalBytes":1,"failedPaths":["a"]}}`))
	f.Add([]byte(`{"failure":{"cause":"no space","text":"x"}}`))
	f.Add([]byte(`{"entry":{"path":"YQ==","mode":420,"size":1,"modTime":"2026-01-02T03:04:05Z","target":"Yg=="}}`))
	f.Add([]byte(`{"entry":{"path":"YQ==","mode":0,"size":0,"modTime":"2026-01-02T03:04:05Z","target":""}}`))
	f.Add([]byte(`{"change":{"to":{"path":"YQ==","mode":420,"size":1,"modTime":"2026-01-02T03:04:05Z","uid":1}}}`))
	f.Add([]byte(`{"data":"AP8K"}`))
	f.Add([]byte(`{"data":""}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := Decode(line)
		if err != nil {
			return
		}
		again, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		same, err := Decode(again)
		if err != nil {
			t.Fatalf("%s was taken, but not what it means: %s: %v", line, again, err)
		}
		if diff := cmp.Diff(m, same); diff != "" {
			t.Error(diff)
		}
	})
}
