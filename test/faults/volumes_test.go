//go:build faults

package faults

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-io/plimsoll/test/rig"
	"github.com/plimsoll-io/plimsoll/test/tree"
)

// smallVolume makes a fixture with a directory as its location, and a pod with a volume "data" that is soon done.
func smallVolume(t *testing.T, uploader string) (*fixture, *corev1.Pod) {
	t.Helper()
	f := newFixture(t)
	f.UseDirectory(t.TempDir())
	source := f.Pod("source", "data")
	f.fillSmall(source, "data", uploader)
	return f, source
}

// largeVolume makes a fixture with a directory as its location, and a pod with a volume "data" that takes a while.
func largeVolume(t *testing.T, uploader string) (*fixture, *corev1.Pod) {
	t.Helper()
	f := newFixture(t)
	f.UseDirectory(t.TempDir())
	source := f.Pod("source", "data")
	fillLarge(t, f.Volume(source, "data"), uploader)
	return f, source
}

// fill fills a pod's volume.
func (f *fixture) fill(pod *corev1.Pod, volume string, spec tree.Spec) {
	f.T.Helper()
	if err := tree.Make(f.Volume(pod, volume), spec); err != nil {
		f.T.Fatal(err)
	}
}

// fillSmall fills a pod's volume with a little of everything. For kopia it is less: under the race detector it takes a
// second for 5 MB, and holes count.
func (f *fixture) fillSmall(pod *corev1.Pod, volume, uploader string) {
	f.T.Helper()
	if uploader == rig.Kopia {
		fillFiles(f.T, f.Volume(pod, volume), 2<<20)
		return
	}
	f.fill(pod, volume, tree.Spec{})
}

// largeBytes is how much is in a volume that takes a while. restic reads up to 50 MB ahead of what it has stored.
var largeBytes = map[string]int64{rig.Restic: 128 << 20, rig.Kopia: 48 << 20}

func fillLarge(t *testing.T, dir, uploader string) {
	t.Helper()
	fillFiles(t, dir, largeBytes[uploader])
}

// fillFiles fills a directory with files of random data: always the same, so that one clean run measures them all.
func fillFiles(tb testing.TB, dir string, bytes int64) {
	tb.Helper()
	const parts = 32
	for i := range parts {
		seed := [32]byte{byte(i)}
		path, written := filepath.Join(dir, fmt.Sprintf("part-%02d", i)), time.Unix(int64(i), 0)
		f, err := os.Create(path)
		if err != nil {
			tb.Fatal(err)
		}
		_, err = io.CopyN(f, rand.NewChaCha8(seed), bytes/parts)
		if err := errors.Join(err, f.Close(), os.Chtimes(path, written, written)); err != nil {
			tb.Fatal(err)
		}
	}
}
