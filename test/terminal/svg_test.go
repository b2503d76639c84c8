package terminal

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

// TestSVG reads a picture as a browser would: well-formed, each text where it was on the screen, in its color.
func TestSVG(t *testing.T) {
	t.Parallel()
	var frames [][][]Cell
	for _, text := range []string{"a <b> & \"c\"\r\n   \x1b[1;33mstalled\x1b[0m  █▌░", "second"} {
		s := New(20, 5)
		_, _ = s.Write([]byte(text))
		frames = append(frames, s.Cells())
	}
	picture := SVG("a run, <recorded>", frames)
	type text struct{ X, Y, Class, Text string }
	var got []text
	for d := xml.NewDecoder(bytes.NewReader(picture)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, picture)
		}
		switch token := token.(type) {
		case xml.StartElement:
			if token.Name.Local == "text" {
				got = append(got, text{X: attribute(token, "x"), Y: attribute(token, "y"), Class: attribute(token, "class")})
			}
		case xml.CharData:
			if len(got) > 0 && got[len(got)-1].Text == "" {
				got[len(got)-1].Text = string(token)
			}
		}
	}
	want := []text{
		{"14", "27", "", `a <b> & "c"`},
		{"38", "45", "b c33", "stalled"},
		{"110", "45", "", "█▌░"},
		{"14", "27", "", "second"},
	}
	if len(got) != len(want) {
		t.Fatalf("got %q, want %q", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("got %q, want %q", got[i], want[i])
		}
	}
	if n := strings.Count(string(picture), "<g "); n != len(frames) {
		t.Errorf("%d frames, want %d", n, len(frames))
	}
}

func attribute(e xml.StartElement, name string) string {
	for _, a := range e.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}
