package terminal

import (
	"fmt"
	"html"
	"strings"
	"time"
)

// The measures of a picture, in its own units, and how long each frame is seen.
const (
	charWidth  = 8
	lineHeight = 18
	margin     = 14
	frameTime  = time.Second
)

// style is that of a dark terminal. Frames follow each other; who asks for reduced motion sees the middle one.
const style = `text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#d0d7de;white-space:pre}` +
	`.b{font-weight:bold}.c31{fill:#ff7b72}.c32{fill:#56d364}.c33{fill:#e3b341}.c36{fill:#39c5cf}` +
	`.f{visibility:hidden;animation:s %[1]ds steps(1) infinite}@keyframes s{0%%{visibility:visible}%[2]s%%{visibility:hidden}}` +
	`@media (prefers-reduced-motion:reduce){.f{animation:none}.m{visibility:visible}}`

// SVG draws frames of one size one after the other, as text, again and again. title is for those who do not see it.
func SVG(title string, frames [][][]Cell) []byte {
	lines, width := 0, 0
	for _, f := range frames {
		lines, width = max(lines, strings.Count(Text(f), "\n")+1), max(width, len(f[0]))
	}
	w, h := width*charWidth+2*margin, lines*lineHeight+2*margin
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">`+"\n",
		w, h, w, h, html.EscapeString(title))
	fmt.Fprintf(&b, "<style>"+style+"</style>\n", len(frames), fmt.Sprintf("%.2f", 100/float64(len(frames))))
	fmt.Fprintf(&b, `<rect width="%d" height="%d" rx="8" fill="#0d1117"/>`+"\n", w, h)
	for i, f := range frames {
		class := "f"
		if i == len(frames)/2 {
			class = "f m"
		}
		fmt.Fprintf(&b, `<g class="%s" style="animation-delay:%ds">`+"\n", class, int(time.Duration(i)*frameTime/time.Second))
		for y, line := range f[:lines] {
			writeLine(&b, line, margin+(y+1)*lineHeight-5)
		}
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	return []byte(b.String())
}

// writeLine places each run of equal looks by itself: fonts do not agree on how wide the characters of bars are.
func writeLine(b *strings.Builder, line []Cell, y int) {
	for from := 0; from < len(line); {
		to := from
		for to < len(line) && line[to].Color == line[from].Color && line[to].Bold == line[from].Bold {
			to++
		}
		text := Text([][]Cell{line[from:to]})
		if trimmed := strings.TrimLeft(text, " "); trimmed != "" {
			x := from + len(text) - len(trimmed) // spaces are single bytes
			n := len([]rune(trimmed))
			fmt.Fprintf(b, `<text x="%d" y="%d" textLength="%d"%s>%s</text>`+"\n", margin+x*charWidth, y, n*charWidth, classAttribute(line[from]), html.EscapeString(trimmed))
		}
		from = to
	}
}

// classAttribute returns the class attribute for a cell's color and weight, empty if it has none of its own.
func classAttribute(c Cell) string {
	var classes []string
	if c.Bold {
		classes = append(classes, "b")
	}
	if c.Color != 0 {
		classes = append(classes, fmt.Sprintf("c%d", c.Color))
	}
	if len(classes) == 0 {
		return ""
	}
	return fmt.Sprintf(` class="%s"`, strings.Join(classes, " "))
}
