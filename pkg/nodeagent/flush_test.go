package nodeagent

import (
	"context"
	"strings"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
)

// A file system may keep its errors until it is flushed. What was not flushed is not handed over. A closed directory stands
// in for a broken disk: the kernel refuses to flush it.
func TestRestoreThatCannotBeFlushedFails(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	data := uploadertest.NewFake(t.TempDir())
	data.OnRestore = func(_ context.Context, req uploader.RestoreRequest, _ progress.Sink) (uploader.RestoreResult, error) {
		return uploader.RestoreResult{TotalBytes: 1}, req.Volume.Close()
	}
	c.startAgent(data, nil)
	pod := c.pod("target", "data")
	pvr := c.newRestore(pod, "data", "1234abcd")
	c.Create(pvr)
	c.setInitContainer(pod, running)
	if end := c.end(pvr); end.Phase != podvolume.PhaseFailed || !strings.Contains(message(end), "flush the volume") {
		t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
	}
	// The kernel tells of it once. A second attempt would find every file right in its memory, and call that a success.
	if n := len(data.Calls()); n != 1 {
		t.Errorf("%d attempts", n)
	}
	if marked(t, c.dir(pod, "data"), string(c.restore.UID)) {
		t.Error("the volume has its done file")
	}
}
