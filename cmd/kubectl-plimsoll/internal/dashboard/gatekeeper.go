package dashboard

import (
	"crypto/rand"
	"crypto/subtle"
	"html"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
)

// policy lets a page load what this server has, and nothing else, from nowhere else; and it lets no script make HTML of text.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

const tokenParameter = "token"

// gatekeeper decides who is served: whoever came with a token, by the right name, from the page itself.
type gatekeeper struct {
	hosts   []string // the values of the header Host; the first one is that of the URL
	cookie  string   // its name. Cookies know no ports, so the port is in the name
	session string   // its value

	mu     sync.Mutex
	tokens []string // each is good for one time
}

func newGatekeeper(at netip.AddrPort) *gatekeeper {
	port := strconv.Itoa(int(at.Port()))
	return &gatekeeper{
		hosts: []string{at.String(), "localhost:" + port}, cookie: "plimsoll-" + port,
		session: rand.Text(),
	}
}

func (g *gatekeeper) url(token string) string {
	return "http://" + g.hosts[0] + "/?" + tokenParameter + "=" + token
}

// newToken returns a token that is good for one time.
func (g *gatekeeper) newToken() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	token := rand.Text()
	g.tokens = append(g.tokens, token)
	return token
}

// protect lets next answer to those who may ask.
func (g *gatekeeper) protect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		setHeaders(w.Header())
		switch {
		case !slices.Contains(g.hosts, r.Host):
			// Another name for this address: a page of that name would share the browser's trust in it (DNS rebinding).
			refuse(w, "The dashboard does not have the name that it was called by.")
		case !sameOrigin(r):
			refuse(w, "Another page wants to use the dashboard.")
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "The dashboard only shows.", http.StatusMethodNotAllowed)
		case r.URL.Path == "/" && r.Method == http.MethodGet && r.URL.Query().Has(tokenParameter):
			g.authorize(w, r)
		case !g.authorized(r):
			refuse(w, "Open the address that kubectl plimsoll dashboard has printed: it has a token in it.")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func setHeaders(h http.Header) {
	for name, value := range map[string]string{
		"Content-Security-Policy":      policy,
		"Cross-Origin-Opener-Policy":   "same-origin",
		"Cross-Origin-Resource-Policy": "same-origin",
		"Referrer-Policy":              "no-referrer",
		"X-Content-Type-Options":       "nosniff",
		"X-Frame-Options":              "DENY",
		"Cache-Control":                "no-store",
	} {
		h.Set(name, value)
	}
}

func refuse(w http.ResponseWriter, why string) { http.Error(w, why, http.StatusForbidden) }

// sameOrigin reports whether the request does not come from a page of another origin. That includes pages of other ports of this machine,
// whose requests have our cookie. Following a link is not refused: it takes the cookie or the token, and shows nothing to
// the page with the link.
func sameOrigin(r *http.Request) bool {
	if origin := r.Header.Get("Origin"); origin != "" && origin != "http://"+r.Host {
		return false
	}
	site := r.Header.Get("Sec-Fetch-Site")
	return site == "" || site == "none" || site == "same-origin" || r.Header.Get("Sec-Fetch-Mode") == "navigate"
}

// authorize takes a token for the cookie, and the token out of the browser's address and history.
func (g *gatekeeper) authorize(w http.ResponseWriter, r *http.Request) {
	if !g.consumeToken(r.URL.Query().Get(tokenParameter)) {
		refuse(w, "This address is not good, or was opened before: it works once. If that was not you, end the dashboard; start it again for another address.")
		return
	}
	http.SetCookie(w, &http.Cookie{ //nolint:gosec // not Secure: there is no TLS on loopback
		Name: g.cookie, Value: g.session, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode,
	})
	if r.Header.Get("Sec-Fetch-Site") == "cross-site" { // from the file of WriteLink
		// Browsers leave SameSite=Strict cookies out of a redirect that follows from another site's page, but not out of what
		// our own page asks for (RFC 6265bis, 5.2 and 8.8.2).
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, redirectPage("/"))
		return
	}
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// redirectPage returns a page that takes the browser to an address of ours at once, and leaves no entry in its history.
func redirectPage(address string) string {
	return `<!doctype html><meta charset="utf-8"><title>Plimsoll</title><meta name="referrer" content="no-referrer">` +
		`<meta http-equiv="refresh" content="0; url=` + html.EscapeString(address) + `">` + "\n"
}

// consumeToken reports whether a token is valid, and invalidates it.
func (g *gatekeeper) consumeToken(token string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.IndexFunc(g.tokens, func(known string) bool { return equal(token, known) })
	if i < 0 {
		return false
	}
	g.tokens = slices.Delete(g.tokens, i, i+1)
	return true
}

func (g *gatekeeper) authorized(r *http.Request) bool {
	return slices.ContainsFunc(r.CookiesNamed(g.cookie), func(c *http.Cookie) bool { return equal(c.Value, g.session) })
}

func equal(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }
