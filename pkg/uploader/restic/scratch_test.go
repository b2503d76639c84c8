package restic

import (
	"errors"
	"strings"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// TestScratchIsFull: what has filled the place that all runs share for temporary files is gone in a minute.
func TestScratchIsFull(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fatal string
		want  error
	}{
		"a pack":         {"write $HOME/restic-temp-pack-1861670410: no space left on device", uploader.ErrScratchFull},
		"the cache":      {"write $RESTIC_CACHE_DIR/ab/index/12: disk quota exceeded", uploader.ErrScratchFull},
		"the repository": {"write /repository/data/12: no space left on device", uploader.ErrNoSpace},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u, _ := newFake(t, Options{})
			_, err := u.Backup(t.Context(), uploader.BackupRequest{
				Repository: scripted("err Fatal: unable to save snapshot: "+test.fatal, "exit 1"), Volume: volumeOf(t, 1),
			}, nil)
			for _, known := range []error{uploader.ErrScratchFull, uploader.ErrNoSpace} {
				if is := errors.Is(err, known); is != errors.Is(test.want, known) {
					t.Errorf("%v: %t in %v", known, is, err)
				}
			}
			if !strings.Contains(err.Error(), test.want.Error()+": Fatal: unable to save snapshot: ") {
				t.Errorf("it says: %v", err)
			}
		})
	}
}
