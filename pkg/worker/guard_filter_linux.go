package worker

import "golang.org/x/sys/unix"

// refused are system calls that no data path makes. They fail as on a kernel that does not have them: io_uring sets
// extended attributes past every filter, and the others have older equivalents, which are guarded.
var refused = append([]uint32{
	unix.SYS_IO_URING_SETUP, unix.SYS_SETXATTRAT, unix.SYS_REMOVEXATTRAT, unix.SYS_FILE_SETATTR,
}, refusedHere...)

// x32 marks the system calls of amd64's third ABI, which have numbers of their own.
const x32 = 1 << 30

// guardSelf installs the filter that hands this thread's guarded calls to the agent, and sends it the listener. What this
// process executes next, from this thread, has the filter: dieWithAgent has locked it. Whether that worked the agent learns
// from what is sent.
func guardSelf() {
	if n, _ := unix.Read(guardFD, make([]byte, 1)); n != 1 {
		return // the agent could not guard this process
	}
	listener, err := installFilter(filter())
	if err != nil {
		_ = unix.Sendmsg(guardFD, []byte(err.Error()), nil, nil, 0)
		return
	}
	_ = unix.Sendmsg(guardFD, []byte{0}, unix.UnixRights(listener), nil, 0)
}

// filter is a program for the kernel. It looks at nothing but architecture and number of a call: what it always allows
// costs a worker nothing (Linux 5.11). Only of utimensat it has to see whether it has a path.
func filter() []unix.SockFilter {
	const refuse = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	ret := func(action uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
	}
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	program := []unix.SockFilter{
		load(4), // struct seccomp_data: nr, arch
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: auditArch, Jt: 1},
		ret(refuse),
		load(0),
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: x32, Jf: 1},
		ret(refuse),
	}
	on := func(nr, action uint32) {
		program = append(program, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: nr, Jf: 1}, ret(action))
	}
	for _, nr := range refused {
		on(nr, refuse)
	}
	program = append(program, setsTimesOfOpenFile(load, ret)...)
	for nr := range guarded() {
		on(nr, unix.SECCOMP_RET_USER_NOTIF)
	}
	return append(program, ret(unix.SECCOMP_RET_ALLOW))
}

// setsTimesOfOpenFile allows utimensat without a path and without flags, which sets the times of an open file, like fchmod and fchown its mode
// and owner. It goes on behind itself with the number of the call.
func setsTimesOfOpenFile(load func(uint32) unix.SockFilter, ret func(uint32) unix.SockFilter) []unix.SockFilter {
	const args, path, flags, word, wide = 16, 1, 3, 4, 8 // struct seccomp_data: args, of 64 bits each
	zero := func(otherwise uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0, Jf: otherwise}
	}
	return []unix.SockFilter{
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_UTIMENSAT, Jf: 8},
		load(args + path*wide),
		zero(5),
		load(args + path*wide + word),
		zero(3),
		load(args + flags*wide),
		zero(1),
		ret(unix.SECCOMP_RET_ALLOW),
		load(0),
	}
}
