package kopia

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"io"
	"os"
	"syscall"

	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

// feed writes what follows the request of a worker. Its ctx ends with the worker.
type feed func(ctx context.Context, write func(protocol.Frame) error) error

// errWorkerEnded ends a feed whose worker needs no more.
var errWorkerEnded = errors.New("the worker has ended")

// input is the stdin of a worker.
type input struct {
	reader io.Reader
	pipe   *os.File // the worker's end; nil: there is no feed
	fed    chan error
}

// newInput begins to feed a worker.
func newInput(ctx context.Context, r *run) (*input, error) {
	if r.feed == nil {
		var request bytes.Buffer
		err := gob.NewEncoder(&request).Encode(r.request)
		return &input{reader: &request}, err
	}
	// A pipe of the system's, which the worker reads itself: nothing in this process waits for more after the worker's end.
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	in := &input{reader: reader, pipe: reader, fed: make(chan error, 1)}
	go func() {
		encoder := gob.NewEncoder(writer)
		err := encoder.Encode(r.request)
		if err == nil {
			err = r.feed(ctx, func(f protocol.Frame) error { return encoder.Encode(f) })
		}
		_ = writer.Close() // nothing is buffered
		in.fed <- err
	}()
	return in, nil
}

// end waits for the feed after the worker has ended. It returns why the feed ended the worker, nil if it was the other way round.
func (in *input) end() error {
	if in.pipe == nil {
		return nil
	}
	_ = in.pipe.Close() // what is written from now on fails
	if err := <-in.fed; err != nil && !errors.Is(err, errWorkerEnded) && !errors.Is(err, syscall.EPIPE) {
		return err
	}
	return nil
}
