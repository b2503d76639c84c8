package backupstore

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/vmware-tanzu/velero/pkg/itemoperation"
)

// Restore is the directory of a restore, which need not exist. Its name is the restore's alone: two clusters that share a
// bucket share the directory of restores of one name, so a controller looks whether there are Files before it begins.
//
// Writing replaces what was there, whole or not at all. In a read-only location it gives ErrReadOnly.
type Restore struct {
	directory

	name string
}

// Restore returns the restore of that name, or ErrInvalidName. Nothing is sent.
func (s *Store) Restore(name string) (Restore, error) {
	d, err := s.open(restoresDirectory, name)
	return Restore{directory: d, name: name}, err
}

// Name is the restore's name.
func (r Restore) Name() string { return r.name }

// Files lists what is kept of the restore; nothing if there is none.
func (r Restore) Files(ctx context.Context) ([]File, error) { return r.files(ctx) }

// Delete deletes everything that is kept of the restore. Where there is nothing, or it has gone in the meantime, it
// succeeds.
func (r Restore) Delete(ctx context.Context) error { return r.remove(ctx) }

// The files of a restore. The last one lacks the prefix of the others in Velero, too.
func (r Restore) logFile() string { return "restore-" + r.name + "-logs.gz" }

func (r Restore) resultsFile() string { return "restore-" + r.name + "-results.gz" }

func (r Restore) resourceListFile() string { return "restore-" + r.name + "-resource-list.json.gz" }

func (r Restore) itemOperationsFile() string {
	return "restore-" + r.name + "-itemoperations.json.gz"
}

func (r Restore) volumeInfoFile() string { return r.name + "-volumeinfo.json.gz" }

// PutLog stores the log, which is read to its end.
func (r Restore) PutLog(ctx context.Context, log io.Reader) error {
	return r.putPacked(ctx, r.logFile(), func(w io.Writer) error {
		_, err := io.Copy(w, log)
		return err
	})
}

// PutResults stores warnings and errors.
func (r Restore) PutResults(ctx context.Context, results Results) error {
	return r.put(ctx, r.resultsFile(), results)
}

// PutResourceList stores what became of the items: names with what was done, such as "shop/web(created)", for each group
// version and kind, such as "apps/v1/Deployment".
func (r Restore) PutResourceList(ctx context.Context, list map[string][]string) error {
	return r.put(ctx, r.resourceListFile(), list)
}

// PutItemOperations stores the asynchronous operations; without any, an empty list, as Velero does.
func (r Restore) PutItemOperations(ctx context.Context, operations []itemoperation.RestoreOperation) error {
	if operations == nil {
		operations = []itemoperation.RestoreOperation{}
	}
	return r.put(ctx, r.itemOperationsFile(), operations)
}

// PutVolumeInfos stores how the volumes were restored: value is encoded as a JSON array.
func (r Restore) PutVolumeInfos(ctx context.Context, value any) error {
	return r.put(ctx, r.volumeInfoFile(), value)
}

// put stores a value as Velero encodes it: JSON and a newline in one gzip member.
func (d directory) put(ctx context.Context, file string, value any) error {
	return d.putPacked(ctx, file, func(w io.Writer) error {
		return json.NewEncoder(w).Encode(value)
	})
}

// putPacked stores what fill writes, packed.
func (d directory) putPacked(ctx context.Context, file string, fill func(io.Writer) error) error {
	if d.store.readOnly {
		return fmt.Errorf("write %s: %w", d.key(file), ErrReadOnly)
	}
	return d.store.bucket.write(ctx, d.key(file), func(w io.Writer) error {
		packer := gzip.NewWriter(w)
		if err := fill(packer); err != nil {
			return err
		}
		return packer.Close()
	})
}
