package dashboard

import (
	"embed"
	"fmt"
	"io/fs"
	"net/http"
	"path"
)

//go:embed assets
var assetFiles embed.FS

// contentTypes are not asked of the system: on some Windows a script is plain text, which no browser runs.
var contentTypes = map[string]string{
	"":     "text/html; charset=utf-8", // the page itself
	".css": "text/css; charset=utf-8",
	".js":  "text/javascript; charset=utf-8",
	".svg": "image/svg+xml",
}

// assetHandler serves the page at / and its parts beside it.
func assetHandler() (http.Handler, error) {
	root, err := fs.Sub(assetFiles, "assets")
	if err != nil {
		return nil, fmt.Errorf("find the dashboard's files: %w", err)
	}
	files := http.FileServerFS(root)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind, ok := contentTypes[path.Ext(r.URL.Path)]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", kind)
		files.ServeHTTP(w, r)
	}), nil
}
