package restic

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

func smallestPack(t *testing.T, repository uploader.Repository) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(repository.URL, "data", "*", "*"))
	if err != nil || len(found) == 0 {
		t.Fatalf("no pack: %v", err)
	}
	smallest := found[0]
	for _, pack := range found {
		if size(t, pack) < size(t, smallest) {
			smallest = pack
		}
	}
	return smallest
}

func size(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

func only(t *testing.T, repository uploader.Repository, part string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(repository.URL, part, "*"))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %q, %v, want one file", part, found, err)
	}
	return found[0]
}

// zero overwrites a file. Before 0.17 restic tries for a minute to read one that is gone.
func zero(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return errors.Join(os.Chmod(path, 0o600), os.WriteFile(path, make([]byte, info.Size()), 0o600))
}

// TestCheck checks a repository, and then damages each part of it.
func TestCheck(t *testing.T) {
	eachBehavior(t, func(t *testing.T, version string) {
		u := newUploader(t, version, Options{ProgressInterval: 20e6})
		repository := initialized(t, u, 0)
		stored, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volumeOf(t, 2<<20)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var last progress.Reading
		sink := progress.SinkFunc(func(r progress.Reading) { last = r })
		for _, readData := range []bool{false, true} {
			result, err := u.Check(t.Context(), uploader.CheckRequest{Repository: repository, ReadData: readData}, sink)
			if err != nil || result.Damaged != 0 || result.Looks != 1 || result.Snapshots != 1 || (result.Packs == 2) != readData || len(result.Locks) != 0 || result.LockError != "" {
				t.Fatalf("read data %v: got %+v, %v", readData, result, err)
			}
		}
		if !last.TotalFinal || last.TotalBytes != 2 || last.FilesDone != 2 || last.CurrentItem != "2 of 2 packs" {
			t.Errorf("the last reading is %+v", last)
		}
		noLocks(t, repository)

		flip := func(path string) error {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			content[len(content)/3] ^= 0xff
			return errors.Join(os.Chmod(path, 0o600), os.WriteFile(path, content, 0o600))
		}
		modern := u.version.atLeast(17) // earlier ones try for a minute to read what is missing
		type damageCase struct {
			path     string
			do       func(string) error
			readData bool
			skip     bool
			kind     string // of what restic names first
			touched  int64  // -1: it is not known, and that is said
			paths    int
			remedy   string
		}
		for name, test := range map[string]damageCase{
			"bytes of a pack":         {largestPack(t, repository), flip, true, false, "pack", 1, 1, "repair packs"},
			"a pack is cut off":       {largestPack(t, repository), func(path string) error { return os.Truncate(path, 100) }, false, false, "pack", 1, 1, "repair packs"},
			"a pack of zeros":         {largestPack(t, repository), zero, true, false, "pack", 1, 1, "repair packs"},
			"a pack is missing":       {largestPack(t, repository), os.Remove, false, !modern, "pack", 1, 1, "repair index"},
			"directories of zeros":    {smallestPack(t, repository), zero, false, false, "tree", 1, 0, "repair"},
			"directories are missing": {smallestPack(t, repository), os.Remove, false, !modern, "", 1, 0, "repair index"},
			"the index is missing":    {only(t, repository, "index"), os.Remove, false, false, "tree", 1, 0, "index"},
			"an index of zeros":       {only(t, repository, "index"), zero, false, false, "index", -1, 0, "index"},
			"a snapshot of zeros":     {only(t, repository, "snapshots"), zero, false, false, "snapshot", -1, 0, "bring object snapshots/"},
		} {
			if test.skip {
				continue
			}
			whole, err := os.ReadFile(test.path)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.Chmod(test.path, 0o600), test.do(test.path)); err != nil {
				t.Fatal(err)
			}
			result, err := u.Check(t.Context(), uploader.CheckRequest{Repository: repository, ReadData: test.readData}, nil)
			if err != nil || result.Damaged == 0 || result.Looks != 2 || !strings.HasPrefix(result.LastError, test.kind) {
				t.Errorf("%s: got %+v, %v", name, result, err)
			}
			if test.touched < 0 {
				if result.TouchError == "" {
					t.Errorf("%s: it looks as if nothing was touched: %+v", name, result)
				}
			} else if result.Touched != test.touched || len(result.TouchedPaths) != test.paths || result.TouchedSnapshots[0][:8] != stored.SnapshotID[:8] || (test.paths == 0) != (result.TouchError != "") {
				t.Errorf("%s touches %+v", name, result)
			}
			remedies := strings.Join(result.Remedies, "\n")
			if strings.Contains(remedies, "repair snapshots") == (test.kind == "snapshot") || (u.version.repairs() || test.kind == "snapshot") && !strings.Contains(remedies, test.remedy) || !u.version.repairs() && test.kind != "snapshot" && !strings.Contains(remedies, "rebuild-index") {
				t.Errorf("%s: the remedies are %q", name, remedies)
			}
			t.Log(name, result)
			if err := errors.Join(os.RemoveAll(test.path), os.WriteFile(test.path, whole, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		request := uploader.CheckRequest{Repository: repository, Snapshots: []string{stored.SnapshotID}}
		if result, err := u.Check(t.Context(), request, nil); err != nil || result.Damaged != 0 {
			t.Errorf("got %+v, %v", result, err)
		}
		request.Snapshots = append(request.Snapshots, "12345678")
		if result, err := u.Check(t.Context(), request, nil); !errors.Is(err, uploader.ErrSnapshotNotFound) || !strings.Contains(err.Error(), "1 of 2") {
			t.Errorf("got %+v, %v, want ErrSnapshotNotFound", result, err)
		}
		wrong := repository
		wrong.Password = "another-passw0rd"
		if _, err := u.Check(t.Context(), uploader.CheckRequest{Repository: wrong}, nil); !errors.Is(err, uploader.ErrWrongPassword) {
			t.Errorf("got %v, want ErrWrongPassword", err)
		}
		wrong.URL = filepath.Join(t.TempDir(), "none")
		if _, err := u.Check(t.Context(), uploader.CheckRequest{Repository: wrong}, nil); !errors.Is(err, uploader.ErrRepositoryNotFound) {
			t.Errorf("got %v, want ErrRepositoryNotFound", err)
		}
	})
}

// TestCheckBesideALock: an exclusive lock is shown, and neither waited for nor removed.
func TestCheckBesideALock(t *testing.T) {
	t.Parallel()
	u := newUploader(t, parts.DefaultRestic, Options{})
	repository := initialized(t, u, 1<<20)
	release := holdLock(t, parts.Restic(t, parts.DefaultRestic), repository.URL, repository.Password.Reveal())
	defer release()
	before := locks(t, repository.URL)
	result, err := u.Check(context.WithoutCancel(t.Context()), uploader.CheckRequest{Repository: repository}, nil)
	if err != nil || result.Damaged != 0 || len(result.Locks) != 1 {
		t.Fatalf("got %+v, %v", result, err)
	}
	host, _ := os.Hostname()
	if l := result.Locks[0]; !l.Exclusive || l.PID == 0 || l.Host != host || l.User == "" || l.Since.IsZero() || l.Seen.Before(l.Since) || l.Stale {
		t.Errorf("the lock is %+v", l)
	}
	if after := locks(t, repository.URL); len(after) != 1 || after[0] != before[0] {
		t.Errorf("locks %v have become %v", before, after)
	}
}

// TestCheckJudges what no repository shows on demand.
func TestCheckJudges(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	a, b := strings.Repeat("a", 64), strings.Repeat("b", 64)
	const whole = "out no errors were found"
	errors2 := "\nerr Fatal: repository contains errors\nexit 1"
	bad := func(pack string) string { return "err pack " + pack + ": does not exist" + errors2 }
	for name, test := range map[string]struct {
		looks    []string // the last one repeats
		damaged  int64
		unread   int64
		looked   int
		err      error  // nil: none
		contains string // in the error
	}{
		"whole":                       {looks: []string{whole}, looked: 1},
		"the second look is whole":    {looks: []string{bad(a), whole}, looked: 2},
		"two agree":                   {looks: []string{bad(a)}, damaged: 1, looked: 2},
		"the third agrees":            {looks: []string{bad(a), bad(b), bad(b)}, damaged: 1, looked: 3},
		"none agree":                  {looks: []string{bad(a), bad(b), bad(a), bad(b)}, err: uploader.ErrUnconfirmed},
		"agree on one of two":         {looks: []string{"err pack " + b + ": does not exist\n" + bad(a), bad(a)}, damaged: 1, looked: 2},
		"damage and an outage":        {looks: []string{"err error for tree 12345678:\nerr   ReadFull(<data/1>): dial tcp: connection refused\n" + bad(a)}, damaged: 1, unread: 1, looked: 2},
		"outage":                      {looks: []string{"err error for tree 12345678:\nerr   ReadFull(<data/1>): dial tcp: connection refused" + errors2}, contains: "connection refused"},
		"a pack that does not arrive": {looks: []string{"err pack " + a + " contains 1 errors: [blob " + b + ": unexpected EOF]" + errors2}, contains: "unexpected EOF"},
		"outage in the second look":   {looks: []string{bad(a), "err Fatal: unable to open config file: dial tcp: lookup minio: no such host\nexit 1"}, contains: "could not be confirmed: pack " + a},
		"wrong password later":        {looks: []string{bad(a), "err Fatal: wrong password or no key found\nexit 12"}, err: uploader.ErrWrongPassword},
		"says nothing":                {looks: []string{"exit 0"}, contains: "without a result"},
		"words that are not known":    {looks: []string{"err something else is wrong" + errors2}, contains: "something else is wrong"},
		"killed":                      {looks: []string{"err pack " + a + ": does not exist\nkill"}, contains: "killed"},
		"no errors and exit 1":        {looks: []string{whole + "\nexit 1"}, contains: "exit code 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u, _ := newFake(t, Options{})
			repository := scripted()
			repository.Env["SCRIPT_list"], repository.Env["SCRIPT_check"] = "exit 0", uploader.Secret(strings.Join(test.looks, "\nnext\n"))
			result, err := u.Check(t.Context(), uploader.CheckRequest{Repository: repository}, nil)
			if test.err != nil || test.contains != "" {
				if err == nil || test.err != nil && !errors.Is(err, test.err) || !strings.Contains(err.Error(), test.contains) {
					t.Errorf("got %+v, %v", result, err)
				}
				return
			}
			if err != nil || result.Damaged != test.damaged || result.Unread != test.unread || result.Looks != test.looked {
				t.Errorf("got %+v, %v", result, err)
			}
			if result.Damaged > 0 && result.TouchError == "" {
				t.Errorf("the index is empty, and it looks as if nothing were touched: %+v", result)
			}
		})
	}
}
