package backupstore_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// openArchive indexes an archive and fails the test if that leaves a file.
func openArchive(t *testing.T, packed []byte, options backupstore.ArchiveOptions) (*backupstore.Archive, error) {
	t.Helper()
	options.Dir = t.TempDir()
	a, err := backupstore.OpenArchive(t.Context(), "archive", bytes.NewReader(packed), options)
	if left, readErr := os.ReadDir(options.Dir); readErr != nil || len(left) > 0 {
		t.Errorf("left in the temporary directory: %v, %v", left, readErr)
	}
	if err == nil {
		t.Cleanup(func() { _ = a.Close() })
	}
	return a, err
}

func mustOpenArchive(t *testing.T, entries ...tarEntry) *backupstore.Archive {
	t.Helper()
	a, err := openArchive(t, archive(entries...), backupstore.ArchiveOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func names(a *backupstore.Archive) []string {
	var all []string
	for item := range a.Items() {
		all = append(all, item.String())
	}
	return all
}

func TestArchiveGoldens(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]struct {
		format    string
		items     []string
		resources []backupstore.Resource
	}{
		"1.0": {
			"1",
			[]string{"resources/namespaces/cluster/shop.json", "resources/pods/namespaces/shop/web.json"},
			[]backupstore.Resource{{Name: "namespaces", Items: 1}, {Name: "pods", Items: 1}},
		},
		"1.18": {
			"1.1.0",
			[]string{
				"resources/deployments.apps/namespaces/shop/web.json", "resources/namespaces/cluster/shop.json", "resources/pods/namespaces/shop/web.json",
			},
			[]backupstore.Resource{
				{Name: "deployments.apps", Items: 1, PreferredVersion: "v1", Versions: []string{"v1", "v1beta1"}},
				{Name: "namespaces", Items: 1, PreferredVersion: "v1", Versions: []string{"v1"}},
				{Name: "pods", Items: 1, PreferredVersion: "v1", Versions: []string{"v1"}},
			},
		},
	} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			a := mustOpenArchive(t, goldens[version].entries...)
			equal(t, "format", want.format, a.FormatVersion())
			equal(t, "items", want.items, names(a))
			equal(t, "resources", want.resources, a.Resources())
			equal(t, "warnings", []string(nil), a.Warnings())
			for item := range a.Items() {
				object, err := a.Object(item)
				if err != nil {
					t.Error(err)
					continue
				}
				if object.GetName() != item.Name || object.GetNamespace() != item.Namespace {
					t.Errorf("%s is %s/%s", item, object.GetNamespace(), object.GetName())
				}
			}
		})
	}
}

func TestArchiveKeepsLargeNumbers(t *testing.T) {
	t.Parallel()
	a := mustOpenArchive(t, versioned...)
	item, ok := a.Find("deployments.apps", "shop", "web")
	if !ok {
		t.Fatal("not found")
	}
	object, err := a.Object(item)
	if err != nil {
		t.Fatal(err)
	}
	if object.GetGeneration() != 9007199254740993 {
		t.Errorf("generation is %d", object.GetGeneration())
	}
}

func TestArchiveItems(t *testing.T) {
	t.Parallel()
	var entries []tarEntry
	for _, name := range []string{"b", "a", "c"} {
		for _, namespace := range []string{"y", "x"} {
			for _, resource := range []string{"pods", "configmaps", "pods.example.com"} {
				entries = append(entries, tarEntry{name: fmt.Sprintf("resources/%s/namespaces/%s/%s.json", resource, namespace, name)})
			}
		}
		entries = append(entries, tarEntry{name: "resources/nodes/cluster/" + name + ".json"})
	}
	a := mustOpenArchive(t, entries...)
	all := names(a)
	if a.Len() != len(entries) || len(all) != len(entries) {
		t.Errorf("%d items, %d listed, want %d", a.Len(), len(all), len(entries))
	}
	var pods []string
	for item := range a.ItemsOf("pods") {
		pods = append(pods, item.Namespace+"/"+item.Name)
	}
	equal(t, "pods", []string{"x/a", "x/b", "x/c", "y/a", "y/b", "y/c"}, pods)
	for item := range a.ItemsOf("none") {
		t.Errorf("there is %s", item)
	}
	slices.Reverse(entries)
	equal(t, "items of the archive the other way round", all, names(mustOpenArchive(t, entries...)))
	if _, ok := a.Find("pods", "x", "d"); ok {
		t.Error("found what is not there")
	}
}

// What people and other programs do to archives.
func TestArchiveOdd(t *testing.T) {
	t.Parallel()
	pod := tarEntry{name: "resources/pods/namespaces/shop/web.json", content: podJSON}
	newer := tarEntry{name: pod.name, content: strings.ReplaceAll(podJSON, `"Pod"`, `"Pod","newer":true`)}
	for name, test := range map[string]struct {
		entries []tarEntry
		items   int
		warns   string
	}{
		"nothing":                   {nil, 0, ""},
		"no resources":              {[]tarEntry{{name: "metadata/version", content: "1.1.0\n"}}, 0, ""},
		"no version":                {[]tarEntry{pod}, 1, ""},
		"a later 1.x":               {[]tarEntry{pod, {name: "metadata/version", content: "1.2"}}, 1, ""},
		"packed again by hand":      {[]tarEntry{{name: "./", kind: tar.TypeDir}, {name: "./resources", kind: tar.TypeDir}, {name: "./" + pod.name, content: podJSON}}, 1, ""},
		"twice":                     {[]tarEntry{pod, newer}, 1, "more than once"},
		"twice, spelled apart":      {[]tarEntry{pod, {name: "./" + pod.name, content: newer.content}}, 1, "more than once"},
		"a file beside":             {[]tarEntry{pod, {name: "README"}, {name: "resources/README"}}, 1, "README"},
		"a name with a colon":       {[]tarEntry{{name: "resources/clusterroles.rbac.authorization.k8s.io/cluster/system:node.json"}}, 1, ""},
		"an unfit name":             {[]tarEntry{pod, {name: "resources/pods/namespaces/shop/a%2fb.json"}}, 1, "a%2fb"},
		"an unfit namespace":        {[]tarEntry{pod, {name: "resources/pods/namespaces/No_Name/a.json"}}, 1, "No_Name"},
		"an unfit resource":         {[]tarEntry{pod, {name: "resources/PODS/namespaces/shop/a.json"}}, 1, "PODS"},
		"no name":                   {[]tarEntry{pod, {name: "resources/pods/cluster/.json"}}, 1, ".json"},
		"too deep":                  {[]tarEntry{pod, {name: "resources/pods/v1/v2/cluster/a.json"}}, 1, "v1/v2"},
		"only a version's copy":     {[]tarEntry{{name: "resources/pods/v1-preferredversion/namespaces/shop/web.json", content: podJSON}}, 0, "pods"},
		"a global header":           {[]tarEntry{{name: "pax_global_header", kind: tar.TypeXGlobalHeader}, pod}, 1, ""},
		"a version with whitespace": {[]tarEntry{pod, {name: "metadata/version", content: " 1 \n"}}, 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := mustOpenArchive(t, test.entries...)
			if a.Len() != test.items || len(names(a)) != test.items {
				t.Errorf("%d items: %v, want %d", a.Len(), names(a), test.items)
			}
			warnings := strings.Join(a.Warnings(), "\n")
			if test.warns == "" && warnings != "" || !strings.Contains(warnings, test.warns) {
				t.Errorf("warnings %q, want %q", warnings, test.warns)
			}
			sum := 0
			for _, r := range a.Resources() {
				sum += r.Items
			}
			if sum != test.items {
				t.Errorf("%d items by resource, want %d", sum, test.items)
			}
		})
	}
	a := mustOpenArchive(t, pod, newer, tarEntry{name: "resources/pods/namespaces/shop/other.json"})
	item, _ := a.Find("pods", "shop", "web")
	if data, err := a.Read(item); err != nil || string(data) != newer.content {
		t.Errorf("got %s, %v, want the last of two entries", data, err)
	}
}

func TestArchiveWarningsAreBounded(t *testing.T) {
	t.Parallel()
	var entries []tarEntry
	for i := range 1000 {
		entries = append(entries, tarEntry{name: fmt.Sprintf("junk-%d", i)})
	}
	warnings := mustOpenArchive(t, entries...).Warnings()
	if len(warnings) != 101 || warnings[100] != "900 more warnings like these" {
		t.Errorf("%d warnings, the last one %q", len(warnings), warnings[len(warnings)-1])
	}
}

func TestArchiveHostile(t *testing.T) {
	t.Parallel()
	pod := tarEntry{name: "resources/pods/namespaces/shop/web.json", content: podJSON}
	long := archive(pod, tarEntry{name: "resources/pods/namespaces/shop/long.json", content: strings.Repeat("velero", 100_000)})
	plain := plainArchive(pod)
	for name, test := range map[string]struct {
		packed []byte
		err    error
		says   string
	}{
		"path out":               {archive(pod, tarEntry{name: "../../etc/cron.d/x"}), backupstore.ErrDamaged, "../../etc/cron.d/x"},
		"path out and in":        {archive(tarEntry{name: "../resources/pods/cluster/x.json"}), backupstore.ErrDamaged, "leads out"},
		"dots inside":            {archive(tarEntry{name: "resources/pods/../secrets/cluster/x.json"}), backupstore.ErrDamaged, "leads out"},
		"absolute path":          {archive(tarEntry{name: "/etc/passwd"}), backupstore.ErrDamaged, "/etc/passwd"},
		"directory out":          {archive(tarEntry{name: "../x/", kind: tar.TypeDir}), backupstore.ErrDamaged, "leads out"},
		"symbolic link":          {archive(tarEntry{name: "resources/pods/cluster/x.json", kind: tar.TypeSymlink}), backupstore.ErrDamaged, "neither"},
		"hard link":              {archive(tarEntry{name: "resources/pods/cluster/x.json", kind: tar.TypeLink}), backupstore.ErrDamaged, "neither"},
		"named pipe":             {archive(tarEntry{name: "resources/pods/cluster/x.json", kind: tar.TypeFifo}), backupstore.ErrDamaged, "neither"},
		"device":                 {archive(tarEntry{name: "resources/pods/cluster/x.json", kind: tar.TypeBlock}), backupstore.ErrDamaged, "neither"},
		"of a later Velero":      {archive(tarEntry{name: "metadata/version", content: "2.0.0"}), backupstore.ErrDamaged, "2.0.0"},
		"an endless version":     {archive(tarEntry{name: "metadata/version", content: strings.Repeat("1", 1<<20)}), backupstore.ErrDamaged, "format"},
		"empty object":           {nil, backupstore.ErrDamaged, "empty"},
		"not packed":             {plain, backupstore.ErrDamaged, "gzip"},
		"not tar":                {pack(strings.Repeat("no tar ", 1000)), backupstore.ErrDamaged, "no tar file"},
		"cut off in an item":     {long[:len(long)/2], backupstore.ErrDamaged, "cut off"},
		"cut off before the end": {long[:len(long)-1], backupstore.ErrDamaged, "cut off"},
		"tar cut off in an item": {pack(string(plain[:700][:512+10])), backupstore.ErrDamaged, "cut off"},
		"tar cut off in a header": {
			pack(string(plain[:100])), backupstore.ErrDamaged, "cut off",
		},
		"wrong checksum":    {append(slices.Clone(long[:len(long)-8]), 1, 2, 3, 4, 5, 6, 7, 8), backupstore.ErrDamaged, "checksum"},
		"garbage behind it": {append(slices.Clone(long), "garbage behind it"...), backupstore.ErrDamaged, "gzip"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := openArchive(t, test.packed, backupstore.ArchiveOptions{})
			wantError(t, err, test.err, test.says)
		})
	}
}

func TestArchiveLimits(t *testing.T) {
	t.Parallel()
	item := func(name string, size int) tarEntry {
		return tarEntry{name: "resources/pods/namespaces/shop/" + name + ".json", content: strings.Repeat(" ", size)}
	}
	for name, test := range map[string]struct {
		entries []tarEntry
		options backupstore.ArchiveOptions
		says    string
	}{
		"an item":             {[]tarEntry{item("a", 1001)}, backupstore.ArchiveOptions{MaxItemBytes: 1000}, "shop/a.json"},
		"an item, by default": {[]tarEntry{item("a", 16<<20+1)}, backupstore.ArchiveOptions{}, "16777216"},
		"entries":             {[]tarEntry{item("a", 0), item("b", 0), {name: "x"}}, backupstore.ArchiveOptions{MaxEntries: 2}, "2 entries"},
		"the whole":           {[]tarEntry{item("a", 3000), item("b", 3000)}, backupstore.ArchiveOptions{MaxBytes: 5000}, "5000"},
		"names":               {[]tarEntry{item("aaa", 0), item("bbb", 0)}, backupstore.ArchiveOptions{MaxNameBytes: 5}, "5 bytes"},
		"a name":              {[]tarEntry{item(strings.Repeat("a", 1<<19), 0)}, backupstore.ArchiveOptions{}, "the name of item"},
		"what is not looked at": {
			[]tarEntry{{name: "junk", content: strings.Repeat(" ", 100_000)}}, backupstore.ArchiveOptions{MaxBytes: 50_000}, "50000",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := openArchive(t, archive(test.entries...), test.options)
			wantError(t, err, backupstore.ErrTooLarge, test.says)
			if len(err.Error()) > 500 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
		})
	}
	// A ClusterRole may be called that.
	role := strings.Repeat("system:", 140)
	if a := mustOpenArchive(t, tarEntry{name: "resources/clusterroles.rbac.authorization.k8s.io/cluster/" + role + ".json"}); a.Len() != 1 {
		t.Error("a long name is not taken")
	}
	// At the limit is within it.
	a, err := openArchive(t, archive(item("a", 1000), item("b", 1000)), backupstore.ArchiveOptions{MaxItemBytes: 1000, MaxEntries: 2, MaxBytes: 5120})
	if err != nil || a.Len() != 2 {
		t.Errorf("at the limits: %v", err)
	}
}

// TestArchiveVersions has more versions of a resource than there can be, and one that is none.
func TestArchiveVersions(t *testing.T) {
	t.Parallel()
	entries := []tarEntry{{name: "resources/pods/cluster/x.json"}, {name: "resources/pods/" + strings.Repeat("v", 64) + "/cluster/x.json"}}
	for i := range 300 {
		entries = append(entries, tarEntry{name: fmt.Sprintf("resources/pods/v%d/cluster/x.json", i)})
	}
	a := mustOpenArchive(t, entries...)
	if versions := a.Resources()[0].Versions; len(versions) != 100 || slices.ContainsFunc(versions, func(v string) bool { return len(v) > 63 }) {
		t.Errorf("%d versions", len(versions))
	}
	if warnings := strings.Join(a.Warnings(), "\n"); !strings.Contains(warnings, "more than 100 versions") || !strings.Contains(warnings, "none of a backup's") {
		t.Error(warnings)
	}
}

// TestArchiveObjectTooLarge has items that take much more memory than they have bytes, and one that only looks so.
func TestArchiveObjectTooLarge(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	begin := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","namespace":"shop"},"data":`
	for name, test := range map[string]struct {
		content string
		fits    bool
	}{
		"objects":        {begin + `[` + strings.Repeat(`{"":0},`, 1<<18) + `0]}`, false},
		"empty objects":  {begin + `[` + strings.Repeat(`{},`, 1<<18) + `0]}`, false},
		"lists":          {begin + `[` + strings.Repeat(`[],`, 1<<20) + `0]}`, false},
		"numbers":        {begin + `[` + strings.Repeat(`0,`, 1<<21) + `0]}`, false},
		"behind a quote": {begin + `"\"\\",` + `"x":[` + strings.Repeat(`{},`, 1<<18) + `0]}`, false},
		"text":           {begin + `"` + strings.Repeat(`{\",[`, 1<<20) + `"}`, true},
		"a large object": {begin + `{` + strings.Repeat(`"some-key-of-a-map":{"type":"string","description":"that is what a schema has"},`, 1<<15) + `"a":{}}}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := mustOpenArchive(t, tarEntry{name: "resources/pods/namespaces/shop/web.json", content: test.content})
			item, _ := a.Find("pods", "shop", "web")
			switch _, err := a.Object(item); {
			case !test.fits:
				wantError(t, err, backupstore.ErrTooLarge, item.String())
			case err != nil:
				t.Error(err)
			}
		})
	}
}

// TestArchiveBomb unpacks to much more than it is. It must end at the limit, in memory that does not grow with it.
func TestArchiveBomb(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	zeros := strings.Repeat("\x00", 8<<20)
	bombs := map[string][]byte{
		"behind the end of the tar": pack(string(plainArchive()) + zeros),
		"an ignored entry":          archive(tarEntry{name: "junk", content: zeros}),
		"a copy of a version":       archive(tarEntry{name: "resources/pods/v1/cluster/x.json", content: zeros}),
	}
	for name, packed := range bombs {
		if len(packed) > 1<<20 {
			t.Fatalf("%s: no bomb, with %d bytes", name, len(packed))
		}
		_, err := openArchive(t, packed, backupstore.ArchiveOptions{MaxBytes: 1 << 20})
		wantError(t, err, backupstore.ErrTooLarge, "1048576")
	}
}

func TestArchiveObject(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{
		"no JSON":           "<html>",
		"empty":             "",
		"null":              "null",
		"array":             "[]",
		"no kind":           `{"apiVersion":"v1","metadata":{"name":"web","namespace":"shop"}}`,
		"no version":        `{"kind":"Pod","metadata":{"name":"web","namespace":"shop"}}`,
		"another name":      `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"admin","namespace":"shop"}}`,
		"another namespace": `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","namespace":"kube-system"}}`,
		"no namespace":      `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"}}`,
		"odd metadata":      `{"apiVersion":"v1","kind":"Pod","metadata":[]}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := mustOpenArchive(t, tarEntry{name: "resources/pods/namespaces/shop/web.json", content: content})
			item, ok := a.Find("pods", "shop", "web")
			if !ok {
				t.Fatal("not found")
			}
			_, err := a.Object(item)
			wantError(t, err, backupstore.ErrDamaged, item.String())
			if data, err := a.Read(item); err != nil || string(data) != content || item.Size() != int64(len(content)) {
				t.Errorf("Read: %q, %v, want %q", data, err, content)
			}
		})
	}
}

// brokenReader gives the beginning of an archive, and then an error of the storage.
type brokenReader struct{ r io.Reader }

func (b brokenReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if errors.Is(err, io.EOF) {
		err = errPipe
	}
	return n, err
}

// A connection that breaks is no reason to call a backup damaged.
func TestArchiveStorageFails(t *testing.T) {
	t.Parallel()
	packed := archive(tarEntry{name: "resources/pods/namespaces/shop/a.json", content: strings.Repeat("velero", 100_000)})
	for _, n := range []int{0, 1, 5, 20, len(packed) / 2, len(packed) - 1, len(packed)} {
		_, err := backupstore.OpenArchive(t.Context(), "archive", brokenReader{bytes.NewReader(packed[:n])}, backupstore.ArchiveOptions{Dir: t.TempDir()})
		if !errors.Is(err, errPipe) || errors.Is(err, backupstore.ErrDamaged) {
			t.Errorf("after %d bytes: got %v, want %v only", n, err, errPipe)
		}
	}
}

func TestArchiveNoTemporaryDirectory(t *testing.T) {
	t.Parallel()
	_, err := backupstore.OpenArchive(t.Context(), "archive", bytes.NewReader(archive()), backupstore.ArchiveOptions{Dir: t.TempDir() + "/none"})
	wantError(t, err, os.ErrNotExist, "unpack")
}

func FuzzOpenArchive(f *testing.F) {
	for _, g := range goldens {
		f.Add(plainArchive(g.entries...), false)
		f.Add(archive(g.entries...), true)
	}
	f.Add(plainArchive(tarEntry{name: "../x"}), false)
	f.Add([]byte("1f4\r\n\x1f\x8b"), true)
	f.Fuzz(func(t *testing.T, data []byte, packed bool) {
		if !packed {
			data = pack(string(data))
		}
		dir := t.TempDir()
		a, err := backupstore.OpenArchive(t.Context(), "archive", bytes.NewReader(data), backupstore.ArchiveOptions{
			Dir: dir, MaxItemBytes: 1 << 16, MaxBytes: 1 << 20, MaxEntries: 1000,
		})
		if left, readErr := os.ReadDir(dir); readErr != nil || len(left) > 0 {
			t.Fatalf("left in the temporary directory: %v, %v", left, readErr)
		}
		if err != nil {
			if !errors.Is(err, backupstore.ErrDamaged) && !errors.Is(err, backupstore.ErrTooLarge) {
				t.Fatalf("neither damaged nor too large: %v", err)
			}
			return
		}
		defer a.Close()
		var before backupstore.Item
		n := 0
		for item := range a.Items() {
			if n > 0 && before.String() == item.String() {
				t.Errorf("%s is there twice", item)
			}
			if strings.Contains(item.String(), "..") && strings.Contains(item.String(), "/../") {
				t.Errorf("%s leads somewhere else", item)
			}
			if found, ok := a.Find(item.Resource, item.Namespace, item.Name); !ok || found != item {
				t.Errorf("%s is not found", item)
			}
			if _, err := a.Read(item); err != nil {
				t.Error(err)
			}
			if object, err := a.Object(item); err == nil && object.GetName() != item.Name {
				t.Errorf("%s is %s", item, object.GetName())
			}
			before, n = item, n+1
		}
		if n != a.Len() {
			t.Errorf("%d items, Len %d", n, a.Len())
		}
	})
}

// BenchmarkOpenArchive indexes 10,000 items of 2 KiB, each with its copy of the preferred version, as Velero writes them.
func BenchmarkOpenArchive(b *testing.B) {
	const items = 10_000
	var entries []tarEntry
	for i := range items {
		name := fmt.Sprintf("config-%05d", i)
		content := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"namespace":"shop"},"data":{"k":%q}}`, name, strings.Repeat(name, 128))
		entries = append(entries,
			tarEntry{name: "resources/configmaps/namespaces/shop/" + name + ".json", content: content},
			tarEntry{name: "resources/configmaps/v1-preferredversion/namespaces/shop/" + name + ".json", content: content})
	}
	packed := archive(entries...)
	dir := b.TempDir()
	b.SetBytes(int64(len(packed)))
	b.ReportAllocs()
	for b.Loop() {
		a, err := backupstore.OpenArchive(b.Context(), "archive", bytes.NewReader(packed), backupstore.ArchiveOptions{Dir: dir})
		if err != nil || a.Len() != items {
			b.Fatal(err)
		}
		_ = a.Close()
	}
	b.ReportMetric(float64(items)*float64(b.N)/b.Elapsed().Seconds(), "items/s")
}
