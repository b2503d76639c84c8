package uploadertest

import (
	"slices"
	"sync"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// Recorder is a progress.Sink that keeps all readings. The zero value is ready. It is safe for concurrent use.
type Recorder struct {
	// On, if not nil, is called with each reading, before it is kept. Set it before the Recorder is used.
	On func(progress.Reading)

	mu       sync.Mutex
	readings []progress.Reading
}

// Report keeps the reading.
func (r *Recorder) Report(reading progress.Reading) {
	if r.On != nil {
		r.On(reading)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readings = append(r.readings, reading)
}

// Readings returns all readings so far, in order.
func (r *Recorder) Readings() []progress.Reading {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.readings)
}

// Last returns the last reading, the zero Reading if there is none.
func (r *Recorder) Last() progress.Reading {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.readings) == 0 {
		return progress.Reading{}
	}
	return r.readings[len(r.readings)-1]
}
