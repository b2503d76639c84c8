package backupstore_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
)

// tokenServer gives temporary keys to whoever asks in one of Amazon's ways, and notes what it was asked.
func tokenServer(t *testing.T) (address string, asked func() string) {
	t.Helper()
	var mu sync.Mutex
	var questions strings.Builder
	const keys = "<Credentials><AccessKeyId>temporary-id</AccessKeyId><SecretAccessKey>" + marker + "</SecretAccessKey>" +
		"<SessionToken>the-token</SessionToken><Expiration>2099-01-02T03:04:05Z</Expiration></Credentials>"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		questions.WriteString(r.Method + " " + r.URL.Path + " " + r.Header.Get("Authorization") + " " + string(body) + "\n")
		switch {
		case r.Method == http.MethodGet:
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"AccessKeyId":"temporary-id","SecretAccessKey":"`+marker+`","Token":"the-token","Expiration":"2099-01-02T03:04:05Z"}`)
		case strings.Contains(string(body), "Action=AssumeRoleWithWebIdentity"):
			_, _ = io.WriteString(w, "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult>"+keys+"</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>")
		default:
			_, _ = io.WriteString(w, "<AssumeRoleResponse><AssumeRoleResult>"+keys+"</AssumeRoleResult></AssumeRoleResponse>")
		}
	}))
	t.Cleanup(server.Close)
	return server.URL, func() string {
		mu.Lock()
		defer mu.Unlock()
		return questions.String()
	}
}

// TestS3TemporaryKeys gets keys in the ways that need no Secret. The servers are fakes: what they answer is documented.
func TestS3TemporaryKeys(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("the-identity"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		env  map[string]string
		asks []string
	}{
		"pod identity": {
			map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": "SERVER/v1/credentials", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": token},
			[]string{"GET /v1/credentials the-identity"},
		},
		"web identity": {
			map[string]string{
				"AWS_WEB_IDENTITY_TOKEN_FILE": token, "AWS_ROLE_ARN": "arn:aws:iam::1:role/velero", "RESTIC_AWS_ASSUME_ROLE_STS_ENDPOINT": "SERVER",
			},
			[]string{"Action=AssumeRoleWithWebIdentity", "WebIdentityToken=the-identity", "RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fvelero"},
		},
		"role to assume": {
			map[string]string{
				"AWS_ACCESS_KEY_ID": "agent", "AWS_SECRET_ACCESS_KEY": marker, "RESTIC_AWS_ASSUME_ROLE_STS_ENDPOINT": "SERVER",
				"RESTIC_AWS_ASSUME_ROLE_ARN": "arn:aws:iam::1:role/backups", "RESTIC_AWS_ASSUME_ROLE_EXTERNAL_ID": "from-outside",
			},
			[]string{"Credential=agent/", "Action=AssumeRole&", "ExternalId=from-outside", "RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fbackups"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address, asked := tokenServer(t)
			p, requests := onRecorder(t)
			p.location.Spec.Credential = nil
			resolver := p.resolver()
			resolver.LookupEnv = func(name string) (string, bool) {
				value, ok := test.env[name]
				return strings.Replace(value, "SERVER", address, 1), ok
			}
			store, err := backupstore.Open(t.Context(), resolver, p.location)
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			if err := store.Validate(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, r := range requests() {
				if !strings.Contains(r.Header.Get("Authorization"), "Credential=temporary-id/") || r.Header.Get("X-Amz-Security-Token") != "the-token" {
					t.Errorf("%s: signed as %q, token %q", r.URL, r.Header.Get("Authorization"), r.Header.Get("X-Amz-Security-Token"))
				}
			}
			questions := asked()
			for _, want := range test.asks {
				if !strings.Contains(questions, want) {
					t.Errorf("asked %q, want %q in it", questions, want)
				}
			}
		})
	}
}
