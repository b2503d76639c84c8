//go:build faults

package faults

import (
	"testing"

	"github.com/plimsoll-io/plimsoll/test/rig"
)

// fixture is a rig's fixture, with the steps that only this suite takes.
type fixture struct{ *rig.Fixture }

// newFixture makes a namespace without a location: UseDirectory or UseBucket comes next.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	return &fixture{rig.NewFixture(t)}
}

// newFixtureOn is newFixture with the CRDs of a version of Velero.
func newFixtureOn(t *testing.T, version string) *fixture {
	t.Helper()
	return &fixture{rig.NewFixtureOn(t, version)}
}
