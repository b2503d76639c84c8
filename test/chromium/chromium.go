// Package chromium opens web pages in a headless Chromium, and sees what they ask for and complain of.
package chromium

import (
	"bytes"
	"context"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	cdruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/plimsoll-io/plimsoll/test/parts"
)

// patience is how long a test waits for what must come. Nothing waits for it to pass.
const patience = 5 * time.Minute

// Tab is a page in a Chromium of its own. Its methods fail the test; they must be called by the test's goroutine.
type Tab struct {
	tb  testing.TB
	ctx context.Context //nolint:containedctx // chromedp's tabs are contexts

	mu         sync.Mutex
	requests   []string
	complaints []string
}

// Start starts a Chromium that ends with the test. It skips or fails the test where parts.Chromium does.
func Start(tb testing.TB) *Tab {
	tb.Helper()
	program := parts.Chromium(tb)
	profile, err := os.MkdirTemp("", "plimsoll-chromium-") //nolint:usetesting // a browser writes for a moment after its end: see remove
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { remove(tb, profile) })
	options := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(program), chromedp.UserDataDir(profile), chromedp.WSURLReadTimeout(patience),
		chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("force-color-profile", "srgb"),
		chromedp.Env("HOME=" + profile),
	}
	allocated, free := chromedp.NewExecAllocator(context.WithoutCancel(tb.Context()), options...)
	tb.Cleanup(free)
	browser, closeBrowser := chromedp.NewContext(allocated, chromedp.WithErrorf(func(string, ...any) {}))
	tb.Cleanup(closeBrowser)
	if err := chromedp.Run(browser); err != nil { // a time limit of this call would be that of the browser
		tb.Fatal(err)
	}
	b := &Tab{tb: tb, ctx: browser}
	chromedp.ListenTarget(browser, b.note)
	b.Do(network.Enable(), log.Enable(), cdruntime.Enable())
	return b
}

// remove waits until the browser's other processes, which outlive it by a moment, write no more.
func remove(tb testing.TB, dir string) {
	tb.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := os.RemoveAll(dir)
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			tb.Errorf("remove the browser's profile: %v", err)
			return
		}
	}
}

// note keeps requests, and what the page or the browser complains of: exceptions, console errors, violations of the policy.
func (b *Tab) note(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, e.Request.URL)
	case *cdruntime.EventExceptionThrown:
		b.complaints = append(b.complaints, e.ExceptionDetails.Error())
	case *cdruntime.EventConsoleAPICalled:
		b.complaints = append(b.complaints, "console."+e.Type.String())
	case *log.EventEntryAdded:
		b.complaints = append(b.complaints, e.Entry.Text+" "+e.Entry.URL)
	}
}

// Do carries out actions, one after the other.
func (b *Tab) Do(actions ...chromedp.Action) {
	b.tb.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Run(ctx, actions...); err != nil {
		b.tb.Fatal(err)
	}
}

// Ask evaluates an expression of the page.
func Ask[T any](b *Tab, expression string) T {
	b.tb.Helper()
	var answer T
	b.Do(chromedp.Evaluate(expression, &answer))
	return answer
}

// Until waits until an expression of the page is true.
func (b *Tab) Until(what, expression string) {
	b.tb.Helper()
	err := chromedp.Run(b.ctx, chromedp.Poll(expression, nil, chromedp.WithPollingTimeout(patience), chromedp.WithPollingInterval(50*time.Millisecond)))
	if err != nil {
		var text string
		_ = chromedp.Run(b.ctx, chromedp.Evaluate("document.body.innerText", &text))
		b.tb.Fatalf("waited for %s: %v; the page says:\n%s", what, err, text)
	}
}

// CheckQuiet reports whether the page has complained, or asked anybody but its own server.
func (b *Tab) CheckQuiet(server string) {
	b.tb.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.complaints) > 0 {
		b.tb.Errorf("the browser complains:\n%s", strings.Join(b.complaints, "\n"))
	}
	own, err := url.Parse(server)
	if err != nil {
		b.tb.Fatal(err)
	}
	if len(b.requests) == 0 {
		b.tb.Error("no request was seen")
	}
	for _, r := range b.requests {
		if u, err := url.Parse(r); err != nil || u.Host != own.Host {
			b.tb.Errorf("the page asks %s", r)
		}
	}
}

// Picture writes what is seen into a PNG file.
func (b *Tab) Picture(path string) {
	b.tb.Helper()
	var shot []byte
	b.Do(chromedp.CaptureScreenshot(&shot))
	picture, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		b.tb.Fatal(err)
	}
	var small bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&small, reduce(picture)); err != nil {
		b.tb.Fatal(err)
	}
	if err := os.WriteFile(path, small.Bytes(), 0o644); err != nil {
		b.tb.Fatal(err)
	}
}

// reduce leaves a picture of text 256 colors, which makes a third of the file: the most frequent ones of those that are told
// apart.
func reduce(picture image.Image) image.Image {
	bounds := picture.Bounds()
	counts := map[color.RGBA]int{}
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			counts[color.RGBAModel.Convert(picture.At(x, y)).(color.RGBA)]++
		}
	}
	var palette color.Palette
	for _, c := range slices.SortedFunc(maps.Keys(counts), func(a, b color.RGBA) int { return counts[b] - counts[a] }) {
		if len(palette) < 256 && (len(palette) == 0 || !near(c, palette.Convert(c).(color.RGBA))) {
			palette = append(palette, c)
		}
	}
	reduced := image.NewPaletted(bounds, palette)
	draw.Draw(reduced, bounds, picture, bounds.Min, draw.Src)
	return reduced
}

func near(a, b color.RGBA) bool {
	const most = 6
	return max(a.R, b.R)-min(a.R, b.R) < most && max(a.G, b.G)-min(a.G, b.G) < most && max(a.B, b.B)-min(a.B, b.B) < most
}
