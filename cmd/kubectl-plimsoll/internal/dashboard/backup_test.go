package dashboard

import (
	"context"
	"flag"
	"fmt"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/cmd/kubectl-plimsoll/internal/live"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/nodeagent"
	"github.com/plimsoll-io/plimsoll/test/chromium"
)

var update = flag.Bool("update", false, "take docs/images/dashboard.png; it is set in Inter where Debian's package fonts-inter is installed")

// watchScript keeps each state and number that the rows of volumes have shown.
const watchScript = `window.seen = {};
new MutationObserver(() => {
	for (const row of document.querySelectorAll('.volume')) {
		const name = row.querySelector('.where').textContent.split(' ')[0];
		const bar = row.querySelector('[role=progressbar]');
		const now = row.dataset.state + ' ' + (bar.getAttribute('aria-valuenow') ?? '-');
		const list = (window.seen[name] ??= []);
		if (list.at(-1) !== now) list.push(now);
	}
}).observe(document.getElementById('volumes'), { subtree: true, childList: true, attributes: true })`

// TestRunningBackup watches a backup of several volumes by real node agents with real restic and kopia, until its end.
func TestRunningBackup(t *testing.T) {
	t.Parallel()
	browser := chromium.Start(t)
	c := newCluster(t, "nightly-20261122010007")
	c.startAgent("worker-1", 5<<20, func(cfg *nodeagent.Config) { cfg.Concurrency = 3 })
	// What restic has read when it cannot send moves the bar, and then no more.
	c.startAgent("worker-2", 1<<10, func(cfg *nodeagent.Config) { cfg.StallAfter = 2 * time.Second })

	s := serve(t, func(ctx context.Context) iter.Seq2[describe.View, error] {
		return live.Follow(ctx, live.Options{
			Config: c.Config, Scheme: c.Scheme, Namespace: veleroNamespace, Selection: live.Selection{Kind: describe.KindBackup, Name: c.backup.Name},
		})
	}, nil)
	browser.Do(chromedp.EmulateViewport(1200, 900), chromedp.Navigate(s.NewURL()), chromedp.Evaluate(watchScript, nil))
	browser.Until("the backup", "document.getElementById('name').textContent === 'nightly-20261122010007'")

	mebibytes := 1 << 20
	if *update {
		mebibytes *= 5 // until times left are known
	}
	stuck := c.backUp("worker-2", "wiki", "wiki-0", "attachments", "restic", 96<<20)
	c.backUp("worker-1", "shop", "cart-0", "sessions", "kopia", 2<<20)
	until(browser, "shop/cart-0", "Completed")
	c.backUp("worker-1", "shop", "mail-0", "spool", "restic", 0)
	until(browser, "shop/mail-0", "Failed")
	until(browser, "wiki/wiki-0", "Stalled")
	c.backUp("worker-1", "shop", "db-0", "data", "kopia", 40*mebibytes)
	c.backUp("worker-1", "shop", "db-1", "data", "kopia", 56*mebibytes)
	c.backUp("worker-1", "shop", "media-0", "uploads", "restic", 72*mebibytes)
	until(browser, "shop/db-0", "Transferring")
	until(browser, "shop/media-0", "Transferring")
	c.backUp("worker-1", "shop", "search-0", "index", "restic", 1<<20)
	c.backUp("worker-1", "shop", "web-0", "cache", "restic", 1<<20)
	until(browser, "shop/web-0", "Queued")
	if *update {
		takePicture(t, browser)
	}
	for _, pod := range []string{"shop/db-0", "shop/db-1", "shop/media-0", "shop/search-0", "shop/web-0"} {
		until(browser, pod, "Completed")
	}
	c.Get(stuck)
	c.Change(stuck, func() { stuck.Spec.Cancel = true })
	until(browser, "wiki/wiki-0", "Failed")
	c.Change(c.backup, func() {
		c.backup.Status.Phase, c.backup.Status.CompletionTimestamp = velerov1.BackupPhasePartiallyFailed, new(metav1.Now())
		c.backup.Status.Errors = 2
	})
	browser.Until("the end", `document.getElementById('verdict').innerText === 'PartiallyFailed' &&
		document.getElementById('connection').dataset.kind === 'final' && document.getElementById('total-rate').textContent === '0 B/s'`)
	checkMovement(t, chromium.Ask[map[string][]string](browser, "window.seen"))
	browser.CheckQuiet(s.base())
}

// until waits until the row of a pod's volume has the state, or has had it.
func until(browser *chromium.Tab, pod, state string) {
	browser.Until(pod+" to be "+state, fmt.Sprintf("window.seen[%q]?.some((now) => now.startsWith(%q))", pod, state))
}

// checkMovement looks at what the rows have shown, in this order.
func checkMovement(t *testing.T, seen map[string][]string) {
	t.Helper()
	for pod, end := range map[string]string{
		"shop/db-0": "Completed 100", "shop/db-1": "Completed 100", "shop/media-0": "Completed 100", "shop/cart-0": "Completed 100",
		"shop/web-0": "Completed 100", "shop/mail-0": "Failed -", "wiki/wiki-0": "Failed ",
	} {
		list := seen[pod]
		if len(list) == 0 || len(list[len(list)-1]) < len(end) || list[len(list)-1][:len(end)] != end {
			t.Errorf("%s has shown %q, and not %s at the end", pod, list, end)
		}
	}
	// A browser that gets no processor for some seconds may miss what stands still at two packs of kopia's, but not all of three bars.
	moved := 0
	for _, pod := range []string{"shop/db-0", "shop/db-1", "shop/media-0"} {
		percents := percentsOf(t, seen[pod])
		if !slices.IsSorted(percents) || len(percents) < 2 {
			t.Errorf("the bar of %s went %v", pod, percents)
		}
		moved = max(moved, len(slices.Compact(percents)))
	}
	if moved < 3 {
		t.Errorf("no bar has moved: %v", seen)
	}
}

// percentsOf leaves out what was not known.
func percentsOf(t *testing.T, shown []string) []int {
	t.Helper()
	var percents []int
	for _, s := range shown {
		var state string
		var percent int
		if n, _ := fmt.Sscanf(s, "%s %d", &state, &percent); n == 2 {
			percents = append(percents, percent)
		}
	}
	return percents
}

// takePicture waits for a moment that shows much.
func takePicture(t *testing.T, browser *chromium.Tab) {
	t.Helper()
	browser.Until("times left", `[...document.querySelectorAll('.volume[data-state=Transferring] .left')].filter((left) => /\d/.test(left.textContent)).length === 3`)
	height := chromium.Ask[int64](browser, "document.querySelector('footer').offsetTop + 24")
	browser.Do(chromedp.EmulateViewport(1200, height))
	browser.Picture("../../../../docs/images/dashboard.png")
}
