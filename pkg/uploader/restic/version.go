package restic

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
)

// Version is a release of restic. What restic can do, and what it gets wrong, goes by its version
// (docs/contracts/restic-kopia.md 1 to 8).
type Version struct{ Major, Minor, Patch int }

// oldest returns the first release that this package was tested with.
func oldest() Version { return Version{Minor: 14} }

var versionLine = regexp.MustCompile(`(?m)^restic v?(\d+)\.(\d+)\.(\d+)`)

// ParseVersion reads what "restic version" prints, as in "restic 0.18.1 compiled with go1.25.1 on linux/amd64".
func ParseVersion(output string) (Version, error) {
	m := versionLine.FindStringSubmatch(output)
	if m == nil {
		return Version{}, fmt.Errorf("%.80q is not what a restic says of its version", output)
	}
	var n [3]int
	for i, digits := range m[1:] {
		var err error
		if n[i], err = strconv.Atoi(digits); err != nil {
			return Version{}, fmt.Errorf("read restic's version: %w", err)
		}
	}
	return Version{n[0], n[1], n[2]}, nil
}

// String is the version as restic writes it: "0.18.1".
func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch) }

// atLeast reports whether v is 0.minor.0 or later.
func (v Version) atLeast(minor int) bool { return v.compare(Version{Minor: minor}) >= 0 }

func (v Version) compare(w Version) int {
	return cmp.Or(cmp.Compare(v.Major, w.Major), cmp.Compare(v.Minor, w.Minor), cmp.Compare(v.Patch, w.Patch))
}

// reportsRestore reports whether "restore --json" reports its progress; before that it prints nothing at all.
func (v Version) reportsRestore() bool { return v.atLeast(16) }

// comparesContent reports whether restore reads the files that are there already, and leaves what is right.
func (v Version) comparesContent() bool { return v.atLeast(17) }

// restoresParents reports whether restore --include sets the attributes of the directories that lead to what it restores.
func (v Version) restoresParents() bool { return v.atLeast(17) }

// looksBeforeInit reports whether init refuses to make a repository where keys or snapshots of another one are.
func (v Version) looksBeforeInit() bool { return v.atLeast(17) }

// leavesHoles reports whether restore has --sparse.
func (v Version) leavesHoles() bool { return v.atLeast(15) }

// readsConcurrently reports whether backup has --read-concurrency.
func (v Version) readsConcurrently() bool { return v.atLeast(15) }

// marksHardLinks reports whether backup can store the device of files with several names only. Without that, a restore makes a hard link of each
// file whose inode number a deleted one with several names had before it during the backup (decision 49). A restic that does not know the feature
// ends with an error.
func (v Version) marksHardLinks() bool { return v.atLeast(17) && !v.atLeast(20) }

// tellsByExitCode reports whether exit codes 10, 11 and 12 name the error.
func (v Version) tellsByExitCode() bool { return v.atLeast(17) }

// repairIndexCommand is what adds stored data to the index that is not in it yet.
func (v Version) repairIndexCommand() (command string, args []string) {
	if v.atLeast(16) {
		return "repair", []string{"index"}
	}
	return "rebuild-index", nil
}

// repairs reports whether "repair packs" and "repair snapshots" exist.
func (v Version) repairs() bool { return v.atLeast(16) }
