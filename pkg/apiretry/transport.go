package apiretry

import (
	"errors"
	"io"
	"net/http"
)

// MarkCutOff wraps a transport so that Unreachable knows an answer that was cut off: the errors of net/http for that have no
// types. It is for rest.Config.Wrap.
func MarkCutOff(next http.RoundTripper) http.RoundTripper { return cutOffMarker{next} }

// cutOffError is an error of reading an answer.
type cutOffError struct{ cause error }

func (e *cutOffError) Error() string { return e.cause.Error() }
func (e *cutOffError) Unwrap() error { return e.cause }

type cutOffMarker struct{ next http.RoundTripper }

func (m cutOffMarker) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := m.next.RoundTrip(request)
	if err == nil {
		response.Body = markedBody{response.Body}
	}
	return response, err
}

// WrappedRoundTripper lets client-go find the transport.
func (m cutOffMarker) WrappedRoundTripper() http.RoundTripper { return m.next }

type markedBody struct{ io.ReadCloser }

func (b markedBody) Read(into []byte) (int, error) {
	n, err := b.ReadCloser.Read(into)
	if err != nil && !errors.Is(err, io.EOF) {
		err = &cutOffError{err}
	}
	return n, err
}
