package kopia_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/s3"
)

// TestCheck checks a repository with two snapshots, and then damages each part of it that the first one needs.
func TestCheck(t *testing.T) {
	t.Parallel()
	whole := initialized(t)
	u := newUploader(t, kopia.Options{})
	first := backup(t, u, uploader.BackupRequest{Repository: whole, Volume: mixedVolume(t), Source: "/first"}, nil)
	before := map[string][]string{}
	for _, prefix := range []string{"p", "q", "x"} {
		before[prefix] = objects(t, whole, prefix)
	}
	second := backup(t, u, uploader.BackupRequest{Repository: whole, Volume: randomVolume(t, 1, mib), Source: "/second"}, nil)
	all := []string{first.SnapshotID, second.SnapshotID}

	var last progress.Reading
	sink := progress.SinkFunc(func(r progress.Reading) { last = r })
	for _, readData := range []bool{false, true} {
		result, err := u.Check(t.Context(), uploader.CheckRequest{Repository: whole, ReadData: readData, Snapshots: all}, sink)
		if err != nil || result.Damaged != 0 || result.Looks != 1 || result.Snapshots != 2 || (result.Packs > 0) != readData || !strings.Contains(result.Note, "default@default") {
			t.Fatalf("read data %v: got %+v, %v\n%s", readData, result, err, workerSaid(err))
		}
	}
	if !last.TotalFinal || last.FilesDone != 2 || last.BytesDone != last.TotalBytes-1 || last.CurrentItem != "2 of 2 snapshots" {
		t.Errorf("the last reading is %+v", last)
	}
	if _, err := u.Check(t.Context(), uploader.CheckRequest{Repository: whole, Snapshots: append(slices.Clone(all), "0123456789abcdef")}, nil); !errors.Is(err, uploader.ErrSnapshotNotFound) || !strings.Contains(err.Error(), "1 of 3") {
		t.Errorf("got %v, want ErrSnapshotNotFound", err)
	}

	type damageCase struct {
		path     string
		do       func(t *testing.T, path string)
		readData bool
		kind     string // of the finding that is named first; empty: none is found
		touched  int64  // -1: it is not known, and that is said
		remedy   string
	}
	gone := func(t *testing.T, path string) { t.Helper(); remove(t, path) }
	for name, test := range map[string]damageCase{
		"a pack is missing":          {before["p"][0], gone, false, "pack", 1, "snapshot fix invalid-files --commit"},
		"a pack is cut off":          {before["p"][0], cut, false, "pack", 1, "snapshot fix invalid-files --commit"},
		"bytes of a pack":            {before["p"][0], flip, true, "pack", 1, "--verify-files-percent=100"},
		"bytes of a pack, not read":  {before["p"][0], flip, false, "", 0, ""},
		"directories are missing":    {before["q"][0], gone, false, "pack", -1, "bucket's versions"},
		"an index file is damaged":   {before["x"][0], flip, false, "index", -1, "bring object x"},
		"an index file is empty":     {before["x"][0], empty, false, "index", -1, "bring object x"},
		"bytes of directories, read": {before["q"][0], flipBegin, true, "pack", -1, "bucket's versions"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			damaged := copyOf(t, whole)
			test.do(t, filepath.Join(damaged.URL, strings.TrimPrefix(test.path, whole.URL)))
			result, err := u.Check(t.Context(), uploader.CheckRequest{Repository: damaged, ReadData: test.readData, Snapshots: all}, nil)
			t.Logf("%+v, %v", result, err)
			if test.touched == 0 {
				if err != nil || result.Damaged != 0 {
					t.Errorf("got %+v, %v", result, err)
				}
				return
			}
			if err != nil || result.Damaged == 0 || result.Looks != 2 || !strings.HasPrefix(result.LastError, test.kind) || (len(result.DamagedPacks) > 0) != strings.HasPrefix(result.LastError, "pack") {
				t.Fatalf("got %+v, %v\n%s", result, err, workerSaid(err))
			}
			switch {
			case test.touched < 0:
				if result.TouchError == "" {
					t.Errorf("it looks as if nothing was touched: %+v", result)
				}
			case result.Touched != test.touched || !slices.Equal(result.TouchedSnapshots, all[:1]) || len(result.TouchedPaths) == 0 || result.TouchError != "":
				t.Errorf("it touches %+v", result)
			}
			if !strings.Contains(strings.Join(result.Remedies, "\n"), test.remedy) {
				t.Errorf("the remedies are %q", result.Remedies)
			}
		})
	}
	// kopia finds its snapshots by the index: the second one goes with the index file of its backup.
	t.Run("an index file is missing", func(t *testing.T) {
		t.Parallel()
		damaged := copyOf(t, whole)
		for _, path := range objects(t, damaged, "x") {
			if !slices.Contains(before["x"], filepath.Join(whole.URL, strings.TrimPrefix(path, damaged.URL))) {
				remove(t, path)
			}
		}
		result, err := u.Check(t.Context(), uploader.CheckRequest{Repository: damaged, Snapshots: all}, nil)
		if !errors.Is(err, uploader.ErrSnapshotNotFound) || !strings.Contains(err.Error(), second.SnapshotID) || !strings.Contains(err.Error(), "in no index file") {
			t.Errorf("got %+v, %v", result, err)
		}
	})
	for name, test := range map[string]struct {
		spoil func(*uploader.Repository)
		want  error
	}{
		"wrong password": {func(r *uploader.Repository) { r.Password = "another" }, uploader.ErrWrongPassword},
		"no repository":  {func(r *uploader.Repository) { r.URL += "-gone" }, uploader.ErrRepositoryNotFound},
	} {
		wrong := whole
		test.spoil(&wrong)
		if _, err := u.Check(t.Context(), uploader.CheckRequest{Repository: wrong}, nil); !errors.Is(err, test.want) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestCheckDeletedContents: what the index marks as deleted while a snapshot needs it, as after a backup beside a garbage collection, can be
// restored as long as its pack is there, and is damage when it is not.
func TestCheckDeletedContents(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	repository := initialized(t)
	u := newUploader(t, kopia.Options{})
	id := backup(t, u, uploader.BackupRequest{Repository: repository, Volume: randomVolume(t, 2, mib)}, nil).SnapshotID
	deleteContents(t, repository)
	check := func(damaged uploader.Repository, readData bool) uploader.CheckResult {
		t.Helper()
		result, err := u.Check(t.Context(), uploader.CheckRequest{Repository: damaged, ReadData: readData, Snapshots: []string{id}}, nil)
		if err != nil {
			t.Fatalf("%v\n%s", err, workerSaid(err))
		}
		return result
	}
	if result := check(repository, true); result.Damaged != 0 {
		t.Errorf("nothing is lost: %+v", result)
	}
	gone := copyOf(t, repository)
	remove(t, objects(t, gone, "p")...)
	if result := check(gone, false); result.Damaged == 0 || result.Touched != 1 {
		t.Errorf("packs are missing: %+v", result)
	}
	changed := copyOf(t, repository)
	for _, pack := range objects(t, changed, "p") {
		flip(t, pack)
	}
	if result := check(changed, true); result.Damaged == 0 {
		t.Errorf("packs are changed: %+v", result)
	}
}

// TestNamesThatBecomeOne: of two files whose names kopia stores as the same one, neither is left out: the snapshot is proven with both, and what
// either has lost is found.
func TestNamesThatBecomeOne(t *testing.T) {
	t.Parallel()
	for _, lost := range []string{"x\xfe", "x\xff"} {
		dir, repository := t.TempDir(), initialized(t)
		u := newUploader(t, kopia.Options{})
		store := func(name string) string {
			t.Helper()
			if err := os.WriteFile(filepath.Join(dir, name), []byte("this is "+name), 0o600); err != nil {
				t.Fatal(err)
			}
			volume, err := os.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer volume.Close()
			return backup(t, u, uploader.BackupRequest{Repository: repository, Volume: volume}, nil).SnapshotID
		}
		store(lost)
		packs := objects(t, repository, "p")
		store("x\xfe")
		both := store("x\xff")
		proven, err := u.Verify(t.Context(), uploader.VerifyRequest{Repository: repository, SnapshotID: both}, nil)
		if err != nil || !proven.Proven() || proven.Files != 2 || proven.SameNames != 1 {
			t.Errorf("both are there: %+v, %v", proven, err)
		}
		remove(t, packs...)
		damaged, err := u.Verify(t.Context(), uploader.VerifyRequest{Repository: repository, SnapshotID: both}, nil)
		if err != nil || damaged.Mismatched != 1 || damaged.Files != 1 {
			t.Errorf("%q is lost: %+v, %v", lost, damaged, err)
		}
		checked, err := u.Check(t.Context(), uploader.CheckRequest{Repository: repository}, nil)
		if err != nil || checked.Damaged == 0 || checked.Touched < 2 || !slices.Contains(checked.TouchedSnapshots, both) {
			t.Errorf("%q is lost: %+v, %v", lost, checked, err)
		}
	}
}

// flipBegin changes bytes of the first contents of a pack: its own index follows them.
func flipBegin(t *testing.T, path string) {
	t.Helper()
	all, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 400 {
		all[i] ^= 0xff
	}
	if err := os.WriteFile(path, all, 0o600); err != nil {
		t.Fatal(err)
	}
}

// empty leaves nothing in a file.
func empty(t *testing.T, path string) {
	t.Helper()
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
}

// TestCheckS3 loses a pack in a bucket, and then the right to read it.
func TestCheckS3(t *testing.T) {
	parts.Slow(t)
	t.Parallel()
	server := s3.Start(t)
	repository := bucketAddress(t, server)
	u := newUploader(t, kopia.Options{})
	if err := u.Initialize(t.Context(), repository); err != nil {
		t.Fatal(err)
	}
	stored := backup(t, u, uploader.BackupRequest{Repository: repository, Volume: mixedVolume(t)}, nil)
	result, err := u.Check(t.Context(), uploader.CheckRequest{Repository: repository, ReadData: true, Snapshots: []string{stored.SnapshotID}}, nil)
	if err != nil || result.Damaged != 0 || result.Packs == 0 {
		t.Fatalf("got %+v, %v", result, err)
	}
	packs, err := filepath.Glob(filepath.Join(server.Dir(repository.Storage.Bucket), repository.Storage.Prefix, "p*"))
	if err != nil || len(packs) == 0 {
		t.Fatalf("no packs: %v", err)
	}
	remove(t, packs[0])
	result, err = u.Check(t.Context(), uploader.CheckRequest{Repository: repository}, nil)
	if err != nil || result.Damaged != 1 || result.Touched != 1 || !slices.Equal(result.DamagedPacks, []string{filepath.Base(packs[0])}) {
		t.Errorf("got %+v, %v", result, err)
	}
	repository.Env["AWS_SECRET_ACCESS_KEY"] = "not-the-secret"
	if result, err := u.Check(t.Context(), uploader.CheckRequest{Repository: repository}, nil); err == nil || strings.Contains(err.Error(), "not-the-secret") {
		t.Errorf("the storage refuses, and the result is %+v, %v", result, err)
	}
}

// TestCheckLooksAgain: what a storage, or a maintenance, hides from one look and not from the next is no damage.
func TestCheckLooksAgain(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	server := s3.Start(t)
	repository := bucketAddress(t, server)
	u := newUploader(t, kopia.Options{})
	if err := u.Initialize(t.Context(), repository); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		backup(t, u, uploader.BackupRequest{Repository: repository, Volume: randomVolume(t, 1, mib)}, nil)
	}
	packs, err := filepath.Glob(filepath.Join(server.Dir(repository.Storage.Bucket), repository.Storage.Prefix, "p*"))
	if err != nil || len(packs) != 2 {
		t.Fatalf("packs %q, %v", packs, err)
	}
	a, b := filepath.Base(packs[0]), filepath.Base(packs[1])
	for name, test := range map[string]struct {
		hidden  []string // from each look; the last one repeats
		looks   int
		damaged int64
		err     error
	}{
		"the second look finds it": {[]string{a, ""}, 2, 0, nil},
		"two agree":                {[]string{a}, 2, 1, nil},
		"the third agrees":         {[]string{a, b, b}, 3, 1, nil},
		"none agree":               {[]string{a, b, a, b}, 0, 0, uploader.ErrUnconfirmed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hiding := repository
			hiding.Storage = new(*repository.Storage)
			hiding.Storage.Endpoint, hiding.Storage.DisableTLS = hidePacks(t, server, test.hidden), true
			hiding.URL = strings.Replace(strings.Replace(repository.URL, "https", "http", 1), server.Endpoint, hiding.Storage.Endpoint, 1)
			result, err := u.Check(t.Context(), uploader.CheckRequest{Repository: hiding}, nil)
			if !errors.Is(err, test.err) || err == nil && (result.Looks != test.looks || result.Damaged != test.damaged || result.Touched != test.damaged) {
				t.Errorf("got %+v, %v", result, err)
			}
		})
	}
}

// hidePacks returns the address of a proxy that leaves a pack out of each list of packs.
func hidePacks(t *testing.T, server *s3.Server, hidden []string) string {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(server.CACert)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	t.Cleanup(transport.CloseIdleConnections)
	var lists atomic.Int64
	proxy := httptest.NewServer(&httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "https", Host: server.Endpoint})
			r.Out.Host = r.In.Host // it is signed
		},
		ModifyResponse: func(r *http.Response) error {
			if !strings.HasSuffix(r.Request.URL.Query().Get("prefix"), "/p") {
				return nil
			}
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return err
			}
			name := hidden[min(int(lists.Add(1)), len(hidden))-1]
			if name != "" {
				at := bytes.Index(body, []byte(name))
				from, length := bytes.LastIndex(body[:at], []byte("<Contents>")), bytes.Index(body[at:], []byte("</Contents>"))
				body = append(body[:from], body[at+length+len("</Contents>"):]...)
			}
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
			r.Header.Set("Content-Length", strconv.Itoa(len(body)))
			return nil
		},
	})
	t.Cleanup(proxy.Close)
	return strings.TrimPrefix(proxy.URL, "http://")
}

// TestCheckBesideOthers: what backups and maintenance do meanwhile is no damage.
func TestCheckBesideOthers(t *testing.T) {
	parts.Slow(t)
	t.Parallel()
	repository := initialized(t)
	u := newUploader(t, kopia.Options{})
	backup(t, u, uploader.BackupRequest{Repository: repository, Volume: mixedVolume(t)}, nil)
	done := make(chan error, 1)
	volume := randomVolume(t, 3, mib)
	go func() {
		var err error
		for full := range 4 {
			if _, failed := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volume, Source: "/other"}, nil); failed != nil {
				err = errors.Join(err, failed)
			}
			if _, failed := u.Prune(t.Context(), uploader.PruneRequest{Repository: repository, Apply: true, Full: full%2 == 1}, nil); failed != nil {
				err = errors.Join(err, failed)
			}
		}
		done <- err
	}()
	for {
		result, err := u.Check(t.Context(), uploader.CheckRequest{Repository: repository, ReadData: true}, nil)
		if err != nil || result.Damaged != 0 {
			t.Errorf("got %+v, %v", result, err)
		}
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
			return
		default:
		}
	}
}
