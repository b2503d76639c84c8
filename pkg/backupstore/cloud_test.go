package backupstore_test

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
	"github.com/plimsoll-io/plimsoll/pkg/repository"
)

// There is no server of Azure or Google Cloud here. These tests check how the clients are made from locations, and what
// becomes of answers that such servers are documented to give.

var restoreLog = velerov1.DownloadTarget{Kind: velerov1.DownloadTargetKindRestoreLog, Name: "r"}

// accountKey is base64, as Azure's are.
const accountKey = "SHVTaC1hY2NvdW50LWtleQ=="

func TestAzureURL(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		config     map[string]string
		credential string
		want       string // how the signed URL begins; empty: ErrNoURL
	}{
		"account key": {
			nil, "AZURE_STORAGE_ACCOUNT_ACCESS_KEY=" + accountKey, "https://acct.blob.core.windows.net/bucket/cluster-a/restores/r/restore-r-logs.gz",
		},
		"in China": {
			nil, "AZURE_CLOUD_NAME=AzureChinaCloud\nAZURE_STORAGE_ACCOUNT_ACCESS_KEY=" + accountKey,
			"https://acct.blob.core.chinacloudapi.cn/bucket/cluster-a/restores/r/restore-r-logs.gz",
		},
		"an address of one's own": {
			map[string]string{"storageAccountURI": "http://127.0.0.1:10000/acct"},
			"AZURE_STORAGE_ACCOUNT_ACCESS_KEY=" + accountKey,
			"http://127.0.0.1:10000/acct/bucket/cluster-a/restores/r/restore-r-logs.gz",
		},
		"an address without scheme": {
			map[string]string{"storageAccountURI": "acct.example.com"},
			"AZURE_STORAGE_ACCOUNT_ACCESS_KEY=" + accountKey,
			"https://acct.example.com/bucket/cluster-a/restores/r/restore-r-logs.gz",
		},
		"service principal": {nil, "AZURE_TENANT_ID=tenant\nAZURE_CLIENT_ID=client\nAZURE_CLIENT_SECRET=" + marker, ""},
		"managed identity":  {map[string]string{"useAAD": "true"}, "AZURE_CLOUD_NAME=AzurePublicCloud", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace("azure", map[string]string{"storageAccount": "acct"})
			maps.Copy(p.location.Spec.Config, test.config)
			p.setCredential(test.credential)
			got, err := p.open(t).DownloadURL(t.Context(), restoreLog, 10*time.Minute)
			if test.want == "" {
				wantError(t, err, backupstore.ErrNoURL)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			u, err := url.Parse(got)
			if err != nil || u.Scheme+"://"+u.Host+u.Path != test.want {
				t.Errorf("got %s, %v, want %s", got, err, test.want)
			}
			if u.Query().Get("sp") != "r" || u.Query().Get("sig") == "" {
				t.Errorf("%s: want a signature for reading only", got)
			}
		})
	}
}

func TestAzureMisconfigured(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ uri, credential string }{
		"key that is none":  {"", "AZURE_STORAGE_ACCOUNT_ACCESS_KEY=" + marker + "!"},
		"storageAccountURI": {"ftp://acct", "AZURE_STORAGE_ACCOUNT_ACCESS_KEY=" + accountKey},
		"certificate":       {"", "AZURE_TENANT_ID=t\nAZURE_CLIENT_ID=c\nAZURE_CLIENT_CERTIFICATE=" + marker},
		"identity in part":  {"", "AZURE_CLIENT_ID=c\nAZURE_CLIENT_SECRET=" + marker},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace("azure", map[string]string{"storageAccount": "acct", "storageAccountURI": test.uri})
			p.setCredential(test.credential)
			_, err := backupstore.Open(t.Context(), p.resolver(), p.location)
			wantError(t, err, repository.ErrMisconfigured, "default")
		})
	}
}

// answering is a server that gives every request the same answer.
func answering(t *testing.T, status int, header map[string]string, body string) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for name, value := range header {
			w.Header().Set(name, value)
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(server.Close)
	return server
}

func TestAzureAnswers(t *testing.T) {
	t.Parallel()
	for code, test := range map[string]struct {
		status int
		want   error
	}{
		"ContainerNotFound":    {http.StatusNotFound, backupstore.ErrNoBucket},
		"BlobNotFound":         {http.StatusNotFound, backupstore.ErrNotFound},
		"AuthenticationFailed": {http.StatusForbidden, backupstore.ErrAccessDenied},
		"NoAuthentication":     {http.StatusUnauthorized, backupstore.ErrAccessDenied},
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			server := answering(t, test.status, map[string]string{"x-ms-error-code": code}, "")
			p := newPlace("azure", map[string]string{"storageAccount": "acct", "storageAccountURI": server.URL})
			p.setCredential("AZURE_STORAGE_ACCOUNT_ACCESS_KEY=" + accountKey)
			_, err := backup(t, p).Metadata(t.Context())
			if !isOnly(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
}

// A shared access signature is part of every request's URL, and HTTP clients quote URLs.
func TestAzureSignatureIsHidden(t *testing.T) {
	t.Parallel()
	p := newPlace("azure", map[string]string{"storageAccount": "acct", "storageAccountURI": "http://127.0.0.1:1"})
	resolver := p.resolver()
	resolver.LookupEnv = func(name string) (string, bool) {
		if name != "AZURE_ACCOUNT_SAS" {
			return "", false
		}
		return "sv=2024-01-01&sig=" + marker, true
	}
	store, err := backupstore.Open(t.Context(), resolver, p.location)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second) // it would try again for a minute
	defer cancel()
	_, err = store.Backups(ctx)
	if err == nil || strings.Contains(err.Error(), marker) {
		t.Errorf("got %v, want an error without the signature", err)
	}
}

// serviceAccount is a credentials file of Google Cloud with a key of its own.
func serviceAccount(t *testing.T) string {
	t.Helper()
	file, err := json.Marshal(map[string]string{
		"type": "service_account", "project_id": "p", "client_email": "velero@p.iam.gserviceaccount.com", "private_key": privateKey(t),
		"token_uri": "http://127.0.0.1:1/token",
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(file)
}

func TestGCSURL(t *testing.T) {
	t.Parallel()
	p := newPlace("gcp", map[string]string{})
	p.setCredential(serviceAccount(t))
	got, err := p.open(t).DownloadURL(t.Context(), restoreLog, 10*time.Minute)
	if err != nil || !strings.HasPrefix(got, "https://storage.googleapis.com/bucket/cluster-a/restores/r/restore-r-logs.gz?") {
		t.Errorf("got %s, %v", got, err)
	}
	p.setCredential(`{"type":"authorized_user","client_id":"c","client_secret":"` + marker + `","refresh_token":"t"}`)
	_, err = p.open(t).DownloadURL(t.Context(), restoreLog, 10*time.Minute)
	wantError(t, err, backupstore.ErrNoURL)
}

func TestGCSMisconfigured(t *testing.T) {
	t.Parallel()
	for _, content := range []string{`{}`, `{"type":"` + marker + `"}`, `{"type":"external_account","x":"` + marker + `"}`} {
		p := newPlace("gcp", nil)
		p.setCredential(content)
		_, err := backupstore.Open(t.Context(), p.resolver(), p.location)
		wantError(t, err, repository.ErrMisconfigured, "Google Cloud")
	}
}

func TestGCSAnswers(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]error{
		http.StatusForbidden: backupstore.ErrAccessDenied, http.StatusUnauthorized: backupstore.ErrAccessDenied, http.StatusNotFound: backupstore.ErrNoBucket,
	} {
		server := answering(t, status, map[string]string{"Content-Type": "application/json"}, `{"error":{"code":`+http.StatusText(status)+`}}`)
		p := newPlace("gcp", map[string]string{"storeEndpoint": server.URL + "/storage/v1/"})
		resolver := p.resolver()
		resolver.LookupEnv = func(name string) (string, bool) {
			if name != "GOOGLE_ACCESS_TOKEN" {
				return "", false
			}
			return marker, true
		}
		store, err := backupstore.Open(t.Context(), resolver, p.location)
		if err != nil {
			t.Fatal(err)
		}
		names, err := store.Backups(t.Context())
		if !isOnly(err, want) || len(names) > 0 {
			t.Errorf("%d: got %v, %v, want %v", status, names, err, want)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}
}

// S3 errors whose text happens to hold "301" are no objects that do not exist.
func TestS3Answers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		status int
		body   string
		want   error
		says   string
	}{
		"a request id":   {http.StatusBadRequest, "<Error><Code>BadDigest</Code><RequestId>4301</RequestId></Error>", nil, "BadDigest"},
		"another region": {http.StatusMovedPermanently, "<Error><Code>PermanentRedirect</Code></Error>", nil, "region"},
		"no such key":    {http.StatusNotFound, "<Error><Code>NoSuchKey</Code></Error>", backupstore.ErrNotFound, ""},
		"no such bucket": {http.StatusNotFound, "<Error><Code>NoSuchBucket</Code></Error>", backupstore.ErrNoBucket, ""},
		"expired token":  {http.StatusBadRequest, "<Error><Code>ExpiredToken</Code></Error>", backupstore.ErrAccessDenied, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := answering(t, test.status, map[string]string{"X-Amz-Request-Id": "4301"}, test.body)
			p := newPlace("aws", map[string]string{"s3Url": server.URL, "s3ForcePathStyle": "true"})
			p.setCredential("[default]\naws_access_key_id = id\naws_secret_access_key = " + marker)
			_, err := backup(t, p).Metadata(t.Context())
			if !isOnly(err, test.want) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v, want %v and %q", err, test.want, test.says)
			}
		})
	}
}
