package dashboard

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/test/chromium"
)

// scene has a volume in each state. done is the percentage of those that move, and the second in which it is.
func scene(done int64) describe.View {
	view := describe.View{
		At:        noon.Add(time.Duration(done) * time.Second),
		Operation: &describe.Operation{Kind: describe.KindBackup, Name: "nightly", Phase: "InProgress", Started: noon.Add(-time.Minute)},
		Nodes:     []describe.Node{{Name: "node-1", Agent: "node-agent-x", Ready: true, Live: true}, {Name: "node-2", Agent: "node-agent-y"}},
		Notes:     []string{"the node agent of node-2 cannot be asked"},
	}
	left := int64(75)
	for i, state := range []progress.State{
		progress.StateCompleted, progress.StateQueued, progress.StateWaiting, progress.StateScanning, progress.StateTransferring,
		progress.StateFinishing, progress.StateFailed, progress.StateCanceled, progress.StateStalled,
	} {
		v := describe.Volume{
			Kind: describe.KindPodVolumeBackup, Namespace: "velero", Name: fmt.Sprintf("nightly-%d", i), UID: types.UID(fmt.Sprint("uid-", i)),
			PodNamespace: "shop", Pod: fmt.Sprintf("db-%d", i), Volume: "data", Uploader: "restic", Node: "node-1", Source: describe.SourceAgent,
			Progress: progress.Snapshot{State: state, BytesDone: done << 20, TotalBytes: 100 << 20, TotalFinal: true, BytesPerSecond: 3 << 20, ETASeconds: &left},
		}
		switch state {
		case progress.StateCompleted:
			v.SnapshotID, v.Progress.BytesDone = "5eafc0de", 100<<20
		case progress.StateQueued, progress.StateWaiting, progress.StateScanning:
			v.Progress = progress.Snapshot{State: state, Message: "something else comes first"}
		case progress.StateFailed:
			v.Message = "NoSpace: the repository is full"
		default:
		}
		view.Volumes = append(view.Volumes, v)
	}
	describe.Sort(view.Volumes, view.At)
	return view
}

// inChromium has a page open that shows the scene.
type inChromium struct {
	*chromium.Tab
	t     *testing.T
	s     *serving
	stage *stage
}

func openScene(t *testing.T) *inChromium {
	t.Helper()
	p := &inChromium{Tab: chromium.Start(t), t: t, stage: newStage()}
	p.s = serve(t, p.stage.follow, nil)
	p.Do(chromedp.EmulateViewport(1200, 900), chromedp.Navigate(p.s.NewURL()))
	p.show(scene(10))
	return p
}

// show hands a View to the page, and waits until it is shown.
func (p *inChromium) show(v describe.View) {
	p.t.Helper()
	p.stage.show(p.t, v)
	p.Until("the page of "+v.At.String(), fmt.Sprintf("document.getElementById('connection-text').textContent.endsWith('%s')", pageOf(v).At))
}

// TestLinkOpensThePage opens the file of WriteLink, which is another site for a browser: its cookies are SameSite=Strict.
func TestLinkOpensThePage(t *testing.T) {
	t.Parallel()
	p := &inChromium{Tab: chromium.Start(t), t: t, stage: newStage()}
	p.s = serve(t, p.stage.follow, nil)
	link, err := p.s.WriteLink(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p.Do(chromedp.Navigate("file://"+link), chromedp.WaitReady("#connection-text", chromedp.ByQuery)) // that of the third page
	p.show(scene(10))
	if address := chromium.Ask[string](p.Tab, "location.href"); address != p.s.base()+"/" {
		t.Errorf("the address is %s: the token stays in the history", address)
	}
}

// rowsScript reads the list as people see it.
const rowsScript = `[...document.querySelectorAll('.volume')].map((row) => ['.state', 'h3', '.where', '.percent', '.size', '.rate', '.left', '.news']
	.map((part) => row.querySelector(part)).map((part) => part.hidden ? '' : part.textContent))`

func TestPageShowsAll(t *testing.T) {
	t.Parallel()
	p := openScene(t)
	if address := chromium.Ask[string](p.Tab, "location.href"); address != p.s.base()+"/" {
		t.Errorf("the address is %s: the token stays in the history", address)
	}
	if cookies := chromium.Ask[string](p.Tab, "document.cookie"); cookies != "" {
		t.Errorf("scripts see the cookie %s", cookies)
	}
	var want [][]string
	for _, v := range pageOf(scene(10)).Volumes {
		size, rate, left := v.Bar.Done, v.Bar.Rate, v.Bar.Left
		if v.Bar.Of != "" {
			size += " of " + v.Bar.Of
		}
		if v.Bar.Ended {
			rate, left = "", ""
		}
		want = append(want, []string{v.State, v.Volume, v.Pod + " · " + v.How, v.Bar.PercentText, size, rate, left, v.News})
	}
	if diff := cmp.Diff(want, chromium.Ask[[][]string](p.Tab, rowsScript)); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	if first := want[0][0]; first != "Stalled" {
		t.Errorf("%s is first", first)
	}
	text := chromium.Ask[string](p.Tab, "document.body.innerText")
	for _, part := range []string{"nightly", "InProgress", "node-2", "not ready", "the node agent of node-2 cannot be asked", "NoSpace: the repository is full"} {
		if !strings.Contains(text, part) {
			t.Errorf("the page does not say %q:\n%s", part, text)
		}
	}
	p.checkScreenReader()
	p.CheckQuiet(p.s.base())
}

// checkScreenReader looks for what only people without a picture notice.
func (p *inChromium) checkScreenReader() {
	p.t.Helper()
	for what, expression := range map[string]string{
		"a bar without number or name": `[...document.querySelectorAll('[role=progressbar]')].some((bar) => !bar.getAttribute('aria-label') ||
			!bar.getAttribute('aria-valuetext') || (bar.hasAttribute('aria-valuenow') === bar.classList.contains('unknown')))`,
		"an icon that is read":      `[...document.querySelectorAll('svg')].some((icon) => !icon.ariaHidden && icon.getAttribute('role') !== 'img')`,
		"a button without name":     `[...document.querySelectorAll('button')].some((button) => !button.hidden && !(button.textContent.trim() || button.ariaLabel))`,
		"details of nothing":        `[...document.querySelectorAll('[aria-controls]')].some((button) => !document.getElementById(button.getAttribute('aria-controls')))`,
		"an id that is there twice": `new Set([...document.querySelectorAll('[id]')].map((e) => e.id)).size !== document.querySelectorAll('[id]').length`,
		"no language":               `document.documentElement.lang !== 'en'`,
		"something in the live region before anything has changed": `document.querySelector('[aria-live=polite]').textContent !== ''`,
	} {
		if chromium.Ask[bool](p.Tab, expression) {
			p.t.Errorf("the page has %s", what)
		}
	}
}

func TestPageMoves(t *testing.T) {
	t.Parallel()
	p := openScene(t)
	const now = `document.querySelector('.volume[data-state=Transferring] [role=progressbar]').getAttribute('aria-valuenow')`
	before := chromium.Ask[string](p.Tab, now)
	p.Do(chromedp.Focus(".volume[data-state=Transferring] button"))
	p.show(scene(60))
	if after := chromium.Ask[string](p.Tab, now); before != "10" || after != "60" {
		t.Errorf("the bar went from %s to %s", before, after)
	}
	p.Until("a line of the rates", "document.querySelector('#total-history .line').getAttribute('d')?.includes('L')")
	const announced = "document.getElementById('announcement').textContent"
	if text := chromium.Ask[string](p.Tab, announced); text != "" {
		t.Errorf("movement is announced: %s", text)
	}
	stalled := scene(61)
	for i := range stalled.Volumes {
		if v := &stalled.Volumes[i]; v.Progress.State == progress.StateTransferring {
			v.Progress.State = progress.StateStalled
		}
	}
	p.show(stalled)
	if text := chromium.Ask[string](p.Tab, announced); text != "data of shop/db-4: Stalled." {
		t.Errorf("announced was %q", text)
	}
	if who := chromium.Ask[string](p.Tab, "document.activeElement.closest('.volume')?.querySelector('.where').textContent ?? 'nothing'"); who != "shop/db-4 · restic backup" {
		t.Errorf("the row that has moved up had the focus, now has %s", who)
	}
	p.CheckQuiet(p.s.base())
}

func TestKeyboard(t *testing.T) {
	t.Parallel()
	p := openScene(t)
	const rows = "document.querySelectorAll('.volume').length"
	// chromedp.KeyEvent would write the slash even though the page takes the key for itself.
	p.Do(input.DispatchKeyEvent(input.KeyDown).WithKey("/").WithText("/"), input.DispatchKeyEvent(input.KeyUp).WithKey("/"))
	p.Do(chromedp.KeyEvent("SHOP db-0"))
	if n := chromium.Ask[int](p.Tab, rows); n != 1 {
		t.Errorf("%d rows match the filter", n)
	}
	p.Do(chromedp.KeyEvent("/nowhere"))
	p.Until("the filter to match nothing", rows+" === 0 && document.getElementById('nothing').innerText === 'None of 9 volumes matches.'")
	p.Do(chromedp.KeyEvent(kb.Escape))
	if n := chromium.Ask[int](p.Tab, rows); n != 9 {
		t.Errorf("%d rows after the filter was cleared", n)
	}
	// The state's button has Enter and Tab, too.
	p.Do(chromedp.Focus("#states [data-state=Completed]"), chromedp.KeyEvent(kb.Enter))
	if n := chromium.Ask[int](p.Tab, rows); n != 1 {
		t.Errorf("%d rows are completed", n)
	}
	p.Do(chromedp.KeyEvent(kb.Tab))
	const open = "document.activeElement.getAttribute('aria-expanded') + getComputedStyle(document.activeElement.closest('.volume').querySelector('dl')).display"
	if state := chromium.Ask[string](p.Tab, open); state != "falsenone" {
		t.Fatalf("after Tab: %s", state)
	}
	p.Do(chromedp.KeyEvent(kb.Enter))
	if state := chromium.Ask[string](p.Tab, open); state != "truegrid" {
		t.Errorf("after Enter: %s", state)
	}
	details := chromium.Ask[string](p.Tab, "document.querySelector('.volume dl').innerText")
	for _, part := range []string{"5eafc0de", "node-1", "velero/nightly-0", "the node agent, just now"} {
		if !strings.Contains(details, part) {
			t.Errorf("details lack %q:\n%s", part, details)
		}
	}
	p.show(scene(11))
	p.Do(chromedp.KeyEvent(kb.Escape))
	if state := chromium.Ask[string](p.Tab, open); state != "falsenone" {
		t.Errorf("after Escape: %s", state)
	}
	p.CheckQuiet(p.s.base())
}

// TestLooks asks for what the style sheets promise: themes, motion, width.
func TestLooks(t *testing.T) {
	t.Parallel()
	p := openScene(t)
	media := func(name, value string) {
		p.Do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: name, Value: value}}))
	}
	const paper = "getComputedStyle(document.body).backgroundColor"
	const light, dark = "rgb(245, 246, 247)", "rgb(14, 20, 25)"
	for system, want := range map[string]string{"light": light, "dark": dark} {
		media("prefers-color-scheme", system)
		if color := chromium.Ask[string](p.Tab, paper); color != want {
			t.Errorf("a %s system has the color %s", system, color)
		}
	}
	media("prefers-color-scheme", "dark")
	for _, want := range []string{light, dark} {
		p.Do(chromedp.Click("#theme"))
		if color := chromium.Ask[string](p.Tab, paper); color != want {
			t.Errorf("after the button: %s, want %s", color, want)
		}
	}
	media("prefers-color-scheme", "light")
	if color := chromium.Ask[string](p.Tab, paper); color != dark {
		t.Errorf("what was chosen does not last: %s", color)
	}
	const transition = "getComputedStyle(document.querySelector('.fill')).transitionDuration"
	if moves := chromium.Ask[string](p.Tab, transition); moves != "0.9s" {
		t.Errorf("bars move in %s", moves)
	}
	media("prefers-reduced-motion", "reduce")
	if moves := chromium.Ask[string](p.Tab, transition); moves != "0s" {
		t.Errorf("bars move in %s for those who do not want that", moves)
	}
	p.Do(chromedp.Evaluate("document.querySelectorAll('.volume button').forEach((button) => button.click())", nil))
	for _, width := range []int64{320, 390, 600, 800, 1000, 1200, 1800} {
		p.Do(chromedp.EmulateViewport(width, 900))
		if scroll := chromium.Ask[int64](p.Tab, "document.documentElement.scrollWidth"); scroll > width {
			t.Errorf("a window of %d pixels scrolls %d", width, scroll)
		}
	}
	p.CheckQuiet(p.s.base())
}

// TestClickDuringChange presses a button, has its icon change, and releases it.
func TestClickDuringChange(t *testing.T) {
	t.Parallel()
	p := openScene(t)
	var center []float64
	p.Do(chromedp.Evaluate("(({x, y, width, height}) => [x + width / 2, y + height / 2])(document.getElementById('theme').getBoundingClientRect())", &center))
	mouse := func(event input.MouseType) {
		p.Do(input.DispatchMouseEvent(event, center[0], center[1]).WithButton(input.Left).WithClickCount(1))
	}
	const icon = "document.querySelector('#theme use').getAttribute('href')"
	p.Until("the icon of a light page", icon+" === '#icon-dark'")
	mouse(input.MousePressed)
	p.Do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}))
	p.Until("the icon of a dark page", icon+" === '#icon-light'")
	mouse(input.MouseReleased)
	if theme := chromium.Ask[string](p.Tab, "document.documentElement.dataset.theme ?? 'none'"); theme != "light" {
		t.Errorf("the click chose %s", theme)
	}
	p.CheckQuiet(p.s.base())
}

// TestHostileNames hands the page names that want to be scripts, in every field.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	p := openScene(t)
	for i, name := range []string{
		`<img src=x onerror="window.hacked=1">`, `<script>window.hacked=1</script>`, `"><svg onload=window.hacked=1>`, `javascript:window.hacked=1`,
		`</dd></dl><iframe srcdoc="<script>parent.hacked=1</script>">`, "__proto__", `' onfocus='window.hacked=1' autofocus='`, strings.Repeat("W", 5000),
	} {
		view := hostileView(name)
		view.At = noon.Add(time.Duration(i+1) * time.Minute)
		p.show(view)
		p.Do(chromedp.Evaluate("document.querySelectorAll('.volume button[aria-expanded=false]').forEach((button) => button.click())", nil))
		if text := chromium.Ask[string](p.Tab, "document.querySelector('.volume h3').textContent"); text != name {
			t.Errorf("shown as %q", text)
		}
		if chromium.Ask[bool](p.Tab, `'hacked' in window || document.querySelector('main img, main script, main iframe, main [onload], main [autofocus]') !== null ||
			[...document.querySelectorAll('main a')].some((a) => !a.closest('.browse') || !(a.getAttribute('href') ?? 'files?').startsWith('files?'))`) {
			t.Errorf("%s is more than a text", name)
		}
		if chromium.Ask[bool](p.Tab, "document.documentElement.scrollWidth > innerWidth") {
			t.Errorf("%.20s makes the page scroll sideways", name)
		}
	}
	p.CheckQuiet(p.s.base())
}

// TestConnection takes the connection away and gives it back, and ends the server.
func TestConnection(t *testing.T) {
	t.Parallel()
	line := newLine(t)
	p := &inChromium{Tab: chromium.Start(t), t: t, stage: newStage()}
	p.s = serve(t, p.stage.follow, func(s *Server) {
		line.to = s.gatekeeper.hosts[0]
		s.gatekeeper.hosts = append([]string{line.listener.Addr().String()}, s.gatekeeper.hosts...)
	})
	line.cut(false)
	p.Do(chromedp.Navigate(p.s.NewURL()))
	p.show(scene(10))
	p.CheckQuiet(p.s.base())
	p.Do(chromedp.Evaluate("window.later = window.setInterval; window.setInterval = () => 0; 0", nil)) // the page does not try by itself
	line.cut(true)
	p.Until("the banner", `!document.getElementById('banner').hidden && document.getElementById('banner').innerText.includes('is lost') &&
		document.getElementById('connection-text').innerText === 'Last news 12:00:10'`)
	line.cut(false)
	p.Do(chromedp.Click("#retry"))
	p.Until("the page to be back", "document.getElementById('banner').hidden && document.getElementById('connection').dataset.kind === 'live'")
	p.Do(chromedp.Evaluate("window.setInterval = window.later; 0", nil))
	line.cut(true)
	p.Until("the banner again", "!document.getElementById('banner').hidden")
	line.cut(false)
	p.Until("the page to come back by itself", "document.getElementById('banner').hidden")
	p.s.stop()
	p.Until("the end", `document.getElementById('banner').innerText.includes('was ended') && document.getElementById('retry').hidden`)
	if n := chromium.Ask[int](p.Tab, "document.querySelectorAll('.volume').length"); n != 9 {
		t.Errorf("%d volumes are left on the page", n)
	}
}

// line is a wire between browser and server that can be cut.
type line struct {
	listener net.Listener
	to       string

	mu    sync.Mutex
	isCut bool
	open  map[net.Conn]bool
}

func newLine(t *testing.T) *line {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &line{listener: listener, isCut: true, open: map[net.Conn]bool{}}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() { l.carry(conn) })
		}
	})
	t.Cleanup(func() { listener.Close(); l.cut(true); running.Wait() })
	return l
}

func (l *line) cut(is bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isCut = is
	if is {
		for conn := range l.open {
			conn.Close()
		}
	}
}

// add reports whether a connection may be; it is closed when the line is cut.
func (l *line) add(conn net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[conn] = true
	return !l.isCut
}

func (l *line) carry(client net.Conn) {
	defer client.Close()
	if !l.add(client) {
		return
	}
	server, err := net.Dial("tcp", l.to)
	if err != nil {
		return
	}
	defer server.Close()
	if !l.add(server) {
		return
	}
	var answers sync.WaitGroup
	answers.Go(func() {
		_, _ = io.Copy(client, server)
		client.Close()
	})
	_, _ = io.Copy(server, client)
	server.Close()
	answers.Wait()
}
