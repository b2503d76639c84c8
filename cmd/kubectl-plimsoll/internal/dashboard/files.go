package dashboard

import (
	"bytes"
	"context"
	"errors"
	"html/template"
	"io"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/filerequest/protocol"
)

// Files finds backups of volumes and reads the files in them, each backup named by its PodVolumeBackup. Its methods may be called concurrently. Paths are
// relative to the volume; an empty one is the volume itself.
type Files interface {
	// Backups returns all backups of volumes that have a snapshot, in any order.
	Backups(ctx context.Context) ([]Backup, error)
	// List hands on the volume, then what the directory at path holds, or the file at path. An error means that the list is not complete.
	List(ctx context.Context, podVolumeBackup, path string, volume func(protocol.Volume) error, entry func(protocol.Entry) error) error
	// Content writes the file at path to the writer that begin returns, or the directory at path as a tar archive; begin gets
	// protocol.TypeFile with the size in bytes, or protocol.TypeDirectory with -1. An error means that what was written is not complete
	// or not what is stored.
	Content(ctx context.Context, podVolumeBackup, path string, begin func(kind string, size int64) io.Writer) error
}

// maxEntries is how many entries of a directory a page shows. Browsers become slow with more.
const maxEntries = 10_000

var errMoreEntries = errors.New("the page is full")

// filesAddress returns where a question about a path of a backup is answered.
func filesAddress(question, podVolumeBackup, path string) string {
	return question + "?" + url.Values{"backup": {podVolumeBackup}, "path": {path}}.Encode()
}

// questionOf returns what a request asks about. The path may have any bytes.
func questionOf(r *http.Request) (podVolumeBackup, path string, err error) {
	query := r.URL.Query()
	podVolumeBackup, path = query.Get("backup"), query.Get("path")
	if podVolumeBackup == "" {
		return "", "", errors.New("the address names no backup")
	}
	return podVolumeBackup, protocol.Clean(path), protocol.CheckPath(path)
}

// aboutPath lets next answer a question about a path of a backup.
func aboutPath(next func(w http.ResponseWriter, r *http.Request, podVolumeBackup, path string)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		podVolumeBackup, path, err := questionOf(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		next(w, r, podVolumeBackup, path)
	}
}

// asking lets next answer a question about backups. Unlike the page, a question costs work in the cluster, so that a page of another port
// of this machine must not lead here by a link.
func (s *Server) asking(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "none" && site != "same-origin" {
			refuse(w, "Another page wants to use the dashboard.")
			return
		}
		if r.Method != http.MethodGet {
			w.Header().Set("Allow", "GET")
			http.Error(w, "Only GET is allowed for lists and downloads.", http.StatusMethodNotAllowed)
			return
		}
		if !s.asked.begin() {
			refuse(w, "The dashboard has ended.")
			return
		}
		defer s.asked.end()
		next(&answerWriter{ResponseWriter: w, deadline: http.NewResponseController(w).SetWriteDeadline}, r)
	}
}

// questions counts those that are being answered, until it is closed.
type questions struct {
	mu     sync.Mutex
	closed bool
	open   sync.WaitGroup
}

func (q *questions) begin() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.open.Add(1)
	}
	return !q.closed
}

func (q *questions) end() { q.open.Done() }

// close lets none begin any more, and waits for those that have begun.
func (q *questions) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.open.Wait()
}

// answerTimeout is how long a browser may take to read a piece of an answer, such as when its user pauses a download. The cluster
// waits as long.
const answerTimeout = 5 * time.Minute

// answerWriter ends an answer that nobody reads: a worker in the cluster waits for it.
type answerWriter struct {
	http.ResponseWriter
	deadline func(time.Time) error
}

func (w *answerWriter) Write(p []byte) (int, error) {
	if err := w.deadline(time.Now().Add(answerTimeout)); err != nil {
		return 0, err
	}
	return w.ResponseWriter.Write(p)
}

// serveFiles lists a directory while the list comes. The list is complete only if its last line says so.
func (s *Server) serveFiles(w http.ResponseWriter, r *http.Request, podVolumeBackup, path string) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	l := listing{w: w, parts: s.listing, podVolumeBackup: podVolumeBackup, path: path}
	err := s.files.List(r.Context(), podVolumeBackup, path, l.begin, l.entry)
	if r.Context().Err() == nil {
		l.end(err)
	}
}

// listing is a page that is written while its list comes.
type listing struct {
	w                     io.Writer
	parts                 *template.Template // of assets/files.html
	podVolumeBackup, path string
	begun                 bool
	entries               int
}

// crumb is a directory on the way to the path.
type crumb struct{ Name, Address string }

// listingHead is what stands above a list.
type listingHead struct {
	Title, Where string
	Crumbs       []crumb
	Download     string // the address of all that is listed
}

func (l *listing) begin(v protocol.Volume) error {
	l.begun = true
	head := listingHead{
		Title: describe.Clean(v.Namespace + "/" + v.Pod + ":" + v.Volume), Download: filesAddress("download", l.podVolumeBackup, l.path),
		Where: describe.Clean("backed up " + v.Time.UTC().Format(time.RFC3339) + " by " + v.Uploader + ", " + v.PodVolumeBackup),
	}
	head.Crumbs = append(head.Crumbs, crumb{Name: describe.Clean(v.Volume), Address: filesAddress("files", l.podVolumeBackup, "")})
	for i, c := range l.path {
		if c == '/' {
			head.Crumbs = append(head.Crumbs, l.crumb(l.path[:i]))
		}
	}
	if l.path != "" {
		head.Crumbs = append(head.Crumbs, l.crumb(l.path))
	}
	return l.parts.ExecuteTemplate(l.w, "head", head)
}

func (l *listing) crumb(p string) crumb {
	return crumb{Name: describe.Clean(path.Base(p)), Address: filesAddress("files", l.podVolumeBackup, p)}
}

// listedFile is a row of the list. Names are shown safely, and addresses have their bytes.
type listedFile struct {
	Name, Target, Mode, Size, Modified string
	Open, Download                     string // addresses; absent: it is no directory, or has no content
}

func (l *listing) entry(e protocol.Entry) error {
	if l.entries == maxEntries {
		return errMoreEntries
	}
	l.entries++
	p := protocol.Clean(string(e.Path))
	f := listedFile{
		Name: describe.Clean(path.Base(p)), Target: describe.Clean(string(e.Target)), Mode: e.Mode.String(), Modified: e.ModTime.UTC().Format(time.RFC3339),
	}
	switch {
	case e.Mode.IsDir():
		f.Open, f.Download = filesAddress("files", l.podVolumeBackup, p), filesAddress("download", l.podVolumeBackup, p)
	case e.Mode.IsRegular():
		f.Size, f.Download = describe.Bytes(e.Size), filesAddress("download", l.podVolumeBackup, p)
	}
	return l.parts.ExecuteTemplate(l.w, "entry", f)
}

// end writes the last line. What cannot be written any more is missed by nobody: the browser has gone.
func (l *listing) end(err error) {
	if !l.begun {
		_ = l.parts.ExecuteTemplate(l.w, "head", listingHead{Title: describe.Clean(l.podVolumeBackup)})
	}
	var tail struct {
		Entries, Most int
		Problem       string
	}
	tail.Entries = l.entries
	switch {
	case errors.Is(err, errMoreEntries):
		tail.Most = maxEntries
	case err != nil:
		tail.Problem = describe.Clean(err.Error())
	}
	_ = l.parts.ExecuteTemplate(l.w, "tail", tail)
}

// serveDownload sends a file, or a directory as a tar archive. The browser takes what comes for complete only when all of it was compared
// with its checksum: the last byte is sent after that.
func (s *Server) serveDownload(w http.ResponseWriter, r *http.Request, podVolumeBackup, p string) {
	name := path.Base(p)
	if p == "" {
		name = podVolumeBackup
	}
	var body *withoutLast
	err := s.files.Content(r.Context(), podVolumeBackup, p, func(kind string, size int64) io.Writer {
		if kind == protocol.TypeDirectory {
			name += ".tar"
		} else {
			w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": fileName(name)}))
		body = &withoutLast{w: w}
		return body
	})
	if err == nil {
		err = body.sendLast()
	}
	switch {
	case err == nil:
	case body == nil:
		http.Error(w, describe.Clean(err.Error()), http.StatusBadGateway)
	default:
		panic(http.ErrAbortHandler) // the browser shows that the download failed
	}
}

// fileName returns a name that a volume has given as one that a browser can show.
func fileName(name string) string {
	return strings.Map(func(c rune) rune {
		if c == '/' || c == '\\' {
			return '_'
		}
		return c
	}, describe.Clean(name))
}

// withoutLast writes all but the last byte.
type withoutLast struct {
	w    io.Writer
	last []byte
}

func (h *withoutLast) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := h.sendLast(); err != nil {
		return 0, err
	}
	n, err := h.w.Write(p[:len(p)-1])
	if err != nil {
		return n, err
	}
	h.last = bytes.Clone(p[len(p)-1:])
	return len(p), nil
}

func (h *withoutLast) sendLast() error {
	_, err := h.w.Write(h.last)
	h.last = nil
	return err
}
