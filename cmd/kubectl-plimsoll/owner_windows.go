package main

import "io/fs"

// noFollow is nothing: Windows needs a right to make links, and checkOurs finds them.
const noFollow = 0

// onlyOurs is always true: directories of Windows, such as a user's own for temporary files, are not shared unless somebody shares them.
func onlyOurs(fs.FileInfo) bool { return true }
