//go:build unix

package main

import (
	"io/fs"
	"os"
	"syscall"
)

// onlyOurs reports whether a file or directory belongs to the user of this process, and nobody else may read or write it.
func onlyOurs(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int64(stat.Uid) == int64(os.Geteuid()) && info.Mode().Perm()&0o077 == 0
}
