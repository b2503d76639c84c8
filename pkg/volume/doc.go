// Package volume says where a pod's volume lies on the host, how many bytes lie in a tree, and whether a tree is what an archive says.
//
// # Where
//
// The agent mounts kubelet's pods directory. A Dir names a volume's directory there as far as the API server's objects
// tell (DirOf); Pods finds the one directory of that name below a pod and opens it (Open). Nothing below
// the pods directory is trusted: pods write into their volumes and can leave symbolic links there, so names must be
// single path elements and no component may be a link. The opened directory, not its path, is what callers hand on.
//
// # How many bytes
//
// Sizes adds up the files of an opened directory: the check that what was restored is there. A Meter says how much of it a
// restore has written, for data paths that do not say so themselves (restic before 0.16), and Watch repeats that at a pace that
// leaves the disk to the restore. Neither the size of a file nor its blocks tell what is in it meanwhile: restic preallocates
// (docs/contracts/restic-kopia.md 8). Files that can be in flight are therefore measured by their data extents.
//
// # Whether it is the same
//
// A Comparison holds a tree against the records of a snapshot and an archive of it, entry by entry.
//
// # File systems
//
// The lookup in the pods directory works on an afero.Fs, so that its tests can do without kubelet. What needs file descriptors is
// Linux and the real file system only: Open, Sizes, Meter and Comparison.
//
// No function here can be interrupted while the kernel waits for a file server that is gone; ctx is looked at between
// system calls.
package volume
