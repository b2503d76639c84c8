package kopiaworker

import (
	"context"
	"sync"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/content"
	"github.com/kopia/kopia/repo/object"
)

const (
	// smallContent is what is read together with others, in bytes: kopia asks the storage for each content by itself, and keeps each in a
	// file of its cache, which takes longer than to read it.
	smallContent = 256 << 10
	// contentsBeforePack is how many small contents of a pack are read one by one, until all of the pack is (about 20 MB): as many requests
	// take about as long.
	contentsBeforePack = 64
)

// packCounter counts the small contents that are needed of each pack. How many that will be is not known beforehand: where a snapshot has few of
// each of many packs, each is read one by one.
type packCounter struct {
	mu    sync.Mutex
	packs map[blob.ID]*packNeed
}

// packNeed is what was needed of a pack.
type packNeed struct{ contents, next int }

// isDue counts a content, and reports whether its pack is to be fetched now. It may have been dropped by then: each further time
// takes twice as many contents, so that packs that push each other out are not fetched all the time.
func (c *packCounter) isDue(pack blob.ID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	need := c.packs[pack]
	if need == nil {
		if c.packs == nil {
			c.packs = map[blob.ID]*packNeed{}
		}
		need = &packNeed{next: contentsBeforePack}
		c.packs[pack] = need
	}
	need.contents++
	if need.contents < need.next {
		return false
	}
	need.next *= 2
	return true
}

// packFetcher has kopia fetch whole packs into its cache of which many small contents are needed.
type packFetcher struct {
	packCounter

	repository repo.DirectRepository
	fetching   sync.Mutex // one pack at a time is in memory
}

func newPackFetcher(r repo.DirectRepository) *packFetcher { return &packFetcher{repository: r} }

// expect is called before an object is read. What goes wrong here the reading itself finds.
func (f *packFetcher) expect(ctx context.Context, id object.ID) {
	name, _, ok := id.ContentID()
	if !ok { // a large object, of several contents
		return
	}
	info, err := f.repository.ContentReader().ContentInfo(ctx, name)
	if err != nil || info.PackedLength > smallContent || !f.isDue(info.PackBlobID) {
		return
	}
	f.fetching.Lock()
	defer f.fetching.Unlock()
	// kopia holds it in memory twice while it writes it to its cache.
	if pack, err := f.repository.BlobReader().GetMetadata(ctx, info.PackBlobID); err != nil || pack.Length > maxKeptPack {
		return
	}
	f.repository.PrefetchContents(ctx, []content.ID{name}, "blobs")
}
