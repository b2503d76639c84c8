package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
)

// tree is a volume of files of one size, 1,000 in a directory. Their content is the same in every run, and does not compress.
type tree struct {
	files int
	size  int64 // bytes of each file
}

// fill makes the tree in a new directory.
func (t tree) fill(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	random := rand.NewChaCha8([32]byte{1})
	content := make([]byte, t.size)
	for i := range t.files {
		parent := filepath.Join(dir, strconv.Itoa(i/1000))
		if i%1000 == 0 {
			if err := os.Mkdir(parent, 0o700); err != nil {
				return err
			}
		}
		_, _ = random.Read(content) // it never fails
		if err := os.WriteFile(filepath.Join(parent, strconv.Itoa(i)), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// fresh makes a new directory below parent and opens it.
func fresh(parent, name string) (*os.File, error) {
	dir, err := os.MkdirTemp(parent, name+"-")
	if err != nil {
		return nil, fmt.Errorf("make a directory to restore into: %w", err)
	}
	return os.Open(dir)
}
