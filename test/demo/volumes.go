package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"github.com/plimsoll-io/plimsoll/test/tree"
)

// app is a pod with its volumes. It is backed up in one namespace and restored into another.
type app struct {
	namespace string
	name      string
	uploader  string // the data path that its volumes take
	volumes   []volume
}

func (a app) volumeNames() []string {
	names := make([]string, 0, len(a.volumes))
	for _, v := range a.volumes {
		names = append(names, v.name)
	}
	return names
}

// volume is one of the pod's volumes.
type volume struct {
	name  string
	csi   bool                                // a claim on a CSI volume; otherwise an emptyDir
	share int64                               // percent of all data
	fill  func(dir string, bytes int64) error // nil leaves it empty
}

// apps returns the pods that the demo backs up: two namespaces and two data paths, thus three repositories. kopia gets the photos,
// which it restores unchanged; it does not keep hard links, and changes names that are not UTF-8. The empty volume has a pod of
// its own, because Velero mounts only volumes with a snapshot in the init container restore-wait.
func apps() []app {
	return []app{
		{"shop", "database", restic, []volume{{name: "data", csi: true, share: 40, fill: fillDatabase}}},
		{"shop", "gallery", kopia, []volume{{name: "photos", share: 30, fill: fillPhotos}}},
		{"office", "mail", restic, []volume{{name: "folders", share: 20, fill: fillMail}, {name: "odd", share: 10, fill: fillOdd}}},
		{"office", "idle", restic, []volume{{name: "empty"}}},
	}
}

// make fills an empty directory with the volume's files: the same ones for the same bytes of data of all volumes.
func (v volume) make(a app, dir string, bytes int64) (content, error) {
	if v.fill == nil {
		return content{}, nil
	}
	if err := v.fill(dir, bytes*v.share/100); err != nil {
		return content{}, fmt.Errorf("fill volume %s: %w", label(a.name, v.name), err)
	}
	if err := tree.SetTimes(dir); err != nil {
		return content{}, fmt.Errorf("fill volume %s: %w", label(a.name, v.name), err)
	}
	return countFiles(dir)
}

// label names a volume in messages.
func label(pod, volume string) string { return pod + "/" + volume }

// fillDatabase makes few big files, one of them mostly a hole, as a database server keeps them: readable by its user only.
func fillDatabase(dir string, bytes int64) error {
	files := map[string]int64{
		"base/16384/1259": bytes * 35 / 100, "base/16384/2619": bytes * 25 / 100, "base/16384/24576": bytes * 20 / 100,
		"pg_wal/000000010000000000000001": bytes * 5 / 100, "pg_wal/000000010000000000000002": bytes * 5 / 100,
	}
	seed := uint64(1 << 32)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		seed++
		if err := writeRandom(filepath.Join(dir, name), files[name], seed); err != nil {
			return err
		}
	}
	if err := writeSparse(filepath.Join(dir, "tablespace.img"), max(bytes*10/100, minSparse)); err != nil {
		return err
	}
	return giveTo(dir, 999)
}

// minSparse is large enough for holes that come back: restic leaves out pieces of nothing but zeros, of 512 KiB.
const minSparse = 8 << 20

// writeSparse makes a file with three islands of data.
func writeSparse(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	island := make([]byte, 64<<10)
	_, _ = rand.NewChaCha8([32]byte{3}).Read(island) // never fails
	for _, at := range []int64{0, size / 2, size - int64(len(island))} {
		if _, err := f.WriteAt(island, at); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	return f.Close()
}

// giveTo changes the owner of the files, if the demo runs as root; only root can.
func giveTo(dir string, uid int) error {
	if os.Geteuid() != 0 {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		return os.Lchown(path, uid, uid)
	})
}

// fillPhotos makes files of medium size in a directory for each month.
func fillPhotos(dir string, bytes int64) error {
	size := min(max(bytes/64, 1), 4<<20)
	for n := int64(0); bytes > 0; n++ {
		name := fmt.Sprintf("%d/%02d/IMG_%05d.jpg", 2019+n/12%7, 1+n%12, n)
		if err := writeRandom(filepath.Join(dir, name), min(size+n%97, bytes), uint64(2<<32+n)); err != nil {
			return err
		}
		bytes -= size + n%97
	}
	return nil
}

// fillMail makes many small files in nested directories, as Maildir does.
func fillMail(dir string, bytes int64) error {
	const perFolder = 400
	for n := int64(0); bytes > 0; n++ {
		size := 700 + n*7919%(20<<10)
		name := fmt.Sprintf("user-%d/.Archive.%d/cur/17%08d.M%dP42.mail:2,S", n/perFolder%9, 2000+n/perFolder/9, n*37, n)
		if err := writeRandom(filepath.Join(dir, name), min(size, bytes), uint64(3<<32+n)); err != nil {
			return err
		}
		bytes -= size
	}
	return nil
}

// fillOdd makes everything that a file system allows: names of any bytes, links to anywhere, pipes, holes.
func fillOdd(dir string, bytes int64) error { return tree.Make(dir, tree.Spec{Bytes: bytes}) }

// writeRandom makes a file of data that neither compresses nor repeats, and the directories above it.
func writeRandom(path string, size int64, seed uint64) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	_, err = io.CopyN(f, rand.NewChaCha8(key), size)
	return errors.Join(err, f.Close())
}

// countFiles counts what is in a tree.
func countFiles(dir string) (content, error) {
	var c content
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		c.Files++
		if info.Mode().IsRegular() {
			c.Bytes += info.Size()
		}
		return nil
	})
	return c, err
}
