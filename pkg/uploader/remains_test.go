package uploader_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

func TestClearRemains(t *testing.T) {
	t.Parallel()
	var many []string
	for i := range uploader.MaxRemains {
		many = append(many, "keys/"+strconv.Itoa(i))
	}
	for name, test := range map[string]struct {
		before, after []string // after the quiet time
		incomplete    bool
		fails         bool
		waits         time.Duration
	}{
		"nothing":                    {},
		"an unfinished creation":     {before: []string{"keys/1"}, after: []string{"keys/1"}, waits: time.Minute},
		"two of them":                {before: []string{"keys/1", "keys/2"}, after: []string{"keys/1", "keys/2"}, waits: time.Minute},
		"data":                       {before: []string{"data/1", "keys/1"}, incomplete: true},
		"data that appears":          {before: []string{"keys/1"}, after: []string{"data/1", "keys/1"}, incomplete: true, waits: time.Minute},
		"a creation that goes on":    {before: []string{"keys/1"}, after: []string{"config", "keys/1"}, incomplete: true, waits: time.Minute},
		"another creation begins":    {before: []string{"keys/1"}, after: []string{"keys/1", "keys/2"}, fails: true, waits: time.Minute},
		"the other one cleans up":    {before: []string{"keys/1"}, fails: true, waits: time.Minute},
		"more than a creation makes": {before: many, incomplete: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var removed []string
				err := uploader.Remains{
					List: func(context.Context) ([]string, error) {
						if time.Since(start) < time.Minute {
							return test.before, nil
						}
						return test.after, nil
					},
					Remove:     func(_ context.Context, name string) error { removed = append(removed, name); return nil },
					Unfinished: "keys/", Quiet: time.Minute,
				}.Clear(t.Context())
				if (err != nil) != (test.incomplete || test.fails) || errors.Is(err, uploader.ErrRepositoryIncomplete) != test.incomplete {
					t.Errorf("got %v", err)
				}
				want := test.after
				if err != nil {
					want = nil
				}
				if !slices.Equal(removed, want) {
					t.Errorf("removed %v, want %v", removed, want)
				}
				if waited := time.Since(start); waited != test.waits {
					t.Errorf("waited for %v, want %v", waited, test.waits)
				}
			})
		})
	}
}

// A caller that stops waiting leaves everything as it is.
func TestClearRemainsIsCanceled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := uploader.Remains{
		List:       func(context.Context) ([]string, error) { return []string{"keys/1"}, nil },
		Remove:     func(context.Context, string) error { t.Error("removed"); return nil },
		Unfinished: "keys/", Quiet: time.Hour,
	}.Clear(ctx)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
