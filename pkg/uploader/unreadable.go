package uploader

import (
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"syscall"
)

// IsGone reports whether an entry of a volume is not there. A data path's error says so too often: kopia passes on what it met at
// another name, as that of a .kopiaignore when it leaves a whole directory out.
func IsGone(volume *os.Root, name string) bool {
	_, err := volume.Lstat(name)
	return IsVanished(err)
}

// OnlyEntryStale reports whether an entry of a volume was stale, and the volume is not: its root can be listed, and the entry is gone, or is another
// file by now. On NFS another client that removes or replaces a file makes it so for who reads it. A directory must be gone: the next attempt reads
// one that was replaced.
func OnlyEntryStale(volume *os.Root, name string) bool {
	root, err := volume.Open(".")
	if err != nil {
		return false
	}
	defer root.Close()
	if _, err := root.Readdirnames(1); err != nil {
		return false
	}
	info, err := volume.Lstat(name)
	if err != nil {
		return IsVanished(err)
	}
	return info.Mode().IsRegular() && isReadable(volume, name)
}

// isReadable reports whether a file can be opened and read.
func isReadable(volume *os.Root, name string) bool {
	f, err := volume.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	_, err = f.Read(make([]byte, 1))
	return err == nil || errors.Is(err, io.EOF)
}

// HoldsFiles reports whether an entry of a volume that could not be read may stand for any number of files: a directory, or what
// nobody may even look at. The directory lost+found of a file system's root does not: it is empty, and only root may read it.
func HoldsFiles(volume *os.Root, name string) bool {
	if name == "lost+found" {
		return false
	}
	info, err := volume.Lstat(name)
	if err != nil {
		return !IsVanished(err)
	}
	return info.IsDir()
}

// ErrStillListed is the error of an entry that StillListed returns.
var ErrStillListed = errors.New("its directory lists it, and it does not exist: the file system may be damaged")

// MaxVanished is how many vanished entries a data path keeps for StillListed.
const MaxVanished = 1000

// looks is how often StillListed looks at an entry before it says that.
const looks = 10

// StillListed returns those entries of a volume that have vanished, as it was said, and that their directory goes on to list
// without being able to look at them. Those are not gone: the volume's file system, or its server, does not give them. In a volume in use an
// entry comes and goes while it is looked at, so each must be listed and not be there every time.
func StillListed(volume *os.Root, vanished []string) []string {
	still := slices.Clone(vanished)
	for range looks {
		isBack := func(name string) bool { return !IsGone(volume, name) }
		still = slices.DeleteFunc(still, isBack)
		still = slices.DeleteFunc(listedOf(volume, still), isBack)
	}
	return still
}

// listedOf returns those entries that their directories list, sorted.
func listedOf(volume *os.Root, names []string) []string {
	byDir := map[string]map[string]bool{}
	for _, name := range names {
		dir, base := path.Dir(name), path.Base(name)
		if byDir[dir] == nil {
			byDir[dir] = map[string]bool{}
		}
		byDir[dir][base] = true
	}
	var found []string
	for dir, bases := range byDir {
		found = append(found, listed(volume, dir, bases)...)
	}
	slices.Sort(found)
	return found
}

// listed returns those of a directory's entries that it lists.
func listed(volume *os.Root, dir string, bases map[string]bool) []string {
	below, err := volume.OpenRoot(dir) // unlike Open it does not wait for a writer, where a pipe has taken the directory's place
	if err != nil {
		return nil
	}
	defer below.Close()
	f, err := below.Open(".")
	if err != nil {
		return nil
	}
	defer f.Close()
	var found []string
	for {
		batch, err := f.Readdirnames(listBatch) // ReadDir leaves out what it cannot look at
		for _, base := range batch {
			if bases[base] {
				found = append(found, path.Join(dir, base))
			}
		}
		if err != nil {
			return found
		}
	}
}

// listBatch is how many names of a directory are read at once.
const listBatch = 1000
