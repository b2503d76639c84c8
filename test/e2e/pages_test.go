//go:build e2e

package e2e

import (
	"bufio"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// pages is a browser with the dashboard open.
type pages struct {
	client http.Client
	base   string // with a slash at its end
}

// openDashboard starts the dashboard and opens it. stop ends it by Ctrl-C.
func (c *cluster) openDashboard(t *testing.T) (p *pages, stop func()) {
	t.Helper()
	cmd := c.plimsollCommand(t, "dashboard")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	p = &pages{client: http.Client{Jar: jar}}
	for lines := bufio.NewScanner(out); p.base == "" && lines.Scan(); {
		if _, address, ok := strings.Cut(lines.Text(), "The dashboard is at "); ok {
			p.base, _, _ = strings.Cut(address, "?")
			p.open(t, address)
		}
	}
	if p.base == "" {
		t.Fatal("the dashboard printed no address")
	}
	return p, func() { endDashboard(t, cmd, out) }
}

func endDashboard(t *testing.T, cmd *exec.Cmd, out io.Reader) {
	t.Helper()
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	if _, err := io.Copy(io.Discard, out); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the dashboard ended badly: %v", err)
	}
}

func (p *pages) open(t *testing.T, address string) string {
	t.Helper()
	response, err := p.client.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v\n%s", address, response.Status, err, body)
	}
	return string(body)
}

// browsePages goes from a volume in the dashboard to its backups and their files, and downloads one of each data path.
func (c *cluster) browsePages(t *testing.T, a *app, histories map[string]*history) {
	t.Helper()
	p, stop := c.openDashboard(t)
	defer stop()
	list := p.open(t, p.base+"backups?"+url.Values{"namespace": {a.namespace}, "pod": {a.name}, "volume": {local}}.Encode())
	for uploader, h := range histories {
		ask := func(page, path string) string {
			return p.open(t, p.base+page+"?"+url.Values{"backup": {h.older}, "path": {path}}.Encode())
		}
		if !strings.Contains(list, "files?backup="+h.older) {
			t.Errorf("%s: the list of backups lacks %s:\n%s", uploader, h.older, list)
		}
		if page := ask("files", "docs"); !strings.Contains(page, "2 entries, the list is complete.") {
			t.Errorf("%s: the page of a directory is\n%s", uploader, page)
		}
		if text := ask("download", "docs/report"); text != h.was["report"] {
			t.Errorf("%s: the download has %q, want %q", uploader, text, h.was["report"])
		}
	}
}
