package main

import (
	"fmt"
	"regexp"
	"strings"
)

// volatile are lines of which one run has more than another: they say how far something is.
var volatile = []*regexp.Regexp{
	regexp.MustCompile(`^TIME \S+ (Queued|Scanning|Waiting|Transferring|Finishing)\b`), // of our plugin
	regexp.MustCompile(`^Waiting for `),                                                // of kubectl rollout status
	regexp.MustCompile(`^\.+$`),                                                        // of velero --wait
	regexp.MustCompile(`^\s*AGE ago (Normal|Warning)`),                                 // Events
	regexp.MustCompile(`^\[\S+\] \S+ \d+ / \d+ `),                                      // of restic check
}

// random are the characters in names that Kubernetes makes up.
const random = `[bcdfghjklmnpqrstvwxz2456789]`

// varying is what differs from run to run in a line. The order matters: a time has what looks like an id.
var varying = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\dZ?`), "TIME"},
	{regexp.MustCompile(`@\[[\d.]+\]`), "@[TIME]"},
	{regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`), "UID"},
	{regexp.MustCompile(`-` + random + `{8,10}-` + random + `{5}\b`), "-HASH-XXXXX"}, // a pod of a Deployment
	{regexp.MustCompile(`-` + random + `{5}\b`), "-XXXXX"},
	{regexp.MustCompile(`\b([0-9a-f]{64}|[0-9a-f]{32}|[0-9a-f]{16}|[0-9a-f]{8})\b`), "ID"},
	{regexp.MustCompile(`\b10\.\d+\.\d+\.\d+\b`), "IP"},
	{regexp.MustCompile(`\bnode[12]\b`), "NODE"},
	{regexp.MustCompile(`\b\d+(\.\d+)?(d|h|ms|m|s)(\d+(h|m|s))*\b`), "AGE"},
	{regexp.MustCompile(`\d+(\.\d+)? ([KMG]i)?B/s`), "RATE"},
	{regexp.MustCompile(`(^| )-{8,}( |$)`), "$1---$2"}, // a table is as wide as its widest cell
	{regexp.MustCompile(` {2,}`), " "},
}

func normalise(output string) []string {
	var lines []string
	for line := range strings.Lines(output) {
		line = strings.TrimRight(line, "\n")
		for _, v := range varying {
			line = v.pattern.ReplaceAllString(line, v.with)
		}
		if line != "" && !isVolatile(line) {
			lines = append(lines, line)
		}
	}
	return lines
}

func isVolatile(line string) bool {
	for _, pattern := range volatile {
		if pattern.MatchString(line) {
			return true
		}
	}
	return false
}

// live matches commands that show what happens at this moment, of which no two runs show the same.
var live = regexp.MustCompile(`(?m)kubectl plimsoll (-n \S+ )?(explain|watch|top|describe)\b`)

// compare returns how the output of a block differs from what the guide shows, apart from what varies. Lines may be in another
// order. Of what is live only the answers count: each that the guide shows must be given.
func compare(b *block, output string) []string {
	want, got := normalise(b.output), normalise(output)
	if live.MatchString(b.commands) {
		return missing("not there: ", answers(want), strings.Join(got, "\n"))
	}
	return append(without("not there: ", want, got), without("not in the guide: ", got, want)...)
}

// without returns the lines that another text does not have as often.
func without(label string, lines, others []string) []string {
	left := map[string]int{}
	for _, line := range others {
		left[line]++
	}
	var rest []string
	for _, line := range lines {
		if left[line]--; left[line] < 0 {
			rest = append(rest, label+line)
		}
	}
	return rest
}

// answer matches the lines of our plugin that say what is the matter, up to the first number or name.
var answer = regexp.MustCompile(`^ *(State|Why|Do|Phase|Backup|PodVolumeBackup|NODE|VOLUME|kubectl plimsoll)\b[^0-9]*`)

func answers(lines []string) []string {
	var found []string
	for _, line := range lines {
		if begin := answer.FindString(line); begin != "" {
			found = append(found, strings.TrimSpace(begin))
		}
	}
	return found
}

func missing(label string, wanted []string, output string) []string {
	var rest []string
	for _, text := range wanted {
		if !strings.Contains(output, text) {
			rest = append(rest, label+text)
		}
	}
	return rest
}

// checksum is a line of sha256sum.
var checksum = regexp.MustCompile(`(?m)^([0-9a-f]{64})  /`)

// bindSums returns an error unless checksums are equal where the guide shows equal ones: it is how its reader sees that the data is
// back. sums are those of this run, by those of the guide.
func bindSums(sums map[string]string, shown, output string) error {
	want, got := checksum.FindAllStringSubmatch(shown, -1), checksum.FindAllStringSubmatch(output, -1)
	for i := range min(len(want), len(got)) {
		before, known := sums[want[i][1]]
		if known && before != got[i][1] {
			return fmt.Errorf("the checksum is %s, and it was %s before: the data is not the same", got[i][1], before)
		}
		sums[want[i][1]] = got[i][1]
	}
	return nil
}
