package program

import (
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// metricsPath is the path of the metrics.
const metricsPath = "/metrics"

// Scrapes remembers when the metrics were last read. The zero value is for use.
type Scrapes struct{ last atomic.Pointer[time.Time] }

// Last returns when the metrics were last read; zero: never.
func (s *Scrapes) Last() time.Time {
	if last := s.last.Load(); last != nil {
		return *last
	}
	return time.Time{}
}

// filter remembers requests for the metrics that next, which may be nil, lets through.
func (s *Scrapes) filter(next func(*rest.Config, *http.Client) (metricsserver.Filter, error)) func(*rest.Config, *http.Client) (metricsserver.Filter, error) {
	return func(cfg *rest.Config, client *http.Client) (metricsserver.Filter, error) {
		inner := func(_ logr.Logger, handler http.Handler) (http.Handler, error) { return handler, nil }
		if next != nil {
			var err error
			if inner, err = next(cfg, client); err != nil {
				return nil, err
			}
		}
		return func(log logr.Logger, handler http.Handler) (http.Handler, error) {
			return inner(log, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == metricsPath {
					s.last.Store(new(time.Now()))
				}
				handler.ServeHTTP(w, r)
			}))
		}, nil
	}
}
