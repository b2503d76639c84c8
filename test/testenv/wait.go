package testenv

import (
	"encoding/json"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// pollInterval is the time between two looks at a condition.
const pollInterval = 20 * time.Millisecond

// Eventually waits until a condition holds, and ends the test if it does not within Patience.
func Eventually(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	if !poll(holds) {
		tb.Fatalf("%s: not within %s", what, Patience)
	}
}

// Eventually is the function of that name for the test.
func (e *Env) Eventually(what string, holds func() bool) {
	e.T.Helper()
	Eventually(e.T, what, holds)
}

// EventuallyGet reads an object until it, or the error of reading it, is as it should be, and returns it.
func EventuallyGet[T client.Object](e *Env, object T, what string, is func(o T, err error) bool) T {
	e.T.Helper()
	var err error
	if !poll(func() bool {
		err = e.Client.Get(e.Context(), client.ObjectKeyFromObject(object), object)
		return is(object, err)
	}) {
		last, _ := json.MarshalIndent(object, "", " ") // an object of the API server
		e.T.Fatalf("%T %s: not %s within %s; last: %v %s", object, object.GetName(), what, Patience, err, last)
	}
	return object
}

// poll reports whether a condition holds within Patience.
func poll(holds func() bool) bool {
	deadline := time.After(Patience)
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			return false
		}
	}
	return true
}
