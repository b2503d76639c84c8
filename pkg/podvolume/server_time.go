package podvolume

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
)

// clockTolerance is how far a node's clock may be off before the agent says so.
const clockTolerance = time.Minute

// ClockAhead returns how far this node's clock is ahead of the API server's, to a second or so; false where the API server's
// answers do not have its time.
func (e *Environment) ClockAhead(ctx context.Context) (ahead time.Duration, known bool, _ error) {
	server, local, err := e.serverTime(ctx)
	return local.Sub(server), err == nil && !local.Equal(server), err
}

// serverTime returns a time of the API server's clock, to a second or so, and the same moment as this node's clock shows it, with
// a monotonic reading. The API server sends its time with each answer (RFC 9110, Date). Where something in between takes that
// away, both are this node's.
func (e *Environment) serverTime(ctx context.Context) (server, local time.Time, _ error) {
	httpClient, err := rest.HTTPClientFor(e.rest)
	if err != nil {
		return server, local, fmt.Errorf("make a client for the API server's time: %w", err)
	}
	address, _, err := rest.DefaultServerUrlFor(e.rest)
	if err != nil {
		return server, local, fmt.Errorf("the API server's address: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	// Any answer has the time, also one that refuses.
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address.JoinPath("version").String(), http.NoBody)
	if err != nil {
		return server, local, fmt.Errorf("ask for the API server's time: %w", err)
	}
	sent := time.Now()
	answer, err := httpClient.Do(req)
	if err != nil {
		return server, local, fmt.Errorf("ask for the API server's time: %w", err)
	}
	if err := answer.Body.Close(); err != nil {
		return server, local, fmt.Errorf("ask for the API server's time: %w", err)
	}
	// Date is cut to a second, and was said somewhere between request and answer.
	local = sent.Add(time.Since(sent) / 2)
	date, err := http.ParseTime(answer.Header.Get("Date"))
	if err != nil {
		return local, local, nil // no time: see above
	}
	server = date.Add(time.Second / 2)
	if ahead := local.Sub(server); ahead.Abs() > clockTolerance {
		e.Logger.Warn("The clock of this node differs from the API server's: check its NTP", "ahead", ahead.Round(time.Second))
	}
	return server, local, nil
}
