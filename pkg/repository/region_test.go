package repository_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/repository"
)

// toServer answers every request from a handler, whatever its host.
type toServer struct{ http.Handler }

func (s toServer) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, req)
	return w.Result(), nil
}

func TestDetectRegion(t *testing.T) {
	t.Parallel()
	var asked string
	find := repository.DetectRegion(toServer{http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.Method + " " + r.URL.String()
		switch r.URL.Path {
		case "/mine":
			w.Header().Set("X-Amz-Bucket-Region", "eu-central-1")
			w.WriteHeader(http.StatusForbidden)
		case "/moved":
			w.Header().Set("X-Amz-Bucket-Region", "ap-south-1")
			w.Header().Set("Location", "https://elsewhere.example/")
			w.WriteHeader(http.StatusMovedPermanently)
		case "/busy":
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	})})
	for bucket, want := range map[string]string{"mine": "eu-central-1", "moved": "ap-south-1"} {
		got, err := find(t.Context(), bucket)
		if err != nil || got != want {
			t.Errorf("region of %s = %q, %v; want %q", bucket, got, err, want)
		}
		if want := "HEAD https://s3.us-east-1.amazonaws.com/" + bucket; asked != want {
			t.Errorf("asked %s, want %s", asked, want)
		}
	}
	if _, err := find(t.Context(), "missing"); !errors.Is(err, repository.ErrMisconfigured) {
		t.Errorf("missing bucket: %v, want ErrMisconfigured", err)
	}
	if _, err := find(t.Context(), "busy"); err == nil || errors.Is(err, repository.ErrMisconfigured) {
		t.Errorf("busy server: %v, want an error that may pass", err)
	}
}
