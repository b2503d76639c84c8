package restic

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
)

// commandCat prints an object of the repository, and fails with a wrong password.
const commandCat = "cat"

// listIDs hands the ids of the repository's objects of a kind on, such as of "packs".
func (u *Uploader) listIDs(ctx context.Context, w *workspace, kind string, found func(id string)) error {
	list := invocation{command: "list", args: append([]string{kind}, lockArgs(w.repository)...), complete: true, stdout: func(line []byte) {
		if snapshotID.Match(line) {
			found(string(line))
		}
	}}
	if err := u.run(ctx, w, list); err != nil {
		return fmt.Errorf("list the %s: %w", kind, err)
	}
	return nil
}

// readObject reads one of the repository's objects that are JSON into value.
func (u *Uploader) readObject(ctx context.Context, w *workspace, value any, object ...string) error {
	var content bytes.Buffer
	read := invocation{command: commandCat, args: append(object, lockArgs(w.repository)...), stdout: func(line []byte) { content.Write(line) }}
	if err := u.run(ctx, w, read); err != nil {
		return err
	}
	return json.Unmarshal(content.Bytes(), value)
}
