// Package leaks fails a package's tests if they leave goroutines behind. goleak itself waits for less than a second, in which
// a busy machine may not run the last lines of a goroutine that is about to end.
package leaks

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long goroutines may take to end. Nothing waits for it to pass but a test binary that fails.
const patience = 2 * time.Minute

// VerifyTestMain runs the tests and ends the process, for TestMain.
func VerifyTestMain(m *testing.M) { goleak.VerifyTestMain(patient{m}) }

// Await waits until no goroutines but those of options are left, and says which are if that takes too long.
func Await(options ...goleak.Option) error {
	for deadline := time.Now().Add(patience); ; {
		err := goleak.Find(options...)
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

type patient struct{ *testing.M }

// Run has goleak look once more when all have ended, and report those that have not.
func (p patient) Run() int {
	code := p.M.Run()
	if code == 0 {
		_ = Await()
	}
	return code
}
