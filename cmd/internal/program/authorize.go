package program

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

const (
	// A right that was taken away is used for so long at most.
	allowedFor = time.Minute
	// Requests with invalid tokens must not use up what the API server grants us.
	reviewsPerSecond, reviewsAtOnce = 5, 10
	reviewTimeout                   = 10 * time.Second
)

// authorizer lets requests through whose token may get their path. It is safe for concurrent use.
//
// controller-runtime has such a filter, which links the library of API servers: 140 packages, and a fifth of an idle agent's memory.
type authorizer struct {
	tokens authenticationclient.TokenReviewInterface
	rights authorizationclient.SubjectAccessReviewInterface
	now    func() time.Time

	mu      sync.Mutex
	allowed map[request]time.Time // until when
}

// request is what was allowed: a token's hash, so that no dump of the memory has tokens, and what it was for.
type request struct {
	token        [sha256.Size]byte
	method, path string
}

// authorized checks the token of each request with a TokenReview, and the right to get the path with a SubjectAccessReview.
// Requests for the probes' paths need no token.
func authorized(cfg *rest.Config, client *http.Client) (metricsserver.Filter, error) {
	limited := rest.CopyConfig(cfg)
	limited.QPS, limited.Burst, limited.RateLimiter = reviewsPerSecond, reviewsAtOnce, nil
	authentication, err := authenticationclient.NewForConfigAndClient(limited, client)
	if err != nil {
		return nil, fmt.Errorf("prepare to check tokens: %w", err)
	}
	authorization, err := authorizationclient.NewForConfigAndClient(limited, client)
	if err != nil {
		return nil, fmt.Errorf("prepare to check rights: %w", err)
	}
	a := &authorizer{
		tokens: authentication.TokenReviews(), rights: authorization.SubjectAccessReviews(),
		now: time.Now, allowed: map[request]time.Time{},
	}
	return func(log logr.Logger, handler http.Handler) (http.Handler, error) {
		return a.filter(log, handler), nil
	}, nil
}

func (a *authorizer) filter(log logr.Logger, handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == AlivePath || r.URL.Path == ReadyPath {
			handler.ServeHTTP(w, r)
			return
		}
		code, err := a.check(r)
		switch {
		case err != nil:
			log.Error(err, "A request could not be checked", "path", r.URL.Path)
			http.Error(w, "The API server did not say whether you may read this: see the log of this program.", code)
		case code != http.StatusOK:
			http.Error(w, http.StatusText(code), code)
		default:
			handler.ServeHTTP(w, r)
		}
	})
}

// check returns the status code for a request: 200, 401 or 403, or 503 with an error if the API server did not answer.
func (a *authorizer) check(r *http.Request) (code int, err error) {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	token = strings.TrimSpace(token)
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return http.StatusUnauthorized, nil
	}
	asked := request{token: sha256.Sum256([]byte(token)), method: strings.ToLower(r.Method), path: r.URL.Path}
	if a.wasAllowed(asked) {
		return http.StatusOK, nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
	defer cancel()
	code, err = a.review(ctx, token, asked)
	if code == http.StatusOK {
		a.remember(asked)
	}
	return code, err
}

// review asks the API server who has a token, and then whether this user may do what was asked for.
func (a *authorizer) review(ctx context.Context, token string, asked request) (code int, err error) {
	who, err := a.tokens.Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return http.StatusServiceUnavailable, fmt.Errorf("check a token: %w", err)
	}
	if !who.Status.Authenticated {
		return http.StatusUnauthorized, nil
	}
	user := who.Status.User
	extra := make(map[string]authorizationv1.ExtraValue, len(user.Extra))
	for key, values := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	may, err := a.rights.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, Groups: user.Groups, UID: user.UID, Extra: extra,
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: asked.path, Verb: asked.method},
	}}, metav1.CreateOptions{})
	if err != nil {
		return http.StatusServiceUnavailable, fmt.Errorf("check the rights of %s: %w", user.Username, err)
	}
	if !may.Status.Allowed {
		return http.StatusForbidden, nil
	}
	return http.StatusOK, nil
}

func (a *authorizer) wasAllowed(asked request) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.now().Before(a.allowed[asked])
}

// remember keeps that a request was allowed, and forgets those that are over.
func (a *authorizer) remember(asked request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	for old, until := range a.allowed {
		if !now.Before(until) {
			delete(a.allowed, old)
		}
	}
	a.allowed[asked] = now.Add(allowedFor)
}
