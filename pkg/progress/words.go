package progress

import "github.com/plimsoll-io/plimsoll/pkg/text"

// Count is text.Count; new code calls that.
func Count[N int | int64](n N, one, many string) string { return text.Count(n, one, many) }

// ShortPaths is text.ShortPaths; new code calls that.
func ShortPaths(message string) string { return text.ShortPaths(message) }

// ShortPath is text.ShortPath; new code calls that.
func ShortPath(path string) string { return text.ShortPath(path) }
