// Package text makes strings fit to be shown to people. Names of files, errors and the output of programs come from volumes
// and repositories: they may hold terminal sequences, line ends, invalid UTF-8 and megabytes.
package text

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

const ellipsis = "…"

// Clean returns s as one line for a terminal, a log or a status field: control characters, escape sequences, marks that change
// the direction of writing, invisible characters and invalid UTF-8 are written as in Go source, \x1b, \n, \u202e. Everything
// else stays. Cleaning twice changes nothing more.
func Clean(s string) string { return cleanAtLeast(s, len(s)) }

// Line returns s cleaned and at most limit bytes long; the end is cut off. It reads no more of s than it returns.
func Line(s string, limit int) string { return Shorten(cleanAtLeast(s, limit+1), limit) }

// cleanAtLeast returns s cleaned. It may stop after n bytes of s are cleaned.
func cleanAtLeast(s string, n int) string {
	var b strings.Builder
	for i := 0; i < len(s) && i < n; {
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

// Shorten returns s in valid UTF-8 and at most limit bytes long; the end is cut off.
func Shorten(s string, limit int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= limit {
		return s
	}
	if limit < len(ellipsis) {
		return ""
	}
	return head(s, limit-len(ellipsis)) + ellipsis
}

// ShortenMiddle returns s in valid UTF-8 and at most limit bytes long; the middle is cut out: an error begins with what failed
// and ends with why.
func ShortenMiddle(s string, limit int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= limit {
		return s
	}
	keep := limit - len(ellipsis)
	if keep < 0 {
		return ""
	}
	end := keep / 3
	return head(s, keep-end) + ellipsis + Tail(s, end)
}

// head returns the beginning of s, n bytes at most, without cutting a character.
func head(s string, n int) string {
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// Tail returns the end of s, n bytes at most, without cutting a character.
func Tail(s string, n int) string {
	if len(s) <= n {
		return s
	}
	s = s[len(s)-n:]
	for len(s) > 0 && !utf8.RuneStart(s[0]) {
		s = s[1:]
	}
	return s
}

// escapes matches terminal sequences: ESC, then [ ... (colours, clear line), ] ... BEL (titles), or a short one.
var escapes = regexp.MustCompile(`\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[ -/]*[0-~])?`)

// Lines returns a program's output as lines of printable text, without terminal sequences and without space around it. A
// carriage return counts as a newline: restic writes one where it would overwrite its status on a terminal.
func Lines(output []byte) string {
	s := strings.ToValidUTF8(string(escapes.ReplaceAll(output, nil)), "\uFFFD")
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		switch {
		case r == '\r' || r == '\n':
			return '\n'
		case unicode.IsSpace(r):
			return ' '
		case unicode.IsGraphic(r):
			return r
		}
		return -1
	}, s))
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
