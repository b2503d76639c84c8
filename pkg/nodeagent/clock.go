package nodeagent

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
)

// clockTolerance is how far a node's clock may be off before the agent says so.
const clockTolerance = time.Minute

// clockAhead returns how far this node's clock is ahead of the API server's, to a second or so; negative if it is behind.
// The API server sends its time with each answer (RFC 9110, Date). Where something in between takes that away, nobody knows
// better, and it is 0.
func (a *Agent) clockAhead(ctx context.Context) (time.Duration, error) {
	httpClient, err := rest.HTTPClientFor(a.rest)
	if err != nil {
		return 0, fmt.Errorf("make a client for the API server's time: %w", err)
	}
	server, _, err := rest.DefaultServerUrlFor(a.rest)
	if err != nil {
		return 0, fmt.Errorf("the API server's address: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	// Any answer has the time, also one that refuses.
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.JoinPath("version").String(), http.NoBody)
	if err != nil {
		return 0, fmt.Errorf("ask for the API server's time: %w", err)
	}
	sent := time.Now()
	answer, err := httpClient.Do(req)
	if err != nil {
		return 0, fmt.Errorf("ask for the API server's time: %w", err)
	}
	if err := answer.Body.Close(); err != nil {
		return 0, fmt.Errorf("ask for the API server's time: %w", err)
	}
	date, err := http.ParseTime(answer.Header.Get("Date"))
	if err != nil {
		return 0, nil // no time: see above
	}
	// Date is cut to a second, and was said somewhere between request and answer.
	ahead := sent.Add(time.Since(sent) / 2).Sub(date.Add(time.Second / 2))
	if ahead.Abs() > clockTolerance {
		a.cfg.Logger.Warn("The clock of this node differs from the API server's: check its NTP", "ahead", ahead.Round(time.Second))
	}
	return ahead, nil
}
