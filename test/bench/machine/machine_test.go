package machine

import (
	"strings"
	"testing"
)

func TestFileSystem(t *testing.T) {
	t.Parallel()
	const mounts = `22 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
30 22 0:26 / /tmp rw shared:1 - overlay overlay rw
31 22 0:27 / /tmp rw shared:2 master:3 - tmpfs tmpfs rw
32 22 0:28 / /tmp/with\040space rw - xfs /dev/vdb rw
malformed`
	for dir, want := range map[string]string{
		"/": "ext4", "/var/tmp": "ext4", "/tmp": "tmpfs", "/tmp/bench-1": "tmpfs", "/tmpfiles": "ext4", "/tmp/with space/a": "xfs",
	} {
		if got := fileSystem(strings.NewReader(mounts), dir); got != want {
			t.Errorf("%s lies in %q, want %q", dir, got, want)
		}
	}
}

func TestModel(t *testing.T) {
	t.Parallel()
	for cpuinfo, want := range map[string]string{
		"processor\t: 0\nmodel\t\t: 85\nmodel name\t: Intel(R) Xeon(R)  CPU @ 2.80GHz\n\nprocessor\t: 1\nmodel name\t: another\n": "Intel(R) Xeon(R) CPU @ 2.80GHz",
		"processor\t: 0\nCPU implementer\t: 0x41\n": "", // arm64
	} {
		if got := model(strings.NewReader(cpuinfo)); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestDescribeThisMachine(t *testing.T) {
	t.Parallel()
	text := Describe(t.TempDir())
	if !strings.Contains(text, " processors (") || !strings.Contains(text, " GiB, ") || !strings.Contains(text, "Linux ") || strings.Contains(text, "unknown,") {
		t.Error(text)
	}
}
