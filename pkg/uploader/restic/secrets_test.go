package restic

import (
	"strings"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// TestErrorsOfFilesHideSecrets: what restic cannot read from the repository it names with the address, signature included.
func TestErrorsOfFilesHideSecrets(t *testing.T) {
	t.Parallel()
	u, _ := newFake(t, Options{})
	var last progress.Reading
	_, err := u.Backup(t.Context(), uploader.BackupRequest{
		Repository: scripted(
			`err {"message_type":"error","error":{"message":"Get https://a.blob/c/data?se=1&sig=SIGNATURE: refused"},"during":"archival","item":"/a"}`,
			"err Fatal: Get https://a.blob/c/data?se=1&sig=SIGNATURE: refused", "exit 1"),
		Volume: volumeOf(t, 1),
	}, progress.SinkFunc(func(r progress.Reading) { last = r }))
	if err == nil || strings.Contains(err.Error(), "SIGNATURE") || !strings.Contains(err.Error(), "sig=******: refused") {
		t.Errorf("the error is %v", err)
	}
	if last.Errors != 1 || strings.Contains(last.LastError, "SIGNATURE") || !strings.Contains(last.LastError, "sig=******: refused") {
		t.Errorf("%d errors, the last one: %s", last.Errors, last.LastError)
	}
}
