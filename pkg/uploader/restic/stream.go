package restic

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

// idleLines is after how many equal status lines "everything known is read" counts as "everything is read".
const idleLines = 3

// maxFailedPaths bounds how many paths a result names.
const maxFailedPaths = 20

// stream makes readings of the lines that restic prints. Its memory does not grow with the number of lines.
//
// It is fed from two goroutines, one for each stream of the worker. The sink is called with the lock held, so that
// readings arrive in order.
type stream struct {
	mu     sync.Mutex
	sink   progress.Sink
	volume string              // the volume's path, which restic puts before each name in it; people know only the name
	hide   func(string) string // takes secrets out of what is kept of an error: restic names the repository with its address
	root   *os.Root            // the volume; nil in a restore

	message    message // of stdout
	reading    progress.Reading
	idle       int
	failed     []string
	unknown    []string // some of those for which restic gave no reason, as they are named
	dirs       int64    // those of the failed that may stand for any number of files
	stored     int64    // errors of the repository, in spite of which an entry was stored
	vanished   int64    // entries that the archiver did not find any more
	scanned    int64    // entries that the scanner did not find any more
	goneNames  []string // some of those that have vanished
	listed     int64    // those of the failed that are listed and do not exist
	attributes attributes
	volumeErr  error // the first one of the volume's file system as a whole
	malformed  int64
	closed     bool

	// volumeFailed, if not nil, is called when the volume's file system fails as a whole.
	volumeFailed func(error)

	backsUp bool
	// interpret takes a status or summary line into the reading.
	interpret func(*stream, *message)
	summary   *summary
	// total is the size of the snapshot to restore in bytes, as restic stats says it; 0 until it does. plan is the same as the restore
	// itself says it, once it has looked through the whole snapshot.
	total int64
	plan  *int64
	// present is how many bytes lay in the volume before the restore, compared how many of the snapshot restic has got past in
	// its comparison with them, and since is when it last got further.
	present, compared int64
	since             time.Time
}

// summary is what the summary line of a backup says.
type summary struct {
	snapshotID          string
	bytes, files, added int64
}

func newBackupStream(sink progress.Sink, volume string, root *os.Root) *stream {
	return &stream{sink: sink, volume: volume, root: root, hide: asIs, interpret: (*stream).backupLine, backsUp: true}
}

func newRestoreStream(sink progress.Sink, volume string) *stream {
	return &stream{sink: sink, volume: volume, hide: asIs, interpret: (*stream).restoreLine, reading: progress.Reading{Stage: progress.StageScanning}}
}

// stdout takes one line of restic's output.
func (s *stream) stdout(line []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case len(line) == 0:
	case !s.message.decode(line):
		s.malformed++
	case s.message.Type == typeStatus && s.message.Action == "", s.message.Type == typeSummary:
		s.interpret(s, &s.message)
	}
}

// itemFailed takes one file that could not be read or written.
func (s *stream) itemFailed(item, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := s.name(item)
	// A secret may be a word of a path, such as the region: what an error means is seen in all of it.
	again, stored := storedAgain.MatchString(strings.TrimPrefix(text, item+": ")), onlyAttributes(item, text)
	shown := s.inVolume(s.hide(text))
	item, text = s.inVolume(item), s.inVolume(text)
	switch {
	case uploader.EntrySaysVolumeIO(text) && !s.onlyEntryStale(name, text):
		if s.volumeErr == nil {
			s.volumeErr = fmt.Errorf("%w: %s: %s", uploader.ErrVolumeIO, item, shown)
			if s.volumeFailed != nil {
				s.volumeFailed(s.volumeErr)
			}
		}
	case s.backsUp && again:
		s.stored++
		return
	case s.backsUp && s.hasVanished(name, text):
		s.vanished++
		s.keepGone(name)
		return
	case s.backsUp && stored:
		s.attributes.errors++
		if !strings.HasPrefix(text, noAttribute+selinuxLabel+" ") {
			s.attributes.lack(name)
		}
		return
	case s.backsUp:
		if text == noReason && len(s.unknown) < maxFailedPaths {
			s.unknown = append(s.unknown, name)
		}
		if s.holdsFiles(name) {
			s.dirs++
			item += "/"
		}
	}
	s.fail(item, shown)
}

// fail counts an entry that the snapshot or the volume lacks.
func (s *stream) fail(item, text string) {
	s.reading.Errors++
	s.reading.LastError = text
	switch {
	case item == "":
	case len(s.failed) < maxFailedPaths:
		s.failed = append(s.failed, item)
	case strings.HasSuffix(item, "/"): // worth more than a file
		s.failed[maxFailedPaths-1] = item
	}
	s.report()
}

// storedAgain is what restic says of a file or directory of the parent that the repository has lost: it then stores that anew
// (restic 0.17 to 0.19, internal/archiver; before, it gives no reason).
var storedAgain = regexp.MustCompile(`(?s)^parts of .* not found in the repository index; storing the file again$` +
	`|^tree [0-9a-f]+ (could not be loaded|is not known)[;,] the repository could be damaged`)

// name is that of an item in the volume, as its directory lists it.
func (s *stream) name(item string) string { return strings.TrimPrefix(item, s.volume+"/") }

// hasVanished reports whether what could not be read is not there any more. restic before 0.17 gives no reason for directories; and
// where it prints a name with other characters, because it is not UTF-8, nobody can look.
func (s *stream) hasVanished(name, text string) bool {
	if strings.ContainsRune(name, utf8.RuneError) {
		return uploader.SaysVanished(text)
	}
	return (uploader.SaysVanished(text) || uploader.SaysStale(text) || text == noReason) && uploader.IsGone(s.root, name)
}

// onlyEntryStale is uploader.OnlyEntryStale for what restic says of an entry in a backup.
func (s *stream) onlyEntryStale(name, text string) bool {
	return s.backsUp && uploader.SaysStale(text) && !strings.ContainsRune(name, utf8.RuneError) && uploader.OnlyEntryStale(s.root, name)
}

// holdsFiles is uploader.HoldsFiles. What has another name than restic prints, because that is not UTF-8, may be a directory.
func (s *stream) holdsFiles(name string) bool {
	return strings.ContainsRune(name, utf8.RuneError) || uploader.HoldsFiles(s.root, name)
}

// keepGone keeps the name of an entry that has vanished.
func (s *stream) keepGone(name string) {
	if len(s.goneNames) < uploader.MaxVanished {
		s.goneNames = append(s.goneNames, name)
	}
}

// itemGone takes an entry that restic's scanner has listed and then not found.
func (s *stream) itemGone(item string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scanned++
	s.keepGone(s.name(item))
}

// gone is how many entries have vanished, at least. Scanner and archiver meet the same entries, and from 0.17 on the
// archiver does not speak of all that it misses.
func (s *stream) gone() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(s.vanished, s.scanned, s.missed())
}

// toldGone is gone without what restic does not tell.
func (s *stream) toldGone() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(s.vanished, s.scanned)
}

// missed is how many files the scanner has found that are not in the snapshot, at least. A directory that was renamed between the two takes
// all of its files along, and from 0.17 on restic does not say that it is missing. It is 0 where directories could not be read, whose files are
// no matter of time.
func (s *stream) missed() int64 {
	if s.summary == nil || s.dirs > 0 {
		return 0
	}
	return max(s.reading.FilesTotal-s.summary.files-s.reading.Errors, 0)
}

// checkVanished counts what has not vanished after all, when restic has ended.
func (s *stream) checkVanished() {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(s.goneNames)
	still := uploader.StillListed(s.root, slices.Compact(s.goneNames))
	for _, name := range still {
		s.dirs++
		s.fail(printable(name), uploader.ErrStillListed.Error())
	}
	s.listed = int64(len(still))
	s.vanished, s.scanned = max(s.vanished-s.listed, 0), max(s.scanned-s.listed, 0)
}

// volumeError is how the volume's file system failed, nil if it did not. Where restic gave no reason, as restic before 0.17
// does of directories and restic before 0.19 of attributes, the volume is asked.
func (s *stream) volumeError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.volumeErr != nil {
		return s.volumeErr
	}
	for _, name := range s.unknown {
		if err := readEntry(s.root, name); uploader.IsVolumeIO(err) {
			return fmt.Errorf("%w: %w", uploader.ErrVolumeIO, err)
		}
	}
	for _, a := range s.attributes.unknown {
		if err := a.read(s.root); uploader.IsVolumeIO(err) {
			return fmt.Errorf("%w: extended attribute %s of %s: %w", uploader.ErrVolumeIO, printable(a.name), printable(a.entry), err)
		}
	}
	return nil
}

// readEntry reads a little of an entry of the volume, to find out why restic could not.
func readEntry(root *os.Root, item string) error {
	info, err := root.Lstat(item)
	if err != nil || !info.IsDir() && !info.Mode().IsRegular() {
		return err
	}
	f, err := root.OpenFile(item, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := unix.Flistxattr(int(f.Fd()), nil); uploader.IsVolumeIO(err) {
		return err
	}
	if info.IsDir() {
		for _, err := range volume.Names(f) {
			if err != nil {
				return err
			}
		}
		return nil
	}
	_, err = f.Read(make([]byte, 1))
	return err
}

// nothingRead is the error of a backup that has stored no file although there are entries.
func (s *stream) nothingRead() error {
	if s.reading.Errors == s.listed {
		return fmt.Errorf("%w: it lists entries, and says of each of them that it does not exist (%d)", uploader.ErrVolumeIO, s.listed+s.gone())
	}
	return fmt.Errorf("%w: %d errors, such as %s", uploader.ErrNothingRead, s.reading.Errors, s.example())
}

func asIs(text string) string { return text }

// inVolume makes a path, or a text with paths, fit to be shown.
func (s *stream) inVolume(text string) string {
	if s.volume != "" {
		text = strings.ReplaceAll(text, s.volume+"/", "")
	}
	return printable(text)
}

// step counts work that is neither bytes nor files, see progress.Reading.Steps.
func (s *stream) step() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reading.Steps++
	s.report()
}

// close ends the reports: what restic still prints is not true any more.
func (s *stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

// example names the last failure.
func (s *stream) example() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.failed) == 0 {
		return s.reading.LastError
	}
	return s.failed[len(s.failed)-1] + ": " + s.reading.LastError
}

// finish reports that all bytes are done, after restic has exited without an error.
func (s *stream) finish(total, uploaded int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reading.Stage = progress.StageFinishing
	s.reading.BytesDone, s.reading.TotalBytes, s.reading.TotalFinal = total, total, true
	s.reading.BytesUploaded, s.reading.CurrentItem = uploaded, ""
	s.reading.Vanished = max(s.vanished, s.scanned, s.missed())
	s.report()
}

func (s *stream) report() {
	if !s.closed {
		s.sink.Report(s.reading)
	}
}

// backupLine takes a line of a backup. Its total grows while restic scans; seconds_remaining is not printed before the
// scan has ended, and is the only proof that it has (docs/contracts/restic-kopia.md 1).
func (s *stream) backupLine(m *message) {
	if m.Type == typeSummary {
		s.summary = &summary{
			snapshotID: m.SnapshotID, bytes: count(m.TotalBytesProcessed), files: count(m.TotalFilesProcessed),
			added: count(added(m)),
		}
		return
	}
	r := &s.reading
	previous := r.BytesDone
	r.BytesDone, r.TotalBytes = count(m.BytesDone), count(m.TotalBytes)
	r.FilesDone, r.FilesTotal = count(m.FilesDone), count(m.TotalFiles)
	if r.TotalBytes > 0 { // files that grow are read beyond the size they were scanned with
		r.TotalBytes = max(r.TotalBytes, r.BytesDone)
	}
	r.TotalFinal = r.TotalFinal || m.SecondsRemaining > 0
	r.CurrentItem = ""
	if len(m.CurrentFiles) > 0 {
		r.CurrentItem = s.inVolume(m.CurrentFiles[0])
	}
	s.idle++
	if len(m.CurrentFiles) > 0 || r.BytesDone != previous || r.FilesDone < r.FilesTotal {
		s.idle = 0
	}
	r.Stage = s.backupStage()
	s.report()
}

// backupStage says what a backup is doing. A small volume is read before restic ever prints seconds_remaining, and
// then uploads for long: with nothing left to read for several lines it counts as finishing, with a total that is still
// provisional.
func (s *stream) backupStage() progress.Stage {
	r := &s.reading
	allRead := r.TotalBytes > 0 && r.BytesDone >= r.TotalBytes
	switch {
	case allRead && (r.TotalFinal || s.idle >= idleLines):
		return progress.StageFinishing
	case r.BytesDone == 0 && !r.TotalFinal:
		return progress.StageScanning
	default:
		return progress.StageTransferring
	}
}

// added is how much a backup added to the repository: what it sent where restic says that, else what it sent before
// compression.
func added(m *message) uint64 {
	if m.DataAddedPacked > 0 {
		return m.DataAddedPacked
	}
	return m.DataAdded
}

// count makes a number of restic's a count: what does not fit is one of its underflows, and not known.
func count(n uint64) int64 { return max(int64(n), 0) }
