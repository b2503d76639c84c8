package repository_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/plimsoll-io/plimsoll/pkg/repository"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// marker is part of every secret value in these tests, so that a leak is found without knowing which value leaked.
const marker = "HuSh"

const password = marker + "-password\n"

// cluster is what a Resolver can see: Secrets of the namespace "velero", the agent's environment and its mounted files.
type cluster struct {
	secrets map[string]map[string][]byte
	env     map[string]string
	files   map[string]string
}

func newCluster() *cluster {
	return &cluster{
		secrets: map[string]map[string][]byte{"velero-repo-credentials": {"repository-password": []byte(password)}},
		env:     map[string]string{},
		files:   map[string]string{},
	}
}

func (c *cluster) resolver() *repository.Resolver {
	return &repository.Resolver{
		Secrets: repository.SecretReaderFunc(c.secret),
		LookupEnv: func(name string) (string, bool) {
			value, ok := c.env[name]
			return value, ok
		},
		ReadFile: func(path string) ([]byte, error) {
			if content, ok := c.files[path]; ok {
				return []byte(content), nil
			}
			return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
		},
		BucketRegion: func(_ context.Context, bucket string) (string, error) {
			if bucket == "unknown" {
				return "", errors.New("no route to host")
			}
			return "eu-west-1", nil
		},
	}
}

func (c *cluster) secret(_ context.Context, name string) (map[string][]byte, error) {
	if data, ok := c.secrets[name]; ok {
		return data, nil
	}
	return nil, fmt.Errorf("get: %w", apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, name))
}

// location returns a location of the provider, in bucket and prefix, with config as alternating names and values.
func location(provider string, config ...string) *velerov1.BackupStorageLocation {
	l := &velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "default"}}
	l.Spec.Provider = provider
	l.Spec.ObjectStorage = &velerov1.ObjectStorageLocation{Bucket: "bucket", Prefix: "prefix"}
	l.Spec.Config = map[string]string{}
	for i := 0; i < len(config); i += 2 {
		l.Spec.Config[config[i]] = config[i+1]
	}
	return l
}

func selector(name, key string) *corev1.SecretKeySelector {
	return &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Key: key}
}

// withSecret gives the location a credential of its own with this content.
func (c *cluster) withSecret(l *velerov1.BackupStorageLocation, content string) *velerov1.BackupStorageLocation {
	c.secrets["own"] = map[string][]byte{"cloud": []byte(content)}
	l.Spec.Credential = selector("own", "cloud")
	return l
}

func (c *cluster) resolve(t *testing.T, l *velerov1.BackupStorageLocation) uploader.Repository {
	t.Helper()
	repo, err := c.resolver().Resolve(t.Context(), l, repository.Request{Namespace: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	return repo
}

// wantError fails unless resolving gives an error that wraps sentinel, says each of the texts, and holds no secret.
func (c *cluster) wantError(t *testing.T, l *velerov1.BackupStorageLocation, req repository.Request, sentinel error, texts ...string) {
	t.Helper()
	repo, err := c.resolver().Resolve(t.Context(), l, req)
	if err == nil {
		t.Fatalf("no error, but %s", repo)
	}
	if !errors.Is(err, sentinel) {
		t.Errorf("%v: does not wrap %q", err, sentinel)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%v: does not say %q", err, text)
		}
	}
	if strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, err), marker) {
		t.Errorf("%v: holds a secret", err)
	}
	if diff := cmp.Diff(uploader.Repository{}, repo); diff != "" {
		t.Errorf("a repository beside the error: %s", diff)
	}
}

// reveal makes secrets comparable in a way that shows the difference.
func reveal(secrets map[string]uploader.Secret) map[string]string {
	revealed := map[string]string{}
	for name, value := range secrets {
		revealed[name] = value.Reveal()
	}
	return revealed
}

func wantEnv(t *testing.T, repo uploader.Repository, want map[string]string) {
	t.Helper()
	if diff := cmp.Diff(want, reveal(repo.Env)); diff != "" {
		t.Errorf("Env (-want +got):\n%s", diff)
	}
}

func wantReadPaths(t *testing.T, repo uploader.Repository, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, repo.ReadPaths); diff != "" {
		t.Errorf("ReadPaths (-want +got):\n%s", diff)
	}
}
