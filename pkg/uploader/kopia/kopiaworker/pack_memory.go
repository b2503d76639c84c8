package kopiaworker

import (
	"bytes"
	"context"
	"sync"

	"github.com/kopia/kopia/repo/blob"
)

const (
	// keptPacks is how many packs are in memory: files are read at the same time, and some of them are in the next pack already.
	keptPacks = 2
	// maxKeptPack bounds the size of each, in bytes. kopia begins a new pack after 20 MB, unless the repository has another limit.
	maxKeptPack = 32 << 20
)

// packMemory reads whole packs of which many small contents are needed where kopia has no cache, as when it verifies. It is safe for concurrent
// use.
type packMemory struct {
	packCounter

	fetching sync.Mutex // one pack at a time

	keptMu sync.Mutex
	kept   []keptPack // the one that was fetched last at the end
}

type keptPack struct {
	id   blob.ID
	data []byte
}

// read writes a part of a pack to output, or reports that it is to be read from the storage. What goes wrong here the storage tells then.
func (m *packMemory) read(ctx context.Context, storage *metered, id blob.ID, offset, length int64, output blob.OutputBuffer) bool {
	if m == nil || length < 0 || length > smallContent || !isPack(id) {
		return false
	}
	if m.copy(id, offset, length, output) {
		return true
	}
	if !m.isDue(id) {
		return false
	}
	m.fetching.Lock()
	defer m.fetching.Unlock()
	if m.copy(id, offset, length, output) { // another reader was first
		return true
	}
	metadata, err := storage.GetMetadata(ctx, id)
	if err != nil || metadata.Length > maxKeptPack {
		return false
	}
	var whole wholePack
	whole.Grow(int(metadata.Length))
	if storage.download(ctx, id, 0, -1, &whole) != nil || int64(whole.Len()) != metadata.Length {
		return false
	}
	m.keep(keptPack{id, whole.Bytes()})
	return m.copy(id, offset, length, output)
}

// copy writes a part of a pack that is kept to output.
func (m *packMemory) copy(id blob.ID, offset, length int64, output blob.OutputBuffer) bool {
	m.keptMu.Lock()
	defer m.keptMu.Unlock()
	for _, pack := range m.kept {
		if pack.id == id && offset >= 0 && offset+length <= int64(len(pack.data)) {
			output.Reset()
			_, err := output.Write(pack.data[offset : offset+length])
			return err == nil
		}
	}
	return false
}

func (m *packMemory) keep(pack keptPack) {
	m.keptMu.Lock()
	defer m.keptMu.Unlock()
	if len(m.kept) == keptPacks {
		m.kept = m.kept[1:]
	}
	m.kept = append(m.kept, pack)
}

// wholePack takes all of a pack.
type wholePack struct{ bytes.Buffer }

// Length returns how many bytes it has.
func (p *wholePack) Length() int { return p.Len() }
