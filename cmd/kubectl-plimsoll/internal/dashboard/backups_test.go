package dashboard

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/filerequest/protocol"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/test/chromium"
)

// backupOf is a backup of volume data of a pod, which ended some days before noon.
func backupOf(pod, name string, daysAgo int) Backup {
	return Backup{Volume: describe.Volume{
		Kind: describe.KindPodVolumeBackup, Name: name, PodNamespace: "shop", Pod: pod, Volume: "data", Uploader: "kopia", Location: "default", SnapshotID: "5eafc0de",
		Progress: progress.Snapshot{TotalBytes: 3 << 20}, Completed: noon.AddDate(0, 0, -daysAgo),
	}, Claim: "claim", End: "Completed"}
}

// TestBackups: all backups of all volumes are on some page, and names make no HTML.
func TestBackups(t *testing.T) {
	t.Parallel()
	var manyVolumes, manyBackups []Backup
	for i := range maxRows + 1 {
		manyVolumes = append(manyVolumes, backupOf(fmt.Sprintf("db-%04d", i), fmt.Sprint("b-", i), 1))
		manyBackups = append(manyBackups, backupOf("db-0", fmt.Sprint("b-", i), i))
	}
	hostile := backupOf(`<script>alert(1)</script>" onclick="x`, "b-1", 1)
	hostile.Volume.Volume, hostile.Claim, hostile.End, hostile.Owner = "javascript:alert(1)", "<b>\u202e", "<i>", `"><u>`
	unknown := Backup{Volume: describe.Volume{Name: "b-2", PodNamespace: "shop", Pod: "old", Volume: "data", Created: noon}}
	const ofVolume = "/backups?namespace=shop&pod=db-0&volume=data"
	const ofHostile = "/backups?namespace=shop&pod=%3Cscript%3Ealert%281%29%3C%2Fscript%3E%22+onclick%3D%22x&volume=javascript%3Aalert%281%29"
	for name, test := range map[string]struct {
		backups []Backup
		refused error
		address string
		status  int
		want    []string
		never   []string
	}{
		"volumes": {[]Backup{backupOf("db-1", "b-1", 3), backupOf("db-0", "b-2", 2), backupOf("db-0", "b-3", 1)}, nil, "/backups", http.StatusOK, []string{
			`<a href="backups?namespace=shop&amp;page=1&amp;pod=db-0&amp;volume=data">shop/db-0:data</a></td><td>claim</td><td class="end">2</td><td class="time">2026-11-21T12:00:00Z</td><td class="end">3.0 MiB</td>`,
			">shop/db-1:data</a>", ">1 to 2 of 2 volumes, by name<",
		}, []string{"Previous", "Next"}},
		"backups": {[]Backup{backupOf("db-1", "b-1", 3), backupOf("db-0", "b-2", 2), backupOf("db-0", "b-3", 1)}, nil, ofVolume, http.StatusOK, []string{
			`<td class="time">2026-11-21T12:00:00Z</td><td><a href="files?backup=b-3&amp;path=">b-3</a>`, `2026-11-20T12:00:00Z</td><td><a href="files?backup=b-2&amp;path=">b-2</a>`, ">1 to 2 of 2 backups, the newest first<",
		}, []string{"b-1", "Previous", "Next"}},
		"names": {[]Backup{hostile}, nil, "/backups", http.StatusOK, []string{
			"shop/&lt;script&gt;alert(1)&lt;/script&gt;&#34; onclick=&#34;x:javascript:alert(1)</a>", `&lt;b&gt;\u202e</td>`, `<a href="backups?namespace=shop&amp;page=1&amp;pod=%3Cscript%3E`,
		}, nil},
		"names of backups": {[]Backup{hostile}, nil, ofHostile, http.StatusOK, []string{"<td>&lt;i&gt;</td>", "<td>&#34;&gt;&lt;u&gt;</td>", "1 to 1 of 1 backups"}, nil},
		"little is known":  {[]Backup{unknown}, nil, "/backups?namespace=shop&pod=old&volume=data", http.StatusOK, []string{">2026-11-22T12:00:00Z<", "<td>restic</td>"}, nil},
		"a full page":      {manyVolumes, nil, "/backups", http.StatusOK, []string{"db-0499:data", ">1 to 500 of 501 volumes, by name<", `<a href="backups?page=2" rel="next">`}, []string{"db-0500", "Previous"}},
		"the next page":    {manyVolumes, nil, "/backups?page=2", http.StatusOK, []string{"db-0500:data", ">501 to 501 of 501 volumes, by name<", `<a href="backups?page=1" rel="prev">`}, []string{"db-0499", "Next"}},
		"after the last":   {manyVolumes, nil, "/backups?page=99", http.StatusOK, []string{"db-0500:data"}, nil},
		"old backups":      {manyBackups, nil, ofVolume + "&page=2", http.StatusOK, []string{">b-500</a>", ">501 to 501 of 501 backups", "namespace=shop&amp;page=1&amp;pod=db-0&amp;volume=data"}, []string{">b-499<"}},
		"none":             {nil, nil, "/backups", http.StatusOK, []string{"No backup with a snapshot."}, []string{"<table"}},
		"none of it":       {manyVolumes, nil, "/backups?namespace=shop&pod=none&volume=data", http.StatusOK, []string{"shop/none:data", "No backup with a snapshot."}, nil},
		"refused":          {nil, errors.New("you may <not>"), "/backups", http.StatusBadGateway, []string{"The list cannot be read: you may &lt;not&gt;"}, []string{"No backup"}},
		"no page":          {nil, nil, "/backups?page=0", http.StatusBadRequest, nil, nil},
		"no number":        {nil, nil, "/backups?page=x", http.StatusBadRequest, nil, nil},
	} {
		s := (&shelf{backups: test.backups, refused: test.refused}).serve(t)
		got := get(t, s.browser(), s.base()+test.address)
		if got.status != test.status || strings.ContainsRune(got.body, 0x202e) {
			t.Errorf("%s: %d\n%.3000s", name, got.status, got.body)
		}
		for _, want := range test.want {
			if !strings.Contains(got.body, want) {
				t.Errorf("%s: no %s in\n%.3000s", name, want, got.body)
			}
		}
		for _, never := range append([]string{"<script", `" onclick=`, "<b>", "<i>", "<u>", `href="javascript`}, test.never...) {
			if strings.Contains(got.body, never) {
				t.Errorf("%s: %s is in\n%.3000s", name, never, got.body)
			}
		}
	}
}

// TestBrowseOldBackups leads from the header to the files in a backup that the live page does not show any more.
func TestBrowseOldBackups(t *testing.T) {
	t.Parallel()
	p := &inChromium{Tab: chromium.Start(t), t: t, stage: newStage()}
	hostile := backupOf(`<img src=x onerror="window.hacked=1">`, "b-2", 2)
	hostile.Claim, hostile.End = strings.Repeat("W", 300), `<script>window.hacked=1</script>`
	p.s = serve(t, p.stage.follow, func(s *Server) {
		s.files = &shelf{
			backups: []Backup{backupOf("db-0", "nightly-x", 400), backupOf("db-0", "nightly-y", 1), hostile},
			entries: []protocol.Entry{{Path: []byte("dumps"), Mode: os.ModeDir | 0o755, ModTime: noon}, file("f")},
		}
	})
	p.Do(chromedp.EmulateViewport(1200, 900), chromedp.Navigate(p.s.NewURL()))
	view := scene(10)
	view.Volumes = nil
	p.show(view)
	loaded := func() { p.Until("the page has loaded", "document.readyState === 'complete'") }
	const text = "document.getElementById('entries').innerText + document.getElementById('end').innerText"
	p.checkNarrow()
	p.Do(chromedp.Click("#backups", chromedp.ByQuery), chromedp.WaitReady("#end", chromedp.ByQuery))
	loaded()
	if got := chromium.Ask[string](p.Tab, text); !strings.Contains(got, "shop/"+hostile.Pod+":data") || !strings.Contains(got, "1 to 2 of 2 volumes") || chromium.Ask[bool](p.Tab, "'hacked' in window || document.querySelector('main img') !== null") {
		t.Errorf("the page shows %s", got)
	}
	p.checkNarrow()
	p.Do(chromedp.Click("#entries tr:nth-child(2) a", chromedp.ByQuery), chromedp.WaitReady("a[href^=files]", chromedp.ByQuery))
	loaded()
	if got := chromium.Ask[string](p.Tab, text); !strings.Contains(got, noon.AddDate(0, 0, -400).Format(time.RFC3339)) || !strings.Contains(got, "1 to 2 of 2 backups, the newest first") {
		t.Errorf("the page shows %s", got)
	}
	p.checkNarrow()
	p.Do(chromedp.Click("#entries tr:nth-child(2) a", chromedp.ByQuery), chromedp.WaitReady("a[href^=download]", chromedp.ByQuery))
	loaded()
	if got := chromium.Ask[string](p.Tab, "location.search"); got != "?backup=nightly-x&path=" {
		t.Errorf("the files are those of %s", got)
	}
	p.checkNarrow()
	p.Do(chromedp.Click(".top a", chromedp.ByQuery), chromedp.WaitReady("#connection", chromedp.ByQuery))
	p.CheckQuiet(p.s.base())
}

// checkNarrow checks that the page fits into narrow windows.
func (p *inChromium) checkNarrow() {
	p.t.Helper()
	for _, width := range []int64{320, 390, 600, 1200} {
		p.Do(chromedp.EmulateViewport(width, 900))
		if scroll := chromium.Ask[int64](p.Tab, "document.documentElement.scrollWidth"); scroll > width {
			p.t.Errorf("%s: a window of %d pixels scrolls %d", chromium.Ask[string](p.Tab, "location.pathname"), width, scroll)
		}
	}
}
