package restic

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/pkg/worker"
)

// fakeProgram is the name under which the test binary plays restic: for what no restic does on demand.
const fakeProgram = "restic-fake"

// fakeRestic does what the lines of the variable SCRIPT_<command>, or else SCRIPT, say: "out" and "err" print, the latter with variables, "long" prints a line that is too long, "torn" prints without a newline,
// "next" ends the part of a call: the following calls in one workspace do what follows, the last part repeats. "exit" ends, "kill" ends by a signal, "hang" waits for one, "deaf" ignores those that can be, "wait" for a file beside the calls. First it writes down how it was called.
func fakeRestic(args []string) int {
	if args[0] == "version" {
		fmt.Println("restic 0.18.1 compiled with go1.25.1 on linux/amd64")
		return 0
	}
	writeCall(args)
	for line := range strings.Lines(scriptPart(args[0])) {
		verb, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch verb {
		case "out":
			fmt.Println(text)
		case "long":
			fmt.Println(strings.Repeat("x", worker.MaxLine+1))
		case "torn":
			fmt.Print(text)
		case "err":
			fmt.Fprintln(os.Stderr, os.ExpandEnv(text))
		case "exit":
			code, _ := strconv.Atoi(text)
			return code
		case "deaf":
			signal.Ignore(syscall.SIGINT, syscall.SIGTERM)
		case "hang":
			<-time.After(time.Minute)
		case "wait":
			for _, err := os.Stat(filepath.Join(os.Getenv("RESTIC_CACHE_DIR"), text)); err != nil; {
				<-time.After(5 * time.Millisecond)
				_, err = os.Stat(filepath.Join(os.Getenv("RESTIC_CACHE_DIR"), text))
			}
		case "kill":
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	}
	return 0
}

// call is how the fake was called.
type call struct {
	Args, Env            []string
	Password, Credential string
	Mode                 os.FileMode
}

// scriptPart returns the part of the script for this call of a command.
func scriptPart(command string) string {
	parts := strings.Split(cmp.Or(os.Getenv("SCRIPT_"+command), os.Getenv("SCRIPT")), "\nnext\n")
	if len(parts) == 1 {
		return parts[0]
	}
	counter := filepath.Join(os.Getenv("HOME"), command+".calls")
	calls, _ := os.ReadFile(counter)
	_ = os.WriteFile(counter, append(calls, '.'), 0o600)
	return parts[min(len(calls), len(parts)-1)]
}

func writeCall(args []string) {
	password, _ := os.ReadFile(os.Getenv("RESTIC_PASSWORD_FILE"))
	credential, _ := os.ReadFile(os.Getenv("GOOGLE_APPLICATION_CREDENTIALS"))
	c := call{Args: args, Env: os.Environ(), Password: string(password), Credential: string(credential)}
	if info, err := os.Stat(os.Getenv("RESTIC_PASSWORD_FILE")); err == nil {
		c.Mode = info.Mode()
	}
	content, _ := json.Marshal(c)
	_ = os.WriteFile(filepath.Join(os.Getenv("RESTIC_CACHE_DIR"), args[0]+".json"), content, 0o600)
}

// newFake makes an uploader that runs the fake, with a directory for the calls.
func newFake(t *testing.T, options Options) (u *Uploader, calls string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), fakeProgram)
	if err := os.Symlink(self, program); err != nil {
		t.Fatal(err)
	}
	options.CacheDir, options.TempDir = t.TempDir(), t.TempDir()
	u, err = New(t.Context(), program, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { checkEmpty(t, options.TempDir) })
	return u, options.CacheDir
}

// scripted is a repository with which the fake does what lines say.
func scripted(lines ...string) uploader.Repository {
	return uploader.Repository{
		URL: "s3:https://minio:9000/bucket", Password: " static-passw0rd\n",
		Env: map[string]uploader.Secret{"SCRIPT": uploader.Secret(strings.Join(lines, "\n"))},
	}
}

const goodSummary = `{"message_type":"summary","total_bytes_processed":10,"data_added":7,"snapshot_id":"1234567890abcdef"}`

func TestSecretsStayOutOfArguments(t *testing.T) {
	t.Parallel()
	u, calls := newFake(t, Options{UploadLimit: 1, DownloadLimit: 5000})
	repository := scripted("out " + goodSummary)
	repository.URL = "rest:https://user:url-passw0rd@host/"
	repository.Env["AWS_SECRET_ACCESS_KEY"] = "aws-s3cret"
	repository.Files = map[string]uploader.Secret{"GOOGLE_APPLICATION_CREDENTIALS": "google-s3cret"}
	result, err := u.Backup(t.Context(), uploader.BackupRequest{
		Repository: repository, Volume: volumeOf(t, 1), Tags: map[string]string{"volume": "data", "pod": "web-0"}, Parent: "12345678", Parallel: 3,
	}, nil)
	if err != nil || result.SnapshotID != "1234567890abcdef" || result.TotalBytes != 10 || result.BytesUploaded != 7 {
		t.Fatalf("got %+v, %v", result, err)
	}
	got := readCall(t, calls, "backup")
	want := "backup --limit-upload 1 --limit-download 5 . --json --host velero --tag pod=web-0 --tag volume=data --parent 12345678 --read-concurrency 3"
	if args := strings.Join(got.Args, " "); args != want {
		t.Errorf("arguments\n%s\nwant\n%s", args, want)
	}
	if got.Password != repository.Password.Reveal() || got.Mode != 0o600 || got.Credential != "google-s3cret" {
		t.Errorf("password %q with mode %v, credential %q", got.Password, got.Mode, got.Credential)
	}
	if !slices.Contains(got.Env, "AWS_SECRET_ACCESS_KEY=aws-s3cret") || !slices.Contains(got.Env, "RESTIC_PROGRESS_FPS=1.000") {
		t.Errorf("environment %q", got.Env)
	}
	for _, variable := range got.Env {
		if name, _, _ := strings.Cut(variable, "="); name == "USER" || name == "GOCACHE" || name == "PWD" {
			t.Errorf("the agent's own %s reaches restic", variable)
		}
	}
}

// TestLowerLimitReachesRestic: a run has its share of the node's limit, or what its storage allows a run, if that is less.
func TestLowerLimitReachesRestic(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		options Options
		storage int64
		want    string
	}{
		"none":          {want: "backup . --json"},
		"the storage's": {storage: 2 << 20, want: "backup --limit-upload 2048 --limit-download 2048 . --json"},
		"the lower one of each": {
			options: Options{UploadLimit: 4 << 20, DownloadLimit: 16 << 20, Slots: func() int { return 4 }}, storage: 2 << 20,
			want: "backup --limit-upload 1024 --limit-download 2048 . --json",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u, calls := newFake(t, test.options)
			repository := scripted("out " + goodSummary)
			repository.MaxBytesPerSecond = test.storage
			if _, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volumeOf(t, 1)}, nil); err != nil {
				t.Fatal(err)
			}
			if args := strings.Join(readCall(t, calls, "backup").Args, " "); !strings.HasPrefix(args, test.want) {
				t.Errorf("arguments\n%s\nwant\n%s", args, test.want)
			}
		})
	}
}

// Proxies come from the agent's environment. (Not parallel: it changes it.)
func TestProxySettingsReachRestic(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://proxy:3128")
	u, calls := newFake(t, Options{})
	if _, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: scripted("out " + goodSummary), Volume: volumeOf(t, 1)}, nil); err != nil {
		t.Fatal(err)
	}
	if got := readCall(t, calls, "backup"); !slices.Contains(got.Env, "HTTPS_PROXY=http://proxy:3128") {
		t.Errorf("environment %q", got.Env)
	}
}

// TestOwnCAKeepsTheOthers: the agent's directories of certificates are trusted besides the repository's own CA.
func TestOwnCAKeepsTheOthers(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{"": "/etc/ssl/certs:/etc/pki/tls/certs", "/corp:/team": "/corp:/team"} {
		u, calls := newFake(t, Options{})
		repository := scripted("out " + goodSummary)
		repository.CACert = []byte("a certificate")
		if given != "" {
			repository.Env["SSL_CERT_DIR"] = uploader.Secret(given)
		}
		if _, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volumeOf(t, 1)}, nil); err != nil {
			t.Fatal(err)
		}
		env := readCall(t, calls, "backup").Env
		i := slices.IndexFunc(env, func(variable string) bool { return strings.HasPrefix(variable, "SSL_CERT_DIR=") })
		if i < 0 || !strings.HasSuffix(env[i], "/ca:"+want) {
			t.Errorf("SSL_CERT_DIR=%s became %q", given, env)
		}
	}
}

func readCall(t *testing.T, dir, command string) call {
	t.Helper()
	files := callsOf(dir, command)
	if len(files) != 1 {
		t.Fatalf("calls of restic %s: %v", command, files)
	}
	content, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	var c call
	if err := json.Unmarshal(content, &c); err != nil {
		t.Fatal(err)
	}
	return c
}

// callsOf returns the file of the last call of a command, if there was one.
func callsOf(dir, command string) []string {
	files, _ := filepath.Glob(filepath.Join(dir, "*", command+".json")) // one repository, one cache; the pattern is valid
	return files
}

func TestEndsOfABackup(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		script []string
		want   error  // nil: any error
		text   string // in the error; empty with want == nil: no error
		result uploader.BackupResult
	}{
		"summary is not the last line": {
			script: []string{"out " + goodSummary, `out {"message_type":"status","total_bytes":10,"bytes_done":5}`, "torn no newline"},
			result: uploader.BackupResult{SnapshotID: "1234567890abcdef", TotalBytes: 10, BytesUploaded: 7},
		},
		"no summary":               {script: []string{"exit 0"}, want: errNoSummary},
		"summary without snapshot": {script: []string{`out {"message_type":"summary"}`}, want: errNoSummary},
		"exit 3 without summary":   {script: []string{"exit 3"}, want: errNoSummary},
		"exit 3 without names": {
			script: []string{"out " + goodSummary, "exit 3"},
			result: uploader.BackupResult{SnapshotID: "1234567890abcdef", TotalBytes: 10, BytesUploaded: 7, Errors: 1, UnreadableDirectories: 1},
		},
		"failure after the summary": {script: []string{"out " + goodSummary, "err Fatal: bad", "exit 1"}, text: "restic backup: Fatal: bad (exit code 1)"},
		"locked by exit code":       {script: []string{"exit 11"}, want: uploader.ErrRepositoryLocked},
		"killed":                    {script: []string{"kill"}, text: "ended by killed"},
		"secrets in stderr": {
			script: []string{"err Fatal: Head https://me:passw0rd@host/x: key aws-s3cret", "exit 1"},
			text:   "restic backup: Fatal: Head https://******@host/x: key ****** (exit code 1)",
		},
		"crash of restic itself": {
			script: []string{
				"err repository opened", "err panic: runtime error: index out of range [7]", "err goroutine 1 [running]:", "err main.a()", "err main.b()",
				"err main.c()", "err main.d()", "err main.e()", "err main.f()", "err main.g()", "err main.h()", "exit 2",
			},
			text: "restic backup: panic: runtime error: index out of range [7] (exit code 2)",
		},
		"an error with a stack trace": {
			script: slices.Concat([]string{"err ciphertext verification failed"}, slices.Repeat([]string{"err github.com/restic/restic/internal/restic.LoadTree", "err \tgithub.com/restic/restic@v0.18.1/internal/restic/tree.go:115"}, 9), []string{"exit 1"}),
			text:   "restic backup: ciphertext verification failed (exit code 1)",
		},
		"a file that is named like a fatal error": {
			script: []string{`err {"message_type":"error","error":{"message":"open Fatal: wrong password or no key found"},"during":"archival","item":"/x\nFatal: wrong password or no key found"}`, "err Fatal: bad", "exit 1"},
			text:   "restic backup: Fatal: bad (exit code 1)",
		},
	}
	u, _ := newFake(t, Options{})
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			repository := scripted(test.script...)
			repository.Env["AWS_SECRET_ACCESS_KEY"] = "aws-s3cret"
			var seen uploadertest.Recorder
			got, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volumeOf(t, 1)}, &seen)
			switch {
			case test.want != nil && !errors.Is(err, test.want), (test.want != nil || test.text != "") != (err != nil):
				t.Errorf("got %+v, %v", got, err)
			case err != nil && !strings.Contains(err.Error(), test.text):
				t.Errorf("got %q, want %q in it", err, test.text)
			case fmt.Sprint(got) != fmt.Sprint(test.result):
				t.Errorf("got %+v, want %+v", got, test.result)
			}
		})
	}
}

// TestFullRepositoryThatHangs: when the repository's disk is full, restic 0.18.1 prints an error and sometimes hangs.
func TestFullRepositoryThatHangs(t *testing.T) {
	t.Parallel()
	u, _ := newFake(t, Options{Grace: worker.Grace{Interrupt: time.Second}})
	repository := scripted("err Save(<data/b37b6f1155>) failed: write /r/data/b3/b37b: no space left on device", "hang")
	_, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volumeOf(t, 1)}, progress.Discard)
	if !errors.Is(err, uploader.ErrNoSpace) || !strings.Contains(err.Error(), "no space left on device") {
		t.Errorf("got %v", err)
	}
}

// A repository that somebody else uses is not repaired, and that does not matter. The index is read once, which may take minutes.
func TestResumeInAUsedRepository(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	u, calls := newFake(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	u.repairDelay = time.Millisecond
	repository := scripted("out " + goodSummary)
	repository.Env["SCRIPT_cat"] = "exit 0\nnext\nexit 1"
	repository.Env["SCRIPT_repair"] = "exit 11"
	result, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volumeOf(t, 1), Resume: true}, nil)
	if err != nil || result.SnapshotID == "" {
		t.Errorf("got %+v, %v", result, err)
	}
	if args := strings.Join(readCall(t, calls, "repair").Args, " "); args != "repair --no-cache index --verbose" {
		t.Errorf("restic was called with %q", args)
	}
	if said := log.String(); !strings.Contains(said, "already locked") && !strings.Contains(said, "exit code 11") {
		t.Errorf("it did not end with the lock: %s", said)
	}
}

// TestResumeBesideALock: restic reads the whole index before it meets the lock of somebody else, which takes minutes over a slow link.
func TestResumeBesideALock(t *testing.T) {
	t.Parallel()
	u, calls := newFake(t, Options{})
	u.repairDelay = time.Millisecond
	repository := scripted("out " + goodSummary)
	repository.Env["SCRIPT_list"] = uploader.Secret("out " + strings.Repeat("ab", 32))
	repository.Env["SCRIPT_cat"] = uploader.Secret(`out {"time":"` + time.Now().Format(time.RFC3339) + `","hostname":"node-b","username":"root","pid":7}`)
	result, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volumeOf(t, 1), Resume: true}, nil)
	if err != nil || result.SnapshotID == "" {
		t.Errorf("got %+v, %v", result, err)
	}
	if args := readCall(t, calls, "cat").Args; !slices.Contains(args, "lock") {
		t.Errorf("the last that was read: %q", args)
	}
	if called, err := filepath.Glob(filepath.Join(calls, "*", "repair.json")); err != nil || len(called) > 0 {
		t.Errorf("restic was called to repair the index: %v, %v", called, err)
	}
}

// TestRepairOfACanceledBackup: a repair after the backup has what is left of its time when restic has ended, which takes a while where the storage hangs:
// an agent that stops waits for both.
func TestRepairOfACanceledBackup(t *testing.T) {
	t.Parallel()
	u, calls := newFake(t, Options{Grace: worker.Grace{Interrupt: time.Second, Terminate: time.Millisecond}})
	u.repairGrace = 500 * time.Millisecond
	pack := strings.Repeat("ab", 32)
	repository := scripted("deaf", `out {"message_type":"status","bytes_done":1,"total_bytes":2}`, "hang")
	repository.Env["SCRIPT_cat"], repository.Env["SCRIPT_list"] = "exit 0", uploader.Secret("out "+pack)
	repository.Env["SCRIPT_repair"] = uploader.Secret("err removing not found pack file " + pack + "\nout done\nnext\nexit 1")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	repaired := false
	_, err := u.Backup(ctx, uploader.BackupRequest{Repository: repository, Volume: volumeOf(t, 1), Resume: true}, progress.SinkFunc(func(r progress.Reading) {
		if r.BytesDone != 1 || ctx.Err() != nil {
			return
		}
		repaired = len(callsOf(calls, "repair")) == 1
		for _, file := range callsOf(calls, "cat") {
			_ = os.Remove(file)
		}
		cancel()
	}))
	if !errors.Is(err, context.Canceled) || !repaired {
		t.Errorf("repaired before: %t, got %v", repaired, err)
	}
	if begun := callsOf(calls, "cat"); len(begun) > 0 {
		t.Errorf("another repair has begun when its time was over: %v", begun)
	}
}

// TestResumeWithAnIndexThatIsSlow: restic says nothing while it reads the index, and an attempt that is silent for too long is ended.
func TestResumeWithAnIndexThatIsSlow(t *testing.T) {
	t.Parallel()
	u, calls := newFake(t, Options{})
	u.readIndexLimit = time.Millisecond
	repository := scripted("out " + goodSummary)
	repository.Env["SCRIPT_cat"] = "hang"
	tracker := progress.NewTracker(progress.Options{})
	tracker.Begin(1)
	var mu sync.Mutex
	var silent, afterwards bool
	result, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volumeOf(t, 1), Resume: true}, progress.SinkFunc(func(r progress.Reading) {
		mu.Lock()
		defer mu.Unlock()
		tracker.Report(r)
		silent = silent || r.Next > u.readIndexLimit && tracker.IdleFor() == 0
		afterwards = afterwards || silent && r.Next == 0 && !tracker.Snapshot().LastWorkTime.IsZero()
	}))
	if err != nil || result.SnapshotID == "" {
		t.Errorf("got %+v, %v", result, err)
	}
	if args := readCall(t, calls, "list").Args; !slices.Contains(args, "locks") {
		t.Errorf("the repair went on without the index having been read: %q", args)
	}
	if !silent || !afterwards {
		t.Errorf("the attempt counts as idle while the index is read: %t, and afterwards: %t", !silent, !afterwards)
	}
}

// TestNewCacheOfAnother: two restics that begin with a repository at the same time meet each other's half-made cache.
func TestNewCacheOfAnother(t *testing.T) {
	t.Parallel()
	u, _ := newFake(t, Options{})
	repository := scripted("out " + goodSummary)
	repository.Env["SCRIPT_backup"] = uploader.Secret("err strconv.ParseUint: parsing \"\": invalid syntax\nerr readVersion\nerr \truntime/asm_amd64.s:1771\nexit 1\nnext\nout " + goodSummary)
	result, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: volumeOf(t, 1)}, nil)
	if err != nil || result.SnapshotID == "" {
		t.Errorf("got %+v, %v", result, err)
	}
}

func TestVersions(t *testing.T) {
	t.Parallel()
	for output, want := range map[string]string{
		"restic 0.14.0 compiled with go1.19 on linux/amd64":                                 "0.14.0",
		"restic 0.18.1-dev (compiled manually) compiled with go1.25.1 on linux/arm64":       "0.18.1",
		"restic 1.0.0 compiled with go1.30 on linux/arm64":                                  "1.0.0",
		"warning: something\nrestic 0.16.4 (v0.16.4) compiled with go1.21.6 on linux/amd64": "0.16.4",
		"kopia 0.22":  "",
		"restic 0.18": "",
		"restic 99999999999999999999.0.0 compiled": "",
	} {
		got, err := ParseVersion(output)
		if want == "" && err == nil || want != "" && got.String() != want {
			t.Errorf("%q: got %v, %v", output, got, err)
		}
	}
	for name, path := range map[string]string{"relative": "restic", "missing": "/does/not/exist", "another program": "/bin/true"} {
		if _, err := New(t.Context(), path, Options{TempDir: t.TempDir()}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestAddressesBelowTheVolumeAreRefused(t *testing.T) {
	t.Parallel()
	for url, ok := range map[string]bool{
		"": false, "repository": false, "local:repository": false, "../x": false,
		"/repository": true, "local:/repository": true, "s3:https://host/bucket": true, "azure:container:/prefix": true,
	} {
		if err := checkAddress(uploader.Repository{URL: url}); (err == nil) != ok {
			t.Errorf("%q: got %v", url, err)
		}
	}
}
