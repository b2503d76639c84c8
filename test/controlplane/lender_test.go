package controlplane

import (
	"errors"
	"testing"
)

func TestWithoutALenderNothingIsBorrowed(t *testing.T) {
	t.Setenv(lenderVariable, "/nowhere/socket")
	if _, err := Borrow(); err == nil || errors.Is(err, ErrNoLender) {
		t.Errorf("got %v, want an error of the connection", err)
	}
}
