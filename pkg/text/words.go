package text

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// Count writes a number with the noun that agrees with it: 1 file, 3 files.
func Count[N int | int64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// shownPath is how many characters of a path a message has room for.
const shownPath = 80

// longWord matches what may be a path: it ends where text goes on.
var longWord = regexp.MustCompile(`[^\s"'` + "`" + `,;]{81,}`)

// ShortPaths shortens the long paths in a message from their middle: they begin with where one looks, and end with what it is
// about. Addresses stay whole.
func ShortPaths(message string) string {
	return longWord.ReplaceAllStringFunc(message, func(word string) string {
		if !strings.Contains(word, "/") || strings.Contains(word, "://") {
			return word
		}
		return ShortPath(word)
	})
}

// ShortPath returns a path with at most 80 characters: the beginning and, mostly, the end.
func ShortPath(path string) string {
	if utf8.RuneCountInString(path) <= shownPath {
		return path
	}
	const start = shownPath / 4
	letters := []rune(path)
	return string(letters[:start]) + "…" + string(letters[len(letters)-(shownPath-start-1):])
}
