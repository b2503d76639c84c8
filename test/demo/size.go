package main

import (
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

const minBytes = 1 << 20

// parseSize reads a size as people write it: 200MiB, 2GiB, 500M, or bytes.
func parseSize(text string) (int64, error) {
	q, err := resource.ParseQuantity(strings.TrimSuffix(text, "B"))
	if err != nil {
		return 0, fmt.Errorf("%q is not a size: write it like 200MiB, 2GiB or 1073741824", text)
	}
	if q.Value() < minBytes {
		return 0, fmt.Errorf("%q is less than 1MiB", text)
	}
	return q.Value(), nil
}

// timeLimit returns how long a demo with so much data may take: half an hour, because the machine may be busy, and the time
// that a slow disk needs to write, read, store, restore and compare the data.
func timeLimit(bytes int64) time.Duration {
	const bytesPerSecond = 2 << 20
	return 30*time.Minute + time.Duration(bytes/bytesPerSecond)*time.Second
}

// checkSpace returns an error unless dir has room for the data, its repository and what is restored from it.
func checkSpace(dir string, bytes int64) error {
	const overhead = 256 << 20 // etcd, restic's cache, directories
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("free space of %s: %w", dir, err)
	}
	free := int64(fs.Bavail) * fs.Bsize
	if need := 3*bytes + overhead; free < need {
		return fmt.Errorf("%s has %s free, the demo needs %s: set TMPDIR to another directory, or DEMO_SIZE to less than %s",
			dir, describe.Bytes(free), describe.Bytes(need), describe.Bytes(bytes))
	}
	return nil
}
