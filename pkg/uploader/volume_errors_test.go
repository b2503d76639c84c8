package uploader

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"testing"
)

func TestErrorsOfTheVolume(t *testing.T) {
	t.Parallel()
	for errno, want := range map[syscall.Errno][2]bool{ // whether the volume fails, whether the file has vanished
		syscall.EIO: {true, false}, syscall.ENOTCONN: {true, false}, syscall.ESTALE: {true, false},
		syscall.ESHUTDOWN: {true, false}, syscall.EREMOTEIO: {true, false}, syscall.ECONNABORTED: {true, false},
		syscall.ENOENT: {false, true}, syscall.ENOTDIR: {false, true},
		syscall.EACCES: {false, false}, syscall.ENAMETOOLONG: {false, false}, syscall.ENOSPC: {false, false},
	} {
		err := fmt.Errorf("save: %w", &fs.PathError{Op: "open", Path: "some/file", Err: errno})
		if got := [2]bool{IsVolumeIO(err), IsVanished(err)}; got != want {
			t.Errorf("%v: got %v, want %v", err, got, want)
		}
		if got := [2]bool{SaysVolumeIO(err.Error()), SaysVanished(err.Error())}; got != want {
			t.Errorf("%q: got %v, want %v", err, got, want)
		}
		if got := EntrySaysVolumeIO(err.Error()); got != want[0] {
			t.Errorf("%q: got %v, want %v", err, got, want[0])
		}
	}
}

// The errors of a server that is away for a while, and of a node without room, are those of the volume where they are met at an entry. Those of a
// connection to the repository have the same words.
func TestErrorsOfTheServerOrTheNode(t *testing.T) {
	t.Parallel()
	for _, errno := range []syscall.Errno{
		syscall.EHOSTDOWN, syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ECONNRESET, syscall.ENETDOWN, syscall.ENETUNREACH,
		syscall.ENFILE, syscall.EMFILE, syscall.ENOMEM,
	} {
		var err error = &fs.PathError{Op: "read", Path: "/volume/some/file", Err: errno}
		if !IsVolumeIO(err) || !EntrySaysVolumeIO(err.Error()) || SaysVolumeIO(err.Error()) {
			t.Errorf("%v: got %v, by an entry's text %v, by any text %v", err, IsVolumeIO(err), EntrySaysVolumeIO(err.Error()), SaysVolumeIO(err.Error()))
		}
		for _, call := range []string{"socket", "connect", "read", "write"} {
			err = &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{Port: 443}, Err: os.NewSyscallError(call, errno)}
			if text := "ReadFull(<data/0123456789>): " + err.Error(); EntrySaysVolumeIO(text) {
				t.Errorf("%q is taken for an error of the volume", text)
			}
		}
	}
}

// restic may be built by another Go than we are.
func TestErrorsOfTheVolumeFromAnOlderGo(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"stale NFS file handle",
		"lstat /data/some/file: stale NFS file handle",
		"lstat /data/some/file: stale file handle",
	} {
		if !SaysVolumeIO(text) {
			t.Errorf("%q is not taken for an error of the volume", text)
		}
	}
}

// A volume's owner chooses the names of its files.
func TestNamesAreNoErrorsOfTheVolume(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"open input/output error: permission denied",
		"open x: input/output error: permission denied",
		"open dir/transport endpoint is not connected",
		"chown stale file handle",
		"open stale NFS file handle: permission denied",
	} {
		if SaysVolumeIO(text) {
			t.Errorf("%q is taken for an error of the volume", text)
		}
	}
}
