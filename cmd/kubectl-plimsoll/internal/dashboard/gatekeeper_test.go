package dashboard

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"strings"
	"testing"
)

// gated is a gatekeeper in front of a handler that says "shown".
func gated() (*gatekeeper, http.Handler) {
	g := newGatekeeper(netip.MustParseAddrPort("127.0.0.1:4711"))
	return g, g.protect(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("shown")) }))
}

func TestWhoIsServed(t *testing.T) {
	t.Parallel()
	type change func(*gatekeeper, *http.Request)
	header := func(name, value string) change {
		return func(_ *gatekeeper, r *http.Request) { r.Header.Set(name, value) }
	}
	host := func(value string) change { return func(_ *gatekeeper, r *http.Request) { r.Host = value } }
	method := func(value string) change { return func(_ *gatekeeper, r *http.Request) { r.Method = value } }
	cookie := func(name, value string) change {
		return func(_ *gatekeeper, r *http.Request) {
			r.Header.Del("Cookie")
			r.AddCookie(&http.Cookie{Name: name, Value: value})
		}
	}
	for name, test := range map[string]struct {
		changes []change
		want    int
	}{
		"the page itself":            {nil, http.StatusOK},
		"by the name localhost":      {[]change{host("localhost:4711")}, http.StatusOK},
		"HEAD":                       {[]change{method(http.MethodHead)}, http.StatusOK},
		"the page's own request":     {[]change{header("Origin", "http://127.0.0.1:4711"), header("Sec-Fetch-Site", "same-origin")}, http.StatusOK},
		"typed into the address bar": {[]change{header("Sec-Fetch-Site", "none"), header("Sec-Fetch-Mode", "navigate")}, http.StatusOK},
		"a link of another page":     {[]change{header("Sec-Fetch-Site", "cross-site"), header("Sec-Fetch-Mode", "navigate")}, http.StatusOK},
		"an older browser's cookie next to others": {[]change{func(_ *gatekeeper, r *http.Request) {
			r.Header.Set("Cookie", "plimsoll-4711=old; "+r.Header.Get("Cookie"))
		}}, http.StatusOK},

		"a rebound name":                   {[]change{host("evil.example.com:4711")}, http.StatusForbidden},
		"a rebound name without port":      {[]change{host("evil.example.com")}, http.StatusForbidden},
		"the address with another port":    {[]change{host("127.0.0.1:80")}, http.StatusForbidden},
		"the address without port":         {[]change{host("127.0.0.1")}, http.StatusForbidden},
		"no name":                          {[]change{host("")}, http.StatusForbidden},
		"another origin":                   {[]change{header("Origin", "https://evil.example.com")}, http.StatusForbidden},
		"another port's origin":            {[]change{header("Origin", "http://127.0.0.1:8080")}, http.StatusForbidden},
		"an origin that nobody may know":   {[]change{header("Origin", "null")}, http.StatusForbidden},
		"a script that another page loads": {[]change{header("Sec-Fetch-Site", "cross-site"), header("Sec-Fetch-Mode", "no-cors")}, http.StatusForbidden},
		"one of another port":              {[]change{header("Sec-Fetch-Site", "same-site"), header("Sec-Fetch-Mode", "no-cors")}, http.StatusForbidden},
		"no cookie":                        {[]change{func(_ *gatekeeper, r *http.Request) { r.Header.Del("Cookie") }}, http.StatusForbidden},
		"another cookie":                   {[]change{cookie("plimsoll-4711", "guess")}, http.StatusForbidden},
		"an empty cookie":                  {[]change{cookie("plimsoll-4711", "")}, http.StatusForbidden},
		"the token as cookie":              {[]change{func(g *gatekeeper, r *http.Request) { cookie(g.cookie, g.newToken())(g, r) }}, http.StatusForbidden},
		"another port's cookie":            {[]change{func(g *gatekeeper, r *http.Request) { cookie("plimsoll-80", g.session)(g, r) }}, http.StatusForbidden},

		"POST":    {[]change{method(http.MethodPost)}, http.StatusMethodNotAllowed},
		"DELETE":  {[]change{method(http.MethodDelete)}, http.StatusMethodNotAllowed},
		"OPTIONS": {[]change{method(http.MethodOptions)}, http.StatusMethodNotAllowed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, handler := gated()
			for _, target := range []string{"/", "/events", "/main.js"} {
				r := httptest.NewRequest(http.MethodGet, "http://127.0.0.1:4711"+target, http.NoBody)
				r.AddCookie(&http.Cookie{Name: g.cookie, Value: g.session})
				for _, c := range test.changes {
					c(g, r)
				}
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, r)
				if w.Code != test.want {
					t.Errorf("%s: %d, want %d: %s", target, w.Code, test.want, w.Body)
				}
				if shown := strings.Contains(w.Body.String(), "shown"); shown != (test.want == http.StatusOK) {
					t.Errorf("%s: the page was shown: %t", target, shown)
				}
				checkHeaders(t, w.Header())
			}
		})
	}
}

func checkHeaders(t *testing.T, h http.Header) {
	t.Helper()
	for name, want := range map[string]string{
		"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
		"Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin", "Cache-Control": "no-store", "X-Frame-Options": "DENY",
	} {
		if got := h.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if h.Get("Access-Control-Allow-Origin") != "" {
		t.Error("other pages may read this")
	}
	for _, weak := range []string{"unsafe", "*", "http:", "https:", "data:"} {
		if strings.Contains(policy, weak) {
			t.Errorf("the policy allows %s", weak)
		}
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	g, handler := gated()
	open := func(address string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, address, http.NoBody))
		checkHeaders(t, w.Header())
		return w
	}
	once, printed := g.url(g.newToken()), g.newToken()
	for name, test := range map[string]struct {
		address string
		want    int
	}{
		"a wrong one":     {g.url("guess"), http.StatusForbidden},
		"an empty one":    {g.url(""), http.StatusForbidden},
		"two":             {g.url("guess&token=" + printed), http.StatusForbidden},
		"at another path": {"http://127.0.0.1:4711/events?token=" + printed, http.StatusForbidden},
		"the session":     {g.url(g.session), http.StatusForbidden},
	} {
		if response := open(test.address); response.Code != test.want {
			t.Errorf("%s: %d, want %d", name, response.Code, test.want)
		}
	}
	if first, second := open(once), open(once); first.Code != http.StatusSeeOther || second.Code != http.StatusForbidden {
		t.Errorf("a token for one time: %d, then %d", first.Code, second.Code)
	}

	header := open(g.url(printed)).Header()
	if to := header.Get("Location"); to != "/" {
		t.Errorf("the browser goes to %s", to)
	}
	if len(header.Values("Set-Cookie")) != 1 {
		t.Fatalf("cookies %v", header.Values("Set-Cookie"))
	}
	c, err := http.ParseSetCookie(header.Get("Set-Cookie"))
	if err != nil {
		t.Fatal(err)
	}
	if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Domain != "" || c.MaxAge != 0 || !c.Expires.IsZero() || c.Value == printed {
		t.Errorf("cookie %s", c.Raw)
	}
	if len(printed) < 26 || len(g.session) < 26 {
		t.Errorf("%q and %q are guessed in less than 128 bits", printed, g.session)
	}
}

// TestSessionsOfTwoServers says that who has opened one dashboard has not opened another.
func TestSessionsOfTwoServers(t *testing.T) {
	t.Parallel()
	one, two := serve(t, newStage().follow, nil), serve(t, newStage().follow, nil)
	client := one.browser()
	if a := get(t, client, two.base()); a.status != http.StatusForbidden {
		t.Errorf("the other dashboard: %d", a.status)
	}
	if a := get(t, client, two.NewURL()); a.status != http.StatusOK {
		t.Errorf("the other dashboard with its token: %d", a.status)
	}
	if a := get(t, client, one.base()); a.status != http.StatusOK {
		t.Errorf("the first dashboard after the other: %d", a.status)
	}
}

// TestAssets reads all that the page is made of as a browser would, and looks for what leads elsewhere.
func TestAssets(t *testing.T) {
	t.Parallel()
	s := (&shelf{}).serve(t)
	client := s.browser()
	seen := map[string]bool{}
	reference := regexp.MustCompile(`(?:src|href)="([^"#]+)"|from "\./([^"]+)"`)
	queue := []string{"/", "/files?backup=x"}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		if seen[at] {
			continue
		}
		seen[at] = true
		a := get(t, client, s.base()+at)
		kind := contentTypes[path.Ext(at)]
		if a.status != http.StatusOK || a.kind != kind {
			t.Errorf("%s: %d, %s, want %s", at, a.status, a.kind, kind)
		}
		for _, m := range reference.FindAllStringSubmatch(a.body, -1) {
			if !strings.HasPrefix(m[1], "download?") {
				queue = append(queue, path.Join("/", m[1]+m[2]))
			}
		}
		checkSource(t, at, a.body)
	}
	err := fs.WalkDir(assetFiles, "assets", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && path.Ext(name) != ".html" && !seen["/"+d.Name()] {
			t.Errorf("nothing refers to %s", name)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	for _, missing := range []string{"/nothing.js", "/index.htm", "/assets/main.js", "/../server.go", "/..%2fserver.go", "/server.go", "/assets", "/assets/"} {
		if get(t, client, s.base()+missing).status == http.StatusOK {
			t.Errorf("%s is served", missing)
		}
	}
}

// checkSource looks for addresses of others and for ways to make HTML or scripts of text.
func checkSource(t *testing.T, name, source string) {
	t.Helper()
	for _, address := range regexp.MustCompile(`https?://[^"\s]+`).FindAllString(source, -1) {
		if u, err := url.Parse(address); err != nil || u.Host != "www.w3.org" { // the name of SVG's namespace
			t.Errorf("%s names %s", name, address)
		}
	}
	for _, bad := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "DOMParser", "<style", "style=", " onclick", " onload", "srcdoc"} {
		if strings.Contains(source, bad) {
			t.Errorf("%s has %s", name, bad)
		}
	}
}
