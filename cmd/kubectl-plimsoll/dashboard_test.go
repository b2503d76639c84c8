package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// runningDashboard is the command dashboard, in a goroutine.
type runningDashboard struct {
	t      *testing.T
	url    string
	cancel context.CancelFunc
	code   chan int
}

func (c *cluster) startDashboard(args ...string) *runningDashboard {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.t.Context()))
	d := &runningDashboard{t: c.t, cancel: cancel, code: make(chan int, 1)}
	out, in := io.Pipe()
	args = append([]string{"--kubeconfig", c.kubeconfig, "--namespace", c.Namespace, "dashboard"}, args...)
	var errOut bytes.Buffer
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.code <- run(ctx, strings.NewReader(""), in, &errOut, args)
		in.Close()
	}()
	c.t.Cleanup(func() { cancel(); <-ended })
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if _, url, ok := strings.Cut(lines.Text(), "The dashboard is at "); ok {
			d.url = url
			go io.Copy(io.Discard, out)
			return d
		}
	}
	c.t.Fatalf("no address was printed, exit code %d: %s", <-d.code, errOut.String())
	return nil
}

// stop presses Ctrl-C and returns the exit code.
func (d *runningDashboard) stop() int {
	d.t.Helper()
	d.cancel()
	select {
	case code := <-d.code:
		return code
	case <-time.After(testenv.Patience):
		d.t.Fatal("the dashboard does not end")
		return -1
	}
}

// newBrowser returns a client that keeps cookies.
func newBrowser(t *testing.T) *http.Client {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Jar: jar}
}

func openPage(t *testing.T, client *http.Client, address string) (status int, body string) {
	t.Helper()
	response, err := client.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

func TestDashboard(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	backup := c.newBackup("nightly")
	d := c.startDashboard("backup", backup.Name)
	browser := newBrowser(t)
	if status, body := openPage(t, browser, d.url); status != http.StatusOK || !strings.Contains(body, "<title>Plimsoll</title>") {
		t.Errorf("the page: %d %s", status, body)
	}
	base, _, _ := strings.Cut(d.url, "?")
	events, err := browser.Get(base + "events")
	if err != nil {
		t.Fatal(err)
	}
	defer events.Body.Close()
	lines := bufio.NewScanner(events.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() && !strings.Contains(lines.Text(), `"name":"nightly"`) {
	}
	if lines.Err() != nil || lines.Text() == "" {
		t.Errorf("no event has the backup: %v", lines.Err())
	}
	if code := d.stop(); code != 0 {
		t.Errorf("exit code %d after Ctrl-C", code)
	}
}

func TestDashboardOfAllVolumes(t *testing.T) {
	t.Parallel()
	d := newCluster(t).startDashboard("--address", "localhost:0")
	if !strings.HasPrefix(d.url, "http://127.0.0.1:") {
		t.Errorf("the address is %s", d.url)
	}
	if status, _ := openPage(t, newBrowser(t), d.url); status != http.StatusOK {
		t.Errorf("the page: %d", status)
	}
}

func TestDashboardIsNotStarted(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for name, test := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no such backup":       {[]string{"backup", "nothing"}, 1, "there is no Backup nothing"},
		"half a name":          {[]string{"backup"}, 2, "name one object"},
		"another kind":         {[]string{"pvb", "nightly-x"}, 2, "neither backup nor restore"},
		"all addresses":        {[]string{"--address", ":8080"}, 2, "loopback addresses only"},
		"an address of others": {[]string{"--address", "192.0.2.1:0"}, 2, "loopback addresses only"},
	} {
		out, errOut, code := c.run(append([]string{"dashboard"}, test.args...)...)
		if code != test.code || !strings.Contains(errOut, test.says) || out != "" {
			t.Errorf("%s: exit code %d, %q, %q", name, code, out, errOut)
		}
	}
}

// TestDashboardOpensTheBrowser has a program of that name in the PATH. Its arguments are seen by every user of a machine: the
// token is in a file that only its owner reads, works once, and is gone with the dashboard.
func TestDashboardOpensTheBrowser(t *testing.T) {
	c := newCluster(t)
	dir := t.TempDir()
	opened := filepath.Join(dir, "opened")
	script := "#!/bin/sh\nprintf %s \"$*\" > '" + opened + ".new' && mv '" + opened + ".new' '" + opened + "'\n"
	if err := os.WriteFile(filepath.Join(dir, "xdg-open"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("TMPDIR", dir)
	d := c.startDashboard("--open")
	var argument []byte
	c.Eventually("a browser is opened", func() bool {
		argument, _ = os.ReadFile(opened)
		return len(argument) > 0
	})
	link := string(argument)
	address := addressIn(t, link)
	if _, token, _ := strings.Cut(address, "token="); token == "" || strings.Contains(link, token) || address == d.url {
		t.Errorf("the browser is started with %s, the address in the file is %s", link, address)
	}
	for _, want := range []int{http.StatusOK, http.StatusForbidden} {
		if status, _ := openPage(t, newBrowser(t), address); status != want {
			t.Errorf("%s: %d, want %d", address, status, want)
		}
	}
	if code := d.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if _, err := os.Stat(filepath.Dir(link)); !os.IsNotExist(err) {
		t.Errorf("the directory of the link is left: %v", err)
	}

	t.Setenv("PATH", t.TempDir())
	d = c.startDashboard("--open")
	if status, _ := openPage(t, newBrowser(t), d.url); status != http.StatusOK {
		t.Errorf("without a browser the page is not served: %d", status)
	}
}

// addressIn returns the address to which the page in a file takes its reader, and holds that no other user can read it.
func addressIn(t *testing.T, file string) string {
	t.Helper()
	for path, want := range map[string]os.FileMode{file: 0o600, filepath.Dir(file): 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Fatalf("%s: mode %v, want %v: %v", path, info.Mode().Perm(), want, err)
		}
	}
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "url=")
	address, _, _ := strings.Cut(rest, `"`)
	return address
}
