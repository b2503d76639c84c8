package program

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// reviews answers like an API server that knows one user, and counts.
type reviews struct {
	*fake.Clientset
	allowed bool
	broken  error
	asked   int
	last    authorizationv1.SubjectAccessReviewSpec
}

func newReviews() *reviews {
	r := &reviews{Clientset: fake.NewClientset(), allowed: true}
	r.PrependReactor("create", "tokenreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		r.asked++
		review := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
		review.Status.Authenticated = review.Spec.Token == "good"
		review.Status.User = authenticationv1.UserInfo{
			Username: "scraper", UID: "1", Groups: []string{"scrapers"}, Extra: map[string]authenticationv1.ExtraValue{"pod": {"p"}},
		}
		return true, review, r.broken
	})
	r.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		r.asked++
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		r.last, review.Status.Allowed = review.Spec, r.allowed
		return true, review, r.broken
	})
	return r
}

func (r *reviews) authorizer() *authorizer {
	return &authorizer{
		tokens: r.AuthenticationV1().TokenReviews(), rights: r.AuthorizationV1().SubjectAccessReviews(),
		now: time.Now, allowed: map[request]time.Time{},
	}
}

func get(h http.Handler, method, path, authorization string) (code int) {
	w, r := httptest.NewRecorder(), httptest.NewRequest(method, path, http.NoBody)
	r.Header.Set("Authorization", authorization)
	h.ServeHTTP(w, r)
	return w.Code
}

// TestAuthorizer has what a real API server (TestMetricsAuth in test/rbac) does not do on demand: failing, and rights that change.
func TestAuthorizer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := newReviews()
		a := server.authorizer()
		h := a.filter(logr.Discard(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		check := func(what string, got, want int) {
			t.Helper()
			if got != want {
				t.Errorf("%s: got %d, want %d", what, got, want)
			}
		}
		for _, header := range []string{"", "good", "Basic good", "Bearer", "Bearer  "} {
			check("header "+header, get(h, http.MethodGet, "/metrics", header), http.StatusUnauthorized)
		}
		check("probe", get(h, http.MethodGet, AlivePath, ""), http.StatusOK)
		check("requests for these", server.asked, 0)

		check("unknown token", get(h, http.MethodGet, "/metrics", "Bearer bad"), http.StatusUnauthorized)
		server.broken = errors.New("down")
		check("no answer", get(h, http.MethodGet, "/metrics", "Bearer good"), http.StatusServiceUnavailable)
		server.broken = nil
		check("known token", get(h, http.MethodGet, "/metrics", "bearer good"), http.StatusOK)
		if attributes := server.last.NonResourceAttributes; attributes == nil || attributes.Path != "/metrics" || attributes.Verb != "get" ||
			server.last.User != "scraper" || server.last.Groups[0] != "scrapers" || server.last.UID != "1" || server.last.Extra["pod"][0] != "p" {
			t.Errorf("asked for %+v", server.last)
		}

		server.allowed, server.asked = false, 0
		check("known token again", get(h, http.MethodGet, "/metrics", "Bearer good"), http.StatusOK)
		check("requests for it", server.asked, 0)
		check("another path", get(h, http.MethodGet, "/progress", "Bearer good"), http.StatusForbidden)
		check("another method", get(h, http.MethodPost, "/metrics", "Bearer good"), http.StatusForbidden)
		<-time.After(allowedFor)
		check("after a minute", get(h, http.MethodGet, "/metrics", "Bearer good"), http.StatusForbidden)
		server.allowed = true
		check("allowed anew", get(h, http.MethodGet, "/other", "Bearer good"), http.StatusOK)
		check("kept", len(a.allowed), 1)
	})
}
