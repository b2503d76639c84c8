package kopia

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// TestOutputHidesSecrets: what kopia says to the log and of files may hold addresses that are signed.
func TestOutputHidesSecrets(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	var last progress.Reading
	o := output{
		sink:   progress.SinkFunc(func(r progress.Reading) { last = r }),
		logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		hide:   uploader.Repository{Password: "static-passw0rd"}.Hider(),
		stop:   func(cause error) { t.Error(cause) },
	}
	const text = `Get https://a.blob/c/p1?sp=rl&sig=SIGNATURE: static-passw0rd`
	for _, line := range []string{
		`{"note":{"level":"WARN","text":"` + text + `"}}`, `{"note":{"level":"INFO","text":"` + text + `"}}`,
		`{"reading":{"LastError":"` + text + `"}}`,
	} {
		o.line([]byte(line))
	}
	said := log.String() + last.LastError
	if strings.Contains(said, "SIGNATURE") || strings.Contains(said, "passw0rd") {
		t.Errorf("secrets in: %s", said)
	}
	if n := strings.Count(said, "sig=******: ******"); n != 3 {
		t.Errorf("%d texts of 3 in: %s", n, said)
	}
}
