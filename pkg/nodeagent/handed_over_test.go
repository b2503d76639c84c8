package nodeagent

import (
	"errors"
	"testing"
)

// An agent has handed a volume over and was killed before it could say so on the object. Whatever comes then, the volume is
// complete, and its pod may have begun to use it.
func TestHandedOverBeforeTheEndWasWritten(t *testing.T) {
	t.Parallel()
	const lastAttempt = `{"metadata":{"annotations":{"plimsoll.io/progress":"{\"state\":\"Finishing\",\"attempt\":5}"}},
		"status":{"phase":"InProgress","startTimestamp":"2026-01-01T00:00:00Z","progress":{"bytesDone":99,"totalBytes":100}}}`
	tests := map[string]struct {
		patch string
		done  bool // it was handed over
		phase string
	}{
		"in the last attempt":         {patch: lastAttempt, done: true, phase: phaseCompleted},
		"not, and no attempt is left": {patch: lastAttempt, phase: phaseFailed},
		"and then canceled": {
			patch: `{"spec":{"cancel":true},"status":{"phase":"InProgress","startTimestamp":"2026-01-01T00:00:00Z"}}`,
			done:  true, phase: phaseCanceled,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, veleroLatest)
			pod := c.pod("target", "data")
			dir := openDir(t, c.dir(pod, "data"))
			if tc.done {
				if err := handOver(dir, c.restore.UID); err != nil {
					t.Fatal(err)
				}
			}
			pvr := c.newRestore(pod, "data", "1234abcd")
			c.create(pvr)
			c.patch(pvr.DeepCopy(), tc.patch)
			c.setInitContainer(pod, running)
			data := failing(t, errors.New("would rewrite files under a pod that uses them"))
			c.startAgent(data, nil)
			if end := c.end(pvr); end.phase != tc.phase {
				t.Errorf("ended as %s", describe([]subject{end}))
			}
			if calls := data.Calls(); len(calls) != 0 {
				t.Errorf("the data path was called: %v", calls)
			}
			if done := handedOver(dir, c.restore.UID); done != tc.done {
				t.Errorf("done file there: %v, want %v", done, tc.done)
			}
		})
	}
}
