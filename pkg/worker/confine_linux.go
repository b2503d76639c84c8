package worker

import (
	"os"

	"github.com/landlock-lsm/go-landlock/landlock"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
)

// LandlockABI returns the version of the kernel's Landlock interface. 0 means that there is none and workers run
// unconfined; with 1 (Linux 5.13 to 5.18) backups are confined but restores are not, because that version forbids every
// hard link between directories.
func LandlockABI() int {
	version, err := ll.LandlockGetABIVersion()
	if err != nil {
		return 0
	}
	return version
}

// What may be done with a file or in a directory.
const (
	readFile  = landlock.AccessFSSet(ll.AccessFSReadFile)
	readDir   = readFile | ll.AccessFSReadDir
	execute   = landlock.AccessFSSet(ll.AccessFSExecute)
	writeFile = readFile | ll.AccessFSWriteFile | ll.AccessFSTruncate
	writeDir  = readDir | writeFile | ll.AccessFSRemoveDir | ll.AccessFSRemoveFile | ll.AccessFSMakeChar | ll.AccessFSMakeDir |
		ll.AccessFSMakeReg | ll.AccessFSMakeSock | ll.AccessFSMakeFifo | ll.AccessFSMakeBlock | ll.AccessFSMakeSym
	onlyFile = execute | writeFile | ll.AccessFSIoctlDev // the rights that a rule for a file may have
)

// runtimePaths are what a program needs to live, Go or not, statically linked or not.
var runtimePaths = []struct {
	access landlock.AccessFSSet
	paths  []string
}{
	{readDir | execute, []string{"/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/local/lib"}},
	{readFile, []string{"/etc/ld.so.cache", "/etc/ld.so.preload"}},
	// Names of hosts and users. restic stores user names in snapshots.
	{readFile, []string{
		"/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf", "/etc/services",
		"/etc/passwd", "/etc/group", "/etc/mime.types",
	}},
	// Certificates: Debian and Alpine, Fedora, a bundle for all of them.
	{readDir, []string{"/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/usr/share/ca-certificates", "/usr/local/share/ca-certificates"}},
	{readDir, []string{"/etc/localtime", "/usr/share/zoneinfo"}},
	// Go's runtime and restic derive the number of threads from the cgroup's CPU limit, and the runtime looks for huge pages.
	{readDir, []string{"/proc/self", "/proc/sys/net/core", "/sys/fs/cgroup", "/sys/kernel/mm/transparent_hugepage"}},
	{writeFile, []string{"/dev/null"}},
	{readFile, []string{"/dev/zero", "/dev/random", "/dev/urandom"}},
}

// confine restricts this process, and what it will execute, to program, the files in access and its working directory.
// It does as much as the kernel can do, without Landlock nothing.
func confine(program string, access Access) error {
	volume := readDir
	if access.Volume == Write {
		// Without the right to refer, no link and no rename between directories. Landlock 1 cannot grant it, and go-landlock
		// then does nothing at all.
		volume = writeDir | ll.AccessFSRefer
	}
	readWrite := writeDir
	if LandlockABI() > 1 {
		readWrite |= ll.AccessFSRefer
	}

	rules := []landlock.Rule{landlock.PathAccess(volume, ".")}
	rules = append(rules, rulesFor(readFile|execute, program)...)
	rules = append(rules, rulesFor(readDir|execute, access.ReadOnly...)...)
	rules = append(rules, rulesFor(readWrite, access.ReadWrite...)...)
	for _, r := range runtimePaths {
		rules = append(rules, rulesFor(r.access, r.paths...)...)
	}
	// The newest version's rights; signals and abstract sockets, too, stop at the worker's border. TCP ports are not handled.
	config, err := landlock.NewConfig(landlock.V11.HandledAccessFS, landlock.V11.Scoped)
	if err != nil {
		return err
	}
	return config.BestEffort().Restrict(rules...)
}

// rulesFor grants access to each path, as far as it makes sense for a file if the path leads to one. It leaves out what
// does not exist, or lies where this user does not get: the worker would not get there either.
func rulesFor(access landlock.AccessFSSet, paths ...string) []landlock.Rule {
	rules := make([]landlock.Rule, 0, len(paths))
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		granted := access
		if !info.IsDir() {
			granted &= onlyFile
		}
		rules = append(rules, landlock.PathAccess(granted, path).IgnoreIfMissing())
	}
	return rules
}
