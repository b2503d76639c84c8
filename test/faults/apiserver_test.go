//go:build faults

package faults

import (
	"net/http"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// apiOutage is how long the API server is away. It is not minutes, as in life, but longer than any timeout or lease in the
// agent that could make a difference.
const apiOutage = 40 * time.Second

// TestAPIServerIsDownInTheMiddle: the data goes on moving, and so does what is told once the server is back.
func TestAPIServerIsDownInTheMiddle(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{restic, kopia} {
		t.Run(uploader, func(t *testing.T) {
			r := newRow(t, "API server down for %s in the middle of a backup, %s", apiOutage, uploader)
			t.Parallel()
			f, source := largeVolume(t, uploader)
			f.start("--upload-limit=2000000")
			pvb := f.newBackup(source, "data", uploader)
			f.create(pvb)
			f.until(pvb, "begun", func(v version) bool { return v.at(10) })
			f.api.down()
			stored := size(t, f.store.dir)
			<-time.After(apiOutage)
			await(t, "bytes are stored while the API server is away", func() bool { return size(t, f.store.dir)-stored >= 20<<20 })
			f.api.up(t)
			since := time.Now()
			f.untilAfter(pvb, since, "moving again", func(v version) bool { return true })
			r.recovered(since)
			f.complete(pvb)
			if attempt := last(f.history.of(pvb)).snapshot.Attempt; attempt != 1 {
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
	f, source := smallVolume(t, restic)
	f.start()
	gate := newGate()
	held := f.api.on(isTerminalWrite, gate.before)
	pvb := f.newBackup(source, "data", restic)
	f.create(pvb)
	gate.wait(t)
	f.api.down()
	f.api.heal(held)
	<-time.After(apiOutage)
	f.api.up(t)
	since := time.Now()
	f.complete(pvb)
	r.recovered(since)
	f.restoreAndCompare(pvb)
}

// TestAPIServerAnswersBadly: each of the answers comes to every write, or request, for a while or now and then.
func TestAPIServerAnswersBadly(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		match func(*http.Request) bool
		do    fault
	}{
		{"slow API server: 3 s for each request", isRequest, delay(3 * time.Second)},
		{"409 to a third of the writes", isWrite, aThird(refuse(http.StatusConflict, metav1.StatusReasonConflict, 0))},
		{"429 with Retry-After to a third of the requests", isRequest, aThird(refuse(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, time.Second))},
		{"429 without Retry-After to a third of the requests", isRequest, aThird(refuse(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, 0))},
		{"500 to a third of the requests", isRequest, aThird(refuse(http.StatusInternalServerError, metav1.StatusReasonInternalError, 0))},
		{"503 to a third of the requests", isRequest, aThird(refuse(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, 0))},
		{"connection closed at a third of the requests", isRequest, aThird(hangUp)},
		{"answer cut at a third of the requests", isRequest, aThird(cutAnswer)},
		{"answer lost of a third of the writes", isWrite, aThird(loseAnswer)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRow(t, "API server: %s", test.name)
			t.Parallel()
			f, source := smallVolume(t, restic)
			f.start()
			f.ready()
			broken := f.api.on(test.match, test.do)
			pvb := f.newBackup(source, "data", restic)
			f.create(pvb)
			f.complete(pvb)
			f.api.heal(broken)
			since := time.Now()
			f.restoreAndCompare(pvb)
			r.recovered(since)
			if broken.hits.Load() == 0 {
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
			f, source := smallVolume(t, restic)
			f.start()
			code := map[metav1.StatusReason]int{metav1.StatusReasonConflict: http.StatusConflict, metav1.StatusReasonInternalError: http.StatusInternalServerError}
			refused := f.api.on(isTerminalWrite, refuse(code[reason], reason, 0))
			pvb := f.newBackup(source, "data", restic)
			f.create(pvb)
			await(t, "the agent has tried three times", func() bool { return refused.hits.Load() >= 3 })
			f.api.heal(refused)
			since := time.Now()
			f.complete(pvb)
			r.recovered(since)
			f.restoreAndCompare(pvb)
		})
	}
}

// TestTerminalWriteIsNotAnswered: the agent finds out that the end is written, and does not write it again.
func TestTerminalWriteIsNotAnswered(t *testing.T) {
	r := newRow(t, "API server: terminal write done, the answer is lost")
	t.Parallel()
	f, source := smallVolume(t, restic)
	a := f.start()
	f.api.on(isTerminalWrite, loseAnswer)
	pvb := f.newBackup(source, "data", restic)
	f.create(pvb)
	f.complete(pvb)
	since := time.Now()
	a.said("Operation completed")
	r.recovered(since)
	f.checkOneTerminalWrite(pvb)
}

// TestWatchesAreReset: what happens while no watch is open is not missed.
func TestWatchesAreReset(t *testing.T) {
	r := newRow(t, "API server: all watches reset, and refused for 10 s")
	t.Parallel()
	f, source := largeVolume(t, restic)
	f.start(slowUpload)
	running := f.newBackup(source, "data", restic)
	f.create(running)
	f.until(running, "begun", func(v version) bool { return v.at(1) })
	refused := f.api.on(isWatch, refuse(http.StatusInternalServerError, metav1.StatusReasonInternalError, 0))
	f.api.resetWatches()
	unseen := f.newBackup(source, "data", restic)
	f.create(unseen)
	f.patch(running, `{"spec":{"cancel":true}}`)
	<-time.After(10 * time.Second)
	f.api.heal(refused)
	since := time.Now()
	if v := f.end(running); v.phase != failed {
		t.Errorf("the canceled backup ended as %v", v)
	}
	r.recovered(since)
	f.complete(unseen)
}

// isRequest says whether it is a request of an agent about its objects; what it reads before it starts is left alone.
func isRequest(r *http.Request) bool { return isWrite(r) || isRead(r) || isWatch(r) }

// ready waits until the agent has read its objects.
func (f *fixture) ready() {
	f.t.Helper()
	a := f.agents[len(f.agents)-1]
	await(f.t, "the agent is ready", func() bool {
		answer, err := http.Get("http://" + a.metrics + "/readyz")
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
}
