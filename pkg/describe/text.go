package describe

import (
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/plimsoll-io/plimsoll/pkg/text"
)

// NotKnownYet is shown for what nobody can tell yet.
const NotKnownYet = "not known yet"

// Clean is text.Clean.
func Clean(s string) string { return text.Clean(s) }

// Bytes is text.Bytes.
func Bytes(n int64) string { return text.Bytes(n) }

// Rate writes bytes per second: 12.0 MiB/s.
func Rate(bytesPerSecond int64) string { return Bytes(bytesPerSecond) + "/s" }

// longestETA is what people care to know of times left; it also keeps them from overflowing a time.Duration.
const longestETA = 365 * 24 * time.Hour

// ETA writes the time that is left, as kubectl writes ages: 45s, 2m10s, 3h12m, 5d3h.
func ETA(seconds *int64) string {
	switch {
	case seconds == nil:
		return NotKnownYet
	case *seconds > int64(longestETA/time.Second):
		return "more than a year"
	}
	return Duration(time.Duration(max(*seconds, 0)) * time.Second)
}

// Duration writes a length of time as kubectl writes ages. A negative one is written as 0s: clocks differ.
func Duration(d time.Duration) string { return duration.HumanDuration(max(d, 0)) }

// Age writes how long ago a time was, or "never" for none.
func Age(now, t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return Duration(now.Sub(t))
}

// PercentOf writes what Volume.Percent returns: 42%, or a dash while it is not known.
func PercentOf(percent int, known bool) string {
	if !known {
		return "-"
	}
	return strconv.Itoa(percent) + "%"
}
