package testenv

import (
	"encoding/json"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The time between two looks at a condition is a twentieth of the time waited so far, between these.
const (
	minInterval = 20 * time.Millisecond
	maxInterval = 100 * time.Millisecond
)

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
	begin := time.Now()
	for !holds() {
		waited := time.Since(begin)
		if waited > Patience {
			return false
		}
		<-time.After(min(max(waited/20, minInterval), maxInterval))
	}
	return true
}
