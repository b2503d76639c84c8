//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// resumeGet interrupts the gets of a directory and of a file with each data path: by Ctrl-C, and then the connection ends or the pod that answers is deleted.
// The same commands go on with what is there.
func (c *cluster) resumeGet(t *testing.T) {
	t.Helper()
	namespace, pod, _ := strings.Cut(kubectlApp, "/")
	want := c.inApp(t, &app{namespace: namespace, name: pod}, "digest", "/volumes/"+disk+"/big")
	cut := func(l *link) { l.cut() }
	for uploader, lose := range map[string]func(*link){restic: cut, kopia: func(*link) { c.deleteTasksPod(t) }} {
		backup, dir := c.listed(t, kubectlApp, disk, uploader)[0], t.TempDir()
		big, half := filepath.Join(dir, "big"), filepath.Join(dir, "half")
		// The first file is complete when there is another one.
		first := c.interruptGet(t, big+".*.unpacking/part-*", 0, "--from", backup, "big", "-o", big)
		kept := statOf(t, filepath.Join(filepath.Dir(first), "half"))
		c.loseGet(t, lose, "--from", backup, "big", "-o", big)
		came := c.goOnGet(t, "--from", backup, "big", "-o", big)
		if got := digestOfDir(t, big); got != want {
			t.Errorf("%s: big has %s, want %s", uploader, got, want)
		}
		if !os.SameFile(kept, statOf(t, filepath.Join(big, "half"))) || came > kept.Size()+overhead { // the other half of the bytes
			t.Errorf("%s: the directory was got from its begin on: %d bytes came at the end", uploader, came)
		}
		c.interruptGet(t, half+".*.part", 1<<20, "--from", backup, "big/half", "-o", half)
		c.loseGet(t, cut, "--from", backup, "big/half", "-o", half)
		part := largerThan(t, half+".*.part", 2*overhead)
		if part == "" {
			t.Fatalf("%s: of %d bytes that have come %q is left", uploader, lostAfter, largerThan(t, half+".*.part", -1))
		}
		left := kept.Size() - statOf(t, part).Size()
		if came := c.goOnGet(t, "--from", backup, "big/half", "-o", half); came > left+overhead {
			t.Errorf("%s: %d bytes came of a file that lacked %d", uploader, came, left)
		}
		if !bytes.Equal(contentOf(t, half), contentOf(t, filepath.Join(big, "half"))) {
			t.Errorf("%s: a file that was cut off differs", uploader)
		}
		if left, err := filepath.Glob(filepath.Join(dir, "*.*")); err != nil || len(left) > 0 {
			t.Errorf("%s: left are %q, %v", uploader, left, err)
		}
	}
}

const (
	lostAfter = 16 << 20 // so many bytes something happens to a get
	overhead  = 4 << 20  // is more than comes besides the content
)

// loseGet begins a get, does in its middle what ends its connection, and holds that the command has failed because of that.
func (c *cluster) loseGet(t *testing.T, lose func(*link), args ...string) {
	t.Helper()
	l := c.newLink(t, lostAfter)
	get := c.plimsollCommand(t, slices.Concat([]string{"--kubeconfig", l.config, "repository", "get"}, args)...)
	var said strings.Builder
	get.Stdout, get.Stderr = &said, &said
	if err := get.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- get.Wait() }()
	select {
	case err := <-ended:
		t.Fatalf("get ended before its connection was lost: %v\n%s", err, &said)
	case <-l.reached:
	}
	lose(l)
	if err := <-ended; err == nil || !strings.Contains(said.String(), "run the command again") {
		t.Errorf("a get whose connection was lost: %v\n%s", err, &said)
	}
}

// goOnGet runs a get to its end, and returns how many bytes came from the API server.
func (c *cluster) goOnGet(t *testing.T, args ...string) int64 {
	t.Helper()
	l := c.newLink(t, 0)
	c.plimsoll(t, slices.Concat([]string{"--kubeconfig", l.config, "repository", "get"}, args)...)
	return l.received.Load()
}

// deleteTasksPod deletes the pod that answers FileRequests, as a drain of its node does, and waits until it is gone.
func (c *cluster) deleteTasksPod(t *testing.T) {
	t.Helper()
	var pods corev1.PodList
	labels := client.MatchingLabels{"app.kubernetes.io/name": "plimsoll-repository-tasks"}
	if err := c.client.List(t.Context(), &pods, client.InNamespace(veleroNamespace), labels); err != nil || len(pods.Items) != 1 {
		t.Fatalf("%d pods, %v", len(pods.Items), err)
	}
	pod := &pods.Items[0]
	c.delete(t, pod)
	eventually(t, "the pod is gone", func(ctx context.Context) (bool, error) {
		err := c.client.Get(ctx, client.ObjectKeyFromObject(pod), pod)
		return apierrors.IsNotFound(err), err
	})
}

func contentOf(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func statOf(t *testing.T, name string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// interruptGet presses Ctrl-C when a file that matches has more than so many bytes, and returns its name. The command must fail.
func (c *cluster) interruptGet(t *testing.T, pattern string, size int64, args ...string) (name string) {
	t.Helper()
	get := c.plimsollCommand(t, append([]string{"repository", "get"}, args...)...)
	var said strings.Builder
	get.Stdout, get.Stderr = &said, &said
	if err := get.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- get.Wait() }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for name == "" {
		select {
		case err := <-ended:
			t.Fatalf("get ended before it was interrupted: %v\n%s", err, &said)
		case <-tick.C:
			name = largerThan(t, pattern, size)
		}
	}
	if err := get.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Fatalf("get was not interrupted: %s", &said)
	}
	return name
}

// largerThan returns a file that matches and is larger than so many bytes, if there is one.
func largerThan(t *testing.T, pattern string, size int64) string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if info, err := os.Stat(name); err == nil && info.Size() > size {
			return name
		}
	}
	return ""
}
