package uploader

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// DefaultCreationQuiet is how long what an unfinished creation has left must not change before it is removed. The agent that
// creates a repository is killed 40 seconds after it has lost its Lease at the latest, and the next one gets the Lease 30
// seconds after the last renewal; a creation elsewhere, which takes no Lease, writes its objects within seconds.
const DefaultCreationQuiet = time.Minute

// MaxRemains is how many names Remains.List returns at most. A creation that was killed leaves one or two objects.
const MaxRemains = 16

// Remains is what lies at the address of a repository that cannot be opened because it has no configuration.
type Remains struct {
	// List returns the names of the objects there, sorted, and MaxRemains of them if there are more.
	List func(ctx context.Context) ([]string, error)
	// Remove removes one object.
	Remove func(ctx context.Context, name string) error
	// Unfinished is how the names of the objects begin that a creation writes before the repository can be opened. They hold no
	// data, and without a configuration no data can be read with them.
	Unfinished string
	// Quiet is how long the objects must not change before they are removed.
	Quiet time.Duration
	// Removing is called with the names before the first of them is removed.
	Removing func(names []string)
}

// Clear makes room for a new repository: it removes what a creation has left that was killed half-way. It removes nothing, and
// returns ErrRepositoryIncomplete, where anything else lies. The caller holds the lease for the creation.
func (r Remains) Clear(ctx context.Context) error {
	names, err := r.list(ctx)
	if err != nil || len(names) == 0 {
		return err
	}
	timer := time.NewTimer(r.Quiet)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
	}
	now, err := r.list(ctx)
	if err != nil {
		return err
	}
	if !slices.Equal(names, now) {
		return fmt.Errorf("another process is creating the repository: it has %s, and a moment ago it had %s",
			strings.Join(now, ", "), strings.Join(names, ", "))
	}
	if r.Removing != nil {
		r.Removing(names)
	}
	for _, name := range names {
		if err := r.Remove(ctx, name); err != nil {
			return fmt.Errorf("remove %s, which an unfinished creation has left: %w", name, err)
		}
	}
	return nil
}

// list returns the names, all of them of an unfinished creation.
func (r Remains) list(ctx context.Context) ([]string, error) {
	names, err := r.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("look for data of an earlier repository: %w", err)
	}
	for _, name := range names {
		if !strings.HasPrefix(name, r.Unfinished) {
			return nil, fmt.Errorf("%w: it has %s", ErrRepositoryIncomplete, name)
		}
	}
	if len(names) >= MaxRemains {
		return nil, fmt.Errorf("%w: it has %s and others", ErrRepositoryIncomplete, names[0])
	}
	return names, nil
}
