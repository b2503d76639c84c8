package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

// feed has the newest message for pages. Nobody who reads it holds anybody else up.
type feed struct {
	mu      sync.Mutex
	message []byte
	changed chan struct{} // closed and replaced with each message; nil after the last one
}

func newFeed() *feed {
	// A comment, so that the page knows that it is connected before there is anything to show.
	return &feed{message: []byte(": waits for the first news\n\n"), changed: make(chan struct{})}
}

// newest returns the newest message, and what is closed when there is a newer one: nil if none will come.
func (f *feed) newest() ([]byte, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.message, f.changed
}

// show replaces the message by a page.
func (f *feed) show(p page) { f.send("page", p) }

// end is why the feed has ended.
func (f *feed) end(cause error) {
	text := "kubectl plimsoll dashboard was ended."
	if !errors.Is(cause, context.Canceled) {
		text = "kubectl plimsoll dashboard has ended: " + describe.Clean(cause.Error()) + "."
	}
	f.send("end", text)
}

func (f *feed) send(event string, data any) {
	text, err := json.Marshal(data)
	if err != nil {
		// Pages are texts and numbers: only a mistake in this package can do this.
		panic(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changed == nil {
		return
	}
	f.message = fmt.Appendf(nil, "event: %s\ndata: %s\n\n", event, text)
	close(f.changed)
	f.changed = nil
	if event != "end" {
		f.changed = make(chan struct{})
	}
}
