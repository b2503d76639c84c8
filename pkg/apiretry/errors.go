package apiretry

import (
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Final reports whether the API server has answered and would say the same again: the object is not there, or the request is
// wrong. Whether a refusal (Refused, quota, admission) lasts depends on who asks, and when: it is not Final.
//
// An answer without a reason, as webhooks give it, counts by its code.
func Final(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsGone(err) ||
		apierrors.IsMethodNotSupported(err) || apierrors.IsNotAcceptable(err) || apierrors.IsRequestEntityTooLargeError(err) ||
		meta.IsNoMatchError(err) || runtime.IsNotRegisteredError(err)
}

// Unreachable reports whether a request or its answer was lost on the way. The text of an answer does not count: it may contain
// names and values of objects. See MarkCutOff for answers that are cut off.
func Unreachable(err error) bool {
	if _, answered := statusOf(err); answered {
		return false
	}
	var network net.Error // *url.Error is one
	var cut *cutOffError
	return errors.As(err, &network) || errors.As(err, &cut) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// Overloaded reports whether the API server may have another answer later: it has too much to do, or has lost etcd. Refusals
// by quota and by admission are not meant.
func Overloaded(err error) bool {
	status, ok := statusOf(err)
	switch {
	case !ok:
		return false
	case status.Code == http.StatusTooManyRequests:
		return true
	case status.Code < http.StatusInternalServerError, status.Code == http.StatusNotImplemented:
		return false
	default:
		return !isLasting(status)
	}
}

// Refused reports whether the API server refuses who asks, and not what is asked for.
func Refused(err error) bool {
	return apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) && strings.Contains(err.Error(), `is forbidden: User "`)
}

// startup is how long an API server that answers again may need until it has read its roles. Before that it refuses everybody
// but its administrators. It takes seconds.
const startup = time.Minute

// Outage remembers when the API server was last unreachable, to tell its refusals while it starts from those that last. The
// zero value has seen none. It is safe for concurrent use.
type Outage struct{ last atomic.Pointer[time.Time] }

// Retry reports whether a request that has failed may have another answer later. It is for Policy.Retry.
func (o *Outage) Retry(err error) bool {
	now := time.Now()
	if Unreachable(err) {
		o.last.Store(&now)
		return true
	}
	last := o.last.Load()
	return Overloaded(err) || Refused(err) && last != nil && now.Sub(*last) < startup
}

// statusOf returns the answer of the API server, if the error is one.
func statusOf(err error) (metav1.Status, bool) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return metav1.Status{}, false
	}
	return status.Status(), true
}

// isLasting reports whether a 5xx answer stays: a webhook denies, or does not answer, and its pods may be among what is being
// created; or a port or address is taken, or none is left, which for health checks of Services is an internal error, too. The
// API server has no reasons or causes for them. So only those parts of the message count that it has written itself: values of
// the object, which may contain anything, come after the beginning and before the end.
func isLasting(status metav1.Status) bool {
	if status.Reason != metav1.StatusReasonInternalError && status.Reason != metav1.StatusReasonUnknown {
		return strings.HasPrefix(status.Message, webhookDenial) // a webhook chooses code and reason itself
	}
	message := strings.TrimPrefix(status.Message, "Internal error occurred: ")
	begins := func(text string) bool { return strings.HasPrefix(message, text) }
	ends := func(text string) bool { return strings.HasSuffix(message, text) }
	return slices.ContainsFunc([]string{webhookDenial, "failed calling webhook ", "conversion webhook for "}, begins) ||
		begins("failed to allocate ") && slices.ContainsFunc([]string{PortTaken, "range is full"}, ends)
}

// webhookDenial begins the API server's message when a webhook refuses an object.
const webhookDenial = `admission webhook "`

// PortTaken ends the API server's message when another Service has a node port or an address.
const PortTaken = "provided port is already allocated"
