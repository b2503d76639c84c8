//go:build unix

package main

import (
	"io/fs"
	"os"
	"syscall"
)

// noFollow makes it an error to open a link.
const noFollow = syscall.O_NOFOLLOW

// onlyOurs reports whether a file or directory belongs to the user of this process, and nobody else may read or write it. A file that has another name is
// one that somebody has linked there, as far as the kernel lets others do that.
func onlyOurs(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && (info.IsDir() || stat.Nlink == 1) && int64(stat.Uid) == int64(os.Geteuid()) && info.Mode().Perm()&0o077 == 0
}
