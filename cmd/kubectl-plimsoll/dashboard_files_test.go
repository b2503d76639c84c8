package main

import (
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// browsing is a browser with the dashboard open.
type browsing struct {
	t      *testing.T
	client *http.Client
	base   string // with a slash at its end
}

func (c *cluster) browse(t *testing.T) *browsing {
	t.Helper()
	d := c.startDashboard()
	b := &browsing{t: t, client: newBrowser(t)}
	b.base, _, _ = strings.Cut(d.url, "?")
	if status, body := openPage(t, b.client, d.url); status != http.StatusOK {
		t.Fatalf("the page: %d %s", status, body)
	}
	return b
}

// ask returns the answer about a path of a PodVolumeBackup, and the error of one that was cut off.
func (b *browsing) ask(question, backup, path string) (status int, header http.Header, body string, err error) {
	b.t.Helper()
	response, err := b.client.Get(b.base + question + "?" + url.Values{"backup": {backup}, "path": {path}}.Encode())
	if err != nil {
		b.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, response.Header, string(text), err
}

// dashboardFiles lists and downloads files of backups with both data paths, as the dashboard's page does.
func (c *cluster) dashboardFiles(t *testing.T) {
	b := c.browse(t)
	names := c.namesOf("nightly", "db-0", "web-0")
	if status, list := openPage(t, b.client, b.base+"backups"); status != http.StatusOK || !strings.Contains(list, ">shop/db-0:data</a>") || !strings.Contains(list, ">shop/web-0:data</a>") || strings.Contains(list, "zero-0") {
		t.Errorf("volumes: %d\n%s", status, list)
	}
	old := c.namesOf("earlier", "db-0", "web-0")[1]
	if status, list := openPage(t, b.client, b.base+"backups?namespace=shop&pod=db-0&volume=data"); status != http.StatusOK || !strings.Contains(list, `href="files?backup=`+old+`&amp;path="`) || !strings.Contains(list, "1 to 4 of 4 backups") {
		t.Errorf("backups of a volume: %d\n%s", status, list)
	}
	if _, _, page, err := b.ask("files", old, ""); err != nil || !strings.Contains(page, "gone\\u202e") || !strings.Contains(page, "2 entries, the list is complete.") {
		t.Errorf("an old backup: %v\n%s", err, page)
	}
	for _, backup := range []string{names[1], names[3]} {
		_, _, page, err := b.ask("files", backup, "")
		for _, want := range []string{"shop/", `path=dumps">dumps/</a>`, "evil\\x1b[31m", `path=invalid%EF%BF%BD">`, ">1.0 MiB<", "4 entries, the list is complete."} {
			if err != nil || !strings.Contains(page, want) {
				t.Errorf("%s: %v, no %q in\n%s", backup, err, want, page)
			}
		}
		// Data paths show a name that is no UTF-8 with U+FFFD. By that kopia finds it and restic does not, which is no empty directory.
		if _, _, page, err = b.ask("files", backup, "invalid\uFFFD"); err != nil || !strings.Contains(page, "1 entry, the list is complete") && !strings.Contains(page, "no UTF-8") {
			t.Errorf("a name that is no UTF-8: %v\n%s", err, page)
		}
		_, header, content, err := b.ask("download", backup, "dumps/deep/tuesday.sql")
		if err != nil || content != "select 2" || header.Get("Content-Disposition") != "attachment; filename=tuesday.sql" || header.Get("Content-Length") != "8" {
			t.Errorf("a file: %v, %q, %v", err, content, header)
		}
		if _, header, content, err = b.ask("download", backup, "dumps/empty"); err != nil || content != "" || header.Get("Content-Length") != "0" {
			t.Errorf("an empty file: %v, %q, %v", err, content, header)
		}
		if _, header, content, err = b.ask("download", backup, ""); err != nil || tarEntries(t, content) < 9 || header.Get("Content-Disposition") != "attachment; filename="+backup+".tar" {
			t.Errorf("the volume: %v, %v", err, header)
		}
		if status, _, text, err := b.ask("download", backup, "none"); err != nil || status != http.StatusBadGateway || !strings.Contains(text, "paths are relative") {
			t.Errorf("no such path: %d %s, %v", status, text, err)
		}
		if _, _, page, err = b.ask("files", backup, "none"); err != nil || !strings.Contains(page, "The list is not complete: ") {
			t.Errorf("no such path: %v\n%s", err, page)
		}
	}
	if _, _, page, err := b.ask("files", "none", ""); err != nil || !strings.Contains(page, `has no PodVolumeBackup &#34;none&#34;`) {
		t.Errorf("no such backup: %v\n%s", err, page)
	}
	// What cannot be read out of the repository does not become a file.
	packs, err := filepath.Glob(filepath.Join(c.store, "restic", "shop", "data", "*", "*"))
	if err != nil || len(packs) == 0 {
		t.Fatalf("%v, %v", packs, err)
	}
	for _, pack := range packs {
		if err := os.Truncate(pack, 100); err != nil {
			t.Fatal(err)
		}
	}
	status, _, content, err := b.ask("download", names[3], "big")
	if err == nil && status == http.StatusOK {
		t.Errorf("damaged: %d bytes", len(content))
	}
	if _, _, page, err := b.ask("files", names[3], ""); err != nil || strings.Contains(page, "the list is complete") || strings.Contains(page, ".go:") {
		t.Errorf("damaged:\n%s", page)
	}
}
