package repository_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/pkg/repository"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

var shop = repository.Request{Namespace: "shop"}

func TestResolvePassword(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"newlines kept": " p\n\n", "bytes kept": "\x00\xff p", "plain": "p"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster()
			c.secrets["velero-repo-credentials"]["repository-password"] = []byte(want)
			if got := c.resolve(t, location("gcp")).Password.Reveal(); got != want {
				t.Errorf("password = %q, want %q", got, want)
			}
		})
	}
}

func TestResolvePasswordErrors(t *testing.T) {
	t.Parallel()
	says := []string{"velero/velero-repo-credentials", `"repository-password"`, "put in the password"}
	for name, data := range map[string]map[string][]byte{
		"no key": {"password": []byte(marker)}, "empty": {"repository-password": {}}, "no secret": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster()
			c.secrets["velero-repo-credentials"] = data
			if data == nil {
				delete(c.secrets, "velero-repo-credentials")
			}
			c.wantError(t, location("gcp"), shop, repository.ErrMisconfigured, says...)
		})
	}
}

func TestResolveAPIServerDown(t *testing.T) {
	t.Parallel()
	refused := errors.New("connection refused")
	resolver := newCluster().resolver()
	resolver.Secrets = repository.SecretReaderFunc(func(context.Context, string) (map[string][]byte, error) { return nil, refused })
	_, err := resolver.Resolve(t.Context(), location("gcp"), shop)
	if !errors.Is(err, refused) || errors.Is(err, repository.ErrMisconfigured) {
		t.Errorf("%v, want an error that may pass", err)
	}
	if !strings.Contains(err.Error(), "velero/velero-repo-credentials") {
		t.Errorf("%v: does not name the Secret", err)
	}
}

func TestResolveAccessMode(t *testing.T) {
	t.Parallel()
	for mode, want := range map[velerov1.BackupStorageLocationAccessMode]bool{"": false, "ReadWrite": false, "ReadOnly": true} {
		l := location("gcp")
		l.Spec.AccessMode = mode
		if got := newCluster().resolve(t, l).ReadOnly; got != want {
			t.Errorf("ReadOnly = %v for access mode %q", got, mode)
		}
	}
}

func TestResolveLeavesLocationAlone(t *testing.T) {
	t.Parallel()
	c := newCluster()
	l := c.withSecret(location("azure", "storageAccount", "acct"), "AZURE_STORAGE_KEY="+marker)
	before := l.DeepCopy()
	c.resolve(t, l)
	if diff := cmp.Diff(before, l); diff != "" {
		t.Errorf("the location, which comes from a cache, has changed:\n%s", diff)
	}
}

func TestResolveOtherStorage(t *testing.T) {
	t.Parallel()
	c := newCluster()
	c.env = map[string]string{
		"HTTPS_PROXY": "http://u:" + marker + "@proxy", "SSL_CERT_FILE": "/etc/ssl/own/ca.pem", "SSL_CERT_DIR": "/a:/b",
		"RESTIC_REST_USERNAME": "u", "RESTIC_REST_PASSWORD": marker, "B2_ACCOUNT_ID": "id", "B2_ACCOUNT_KEY": marker,
		"OS_USERNAME": "u", "ST_KEY": marker, "AWS_ACCESS_KEY_ID": "id", "HOME": "/root",
	}
	network := map[string]string{"HTTPS_PROXY": c.env["HTTPS_PROXY"], "SSL_CERT_FILE": c.env["SSL_CERT_FILE"], "SSL_CERT_DIR": "/a:/b"}
	for url, names := range map[string][]string{
		"rest:https://host/":  {"RESTIC_REST_USERNAME", "RESTIC_REST_PASSWORD"},
		"b2:bucket:dir":       {"B2_ACCOUNT_ID", "B2_ACCOUNT_KEY"},
		"swift:container:dir": {"OS_USERNAME", "ST_KEY"},
	} {
		repo, err := c.resolver().Resolve(t.Context(), location("acme"), repository.Request{Identifier: url})
		if err != nil {
			t.Fatal(err)
		}
		want := maps.Clone(network)
		for _, name := range names {
			want[name] = c.env[name]
		}
		wantEnv(t, repo, want)
		wantReadPaths(t, repo, "/etc/ssl/own", "/a", "/b")
	}
	wantEnv(t, c.resolve(t, location("fs", "fspath", "/mnt")), map[string]string{})
}

func TestResolveReadsMountedFiles(t *testing.T) {
	t.Parallel()
	// As kubelet mounts a Secret: links through ..data.
	mount := t.TempDir()
	if err := os.Mkdir(filepath.Join(mount, "..2026"), 0o700); err != nil {
		t.Fatal(err)
	}
	content := "[default]\naws_access_key_id=id\naws_secret_access_key=" + marker + "\naws_session_token=" + marker
	if err := os.WriteFile(filepath.Join(mount, "..2026", "cloud"), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"..data": "..2026", "cloud": "..data/cloud"} {
		if err := os.Symlink(to, filepath.Join(mount, link)); err != nil {
			t.Fatal(err)
		}
	}
	c := newCluster()
	c.env["AWS_SHARED_CREDENTIALS_FILE"] = filepath.Join(mount, "cloud")
	resolver := c.resolver()
	resolver.ReadFile = nil
	repo, err := resolver.Resolve(t.Context(), location("aws"), shop)
	if err != nil {
		t.Fatal(err)
	}
	wantReadPaths(t, repo, mount)
}

func TestRepositoryDoesNotPrintSecrets(t *testing.T) {
	t.Parallel()
	c := newCluster()
	l := c.withSecret(location("aws", "resticRepoPrefix", "s3:https://u:"+marker+"@minio/b"),
		"[default]\naws_access_key_id="+marker+"\naws_secret_access_key="+marker)
	repo := c.resolve(t, l)
	repo.Files["X"] = marker
	if repo.Env["AWS_ACCESS_KEY_ID"].Reveal() != marker {
		t.Fatal("nothing to hide")
	}
	encoded, err := json.Marshal(map[string]any{"repository": repo, "env": repo.Env, "files": repo.Files, "password": repo.Password})
	if err != nil {
		t.Fatal(err)
	}
	var logged strings.Builder
	for _, handler := range []slog.Handler{slog.NewTextHandler(&logged, nil), slog.NewJSONHandler(&logged, nil)} {
		slog.New(handler).Info("resolved", "repository", repo, "pointer", &repo, "env", repo.Env, "files", repo.Files,
			"password", repo.Password, "request", uploader.RestoreRequest{Repository: repo})
	}
	for how, text := range map[string]string{
		"json": string(encoded), "slog": logged.String(), "%v": fmt.Sprint(repo), "%v pointer": fmt.Sprint(&repo),
		"%+v": fmt.Sprintf("%+v", repo), "%#v": fmt.Sprintf("%#v", repo), "%s": repo.String(), "%q": fmt.Sprintf("%q", repo),
		"%v of a request":  fmt.Sprint(uploader.RestoreRequest{Repository: repo}),
		"%#v of a request": fmt.Sprintf("%#v", uploader.RestoreRequest{Repository: repo}),
		"%+v of Env":       fmt.Sprintf("%+v %#v %q", repo.Env, repo.Env, repo.Env),
		"%+v of Files":     fmt.Sprintf("%+v %#v %q", repo.Files, repo.Files, repo.Files),
	} {
		if strings.Contains(text, marker) {
			t.Errorf("%s shows a secret: %s", how, text)
		}
	}
	if got, want := fmt.Sprint(repo), "s3:https://******@minio/b/shop"; got != want {
		t.Errorf("prints as %q, want %q", got, want)
	}
}
