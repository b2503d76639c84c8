package restic

import (
	"errors"
	"strings"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// TestDiffDistrusts: what restic diff says counts only together with the lists, and if nothing was wrong.
func TestDiffDistrusts(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	const (
		snapshot   = `out {"id":"1234567890abcdef","struct_type":"snapshot"}`
		file       = `out {"path":"/file","mode":420,"size":1,"mtime":"2026-01-02T03:04:05Z"}`
		changed    = `out {"message_type":"change","path":"/file","modifier":"M"}`
		added      = `out {"message_type":"change","path":"/file","modifier":"+"}`
		statistics = `out {"message_type":"statistics","changed_files":`
	)
	for name, test := range map[string]struct {
		list, diff []string
		want       string // of the error; empty: one change
	}{
		"fine":                    {[]string{snapshot, file}, []string{changed, statistics + "1}"}, ""},
		"a lost directory":        {[]string{snapshot, file}, []string{"err error: tree 1 could not be loaded", changed, statistics + "1}"}, "goes on after an error: error: tree 1"},
		"no statistics":           {[]string{snapshot, file}, []string{changed}, "no statistics"},
		"other statistics":        {[]string{snapshot, file}, []string{changed, statistics + "2}"}, "1 as changed, and there are 0, 0 and 2"},
		"more after them":         {[]string{snapshot, file}, []string{changed, statistics + "1}", changed}, "something follows"},
		"an entry of no list":     {[]string{snapshot}, []string{changed, statistics + "1}"}, "contradict each other about /file"},
		"added, and in both":      {[]string{snapshot, file}, []string{added, statistics + "0}"}, "contradict each other"},
		"an unknown line":         {[]string{snapshot, file}, []string{`out {"message_type":"new"}`, changed, statistics + "1}"}, "unknown type"},
		"no JSON":                 {[]string{snapshot, file}, []string{"out {", changed, statistics + "1}"}, "read what restic diff prints"},
		"diff fails":              {[]string{snapshot, file}, []string{changed, "err Fatal: no", "exit 1"}, "restic diff: Fatal: no (exit code 1)"},
		"the list fails":          {[]string{snapshot, file, "err Fatal: no", "exit 1"}, []string{changed, statistics + "1}"}, "restic ls: Fatal: no"},
		"no snapshot":             {nil, []string{changed, statistics + "1}"}, uploader.ErrSnapshotNotFound.Error()},
		"a line that is too long": {[]string{snapshot, file, "long"}, []string{changed, statistics + "1}"}, worker.ErrLineTooLong.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u, _ := newFake(t, Options{})
			repository := scripted()
			repository.Env["SCRIPT_ls"], repository.Env["SCRIPT_diff"] = uploader.Secret(strings.Join(test.list, "\n")), uploader.Secret(strings.Join(test.diff, "\n"))
			changes := 0
			err := u.Diff(t.Context(), uploader.DiffRequest{Repository: repository, From: "12345678", To: "87654321"}, func(uploader.Change) error {
				changes++
				return nil
			})
			if test.want == "" && (err != nil || changes != 1) || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %d changes and %v", changes, err)
			}
		})
	}
}

// TestListTooLong: a list that lacks an entry for the length of its name is not complete.
func TestListTooLong(t *testing.T) {
	t.Parallel()
	u, _ := newFake(t, Options{})
	repository := scripted(`out {"id":"1234567890abcdef"}`, `out {"path":"/`+strings.Repeat("x", 64<<10)+`"}`)
	request := uploader.BrowseRequest{Repository: repository, SnapshotID: "12345678"}
	entries := 0
	count := func(uploader.Entry) error {
		entries++
		return nil
	}
	if err := u.List(t.Context(), request, count); err != nil || entries != 1 {
		t.Fatalf("%d entries, %v", entries, err)
	}
	request.Repository = scripted(`out {"id":"1234567890abcdef"}`, "long", `out {"path":"/file"}`)
	if err := u.List(t.Context(), request, count); !errors.Is(err, worker.ErrLineTooLong) {
		t.Errorf("got %v", err)
	}
}
