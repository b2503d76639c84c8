package main

import (
	"slices"
	"strings"
)

// block is a fenced block of commands in a guide.
type block struct {
	line     int    // of its fence, from 1 on
	heading  string // above it
	commands string
	shown    bool   // whether the guide shows an output: a fenced text directly after it
	output   string // what is shown
	from, to int    // the lines of the output, from 0 on, without the last
}

// failures are how many of its commands fail, by what the guide shows: our plugin says why with its last line.
func (b *block) failures() int {
	count := 0
	for line := range strings.Lines(b.output) {
		if strings.HasPrefix(line, "kubectl plimsoll: ") {
			count++
		}
	}
	return count
}

// parse returns the blocks of commands of a page, in order, those below <details> among them.
func parse(page string) []block {
	lines := strings.Split(page, "\n")
	var blocks []block
	heading := ""
	for i := 0; i < len(lines); i++ {
		if title, isHeading := strings.CutPrefix(lines[i], "## "); isHeading {
			heading = title
		}
		language, opens := strings.CutPrefix(lines[i], "```")
		if !opens {
			continue
		}
		length := slices.Index(lines[i+1:], "```")
		if length < 0 {
			break // test/docs refuses such a page
		}
		end := i + 1 + length
		content := strings.Join(lines[i+1:end], "\n")
		switch {
		case language == "sh":
			blocks = append(blocks, block{line: i + 1, heading: heading, commands: content})
		case language == "text" && len(blocks) > 0 && follows(lines, blocks[len(blocks)-1], i):
			last := &blocks[len(blocks)-1]
			last.shown, last.output, last.from, last.to = true, content, i+1, end
		}
		i = end
	}
	return blocks
}

// follows reports whether only empty lines are between the end of a block and the fence in a line.
func follows(lines []string, b block, fence int) bool {
	end := b.line + strings.Count(b.commands, "\n") + 2
	return strings.TrimSpace(strings.Join(lines[end:fence], "")) == ""
}

// rewrite returns the page with the outputs that the blocks have now.
func rewrite(page string, blocks []block) string {
	lines := strings.Split(page, "\n")
	for _, b := range slices.Backward(blocks) {
		var output []string
		if b.output != "" {
			output = strings.Split(b.output, "\n")
		}
		if b.shown {
			lines = slices.Replace(lines, b.from, b.to, output...)
		}
	}
	return strings.Join(lines, "\n")
}
