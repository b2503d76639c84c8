package backupstore

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/validation"
)

// ArchiveOptions bound what reading an archive may take. Zero values stand for the defaults.
type ArchiveOptions struct {
	// Dir is where the temporary file is made, os.TempDir by default. It takes as much space as the items do unpacked, and
	// goes with the process, whichever way that ends.
	Dir string
	// MaxItemBytes is the size of the largest item: 16 MiB by default, while API servers take about 3.
	MaxItemBytes int64
	// MaxBytes is the size of the whole archive, unpacked: 16 GiB by default.
	MaxBytes int64
	// MaxEntries is the number of its entries: two million by default. Each item takes about 100 bytes of memory, and its name.
	MaxEntries int
	// MaxNameBytes is the size of all items' names: 256 MiB by default. It is memory.
	MaxNameBytes int64
}

// maxNameBytes is the size of the longest name of an item. Most kinds allow 253; those whose names need only be a segment of
// a path, such as ClusterRoles, set no limit.
const maxNameBytes = 1024

func (o ArchiveOptions) withDefaults() ArchiveOptions {
	if o.MaxItemBytes == 0 {
		o.MaxItemBytes = 16 << 20
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = 16 << 30
	}
	if o.MaxEntries == 0 {
		o.MaxEntries = 2_000_000
	}
	if o.MaxNameBytes == 0 {
		o.MaxNameBytes = 256 << 20
	}
	return o
}

// OpenArchive reads an archive as Velero makes it, a packed tar file, from r: its items go into a temporary file, and
// what stays in memory are their names. Errors call it key. The archive must be whole. An archive that holds anything but
// files and directories, or names that lead out of it, is ErrDamaged, one beyond the options ErrTooLarge. No name in it
// becomes the name of a file.
func OpenArchive(ctx context.Context, key string, r io.Reader, options ArchiveOptions) (*Archive, error) {
	spool, err := newSpool(options.Dir)
	if err != nil {
		return nil, fmt.Errorf("unpack %s: %w", key, err)
	}
	x := &indexer{
		key: key, options: options.withDefaults(), spool: bufio.NewWriterSize(spool, 1<<20),
		names: map[string]string{}, resources: map[string]*Resource{}, archive: &Archive{key: key, spool: spool},
	}
	if err := x.read(ctx, r); err != nil {
		_ = spool.Close()
		return nil, err
	}
	return x.archive, nil
}

// newSpool makes a file without a name: it goes when it is closed, or the process ends.
func newSpool(dir string) (*os.File, error) {
	spool, err := os.CreateTemp(dir, "plimsoll-archive-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(spool.Name()); err != nil {
		return nil, errors.Join(err, spool.Close())
	}
	return spool, nil
}

// indexer makes an Archive from a stream.
type indexer struct {
	key       string
	options   ArchiveOptions
	spool     *bufio.Writer
	spooled   int64
	entries   int
	named     int64             // bytes of the items' names
	names     map[string]string // each resource and namespace once
	resources map[string]*Resource
	archive   *Archive
}

func (x *indexer) read(ctx context.Context, raw io.Reader) error {
	begin := bufio.NewReader(raw)
	if _, err := begin.Peek(1); errors.Is(err, io.EOF) {
		return damaged(x.key, "it is empty")
	}
	content, err := unpack(x.key, begin)
	if err != nil {
		return err
	}
	stream := &bounded{ctx: ctx, r: content, left: x.options.MaxBytes, limit: x.tooLarge("unpacked, more than %d bytes", x.options.MaxBytes)}
	if err := x.readEntries(tar.NewReader(stream)); err != nil {
		if stream.err != nil {
			return stream.err
		}
		return err
	}
	// Only the end of the stream has the checksum, and tells whether it is the end.
	if _, err := io.Copy(io.Discard, stream); err != nil {
		return err
	}
	if err := x.spool.Flush(); err != nil {
		return fmt.Errorf("unpack %s: %w", x.key, err)
	}
	x.finish()
	return nil
}

func (x *indexer) readEntries(entries *tar.Reader) error {
	for {
		header, err := entries.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, io.ErrUnexpectedEOF):
			return damaged(x.key, "it is cut off: %w", err)
		case err != nil:
			return damaged(x.key, "it is no tar file: %w", err)
		}
		if x.entries++; x.entries > x.options.MaxEntries {
			return x.tooLarge("more than %d entries", x.options.MaxEntries)
		}
		if err := x.add(header, entries); err != nil {
			return err
		}
	}
}

func (x *indexer) tooLarge(format string, args ...any) error {
	return fmt.Errorf("%s: %w: %s", x.key, ErrTooLarge, fmt.Sprintf(format, args...))
}

// add takes one entry in.
func (x *indexer) add(header *tar.Header, content io.Reader) error {
	if header.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if !filepath.IsLocal(header.Name) || slices.Contains(strings.Split(header.Name, "/"), "..") {
		return damaged(x.key, "entry %.200q leads out of the archive", header.Name)
	}
	switch header.Typeflag {
	case tar.TypeDir:
		return nil
	case tar.TypeReg:
	default:
		return damaged(x.key, "entry %.200q is neither a file nor a directory (type %q)", header.Name, header.Typeflag)
	}
	// People who have packed a backup again by hand have "./" before each name.
	name := path.Clean(header.Name)
	if name == "metadata/version" {
		return x.readVersion(content)
	}
	place, ok := parsePlace(name)
	switch {
	case !ok:
		x.warn("entry %.200q is none of a backup's, and is ignored", header.Name)
		return nil
	case place.version != "":
		x.addVersion(place)
		return nil
	default:
		return x.addItem(place, header, content)
	}
}

// readVersion reads the layout's version: 1 from Velero before 1.4, then 1.1.0.
func (x *indexer) readVersion(content io.Reader) error {
	const longest = 64
	text, err := io.ReadAll(io.LimitReader(content, longest))
	if err != nil {
		return damaged(x.key, "metadata/version: %w", err)
	}
	x.archive.format = strings.TrimSpace(string(text))
	if major, _, _ := strings.Cut(x.archive.format, "."); major != "1" {
		return damaged(x.key, "its format is %q, want 1 or 1.1.0", x.archive.format)
	}
	return nil
}

func (x *indexer) addItem(p place, header *tar.Header, content io.Reader) error {
	x.named += int64(len(p.name))
	switch {
	case len(p.name) > maxNameBytes:
		return x.tooLarge("the name of item %.200q has %d bytes, the most is %d", header.Name, len(p.name), maxNameBytes)
	case x.named > x.options.MaxNameBytes:
		return x.tooLarge("the names of the items have more than %d bytes", x.options.MaxNameBytes)
	case header.Size > x.options.MaxItemBytes:
		return x.tooLarge("item %.200q has %d bytes, the most is %d", header.Name, header.Size, x.options.MaxItemBytes)
	case x.spooled+header.Size > x.options.MaxBytes: // what a sparse entry unpacks to does not come from the stream
		return x.tooLarge("the items have more than %d bytes", x.options.MaxBytes)
	}
	if _, err := io.CopyN(x.spool, content, header.Size); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return damaged(x.key, "it is cut off in item %.200q", header.Name)
		}
		return fmt.Errorf("unpack %s: item %.200q: %w", x.key, header.Name, err)
	}
	x.archive.items = append(x.archive.items, Item{
		Resource: x.once(p.resource), Namespace: x.once(p.namespace), Name: strings.Clone(p.name), offset: x.spooled, size: header.Size,
	})
	x.spooled += header.Size
	x.resource(p.resource).Items++
	return nil
}

// maxVersions is how many versions of a resource are looked at.
const maxVersions = 100

// addVersion notes that a resource was stored in some version. The content is the same as that of the item or, of other
// versions, not what Velero restores by default.
func (x *indexer) addVersion(p place) {
	r := x.resource(p.resource)
	version, preferred := strings.CutSuffix(p.version, "-preferredversion")
	if preferred {
		r.PreferredVersion = strings.Clone(version)
	}
	switch {
	case slices.Contains(r.Versions, version):
	case len(r.Versions) == maxVersions:
		x.warn("resource %s is there in more than %d versions, and the others are ignored", p.resource, maxVersions)
	default:
		r.Versions = append(r.Versions, strings.Clone(version))
	}
}

func (x *indexer) resource(name string) *Resource {
	r := x.resources[name]
	if r == nil {
		r = &Resource{Name: name}
		x.resources[name] = r
	}
	return r
}

func (x *indexer) once(name string) string {
	known, ok := x.names[name]
	if !ok {
		known = strings.Clone(name)
		x.names[known] = known
	}
	return known
}

// maxWarnings keeps the memory that warnings take within bounds.
const maxWarnings = 100

func (x *indexer) warn(format string, args ...any) {
	x.archive.warned++
	if len(x.archive.warnings) < maxWarnings {
		x.archive.warnings = append(x.archive.warnings, fmt.Sprintf(format, args...))
	}
}

// finish sorts the items and drops all but the last of those that are there more than once, as unpacking would.
func (x *indexer) finish() {
	a := x.archive
	slices.SortStableFunc(a.items, Item.compare)
	kept := a.items[:0]
	for i, item := range a.items {
		if i+1 < len(a.items) && item.compare(a.items[i+1]) == 0 {
			x.warn("item %s is there more than once: the last one counts", item)
			x.resource(item.Resource).Items--
			continue
		}
		kept = append(kept, item)
	}
	a.items = kept
	for _, r := range x.resources {
		slices.Sort(r.Versions)
		if r.Items == 0 && len(r.Versions) > 0 {
			x.warn("resource %s is there in its versions %s only, and is ignored", r.Name, strings.Join(r.Versions, ", "))
			continue
		}
		a.resources = append(a.resources, *r)
	}
	slices.SortFunc(a.resources, func(a, b Resource) int { return strings.Compare(a.Name, b.Name) })
	slices.Sort(a.warnings)
	if more := a.warned - len(a.warnings); more > 0 {
		a.warnings = append(a.warnings, fmt.Sprintf("%d more warnings like these", more))
	}
}

// place is where an entry lies:
//
//	resources/<resource>/[<version>/]cluster/<name>.json
//	resources/<resource>/[<version>/]namespaces/<namespace>/<name>.json
type place struct{ resource, version, namespace, name string }

// parsePlace returns false for what is no place of an item.
func parsePlace(entry string) (place, bool) {
	parts := strings.Split(entry, "/")
	const fewest = 4
	if len(parts) < fewest || parts[0] != "resources" {
		return place{}, false
	}
	p := place{resource: parts[1]}
	scope := parts[2:]
	if scope[0] != "cluster" && scope[0] != "namespaces" {
		p.version, scope = scope[0], scope[1:]
		if len(validation.IsDNS1123Label(p.version)) > 0 {
			return place{}, false
		}
	}
	switch {
	case len(scope) == 2 && scope[0] == "cluster":
	case len(scope) == 3 && scope[0] == "namespaces" && len(validation.IsDNS1123Label(scope[1])) == 0:
		p.namespace = scope[1]
	default:
		return place{}, false
	}
	var ok bool
	p.name, ok = strings.CutSuffix(scope[len(scope)-1], ".json")
	ok = ok && p.name != "" && len(content.IsPathSegmentName(p.name)) == 0 && len(validation.IsDNS1123Subdomain(p.resource)) == 0
	return p, ok
}

// bounded reads until limit, and remembers why it stopped.
type bounded struct {
	ctx   context.Context //nolint:containedctx // a reader has no other place for it, and lives as long as one call
	r     io.Reader
	left  int64
	limit error
	err   error
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	if b.ctx.Err() != nil {
		b.err = context.Cause(b.ctx)
		return 0, b.err
	}
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.r.Read(p)
	b.left -= int64(n)
	switch {
	case b.left < 0:
		n, b.err = 0, b.limit
	case err != nil && !errors.Is(err, io.EOF):
		b.err = err
	default:
		return n, err
	}
	return n, b.err
}
