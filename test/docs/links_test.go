package docs

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	fenced = regexp.MustCompile("(?ms)^```.*?^```")
	code   = regexp.MustCompile("`[^`\n]*`")
	link   = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	title  = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *$`)
	// unslugged are the characters that GitHub leaves out of a heading's anchor.
	unslugged = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors returns the fragments that lead to a page's headings, as GitHub makes them.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, heading := range title.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		shown := regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(heading[1], "$1")
		found[strings.ReplaceAll(unslugged.ReplaceAllString(strings.ToLower(shown), ""), " ", "-")] = true
	}
	return found
}

// TestLinks checks that the relative links of all pages lead to files of the repository and to headings in them.
func TestLinks(t *testing.T) {
	t.Parallel()
	all := texts(t, func(path string) bool { return filepath.Ext(path) == ".md" })
	for path, text := range all {
		for _, found := range link.FindAllStringSubmatch(code.ReplaceAllString(fenced.ReplaceAllString(text, ""), ""), -1) {
			target, fragment, _ := strings.Cut(found[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			to := path
			if target != "" {
				to = filepath.Join(filepath.Dir(path), target)
			}
			switch page, known := all[to]; {
			case !exists(to):
				t.Errorf("%s links to %s, which does not exist", path, found[1])
			case fragment != "" && known && !anchors(page)[fragment]:
				t.Errorf("%s links to %s, which has no such heading", path, found[1])
			}
		}
	}
}
