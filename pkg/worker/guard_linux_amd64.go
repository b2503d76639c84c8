package worker

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

// refusedHere are what amd64 has besides, for programs older than Linux 2.6.22.
var refusedHere = []uint32{unix.SYS_UTIME, unix.SYS_UTIMES, unix.SYS_FUTIMESAT}

func init() {
	guarded[unix.SYS_CHMOD] = call{dir: none, path: 0, flags: none, change: chmod(1)}
	guarded[unix.SYS_CHOWN] = call{dir: none, path: 0, flags: none, change: chown(1)}
	guarded[unix.SYS_LCHOWN] = call{dir: none, path: 0, flags: none, noFollow: true, change: chown(1)}
}
