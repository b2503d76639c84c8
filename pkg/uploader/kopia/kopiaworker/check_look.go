package kopiaworker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/object"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

// The kinds of findings.
const (
	kindPack      = "pack"
	kindIndex     = "index"
	kindContent   = "content"
	kindDirectory = "directory"
	kindSnapshots = "snapshots"
)

// finding is one thing that is damaged or missing.
type finding struct {
	kind, id string
	text     string // what is wrong with it
}

func (f finding) key() string { return f.kind + " " + f.id }

// maxFindings bounds the memory of a look: an index file that is lost takes thousands of contents with it.
const maxFindings = 100_000

// checkLook is one look at the whole repository, with the index as it is then.
type checkLook struct {
	job    *job
	number int64
	before *checkLook // whose findings count if this one has them, too; nil: the first

	storage  blob.Reader
	contents content.Reader
	objects  *comparison
	packs    packs
	tokens   chan struct{} // for directories that are read beside another one
	cancel   context.CancelCauseFunc

	snapshots, done atomic.Int64 // to be followed, and followed
	steps           atomic.Int64 // contents to be read
	stepsDone       atomic.Int64

	mu          sync.Mutex
	findings    []finding
	known       map[string]bool // their keys
	more        int64           // that were not kept
	broken      map[content.ID]string
	deleted     map[content.ID]struct{}     // that a snapshot needs, and that were read
	read        map[blob.ID]bool            // packs whose contents were read
	directories map[object.ID]bool          // whether what counts is beneath
	walking     map[object.ID]chan struct{} // directories that are being read
	large       map[object.ID]bool          // of files that are lists of contents, likewise
	ids         []string                    // of the snapshots
	touched     []string                    // of those that need what counts
	paths       []string                    // some of their files
	unread      int64                       // directories
	unknown     string                      // why nothing is known of the snapshots
	unindexed   int                         // packs that are in no index file
	note        string                      // on the maintenance
}

func (j *job) newLook(number int64, before *checkLook) *checkLook {
	return &checkLook{
		job: j, number: number, before: before, tokens: make(chan struct{}, max(j.Parallel, 1)),
		known: map[string]bool{}, broken: map[content.ID]string{}, read: map[blob.ID]bool{}, deleted: map[content.ID]struct{}{},
		directories: map[object.ID]bool{}, walking: map[object.ID]chan struct{}{}, large: map[object.ID]bool{},
	}
}

// indexBlob matches how the library names an index file that it cannot use.
var indexBlob = regexp.MustCompile(`(?:error loading index blob|unable to open pack index) "?([^\s":]+)`)

// run looks at everything. An error means that nothing is known, such as that the storage did not answer.
func (l *checkLook) run(ctx context.Context) (err error) {
	r, err := l.job.open(ctx)
	if err != nil {
		m := indexBlob.FindStringSubmatch(err.Error())
		if m == nil || !isDamage(err) {
			return err
		}
		_, why, _ := strings.Cut(err.Error(), m[0]+": ")
		l.add(finding{kindIndex, m[1], why})
		l.unknown = "no snapshot can be read while an index file is damaged"
		return nil
	}
	defer func() { err = errors.Join(err, r.Close(context.WithoutCancel(ctx))) }()
	r.DisableIndexRefresh()
	l.storage, l.contents, l.objects = r.BlobReader(), r.ContentReader(), newComparison(r)
	ctx, l.cancel = context.WithCancelCause(ctx)
	defer l.cancel(nil)
	for _, step := range []func(context.Context) error{l.listPacks, l.comparePacks, l.readContents} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	if err := l.followSnapshots(ctx, r); err != nil {
		return err
	}
	l.note = maintenanceNote(ctx, r)
	if l.unindexed > 0 {
		l.note += "; " + unindexedText(l.unindexed)
	}
	if len(l.findings) == 0 {
		return nil
	}
	// A directory that is not mounted any more has no pack either.
	if _, err := l.storage.GetMetadata(ctx, formatBlob); err != nil {
		return fmt.Errorf("look at the repository again: %w", err)
	}
	return nil
}

// isDamage reports whether an error is about what the storage has, and not that it did not answer.
func isDamage(err error) bool {
	failed, ok := errors.AsType[*storageError](err)
	return !ok || isLost(failed)
}

// listPacks lists the packs after the index was read: what that has was stored before.
func (l *checkLook) listPacks(ctx context.Context) (err error) {
	l.packs, err = listPacks(ctx, l.storage)
	return err
}

// packs are the sizes of the packs that are there.
type packs map[blob.ID]int64

func listPacks(ctx context.Context, storage blob.Reader) (packs, error) {
	found := packs{}
	for _, prefix := range content.PackBlobIDPrefixes {
		err := storage.ListBlobs(ctx, prefix, func(m blob.Metadata) error {
			found[m.BlobID] = m.Length
			return ctx.Err()
		})
		if err != nil {
			return nil, fmt.Errorf("list the packs: %w", err)
		}
	}
	return found, nil
}

// comparePacks holds what the index says of the packs against what is there.
func (l *checkLook) comparePacks(ctx context.Context) error {
	indexed := map[blob.ID]bool{}
	err := l.contents.IterateContents(ctx, content.IterateOptions{IncludeDeleted: true}, func(c content.Info) error {
		if _, there := l.packs[c.PackBlobID]; there {
			indexed[c.PackBlobID] = true
		}
		if c.Deleted {
			return ctx.Err()
		}
		if f, lost := l.inLostPack(c); lost {
			l.add(f)
		}
		l.steps.Add(1)
		return ctx.Err()
	})
	if err != nil {
		return fmt.Errorf("read the index: %w", err)
	}
	l.unindexed = len(l.packs) - len(indexed)
	return nil
}

// inLostPack reports whether the pack of a content is missing, or too short for it.
func (l *checkLook) inLostPack(c content.Info) (finding, bool) {
	size, ok := l.packs[c.PackBlobID]
	switch {
	case !ok:
		return finding{kindPack, string(c.PackBlobID), "does not exist"}, true
	case int64(c.PackOffset)+int64(c.PackedLength) > size:
		return finding{kindPack, string(c.PackBlobID), fmt.Sprintf("is cut off after %d bytes", size)}, true
	}
	return finding{}, false
}

// readContents reads all contents that are there, and compares their hashes with their names, if that is asked for.
func (l *checkLook) readContents(ctx context.Context) error {
	if !l.job.ReadData {
		l.steps.Store(0)
		return nil
	}
	err := l.contents.IterateContents(ctx, content.IterateOptions{Parallel: l.job.Parallel}, func(c content.Info) error {
		defer l.stepsDone.Add(1)
		if _, lost := l.inLostPack(c); lost || ctx.Err() != nil {
			return ctx.Err()
		}
		err := l.readContent(ctx, c)
		if err != nil {
			l.cancel(err)
		}
		return err
	})
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("read the contents: %w", err)
	}
	return nil
}

// readContent reads a content, and compares its hash with its name. An error says nothing of the content.
func (l *checkLook) readContent(ctx context.Context, c content.Info) error {
	data, err := l.contents.GetContent(ctx, c.ContentID)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil && !isDamage(err):
		return fmt.Errorf("read pack %s: %w", c.PackBlobID, err)
	case err == nil && !bytes.Equal(l.objects.hash(data), c.ContentID.Hash()):
		err = errors.New("it has another hash than its name says")
	}
	l.mu.Lock()
	l.read[c.PackBlobID] = true
	if err != nil {
		l.broken[c.ContentID] = string(c.PackBlobID)
	}
	l.mu.Unlock()
	if err != nil {
		l.add(finding{kindPack, string(c.PackBlobID), fmt.Sprintf("content %s: %v", c.ContentID, err)})
	}
	return nil
}

// firstOf reports whether a content that is marked as deleted is met for the first time.
func (l *checkLook) firstOf(id content.ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, met := l.deleted[id]; met {
		return false
	}
	l.deleted[id] = struct{}{}
	return true
}

// add keeps a finding, once.
func (l *checkLook) add(f finding) {
	f.text = protocol.Printable(f.text)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.known[f.key()]:
	case len(l.findings) >= maxFindings:
		l.more++
	default:
		l.known[f.key()] = true
		l.findings = append(l.findings, f)
	}
}

// counts reports whether the look before has found the same.
func (l *checkLook) counts(key string) bool { return l.before != nil && l.before.known[key] }

// agreed returns the findings that count.
func (l *checkLook) agreed() []finding {
	return slices.DeleteFunc(slices.Clone(l.findings), func(f finding) bool { return !l.counts(f.key()) })
}

// forget drops what the next look does not need.
func (l *checkLook) forget() {
	l.before, l.packs, l.broken, l.deleted, l.read, l.directories, l.large = nil, nil, nil, nil, nil, nil, nil
}

// example is one of the findings.
func (l *checkLook) example() string { return l.findings[0].key() + ": " + l.findings[0].text }

// result is what is known when the looks agree, or this one has found nothing.
func (l *checkLook) result(agreed []finding) *uploader.CheckResult {
	r := &uploader.CheckResult{Looks: int(l.number), Snapshots: l.done.Load(), Packs: int64(len(l.read)), Note: l.note}
	if len(agreed) == 0 {
		return r
	}
	r.Damaged, r.Unread = int64(len(agreed)), int64(len(l.findings)-len(agreed))+l.more
	r.LastError = protocol.Printable(agreed[0].key() + ": " + agreed[0].text)
	for _, f := range agreed {
		if f.kind == kindPack && len(r.DamagedPacks) < uploader.MaxExamples {
			r.DamagedPacks = append(r.DamagedPacks, f.id)
		}
	}
	slices.Sort(l.touched)
	slices.Sort(l.paths)
	r.Touched, r.TouchedSnapshots, r.TouchedPaths = int64(len(l.touched)), l.touched[:min(len(l.touched), uploader.MaxTouched)], l.paths
	switch {
	case l.unknown != "":
		r.TouchError = protocol.Printable(l.unknown)
	case l.unread > 0:
		r.TouchError = text.Count(l.unread, "directory", "directories") + " cannot be read, so what is beneath is not known"
	}
	r.Remedies = remedies(agreed)
	return r
}

// remedies are what repairs the damage, in its order.
func remedies(agreed []finding) []string {
	has := func(kinds ...string) bool {
		return slices.ContainsFunc(agreed, func(f finding) bool { return slices.Contains(kinds, f.kind) })
	}
	var do []string
	for _, f := range agreed {
		if f.kind == kindIndex && len(do) < uploader.MaxExamples/2 {
			do = append(do, "bring object "+f.id+" back from the bucket's versions")
		}
	}
	if len(do) > 0 {
		return append(do, "kopia cannot open the repository before: check it again then")
	}
	if has(kindPack, kindSnapshots) {
		do = append(do, "bring the damaged packs back from the bucket's versions")
	}
	if has(kindContent) {
		do = append(do, "kubectl plimsoll repository repair --index --latest, which does what 'kopia index recover --commit' does")
	}
	command := "kopia snapshot fix invalid-files --commit"
	if !has(kindContent) && slices.ContainsFunc(agreed, func(f finding) bool { return strings.HasPrefix(f.text, "content ") }) {
		command += " --verify-files-percent=100"
	}
	return append(do, command)
}

// reading is how far the look is. Steps are contents to be read, and snapshots.
func (l *checkLook) reading() progress.Reading {
	done, total := l.stepsDone.Load()+l.done.Load(), l.steps.Load()+l.snapshots.Load()
	l.mu.Lock()
	found := int64(len(l.findings))
	l.mu.Unlock()
	r := progress.Reading{Stage: progress.StageScanning, FilesDone: l.done.Load(), FilesTotal: l.snapshots.Load(), Errors: found}
	if l.snapshots.Load() > 0 {
		r.Stage, r.TotalFinal, r.TotalBytes = progress.StageTransferring, true, l.number*total
		r.BytesDone = min((l.number-1)*total+done, max(r.TotalBytes-1, 0))
	}
	return r
}
