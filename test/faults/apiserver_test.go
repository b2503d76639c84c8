//go:build faults

package faults

import (
	"net/http"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/test/rig"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// apiOutage is how long the API server is away. It is not minutes, as in life, but longer than any timeout or lease in the
// agent that could make a difference.
const apiOutage = 40 * time.Second

// TestAPIServerIsDownInTheMiddle: the data goes on moving, and so does what is told once the server is back.
func TestAPIServerIsDownInTheMiddle(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{rig.Restic, rig.Kopia} {
		t.Run(uploader, func(t *testing.T) {
			r := newRow(t, "API server down for %s in the middle of a backup, %s", apiOutage, uploader)
			t.Parallel()
			f, source := largeVolume(t, uploader)
			f.Start("--upload-limit=2000000")
			pvb := f.NewBackup(source, "data", uploader)
			f.Create(pvb)
			f.Until(pvb, "begun", func(v rig.Version) bool { return v.At(10) })
			f.API.Down()
			stored := rig.Size(t, f.Store.Dir)
			<-time.After(apiOutage)
			testenv.Eventually(t, "bytes are stored while the API server is away", func() bool { return rig.Size(t, f.Store.Dir)-stored >= 20<<20 })
			f.API.Up(t)
			since := time.Now()
			f.UntilAfter(pvb, since, "moving again", func(v rig.Version) bool { return true })
			r.recovered(since)
			f.Complete(pvb)
			if attempt := rig.Last(f.History.Of(pvb)).Snapshot.Attempt; attempt != 1 {
				t.Errorf("it took %d attempts", attempt)
			}
			f.restoreAndCompare(pvb)
		})
	}
}

// TestAPIServerIsDownAtTheEnd: the end is written when the server is back.
func TestAPIServerIsDownAtTheEnd(t *testing.T) {
	r := newRow(t, "API server down for %s at the terminal write", apiOutage)
	t.Parallel()
	f, source := smallVolume(t, rig.Restic)
	f.Start()
	gate := testenv.NewGate()
	held := f.API.On(rig.IsTerminalWrite, gate.Before)
	pvb := f.NewBackup(source, "data", rig.Restic)
	f.Create(pvb)
	gate.Wait(t)
	f.API.Down()
	f.API.Heal(held)
	<-time.After(apiOutage)
	f.API.Up(t)
	since := time.Now()
	f.Complete(pvb)
	r.recovered(since)
	f.restoreAndCompare(pvb)
}

// TestAPIServerAnswersBadly: each of the answers comes to every write, or request, for a while or now and then.
func TestAPIServerAnswersBadly(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		match func(*http.Request) bool
		do    testenv.Fault
	}{
		{"slow API server: 3 s for each request", isRequest, testenv.Delay(3 * time.Second)},
		{"409 to a third of the writes", rig.IsWrite, testenv.AThird(testenv.Refuse(http.StatusConflict, metav1.StatusReasonConflict, 0))},
		{"429 with Retry-After to a third of the requests", isRequest, testenv.AThird(testenv.Refuse(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, time.Second))},
		{"429 without Retry-After to a third of the requests", isRequest, testenv.AThird(testenv.Refuse(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, 0))},
		{"500 to a third of the requests", isRequest, testenv.AThird(testenv.Refuse(http.StatusInternalServerError, metav1.StatusReasonInternalError, 0))},
		{"503 to a third of the requests", isRequest, testenv.AThird(testenv.Refuse(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, 0))},
		{"connection closed at a third of the requests", isRequest, testenv.AThird(testenv.HangUp)},
		{"answer cut at a third of the requests", isRequest, testenv.AThird(testenv.CutAnswer)},
		{"answer lost of a third of the writes", rig.IsWrite, testenv.AThird(testenv.LoseAnswer)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRow(t, "API server: %s", test.name)
			t.Parallel()
			f, source := smallVolume(t, rig.Restic)
			f.Start()
			f.ready()
			broken := f.API.On(test.match, test.do)
			pvb := f.NewBackup(source, "data", rig.Restic)
			f.Create(pvb)
			f.Complete(pvb)
			f.API.Heal(broken)
			since := time.Now()
			f.restoreAndCompare(pvb)
			r.recovered(since)
			if broken.Hits.Load() == 0 {
				t.Error("the fault did not happen")
			}
		})
	}
}

// TestTerminalWriteIsRefused: the end lands although the API server takes a while to accept it.
func TestTerminalWriteIsRefused(t *testing.T) {
	t.Parallel()
	for _, reason := range []metav1.StatusReason{metav1.StatusReasonConflict, metav1.StatusReasonInternalError} {
		t.Run(string(reason), func(t *testing.T) {
			r := newRow(t, "API server: three terminal writes refused: %s", reason)
			t.Parallel()
			f, source := smallVolume(t, rig.Restic)
			f.Start()
			code := map[metav1.StatusReason]int{metav1.StatusReasonConflict: http.StatusConflict, metav1.StatusReasonInternalError: http.StatusInternalServerError}
			refused := f.API.On(rig.IsTerminalWrite, testenv.Refuse(code[reason], reason, 0))
			pvb := f.NewBackup(source, "data", rig.Restic)
			f.Create(pvb)
			testenv.Eventually(t, "the agent has tried three times", func() bool { return refused.Hits.Load() >= 3 })
			f.API.Heal(refused)
			since := time.Now()
			f.Complete(pvb)
			r.recovered(since)
			f.restoreAndCompare(pvb)
		})
	}
}

// TestTerminalWriteIsNotAnswered: the agent finds out that the end is written, and does not write it again.
func TestTerminalWriteIsNotAnswered(t *testing.T) {
	r := newRow(t, "API server: terminal write done, the answer is lost")
	t.Parallel()
	f, source := smallVolume(t, rig.Restic)
	a := f.Start()
	f.API.On(rig.IsTerminalWrite, testenv.LoseAnswer)
	pvb := f.NewBackup(source, "data", rig.Restic)
	f.Create(pvb)
	f.Complete(pvb)
	since := time.Now()
	a.Said("Operation completed")
	r.recovered(since)
	f.checkOneTerminalWrite(pvb)
}

// TestWatchesAreReset: what happens while no watch is open is not missed.
func TestWatchesAreReset(t *testing.T) {
	r := newRow(t, "API server: all watches reset, and refused for 10 s")
	t.Parallel()
	f, source := largeVolume(t, rig.Restic)
	f.Start(slowUpload)
	running := f.NewBackup(source, "data", rig.Restic)
	f.Create(running)
	f.Until(running, "begun", func(v rig.Version) bool { return v.At(1) })
	refused := f.API.On(testenv.IsWatch, testenv.Refuse(http.StatusInternalServerError, metav1.StatusReasonInternalError, 0))
	f.API.Cut(testenv.IsWatch)
	unseen := f.NewBackup(source, "data", rig.Restic)
	f.Create(unseen)
	f.Patch(running, `{"spec":{"cancel":true}}`)
	<-time.After(10 * time.Second)
	f.API.Heal(refused)
	since := time.Now()
	if v := f.End(running); v.Phase != rig.Failed {
		t.Errorf("the canceled backup ended as %v", v)
	}
	r.recovered(since)
	f.Complete(unseen)
}

// isRequest reports whether it is a request of an agent about its objects; what it reads before it starts is left alone.
func isRequest(r *http.Request) bool {
	return rig.IsWrite(r) || testenv.IsRead(r) || testenv.IsWatch(r)
}

// ready waits until the agent has read its objects.
func (f *fixture) ready() {
	f.T.Helper()
	a := f.Agents[len(f.Agents)-1]
	testenv.Eventually(f.T, "the agent is ready", func() bool {
		answer, err := http.Get("http://" + a.Metrics + "/readyz")
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
}
