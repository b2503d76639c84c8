package restorecontroller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/pkg/restore"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// forbidPhase makes the API server refuse Restores of the cluster's namespace in a phase, by a policy as people write them,
// until the returned function is called.
func (c *cluster) forbidPhase(phase velerov1.RestorePhase) (allow func()) {
	c.t.Helper()
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: c.Namespace}}
	policy.Spec.MatchConstraints = &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
		RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
			Rule:       admissionv1.Rule{APIGroups: []string{"velero.io"}, APIVersions: []string{"v1"}, Resources: []string{"restores"}},
		},
	}}}
	policy.Spec.Validations = []admissionv1.Validation{{
		Expression: fmt.Sprintf(`!has(object.status) || !has(object.status.phase) || object.status.phase != %q`, phase),
		Message:    "not during the change freeze",
	}}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: c.Namespace}}
	binding.Spec.PolicyName, binding.Spec.ValidationActions = policy.Name, []admissionv1.ValidationAction{admissionv1.Deny}
	binding.Spec.MatchResources = &admissionv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: c.Namespace}}}
	c.Create(policy)
	c.Create(binding)
	refuses := func() bool {
		probe := c.newRestore("probe", func(r *velerov1.Restore) { r.Status.Phase = phase })
		err := c.Client.Create(c.t.Context(), probe, client.DryRunAll)
		return apierrors.IsInvalid(err) && strings.Contains(err.Error(), "change freeze")
	}
	c.Eventually("the policy is in force", refuses)
	allow = func() {
		c.Delete(binding)
		c.Delete(policy)
		c.Eventually("the policy is gone", func() bool { return !refuses() })
	}
	return allow
}

// TestRefusedByPolicy has a policy that lets no Restore begin, or end. The restore goes on when the policy is gone, does
// nothing twice, and has nothing to say twice.
func TestRefusedByPolicy(t *testing.T) {
	t.Parallel()
	for name, phase := range map[string]velerov1.RestorePhase{"begin": velerov1.RestorePhaseInProgress, "end": velerov1.RestorePhasePartiallyFailed} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			var runs atomic.Int32
			refused := logCounter{want: "Restore was interrupted"}
			restorable(c, &script{
				run: func(_ context.Context, _ *restore.Plan, report func(restore.Progress)) (*restore.Outcome, error) {
					runs.Add(1)
					p := restore.Progress{Total: 2, Restored: 2, Counts: restore.Counts{Created: 2}}
					report(p)
					outcome := &restore.Outcome{Progress: p, Resources: map[string][]string{"v1/ConfigMap": {"shop/settings(created)"}}}
					outcome.Results.Warnings.Cluster = []string{"of the items"}
					return outcome, nil
				},
				finalize: func(_ context.Context, _ *restore.Plan, o *restore.Outcome) error {
					o.Results.Errors.Add("shop", errors.New("of the end"))
					o.Results.Warnings.Velero = append(o.Results.Warnings.Velero, "of the end")
					return nil
				},
			}, func(cfg *Config) { cfg.RefusedPause, cfg.Logger = 1, refused.logger() })
			allow := c.forbidPhase(phase)
			r := c.newRestore("r1", nil)
			c.Create(r)
			c.Eventually("refused twice", func() bool { return refused.count.Load() >= 2 })
			allow()
			c.ended(r)
			if r.Status.Phase != velerov1.RestorePhasePartiallyFailed || r.Status.Errors != 1 || r.Status.Warnings != 2 || r.Status.Progress.ItemsRestored != 2 {
				t.Errorf("%+v", r.Status)
			}
			if runs.Load() != 1 {
				t.Errorf("items were restored %d times", runs.Load())
			}
		})
	}
}

// TestRefusedRestoreIsLeftAlone: it is not tried again at once, holds nobody up, and can be deleted.
func TestRefusedRestoreIsLeftAlone(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	refused := logCounter{want: "Restore was interrupted"}
	restorable(c, &script{}, func(cfg *Config) { cfg.RefusedPause, cfg.Logger = 1000*testenv.Patience, refused.logger() })
	allow := c.forbidPhase(velerov1.RestorePhaseInProgress)
	r := c.newRestore("r1", nil)
	c.Create(r)
	c.Eventually("refused", func() bool { return refused.count.Load() > 0 })
	allow()
	for _, name := range []string{"r2", "r3"} { // more than enough for another attempt
		if other := c.ended(c.created(name)); other.Status.Phase != velerov1.RestorePhaseCompleted {
			t.Errorf("%+v", other.Status)
		}
	}
	if testenv.EventuallyGet(c.Env, r, "read", func(_ *velerov1.Restore, err error) bool { return err == nil }); r.Status.Phase != "" || refused.count.Load() != 1 {
		t.Errorf("phase %q after %d attempts", r.Status.Phase, refused.count.Load())
	}
	c.Delete(r)
	testenv.EventuallyGet(c.Env, r, "gone", func(_ *velerov1.Restore, err error) bool { return apierrors.IsNotFound(err) })
}

// created is a Restore of that name, made now.
func (c *cluster) created(name string) *velerov1.Restore {
	c.t.Helper()
	r := c.newRestore(name, nil)
	c.Create(r)
	return r
}

// user makes a service account that may do everything in the cluster's namespace but with PodVolumeRestores, and makes it
// the controllers' user.
func (c *cluster) user() rbacv1.Subject {
	c.t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: c.Meta("controller")}
	c.Create(account)
	subject := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: c.Namespace, Name: account.Name}
	c.bind("all-else", subject,
		rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{"", "apps", "plimsoll.io"}, Resources: []string{"*"}},
		rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{"velero.io"}, Resources: []string{
			"backups", "backupstoragelocations", "downloadrequests", "podvolumebackups", "restores", "serverstatusrequests",
		}})
	c.Config = c.WithToken(client.ObjectKeyFromObject(account))
	return subject
}

func (c *cluster) bind(name string, subject rbacv1.Subject, rules ...rbacv1.PolicyRule) *rbacv1.RoleBinding {
	c.t.Helper()
	c.Create(&rbacv1.Role{ObjectMeta: c.Meta(name), Rules: rules})
	binding := &rbacv1.RoleBinding{
		ObjectMeta: c.Meta(name), Subjects: []rbacv1.Subject{subject},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
	}
	c.Create(binding)
	return binding
}

// mayRead reports whether a service account may get PodVolumeRestores.
func (c *cluster) mayRead(subject rbacv1.Subject) bool {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User:               "system:serviceaccount:" + subject.Namespace + ":" + subject.Name,
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: c.Namespace, Verb: "get", Group: "velero.io", Resource: "podvolumerestores"},
	}}
	return c.Client.Create(c.t.Context(), review) == nil && review.Status.Allowed
}

// lockedOut sends a wrong token while it is told to.
type lockedOut struct {
	next http.RoundTripper
	out  *atomic.Bool
}

func (l lockedOut) RoundTrip(request *http.Request) (*http.Response, error) {
	if l.out.Load() {
		request = request.Clone(request.Context())
		request.Header.Set("Authorization", "Bearer of-nobody")
	}
	return l.next.RoundTrip(request)
}

// TestVolumesAreWaitedForWithoutRights takes from the controller what it needs to look for a volume, while it waits for that,
// and gives it back: the API server says 403, or 401, meanwhile.
func TestVolumesAreWaitedForWithoutRights(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusForbidden, http.StatusUnauthorized} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			subject := c.user()
			rights := c.bind("volumes", subject, rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{"velero.io"}, Resources: []string{"podvolumerestores"}})
			out := &atomic.Bool{}
			c.Config.Wrap(func(next http.RoundTripper) http.RoundTripper { return lockedOut{next, out} })
			waits := logCounter{want: "API server refused a step of the restore"}
			c.Eventually("may read volumes", func() bool { return c.mayRead(subject) })
			restorable(c, withVolumes(c), func(cfg *Config) { cfg.Logger = waits.logger() })
			r := c.newRestore("r1", nil)
			c.Create(r)
			c.waitForItems(r)

			if status == http.StatusUnauthorized {
				out.Store(true)
			} else {
				c.Delete(rights)
				c.Eventually("may not read volumes", func() bool { return !c.mayRead(subject) })
			}
			c.Patch(c.volume("a"), `{"status":{"phase":"Completed"}}`)
			c.Delete(c.volume("b")) // what is not in the cache any more is asked for
			c.Eventually("was refused", func() bool { return waits.count.Load() > 0 })
			out.Store(false)
			if status == http.StatusForbidden {
				again := rights.DeepCopy()
				again.ResourceVersion = ""
				c.Create(again)
			}
			if c.ended(r); r.Status.Phase != velerov1.RestorePhasePartiallyFailed || r.Status.Errors != 1 {
				t.Errorf("%+v", r.Status)
			}
			if results := c.stored("restores/r1/restore-r1-results.gz"); !strings.Contains(results, "pod volume restore was deleted: volume data of pod shop/b") {
				t.Error(results)
			}
		})
	}
}
