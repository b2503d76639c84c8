package kopia

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

// TestOutputStopsAtNonsense: nothing that a worker says after it has broken the protocol counts, and it is ended.
func TestOutputStopsAtNonsense(t *testing.T) {
	t.Parallel()
	for name, lines := range map[string][]string{
		"garbage":          {`fatal error: out of cheese`, `{"result":{"totalBytes":7}}`},
		"after the result": {`{"result":{"totalBytes":7}}`, `{"reading":{"BytesDone":8}}`},
		"two results":      {`{"result":{"totalBytes":7}}`, `{"result":{"totalBytes":8}}`},
		"failed and done":  {`{"failure":{"text":"no"}}`, `{"result":{"totalBytes":8}}`},
	} {
		var stopped error
		var seen []progress.Reading
		o := output{
			sink:   progress.SinkFunc(func(r progress.Reading) { seen = append(seen, r) }),
			logger: slog.New(slog.DiscardHandler), stop: func(cause error) { stopped = cause },
		}
		for _, line := range lines {
			o.line([]byte(line))
		}
		if o.malformed == nil || stopped == nil || len(seen) > 0 {
			t.Errorf("%s: %v, stopped by %v, reported %v", name, o.malformed, stopped, seen)
		}
	}
}

// TestErrors: an error says on one line what failed, and wraps what its worker has named.
func TestErrors(t *testing.T) {
	t.Parallel()
	err := errorOf(&protocol.Failure{Cause: protocol.CauseOf(uploader.ErrWrongPassword), Text: "no"}, protocol.OpBackup, strings.ToUpper)
	if !errors.Is(err, uploader.ErrWrongPassword) || strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), "kopia backup: ") ||
		!strings.HasSuffix(err.Error(), ": NO") {
		t.Errorf("%q", err)
	}
	if err := errorOf(&protocol.Failure{Text: "no"}, protocol.OpRestore, strings.Clone); errors.Unwrap(err) != nil {
		t.Errorf("%v has a cause: %v", err, errors.Unwrap(err))
	}
}
