package proof

import (
	"testing"
	"time"
)

// TestDamageNeedsALookAsDeep: a check that reads no data does not see that what one with --read-data has found is gone.
func TestDamageNeedsALookAsDeep(t *testing.T) {
	t.Parallel()
	at := func(second int64) time.Time { return time.Unix(second, 0) }
	for name, test := range map[string]struct {
		results Checks
		want    bool
	}{
		"whole":                         {Checks{{At: at(1), Whole: true}}, false},
		"damaged":                       {Checks{{At: at(1), Whole: true, Deep: true}, {At: at(2)}}, true},
		"whole again":                   {Checks{{At: at(2)}, {At: at(3), Whole: true}}, false},
		"deep damage, a look without":   {Checks{{At: at(2), Deep: true}, {At: at(3), Whole: true}}, true},
		"deep damage, a deep look":      {Checks{{At: at(3), Whole: true, Deep: true}, {At: at(2), Deep: true}}, false},
		"damage, a deep look before it": {Checks{{At: at(3)}, {At: at(2), Whole: true, Deep: true}}, true},
		"in one moment":                 {Checks{{At: at(2)}, {At: at(2), Whole: true}}, true},
	} {
		if got := test.results.Damaged(); got != test.want {
			t.Errorf("%s: damaged is %v", name, got)
		}
	}
}
