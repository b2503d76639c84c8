package worker

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The old calls of amd64, which take no directory.
func init() {
	own := uintptr(os.Getuid())
	old := func(nr, a, b uintptr) func(string) error {
		return func(path string) error {
			p, err := unix.BytePtrFromString(path)
			if err != nil {
				return err
			}
			if _, _, errno := unix.Syscall(nr, uintptr(unsafe.Pointer(p)), a, b); errno != 0 {
				return errno
			}
			return nil
		}
	}
	changes["chmod"] = old(unix.SYS_CHMOD, 0o640, 0)
	changes["chown"] = old(unix.SYS_CHOWN, own, own)
	changes["lchown"] = old(unix.SYS_LCHOWN, own, own)
	refused = append(refused, x32|unix.SYS_CHMOD)
}
