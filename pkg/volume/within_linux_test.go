package volume

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/plimsoll-io/plimsoll/test/faultfs"
)

// The kernel holds whoever opens a directory of a file server that is gone. The caller goes on, and so does the call once the server is back.
func TestWithinAHungVolume(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root can mount")
	}
	fuse, dir, _ := faultfs.ForTest(t)
	fuse.Inject(faultfs.Fault{Hang: true})
	opened := make(chan error, 1)
	err := Within(50*time.Millisecond, func() error {
		f, err := os.Open(dir)
		if err == nil {
			err = f.Close()
		}
		opened <- err
		return err
	})
	if !errors.Is(err, ErrNoAnswer) || len(opened) > 0 {
		t.Errorf("the call ended with %v, the open before the volume answered: %v", err, len(opened) > 0)
	}
	fuse.Clear()
	if err := <-opened; err != nil {
		t.Error(err)
	}
	if err := Within(time.Minute, func() error { return os.ErrExist }); !errors.Is(err, os.ErrExist) {
		t.Errorf("the error of the call became %v", err)
	}
}
