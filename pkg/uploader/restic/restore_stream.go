package restic

import (
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// restoreLine takes a line of a restore. From restic 0.17 on, bytes of files that were there already are left out of
// the total; they are counted again here. On a full disk restic goes on to 100 % (docs/contracts/restic-kopia.md 2): the
// last byte is only reported when restic has exited without an error.
func (s *stream) restoreLine(m *message) {
	r := &s.reading
	total := count(m.TotalBytes + m.BytesSkipped)
	// restic writes nothing before it has looked through the whole snapshot, in which the total grows.
	if m.BytesRestored > 0 || m.Type == typeSummary {
		s.plan = &total
	}
	if s.total > 0 {
		total = s.total
	}
	r.TotalBytes, r.TotalFinal = total, total > 0 && (s.total > 0 || s.plan != nil)
	r.FilesDone, r.FilesTotal = count(m.FilesRestored+m.FilesSkipped), count(m.TotalFiles+m.FilesSkipped)
	r.Next = s.comparing(m)
	s.restored(count(m.BytesRestored + m.BytesSkipped))
}

// slowestRead is at how many bytes a second restic reads what is in a volume, at least.
const slowestRead = 20 << 20

// comparing is how long it may be until a number moves. From restic 0.17 on a restore begins with a comparison of all files
// that are there with the snapshot, and counts each at its end: in one large file that an earlier attempt has left no
// number moves for hours.
func (s *stream) comparing(m *message) time.Duration {
	compared := count(m.TotalBytes + m.BytesSkipped)
	if compared != s.compared || s.since.IsZero() {
		s.compared, s.since = compared, time.Now()
	}
	left := s.present
	if s.total > 0 {
		left = min(left, s.total-compared)
	}
	if m.BytesRestored > 0 || left <= 0 {
		return 0
	}
	return max(time.Duration(left/slowestRead)*time.Second-time.Since(s.since), 0)
}

// expect takes how many bytes lay in the volume before the restore.
func (s *stream) expect(present int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.present = present
}

// setTotal takes the size of the snapshot.
func (s *stream) setTotal(total int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total = total
	if r := &s.reading; total > 0 {
		r.TotalBytes, r.TotalFinal = total, true
		r.BytesDone = min(r.BytesDone, total-1)
		s.report()
	}
}

// planned returns the size of the snapshot as the restore itself has said it, and whether it has.
func (s *stream) planned() (total int64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.plan == nil {
		return 0, false
	}
	return *s.plan, true
}

// errors returns how many errors there were.
func (s *stream) errors() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reading.Errors
}

// done returns how many bytes were restored, as far as that was reported.
func (s *stream) done() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reading.BytesDone
}

// measured takes a measurement of the volume in place of a line, for a restic that prints none.
func (s *stream) measured(done int64, next time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reading.TotalBytes, s.reading.TotalFinal, s.reading.Next = s.total, s.total > 0, next
	s.restored(done)
}

// restored reports how many bytes lie in the volume. All of a total that still grows is not all.
func (s *stream) restored(done int64) {
	r := &s.reading
	r.Stage = progress.StageTransferring
	if r.TotalBytes > 0 && done >= r.TotalBytes {
		done = r.TotalBytes - 1
		if r.TotalFinal {
			r.Stage = progress.StageFinishing
		}
	}
	r.BytesDone = done
	s.report()
}
