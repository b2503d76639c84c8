package filerequest

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"net/http"
	"os"
	"path"
	"strconv"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/pkg/filerequest/protocol"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// answer is what a client gets: header, bytes, and an End in the trailer.
type answer struct {
	protocol.Query
	w    *patientWriter
	body *bufio.Writer
	hash hash.Hash // of content; nil: there is none
	skip int64     // bytes of content that the client has already
}

func newAnswer(w http.ResponseWriter, query protocol.Query, writeTimeout time.Duration) *answer {
	w.Header().Set("Trailer", protocol.TrailerEnd)
	w.Header().Set("Content-Type", "application/octet-stream")
	patient := &patientWriter{w, http.NewResponseController(w), writeTimeout}
	return &answer{Query: query, w: patient, body: bufio.NewWriterSize(patient, 64<<10)}
}

// patientWriter gives up when a client takes nothing for a while. How long there is nothing to write does not matter.
type patientWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
}

func (p *patientWriter) setDeadline() error {
	return p.control.SetWriteDeadline(time.Now().Add(p.timeout))
}

func (p *patientWriter) Write(b []byte) (int, error) {
	if err := p.setDeadline(); err != nil {
		return 0, err
	}
	n, err := p.ResponseWriter.Write(b)
	if err != nil {
		return n, fmt.Errorf("the client does not take the answer: %w", err)
	}
	return n, nil
}

// Write takes content. All of it is hashed, so that a client which resumes knows that what it has is right.
func (a *answer) Write(b []byte) (int, error) {
	a.hash.Write(b) // never fails
	left := b[min(int64(len(b)), a.skip):]
	a.skip -= int64(len(b) - len(left))
	if _, err := a.body.Write(left); err != nil {
		return 0, err
	}
	return len(b), nil
}

// writeLine writes one value of a list.
func (a *answer) writeLine(value any) error {
	line, err := json.Marshal(value)
	if err != nil {
		return err
	}
	_, err = a.body.Write(append(line, '\n'))
	return err
}

// maxError bounds the text of an error, in bytes.
const maxError = 2 << 10

// end writes how the answer ended. An answer without it is not complete. Where the session has ended before, any error may be due to that.
func (a *answer) end(err error, sessionEnded bool) {
	// The last deadline may be long ago.
	if writeErr := errors.Join(a.w.setDeadline(), a.body.Flush()); err == nil {
		err = writeErr
	}
	end := protocol.End{Complete: err == nil}
	if err != nil {
		end.NotFound, end.SessionEnded = errors.Is(err, uploader.ErrPathNotFound), sessionEnded
		end.Error = text.ShortenMiddle(text.Clean(err.Error()), maxError)
	} else if a.hash != nil {
		end.SHA256 = hex.EncodeToString(a.hash.Sum(nil))
	}
	a.w.Header().Set(protocol.TrailerEnd, end.Encode())
}

func (s *server) volumes(_ context.Context, open *session, a *answer) error {
	for i := range open.backups {
		if err := a.writeLine(volumeOf(&open.backups[i])); err != nil {
			return err
		}
	}
	for i := range open.others {
		v := volumeOf(&open.others[i])
		v.Other = true
		if err := a.writeLine(v); err != nil {
			return err
		}
	}
	return nil
}

// snapshot is what a question is about.
type snapshot struct {
	backup  *velerov1.PodVolumeBackup
	volume  protocol.Volume
	browser uploader.Browser
}

// snapshot finds the snapshot of a PodVolumeBackup.
func (s *server) snapshot(open *session, name string) (snapshot, error) {
	pvb := open.backup(name)
	if pvb == nil {
		return snapshot{}, fmt.Errorf("PodVolumeBackup %q is not one of those that the FileRequest is about", name)
	}
	v := volumeOf(pvb)
	browser := s.cfg.Browsers[v.Uploader]
	switch {
	case v.Problem != "":
		return snapshot{}, errors.New(v.Problem)
	case v.SnapshotID == "":
		return snapshot{}, errors.New("the volume was empty when it was backed up, so there is no snapshot")
	case browser == nil:
		return snapshot{}, fmt.Errorf("uploader type %q: %w", v.Uploader, uploader.ErrUnsupported)
	}
	return snapshot{pvb, v, browser}, nil
}

// work waits for the turn of an answer that reads a repository. done must be called at its end.
func (s *server) work(ctx context.Context) (done func(), err error) {
	select {
	case s.workers <- struct{}{}:
		return func() { <-s.workers }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// browse finds what a question about one snapshot is about, and waits for its turn. done must be called at the answer's end.
func (s *server) browse(ctx context.Context, open *session, q *protocol.Query) (browser uploader.Browser, req uploader.BrowseRequest, done func(), err error) {
	of, err := s.snapshot(open, q.PodVolumeBackup)
	if err != nil {
		return nil, req, nil, err
	}
	if done, err = s.work(ctx); err != nil {
		return nil, req, nil, err
	}
	repo, err := s.cfg.Repositories.Of(ctx, of.backup)
	if err != nil {
		done()
		return nil, req, nil, err
	}
	return of.browser, uploader.BrowseRequest{Repository: repo, SnapshotID: of.volume.SnapshotID, Path: q.Path}, done, nil
}

func (o *session) backup(name string) *velerov1.PodVolumeBackup {
	for _, all := range [][]velerov1.PodVolumeBackup{o.backups, o.others} {
		for i := range all {
			if all[i].Name == name {
				return &all[i]
			}
		}
	}
	return nil
}

func (s *server) entries(ctx context.Context, open *session, a *answer) error {
	browser, req, done, err := s.browse(ctx, open, &a.Query)
	if err != nil {
		return err
	}
	defer done()
	req.Recursive = a.Recursive
	return browser.List(ctx, req, func(e uploader.Entry) error {
		if a.Name != "" {
			if wanted, _ := path.Match(a.Name, path.Base(e.Path)); !wanted { // ParseQuery has checked the pattern
				return nil
			}
		}
		return a.writeLine(entryOf(&e))
	})
}

func entryOf(e *uploader.Entry) *protocol.Entry {
	if e == nil {
		return nil
	}
	return &protocol.Entry{Path: []byte(e.Path), Mode: e.Mode, Size: e.Size, ModTime: e.ModTime, Target: []byte(e.Target), UID: e.UID, GID: e.GID}
}

// errEnough ends a listing whose rest nobody wants.
var errEnough = errors.New("enough")

// stat returns the entry at the request's path.
func stat(ctx context.Context, browser uploader.Browser, req uploader.BrowseRequest) (uploader.Entry, error) {
	if req.Inner() == "" {
		return uploader.Entry{Mode: os.ModeDir}, nil
	}
	var found uploader.Entry
	err := browser.List(ctx, req, func(e uploader.Entry) error {
		found = e
		return errEnough
	})
	if errors.Is(err, errEnough) {
		return found, nil
	}
	if err == nil {
		err = uploader.ErrPathNotFound // a Browser that lists nothing
	}
	return uploader.Entry{}, err
}

func (s *server) content(ctx context.Context, open *session, a *answer) error {
	browser, req, done, err := s.browse(ctx, open, &a.Query)
	if err != nil {
		return err
	}
	defer done()
	entry, err := stat(ctx, browser, req)
	if err != nil {
		return err
	}
	switch {
	case entry.Mode.IsRegular():
		a.w.Header().Set(protocol.HeaderType, protocol.TypeFile)
		a.w.Header().Set(protocol.HeaderSize, strconv.FormatInt(entry.Size, 10))
		a.skip = a.Offset
	case entry.Mode.IsDir():
		a.w.Header().Set(protocol.HeaderType, protocol.TypeDirectory)
		a.w.Header().Set(protocol.HeaderOffset, strconv.FormatInt(a.Offset, 10))
		a.skip = a.Offset
	default:
		return fmt.Errorf("%s is neither a file nor a directory: %w", text.Line(req.Path, maxError), uploader.ErrUnsupported)
	}
	a.hash = sha256.New()
	// What the client has already is read, too, which takes time: it must know before that the answer has begun.
	if err := errors.Join(a.w.setDeadline(), a.w.control.Flush()); err != nil {
		return err
	}
	return browser.Read(ctx, req, a)
}
