//go:build faults

package faults

import (
	"os"
	"path/filepath"

	"github.com/plimsoll-io/plimsoll/test/rig"
)

// fakeRestic returns the path of a restic that misbehaves as restic-fake can.
func (f *fixture) fakeRestic(misbehavior string) string {
	f.T.Helper()
	path := filepath.Join(f.Dir, "restic-fake-"+misbehavior)
	if err := os.Symlink(filepath.Join(filepath.Dir(rig.AgentProgram()), "restic-fake"), path); err != nil {
		f.T.Fatal(err)
	}
	return path
}
