package dashboard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/plimsoll-io/plimsoll/pkg/filerequest/protocol"
	"github.com/plimsoll-io/plimsoll/test/chromium"
)

// shelf has entries and one content, and ends as it is told: what real repositories, in the tests of the command, do not do on demand.
type shelf struct {
	backups []Backup
	entries []protocol.Entry
	content string
	refused error // before anything comes
	err     error // after all has come
	asked   chan struct{}
	hang    bool // until the question ends
}

func (s *shelf) Backups(context.Context) ([]Backup, error) { return slices.Clone(s.backups), s.refused }

func (s *shelf) List(_ context.Context, backup, _ string, volume func(protocol.Volume) error, entry func(protocol.Entry) error) error {
	if s.refused != nil {
		return s.refused
	}
	if err := volume(protocol.Volume{Namespace: "shop", Pod: "db-0", Volume: "data", Uploader: "kopia", PodVolumeBackup: backup, Time: noon}); err != nil {
		return err
	}
	for _, e := range s.entries {
		if err := entry(e); err != nil {
			return err
		}
	}
	return s.err
}

func (s *shelf) Content(ctx context.Context, _, _ string, begin func(string, int64) io.Writer) error {
	if s.refused != nil {
		return s.refused
	}
	if _, err := io.WriteString(begin(protocol.TypeFile, int64(len(s.content))), s.content); err != nil {
		return err
	}
	if s.hang {
		close(s.asked)
		<-ctx.Done()
	}
	return s.err
}

func file(path string) protocol.Entry {
	return protocol.Entry{Path: []byte(path), Mode: 0o644, Size: 3, ModTime: noon}
}

func (s *shelf) serve(t *testing.T) *serving {
	t.Helper()
	return serve(t, newStage().follow, func(server *Server) { server.files = s })
}

// TestListing: names of volumes make no HTML, and only the last line says that a list is complete.
func TestListing(t *testing.T) {
	t.Parallel()
	many := make([]protocol.Entry, maxEntries+1)
	for i := range many {
		many[i] = file(fmt.Sprint("d/", i))
	}
	for name, test := range map[string]struct {
		shelf    shelf
		want     []string
		complete bool
	}{
		"names": {
			shelf{entries: []protocol.Entry{file("d/<script>alert(1)"), file("d/\u202egpj.exe"), {Path: []byte("d/\" onclick=\"x"), Mode: os.ModeDir | 0o755, ModTime: noon}, {Path: []byte("d/l"), Mode: os.ModeSymlink, Target: []byte("javascript:alert(1)")}}},
			[]string{
				"&lt;script&gt;alert(1)</td>", `\u202egpj.exe`, `path=d%2F%22&#43;onclick`, "&rarr; javascript:alert(1)</span>", "shop/db-0:data", "4 entries, the list is complete.",
			},
			true,
		},
		"cut off":         {shelf{entries: many[:2], err: errors.New("the pack <b> is damaged")}, []string{">1</td>", "The list is not complete: the pack &lt;b&gt; is damaged"}, false},
		"refused":         {shelf{refused: errors.New("you may not")}, []string{"<title>nightly-x - Plimsoll", "The list is not complete: you may not"}, false},
		"a full page":     {shelf{entries: many[:maxEntries]}, []string{"10000 entries, the list is complete."}, true},
		"more than fits":  {shelf{entries: many}, []string{">9999</td>", "more than 10000 entries"}, false},
		"empty directory": {shelf{}, []string{"0 entries, the list is complete."}, true},
	} {
		s := test.shelf.serve(t)
		got := get(t, s.browser(), s.base()+"/files?backup=nightly-x&path=d")
		if got.status != http.StatusOK || strings.Contains(got.body, "the list is complete") != test.complete || !strings.HasSuffix(got.body, "</html>\n") || strings.ContainsRune(got.body, 0x202e) {
			t.Errorf("%s: %d\n%.3000s", name, got.status, got.body)
		}
		for _, want := range test.want {
			if !strings.Contains(got.body, want) {
				t.Errorf("%s: no %s in\n%.3000s", name, want, got.body)
			}
		}
		for _, never := range []string{"<script", `" onclick=`, "<b>"} {
			if strings.Contains(got.body, never) {
				t.Errorf("%s: %s is in\n%.3000s", name, never, got.body)
			}
		}
	}
}

// TestDownload: a browser takes what came for complete only if it is.
func TestDownload(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		shelf  shelf
		status int // 0: cut off
	}{
		"whole":               {shelf{content: strings.Repeat("content", 100_000)}, http.StatusOK},
		"one byte":            {shelf{content: "c"}, http.StatusOK},
		"nothing":             {shelf{}, http.StatusOK},
		"refused":             {shelf{refused: errors.New("you may not")}, http.StatusBadGateway},
		"other checksum":      {shelf{content: strings.Repeat("content", 100_000), err: errors.New("the checksum differs")}, 0},
		"one byte that is no": {shelf{content: "c", err: errors.New("the checksum differs")}, 0},
	} {
		s := test.shelf.serve(t)
		response, err := s.browser().Get(s.base() + "/download?backup=nightly-x&path=d/f")
		if err != nil {
			if test.status != 0 {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		switch {
		case test.status == 0 && err == nil:
			t.Errorf("%s: %d bytes look whole", name, len(body))
		case test.status != 0 && (err != nil || response.StatusCode != test.status):
			t.Errorf("%s: %s, %v", name, response.Status, err)
		case test.status == http.StatusOK && string(body) != test.shelf.content:
			t.Errorf("%s: got %d bytes", name, len(body))
		}
	}
}

// TestFilesAreForThePage: a page of another port of this machine cannot lead to them, and bad addresses are refused.
func TestFilesAreForThePage(t *testing.T) {
	t.Parallel()
	s := (&shelf{content: "c"}).serve(t)
	browser := s.browser()
	for name, test := range map[string]struct {
		address string
		site    string
		status  int
	}{
		"the page":       {"/download?backup=x&path=f", "same-origin", http.StatusOK},
		"a typed URL":    {"/download?backup=x&path=f", "none", http.StatusOK},
		"another port":   {"/download?backup=x&path=f", "same-site", http.StatusForbidden},
		"another site":   {"/files?backup=x&path=f", "cross-site", http.StatusForbidden},
		"the backups":    {"/backups", "same-origin", http.StatusOK},
		"their link":     {"/backups", "same-site", http.StatusForbidden},
		"no backup":      {"/files?path=f", "same-origin", http.StatusBadRequest},
		"out of it":      {"/files?backup=x&path=../f", "same-origin", http.StatusBadRequest},
		"out of it, too": {"/download?backup=x&path=a/../../f", "same-origin", http.StatusBadRequest},
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.base()+test.address, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Sec-Fetch-Site", test.site)
		request.Header.Set("Sec-Fetch-Mode", "navigate")
		response, err := browser.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != test.status {
			t.Errorf("%s: %s", name, response.Status)
		}
	}
	if a := get(t, &http.Client{}, s.base()+"/download?backup=x&path=f"); a.status != http.StatusForbidden {
		t.Errorf("without a cookie: %d", a.status)
	}
	head, err := browser.Head(s.base() + "/download?backup=x&path=f")
	if err != nil {
		t.Fatal(err)
	}
	head.Body.Close()
	if head.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("HEAD: %s", head.Status)
	}
	stage := newStage()
	without := serve(t, stage.follow, nil)
	browser = without.browser()
	for _, address := range []string{"/files?backup=x", "/backups"} {
		if a := get(t, browser, without.base()+address); a.status != http.StatusNotFound {
			t.Errorf("a dashboard without files: %s: %d", address, a.status)
		}
	}
	open := without.events(browser)
	stage.show(t, scene(10))
	open.page("no files", func(p page) bool {
		return !p.Backups && len(p.Volumes) > 0 && !slices.ContainsFunc(p.Volumes, func(v volume) bool { return v.Files != "" })
	})
}

// TestServeAwaitsDownloads: when the dashboard ends, what reads a repository for it has ended, too.
func TestServeAwaitsDownloads(t *testing.T) {
	t.Parallel()
	sh := &shelf{content: strings.Repeat("c", 1<<20), hang: true, asked: make(chan struct{})}
	s := sh.serve(t)
	browser := s.browser()
	ended := make(chan error, 1)
	go func() {
		response, err := browser.Get(s.base() + "/download?backup=x&path=f")
		if err == nil {
			_, err = io.Copy(io.Discard, response.Body)
			response.Body.Close()
		}
		ended <- err
	}()
	<-sh.asked
	s.stop()
	if err := s.wait(); err != nil {
		t.Errorf("ended with %v", err)
	}
	select {
	case err := <-ended:
		if err == nil {
			t.Error("a download that was cut off looks whole")
		}
	case <-time.After(patience):
		t.Fatal("the download does not end")
	}
}

// TestBrowse leads from a volume's details to its files.
func TestBrowse(t *testing.T) {
	t.Parallel()
	p := &inChromium{Tab: chromium.Start(t), t: t, stage: newStage()}
	p.s = serve(t, p.stage.follow, func(s *Server) {
		s.files = &shelf{entries: []protocol.Entry{{Path: []byte("dumps"), Mode: os.ModeDir | 0o755, ModTime: noon}, file("f")}}
	})
	p.Do(chromedp.EmulateViewport(1200, 900), chromedp.Navigate(p.s.NewURL()))
	p.show(scene(10))
	browsable := `[...document.querySelectorAll('.volume')].filter((row) => { row.querySelector('h3 button').click(); return !row.querySelector('.browse').hidden }).length`
	if n := chromium.Ask[int](p.Tab, browsable); n != 1 {
		t.Errorf("%d volumes have files, want that with a snapshot", n)
	}
	p.Do(chromedp.Click(".browse:not([hidden]) a", chromedp.ByQuery), chromedp.WaitReady("#end", chromedp.ByQuery))
	if got := chromium.Ask[string](p.Tab, "document.getElementById('entries').innerText + document.getElementById('end').innerText"); !strings.Contains(got, "dumps/") || !strings.Contains(got, "2 entries, the list is complete.") {
		t.Errorf("the page shows %s", got)
	}
	p.Do(chromedp.Click("#entries a", chromedp.ByQuery), chromedp.WaitReady("nav a:nth-of-type(2)", chromedp.ByQuery))
	p.CheckQuiet(p.s.base())
}
