// Package terminal is a screen for tests: it takes what a program writes to a terminal and knows what a person would see. It
// obeys what xterm obeys, as far as programs here use it: cursor, erasing, inserting, scrolling, colors, the alternate screen.
package terminal

import (
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// Cell is a character on the screen.
type Cell struct {
	Rune  rune
	Color int // 30 to 37 as in SGR; 0: the terminal's own
	Bold  bool
}

// Screen is a terminal's. Its methods may be called concurrently.
type Screen struct {
	mu            sync.Mutex
	width, height int
	cells         [][]Cell // of what is seen
	other         [][]Cell // of the main screen, while the alternate one is seen
	alternate     bool
	x, y          int
	wrap          bool // the next character goes to the next line
	top, bottom   int  // margins of what scrolls: the first line, and the one after the last
	pen           Cell // how text looks
	last          rune
	pending       []byte // an unfinished sequence
	unknown       []string
}

// New returns an empty screen.
func New(width, height int) *Screen {
	s := &Screen{width: width, height: height, bottom: height}
	s.cells, s.other = s.blank(), s.blank()
	return s
}

func (s *Screen) blank() [][]Cell {
	cells := make([][]Cell, s.height)
	for i := range cells {
		cells[i] = s.blankLine()
	}
	return cells
}

func (s *Screen) blankLine() []Cell {
	line := make([]Cell, s.width)
	for i := range line {
		line[i].Rune = ' '
	}
	return line
}

// String is the text that is seen, without spaces at the ends of lines.
func (s *Screen) String() string { return Text(s.Cells()) }

// Text is that of cells, as that of a Screen.
func Text(cells [][]Cell) string {
	var text strings.Builder
	for _, line := range cells {
		var b strings.Builder
		for _, c := range line {
			b.WriteRune(c.Rune)
		}
		text.WriteString(strings.TrimRight(b.String(), " ") + "\n")
	}
	return strings.TrimRight(text.String(), "\n")
}

// Cells are a copy of what is seen.
func (s *Screen) Cells() [][]Cell {
	s.mu.Lock()
	defer s.mu.Unlock()
	cells := s.blank()
	for i := range cells {
		copy(cells[i], s.cells[i])
	}
	return cells
}

// Alternate reports whether the alternate screen is seen.
func (s *Screen) Alternate() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.alternate
}

// Unknown are the sequences that it did not understand: what it shows may be wrong if there are any.
func (s *Screen) Unknown() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unknown
}

// Write takes what a program writes. It never fails.
func (s *Screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = append(s.pending, b...)
	for len(s.pending) > 0 {
		n := s.take(s.pending)
		if n == 0 {
			break // the rest comes with the next write
		}
		s.pending = s.pending[n:]
	}
	return len(b), nil
}

// take obeys the first character or sequence and returns its length, or 0 where it is not complete.
func (s *Screen) take(b []byte) int {
	switch {
	case b[0] == 0x1b:
		return s.escape(b)
	case b[0] < ' ' || b[0] == 0x7f:
		s.control(b[0])
		return 1
	case !utf8.FullRune(b):
		return 0
	}
	r, size := utf8.DecodeRune(b)
	s.put(r)
	return size
}

func (s *Screen) control(c byte) {
	switch c {
	case '\r':
		s.move(0, s.y)
	case '\n':
		s.lineFeed()
	case '\b':
		s.move(s.x-1, s.y)
	case '\t':
		s.move((s.x/8+1)*8, s.y)
	}
}

func (s *Screen) put(r rune) {
	if s.wrap {
		s.x = 0
		s.lineFeed()
	}
	cell := s.pen
	cell.Rune, s.last = r, r
	s.cells[s.y][s.x] = cell
	s.wrap = s.x == s.width-1
	s.x = min(s.x+1, s.width-1)
}

func (s *Screen) move(x, y int) {
	s.x, s.y, s.wrap = min(max(x, 0), s.width-1), min(max(y, 0), s.height-1), false
}

func (s *Screen) lineFeed() {
	s.wrap = false
	if s.y == s.bottom-1 {
		s.remove(s.top, 1)
		return
	}
	s.y = min(s.y+1, s.height-1)
}

// remove takes n lines out of what scrolls, and insert puts empty ones in.
func (s *Screen) remove(line, n int) {
	for range min(n, s.bottom-line) {
		copy(s.cells[line:s.bottom], s.cells[line+1:s.bottom])
		s.cells[s.bottom-1] = s.blankLine()
	}
}

func (s *Screen) insert(line, n int) {
	for range min(n, s.bottom-line) {
		copy(s.cells[line+1:s.bottom], s.cells[line:s.bottom-1])
		s.cells[line] = s.blankLine()
	}
}

// escape takes a sequence that begins with ESC.
func (s *Screen) escape(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '[':
		return s.csi(b)
	case ']', 'P', '_', '^': // titles and the like: up to BEL or ST
		for i := 2; i < len(b); i++ {
			switch {
			case b[i] == '\a':
				return i + 1
			case b[i] == '\\' && b[i-1] == 0x1b && i > 2:
				return i + 1
			}
		}
		return 0
	case 'M':
		if s.y == s.top {
			s.insert(s.top, 1)
		} else {
			s.move(s.x, s.y-1)
		}
	default:
		s.unknown = append(s.unknown, string(b[:2]))
	}
	return 2
}

// csi takes ESC [ parameters final.
func (s *Screen) csi(b []byte) int {
	end := 2
	for end < len(b) && (b[end] < '@' || b[end] > '~') {
		end++
	}
	if end == len(b) {
		return 0
	}
	parameters, final := string(b[2:end]), b[end]
	if strings.ContainsAny(parameters, "?>=<$ !") {
		s.private(parameters, final)
	} else {
		s.obey(numbers(parameters), final)
	}
	return end + 1
}

func numbers(parameters string) []int {
	var list []int
	for p := range strings.SplitSeq(parameters, ";") {
		n, err := strconv.Atoi(p)
		if err != nil {
			n = 0
		}
		list = append(list, n)
	}
	return append(list, 0)
}

// private takes what begins with ?: of that only the alternate screen matters.
func (s *Screen) private(parameters string, final byte) {
	if parameters != "?1049" {
		return
	}
	if enter := final == 'h'; enter != s.alternate {
		s.alternate = enter
		s.cells, s.other = s.other, s.cells
		if enter {
			s.cells = s.blank()
		}
	}
}

// obey takes all other sequences. Absent numbers are 0, and mostly mean 1.
func (s *Screen) obey(p []int, final byte) {
	n := min(max(p[0], 1), 1<<16)
	if s.moved(n, max(p[1], 1), final) || s.edited(n, final) {
		return
	}
	switch final {
	case 'J':
		s.eraseScreen(p[0])
	case 'K':
		s.eraseLine(p[0])
	case 'b':
		for range min(n, s.width*s.height) {
			s.put(s.last)
		}
	case 'r':
		s.top, s.bottom = min(n, s.height)-1, min(p[1], s.height)
		if p[1] == 0 {
			s.bottom = s.height
		}
		s.move(0, 0)
	case 'm':
		s.paint(p[:len(p)-1])
	case 'c', 'n', 't': // questions, which nobody answers
	default:
		s.unknown = append(s.unknown, "CSI "+string(final))
	}
}

// moved obeys what moves the cursor, and is false for everything else.
func (s *Screen) moved(n, column int, final byte) bool {
	switch final {
	case 'A':
		s.move(s.x, s.y-n)
	case 'B', 'e':
		s.move(s.x, s.y+n)
	case 'C', 'a':
		s.move(s.x+n, s.y)
	case 'D':
		s.move(s.x-n, s.y)
	case 'G', '`':
		s.move(n-1, s.y)
	case 'd':
		s.move(s.x, n-1)
	case 'H', 'f':
		s.move(column-1, n-1)
	case 'I':
		s.move((s.x/8+n)*8, s.y)
	case 'Z':
		s.move((s.x-1)/8*8-(n-1)*8, s.y)
	default:
		return false
	}
	return true
}

// edited obeys what moves and removes text, and is false for everything else.
func (s *Screen) edited(n int, final byte) bool {
	line, rest := s.cells[s.y], min(n, s.width-s.x)
	switch final {
	case 'X':
		blank(line[s.x : s.x+rest])
	case 'P':
		copy(line[s.x:], line[s.x+rest:])
		blank(line[s.width-rest:])
	case '@':
		copy(line[s.x+rest:], line[s.x:])
		blank(line[s.x : s.x+rest])
	case 'L':
		s.insert(s.y, n)
	case 'M':
		s.remove(s.y, n)
	case 'S':
		s.remove(s.top, n)
	case 'T':
		s.insert(s.top, n)
	default:
		return false
	}
	return true
}

func (s *Screen) eraseScreen(which int) {
	s.eraseLine(which)
	for y := range s.cells {
		if which == 2 || which == 0 && y > s.y || which == 1 && y < s.y {
			blank(s.cells[y])
		}
	}
}

func (s *Screen) eraseLine(which int) {
	line := s.cells[s.y]
	switch which {
	case 0:
		blank(line[s.x:])
	case 1:
		blank(line[:s.x+1])
	case 2:
		blank(line)
	}
}

func blank(cells []Cell) {
	for i := range cells {
		cells[i] = Cell{Rune: ' '}
	}
}

func (s *Screen) paint(p []int) {
	for _, n := range p {
		switch {
		case n == 0:
			s.pen = Cell{}
		case n == 1:
			s.pen.Bold = true
		case n == 22:
			s.pen.Bold = false
		case n >= 30 && n <= 37:
			s.pen.Color = n
		case n == 39:
			s.pen.Color = 0
		}
	}
}
