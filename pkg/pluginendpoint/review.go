package pluginendpoint

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

const (
	admittedFor    = time.Minute      // a right that was taken away works for so long
	refusedFor     = 10 * time.Second // a right that was given works after so long
	maxDecisions   = 10_000
	maxTokenLength = 16 << 10
)

// access is what a request wants to do with the objects.
type access struct {
	verb, resource, subresource, name string
}

func (a access) String() string {
	return a.verb + " " + strings.TrimSuffix(a.resource+"/"+a.subresource, "/")
}

// reviewer asks the API server whose a token is, and what that user may do. It is safe for concurrent use.
type reviewer struct {
	api       client.Client
	namespace string
	audience  string

	mu    sync.Mutex
	known map[asked]decision
}

type asked struct {
	token  [32]byte // its SHA-256: tokens themselves are not kept
	access access
}

type decision struct {
	user  string
	err   error
	until time.Time
}

func newReviewer(cfg Config) *reviewer {
	return &reviewer{api: cfg.Client, namespace: cfg.Namespace, audience: cfg.Audience, known: map[asked]decision{}}
}

// admit returns the name of the user to whom the header's token belongs, if that user may do it.
func (r *reviewer) admit(ctx context.Context, header string, a access) (user string, err error) {
	scheme, token, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" || len(token) > maxTokenLength {
		return "", problemf(http.StatusUnauthorized, "the header Authorization must have a token of Kubernetes: Bearer TOKEN")
	}
	key := asked{sha256.Sum256([]byte(token)), a}
	if d, ok := r.recall(key); ok {
		return d.user, d.err
	}
	d, err := r.review(ctx, token, a)
	if err != nil {
		return "", err // not decided
	}
	r.remember(key, d)
	return d.user, d.err
}

func (r *reviewer) recall(key asked) (decision, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d, ok := r.known[key]
	return d, ok && time.Now().Before(d.until)
}

func (r *reviewer) remember(key asked, d decision) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known) >= maxDecisions {
		clear(r.known)
	}
	r.known[key] = d
}

// review asks. The error says that there was no answer.
func (r *reviewer) review(ctx context.Context, token string, a access) (decision, error) {
	refused := func(code int, format string, args ...any) (decision, error) {
		return decision{err: problemf(code, format, args...), until: time.Now().Add(refusedFor)}, nil
	}
	who := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	if r.audience != "" {
		who.Spec.Audiences = []string{r.audience}
	}
	if err := r.api.Create(ctx, who); err != nil {
		return decision{}, fmt.Errorf("review the token: %w", err)
	}
	// An API server that knows nothing of audiences leaves them out: then the token is for the API server, and for nobody else.
	if !who.Status.Authenticated || r.audience != "" && !slices.Contains(who.Status.Audiences, r.audience) {
		return refused(http.StatusUnauthorized, "the API server does not accept the token")
	}
	user := who.Status.User
	may := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: map[string]authorizationv1.ExtraValue{},
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: r.namespace, Verb: a.verb, Name: a.name, Subresource: a.subresource,
			Group: v1alpha1.GroupVersion.Group, Version: v1alpha1.GroupVersion.Version, Resource: a.resource,
		},
	}}
	for key, value := range user.Extra {
		may.Spec.Extra[key] = authorizationv1.ExtraValue(value)
	}
	if err := r.api.Create(ctx, may); err != nil {
		return decision{}, fmt.Errorf("review what %s may do: %w", user.Username, err)
	}
	if !may.Status.Allowed {
		return refused(http.StatusForbidden, "%s may not %s in namespace %s", user.Username, a, r.namespace)
	}
	return decision{user: user.Username, until: time.Now().Add(admittedFor)}, nil
}
