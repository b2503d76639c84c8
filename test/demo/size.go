package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"
)

const minBytes = 1 << 20

// parseSize reads a size as people write it: 200MiB, 2GiB, 500M, or bytes.
func parseSize(text string) (int64, error) {
	q, err := resource.ParseQuantity(strings.TrimSuffix(text, "B"))
	if err != nil {
		return 0, fmt.Errorf("%q is no size: write it like 200MiB, 2GiB or 1073741824", text)
	}
	if q.Value() < minBytes {
		return 0, fmt.Errorf("%q is less than 1MiB", text)
	}
	return q.Value(), nil
}

// formatSize prints a size as people read it.
func formatSize(n int64) string {
	divisor, unit := unitOf(n)
	return formatIn(n, divisor) + " " + unit
}

// formatPart prints two sizes in the unit of the second one.
func formatPart(part, whole int64) string {
	divisor, unit := unitOf(whole)
	return formatIn(part, divisor) + "/" + formatIn(whole, divisor) + " " + unit
}

// unitOf returns the unit in which a size is printed, and how many bytes it has.
func unitOf(n int64) (divisor int64, unit string) {
	divisor, unit = 1, "B"
	for _, larger := range []string{"KiB", "MiB", "GiB", "TiB", "PiB"} {
		if n/divisor < 1024 {
			break
		}
		divisor, unit = divisor*1024, larger
	}
	return divisor, unit
}

func formatIn(n, divisor int64) string {
	if divisor == 1 {
		return strconv.FormatInt(n, 10)
	}
	return strconv.FormatFloat(float64(n)/float64(divisor), 'f', 1, 64)
}

// timeLimit is how long a demo of so much data may take: half an hour for a machine that is busy with something else, and
// the time that a slow disk needs to write, read, store, restore and compare it.
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
			dir, formatSize(free), formatSize(need), formatSize(bytes))
	}
	return nil
}
