package screen

import (
	"strings"
	"unicode/utf8"
)

// color is a parameter of SGR, the control sequence for how text looks.
type color string

const (
	plain  color = ""
	bold   color = "1"
	red    color = "31"
	green  color = "32"
	yellow color = "33"
	cyan   color = "36"
)

// part is text of one color.
type part struct {
	text  string
	color color
}

// paint gives text its color where there are colors.
func (o *Options) paint(p part) string {
	if !o.Color || p.color == plain || p.text == "" {
		return p.text
	}
	return "\x1b[" + string(p.color) + "m" + p.text + "\x1b[0m"
}

// Characters of wide scripts count as one: names of Kubernetes have none, and in what volumes say they only shift what stands
// to the right, where there is nothing.
func length(s string) int { return utf8.RuneCountInString(s) }

func (o *Options) ellipsis() string {
	if o.Unicode {
		return "…"
	}
	return "~"
}

// atMost stands before a percentage of a total that may still grow.
func (o *Options) atMost() string {
	if o.Unicode {
		return "≤"
	}
	return "<"
}

// clip cuts the end off what is longer than width.
func (o *Options) clip(s string, width int) string {
	if length(s) <= width {
		return s
	}
	if width < 1 {
		return ""
	}
	return string([]rune(s)[:width-1]) + o.ellipsis()
}

// clipName cuts the middle out of a name: its end tells volumes of one pod apart, its beginning those of others.
func (o *Options) clipName(s string, width int) string {
	runes := []rune(s)
	if len(runes) <= width || width < 5 {
		return o.clip(s, width)
	}
	head := (width - 1) / 2
	return string(runes[:head]) + o.ellipsis() + string(runes[len(runes)-(width-1-head):])
}

func pad(s string, width int, right bool) string {
	space := strings.Repeat(" ", max(width-length(s), 0))
	if right {
		return space + s
	}
	return s + space
}

// flow writes parts one after the other, in as many lines as they take.
func (o *Options) flow(parts []part) []string {
	between := " | "
	if o.Unicode {
		between = " · "
	}
	var lines []string
	var line strings.Builder
	used := 0
	for _, p := range parts {
		p.text = o.clip(p.text, o.Width)
		if used > 0 && used+length(between)+length(p.text) > o.Width {
			lines = append(lines, line.String())
			line.Reset()
			used = 0
		}
		if used > 0 {
			line.WriteString(between)
			used += length(between)
		}
		line.WriteString(o.paint(p))
		used += length(p.text)
	}
	return append(lines, line.String())
}

// eighths fill a character from its left.
var eighths = []rune(" ▏▎▍▌▋▊▉")

// bar draws a share of width characters. It is full only for a share of 1.
func (o *Options) bar(share float64, width int, c color) string {
	if width < 1 {
		return ""
	}
	share = min(max(share, 0), 1)
	if !o.Unicode {
		full := int(share * float64(width))
		return o.paint(part{strings.Repeat("#", full), c}) + strings.Repeat("-", width-full)
	}
	steps := int(share * float64(width) * float64(len(eighths)))
	full, rest := steps/len(eighths), steps%len(eighths)
	done, open := strings.Repeat("█", full), width-full
	if rest > 0 {
		done, open = done+string(eighths[rest]), open-1
	}
	return o.paint(part{done, c}) + strings.Repeat("░", open)
}
