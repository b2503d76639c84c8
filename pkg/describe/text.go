package describe

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/duration"
)

// NotKnownYet is shown for what nobody can tell yet.
const NotKnownYet = "not known yet"

// Clean makes one line for a terminal of what the cluster or a volume says: control characters, escape sequences, marks that
// change the direction of writing, invisible characters and invalid UTF-8 are written as in Go source, \x1b, \n, \u202e.
// Everything else stays. Names of files and messages are written by whoever can write to a volume.
func Clean(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case strconv.IsGraphic(r):
			b.WriteRune(r)
		default:
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
		i += size
	}
	return b.String()
}

// Bytes writes a number of bytes with at most one digit after the point: 512 B, 1.5 KiB, 12.0 GiB. It rounds down: nothing
// looks bigger than it is.
func Bytes(n int64) string {
	if n < 1024 {
		return strconv.FormatInt(n, 10) + " B"
	}
	// In 1024ths of the unit, so that nothing overflows and nothing is rounded up.
	units := "KMGTPE"
	for n >= 1024*1024 {
		n /= 1024
		units = units[1:]
	}
	return fmt.Sprintf("%d.%d %ciB", n/1024, n%1024*10/1024, units[0])
}

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
