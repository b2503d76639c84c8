package restic

import (
	"context"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// plan says what of a snapshot restic has to write, so that everything comes that another snapshot does not have. A restic writes one
// file, or a directory with all that is in it. Where one start for a directory is cheaper than those for its parts, it is read as a whole, the
// volume at last.
type plan struct {
	start int64              // Options.StartBytes
	open  []*plannedContents // the root first
}

// plannedContents is a directory of which more may come.
type plannedContents struct {
	path  string   // empty: the root
	bytes int64    // of the files in it
	reads []string // the paths that have to be read, in the order of the snapshot
	cost  int64    // of reads
	whole bool     // a link in it has to be read, which restic writes only as a part of an archive
}

func newPlan(start int64) *plan { return &plan{start: start, open: []*plannedContents{{}}} }

func (p *plan) current() *plannedContents { return p.open[len(p.open)-1] }

// add takes the next entry of the snapshot. same: its content, or target, is known.
func (p *plan) add(e uploader.Entry, same bool) error {
	if strings.ContainsRune(e.Path, '\uFFFD') {
		return fmt.Errorf("%w: names that are no UTF-8", uploader.ErrUnsupported) // they are not printed as they are
	}
	for dir := parentOf(e.Path); p.current().path != dir; p.close() {
		if len(p.open) == 1 {
			return fmt.Errorf("%w: %s comes before its directory", errInconsistent, printable(e.Path))
		}
	}
	d := p.current()
	switch {
	case e.Mode.IsDir():
		p.open = append(p.open, &plannedContents{path: e.Path})
	case e.Mode.IsRegular():
		d.bytes += e.Size
		if !same && e.Size > 0 {
			d.reads, d.cost = append(d.reads, e.Path), d.cost+p.start+e.Size
		}
	case e.Mode&os.ModeSymlink != 0 && !same:
		d.whole = true
	}
	return nil
}

// close decides how the current directory is read.
func (p *plan) close() {
	d := p.current()
	d.decide(p.start)
	p.open = p.open[:len(p.open)-1]
	above := p.current()
	above.bytes, above.cost, above.reads = above.bytes+d.bytes, above.cost+d.cost, append(above.reads, d.reads...)
}

func (d *plannedContents) decide(start int64) {
	if d.whole || len(d.reads) > 0 && d.cost >= start+d.bytes {
		d.reads, d.cost = []string{d.path}, start+d.bytes
	}
}

// finish returns what has to be read.
func (p *plan) finish() []string {
	for len(p.open) > 1 {
		p.close()
	}
	root := p.current()
	root.decide(p.start)
	return root.reads
}

// parentOf is the path of an entry's directory; empty: the root.
func parentOf(at string) string {
	if dir := path.Dir(at); dir != "." {
		return dir
	}
	return ""
}

// planReads returns what has to be read of a snapshot: the volume itself, whose path is empty, or only what Previous does not have. The comparison
// is that of Diff, so what it says of a content are restic's ids of its pieces, the SHA-256 of each: where the lists are equal, it is.
func (u *Uploader) planReads(ctx context.Context, w *workspace, req uploader.ExportRequest) []string {
	all := []string{""}
	if req.Previous == "" {
		return all
	}
	p := newPlan(u.options.StartBytes)
	err := checkSnapshotID(req.Previous)
	if err == nil {
		err = u.compare(ctx, w, uploader.DiffRequest{Repository: req.Repository, From: req.Previous, To: req.SnapshotID}, &merge{
			change: func(uploader.Change) error { return nil }, newer: p.add,
		})
	}
	if err != nil {
		if ctx.Err() != nil {
			return all // which ends at once
		}
		u.options.Logger.Warn("Cannot tell what has changed in the snapshot; reading all of it", "snapshot", req.SnapshotID, "since", req.Previous, "error", err)
		return all
	}
	return p.finish()
}
