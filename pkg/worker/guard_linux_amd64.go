package worker

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

// refusedHere are what amd64 has besides, for programs older than Linux 2.6.22.
var refusedHere = []uint32{unix.SYS_UTIME, unix.SYS_UTIMES, unix.SYS_FUTIMESAT}

// guardedHere returns the old calls of amd64, which take no directory.
func guardedHere() map[uint32]call {
	return map[uint32]call{
		unix.SYS_CHMOD:  {dir: none, path: 0, flags: none, change: chmod(1)},
		unix.SYS_CHOWN:  {dir: none, path: 0, flags: none, change: chown(1)},
		unix.SYS_LCHOWN: {dir: none, path: 0, flags: none, noFollow: true, change: chown(1)},
	}
}
