package uploader

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
	"syscall"
)

// volumeErrnos are the errors of a file system that is not there any more, or whose storage fails. They say nothing of the
// file that they were met at: the same file may be read well when the driver or the server is back.
var volumeErrnos = []syscall.Errno{
	syscall.EIO,          // the disk, or a soft NFS mount whose server is silent
	syscall.EREMOTEIO,    // the other end of a network file system
	syscall.ENOTCONN,     // the FUSE driver has ended
	syscall.ECONNABORTED, // the FUSE driver has ended, while a call ran
	syscall.ESTALE,       // the NFS server does not know the volume any more
	syscall.ESHUTDOWN,    // CephFS has lost its session, or the file system was shut down after an error
}

// passingErrnos are the errors of a server that is away for a while, and of a node without room for more files or memory. They say nothing of the
// file either. SMB mounts are soft unless told otherwise, and so is NFS with softerr.
var passingErrnos = []syscall.Errno{
	syscall.EHOSTDOWN, // SMB, while its server is away
	syscall.ETIMEDOUT, // NFS with softerr
	syscall.EHOSTUNREACH, syscall.ECONNRESET, syscall.ENETDOWN, syscall.ENETUNREACH,
	syscall.ENFILE, syscall.EMFILE, syscall.ENOMEM,
}

// socketCalls end what Go says of a connection before the error itself, which has the same words as that of a file.
var socketCalls = []string{": socket", ": connect", ": read", ": write"}

// olderTexts are what programs built by an older Go say where ours says something else. Measured: restic 0.14.0 that Go 1.19.8
// built. Releases of restic, and those in Velero's images, are built by the Go of their time.
var olderTexts = map[syscall.Errno]string{syscall.ESTALE: "stale NFS file handle"}

// vanishedErrnos are the errors of an entry that was listed and is not there any more.
var vanishedErrnos = []syscall.Errno{syscall.ENOENT, syscall.ENOTDIR}

var staleErrnos = []syscall.Errno{syscall.ESTALE}

// IsVolumeIO reports whether err is that of a file system that fails as a whole. The caller makes sure that it is the
// volume's, and not the repository's.
func IsVolumeIO(err error) bool { return isOneOf(err, volumeErrnos) || isOneOf(err, passingErrnos) }

// IsStale reports whether err is what NFS says of an entry, or of all of them, that the server does not know any more.
func IsStale(err error) bool { return isOneOf(err, staleErrnos) }

// SaysStale is IsStale for what another Go program says of an error.
func SaysStale(text string) bool { return endsWithOneOf(text, staleErrnos) }

// IsVanished reports whether err means that an entry is not there any more.
func IsVanished(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || isOneOf(err, vanishedErrnos)
}

// SaysVolumeIO is IsVolumeIO for what another Go program says of the error that ended it, which may be that of its connection to the
// repository: errors of a server that is away do not count. Only the end of the text counts: before it stand paths, which anyone may name as
// they like.
func SaysVolumeIO(text string) bool { return endsWithOneOf(text, volumeErrnos) }

// EntrySaysVolumeIO is IsVolumeIO for what another Go program says of an error at an entry of the volume.
func EntrySaysVolumeIO(text string) bool {
	return SaysVolumeIO(text) || slices.ContainsFunc(passingErrnos, func(errno syscall.Errno) bool {
		before, found := strings.CutSuffix(text, ": "+errno.Error())
		return found && !slices.ContainsFunc(socketCalls, func(call string) bool { return strings.HasSuffix(before, call) }) || text == errno.Error()
	})
}

// SaysVanished is IsVanished for what another Go program says of an error.
func SaysVanished(text string) bool { return endsWithOneOf(text, vanishedErrnos) }

func isOneOf(err error, errnos []syscall.Errno) bool {
	errno, ok := errors.AsType[syscall.Errno](err)
	return ok && slices.Contains(errnos, errno)
}

func endsWithOneOf(text string, errnos []syscall.Errno) bool {
	return slices.ContainsFunc(errnos, func(errno syscall.Errno) bool {
		older, changed := olderTexts[errno]
		return endsWith(text, errno.Error()) || changed && endsWith(text, older)
	})
}

func endsWith(text, end string) bool {
	return text == end || strings.HasSuffix(text, ": "+end)
}
