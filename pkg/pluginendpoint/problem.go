package pluginendpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
)

// failure is the body of an answer that is none.
type failure struct {
	Error string `json:"error"`
}

// problem is an error with its HTTP status.
type problem struct {
	code int
	text string
}

func (p *problem) Error() string { return p.text }

func problemf(code int, format string, args ...any) error {
	return &problem{code, fmt.Sprintf(format, args...)}
}

// level is how important a problem is to who runs the endpoint.
func (p *problem) level() slog.Level {
	if p.code >= http.StatusInternalServerError {
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

// explain says what an error means to the plugin: whether it is its own mistake, or it should try again.
func explain(err error) *problem {
	p := (*problem)(nil)
	switch {
	case errors.As(err, &p):
		return p
	case meta.IsNoMatchError(err):
		return &problem{http.StatusServiceUnavailable, "the CRDs of plimsoll.io are not installed"}
	case apierrors.IsNotFound(err):
		return &problem{http.StatusNotFound, "there is no such object: " + err.Error()}
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return &problem{http.StatusUnprocessableEntity, "the API server refuses it: " + err.Error()}
	case apierrors.IsForbidden(err):
		return &problem{http.StatusServiceUnavailable, "the endpoint's own service account lacks rights, see docs/volume-plugins.md: " + err.Error()}
	case errors.Is(err, context.DeadlineExceeded):
		return &problem{http.StatusServiceUnavailable, "the API server does not answer: try again"}
	default:
		return &problem{http.StatusServiceUnavailable, "try again: " + err.Error()}
	}
}
