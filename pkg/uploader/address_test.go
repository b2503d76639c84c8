package uploader

import "testing"

func TestRedactURL(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"":                                   "",
		"/srv/restic/a@b":                    "/srv/restic/a@b",
		"s3:https://minio:9000/b/a@b":        "s3:https://minio:9000/b/a@b",
		"s3:https://[::1]:9000/b/a@b":        "s3:https://[::1]:9000/b/a@b",
		"gs:bucket:/prefix":                  "gs:bucket:/prefix",
		"rest:https://host":                  "rest:https://host",
		"rest:https://user:pw@host":          "rest:https://******@host",
		"rest:https://user:pw@host:8000/p/":  "rest:https://******@host:8000/p/",
		"rest:https://user:p@w@host/p":       "rest:https://******@host/p",
		"rest:https://user:p/w@host/p":       "rest:https://******",
		"rest:http+unix://user:pw@host/sock": "rest:http+unix://******@host/sock",
	} {
		if got := RedactURL(url); got != want {
			t.Errorf("RedactURL(%q) = %q, want %q", url, got, want)
		}
	}
}

// TestIdentity: repositories of two storages are not taken for one, one is not taken for two because a credential changes, and no secret is shown.
func TestIdentity(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		repository Repository
		want       string
	}{
		{Repository{URL: "azure:velero:/restic/shop", Env: map[string]Secret{"AZURE_ACCOUNT_NAME": "backups", "AZURE_ACCOUNT_KEY": "backups-key"}}, "azure:velero:/restic/shop (backups)"},
		{
			Repository{URL: "azure:velero:/restic/shop", Env: map[string]Secret{"AZURE_ACCOUNT_NAME": "backups", "AZURE_ENDPOINT_SUFFIX": "core.chinacloudapi.cn"}},
			"azure:velero:/restic/shop (backups, core.chinacloudapi.cn)",
		},
		{Repository{URL: "s3:https://us-east-1.example.com/b", Env: map[string]Secret{"AWS_DEFAULT_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "example"}}, "s3:https://us-east-1.example.com/b"},
		{Repository{URL: "swift:velero:/restic/shop", Env: map[string]Secret{"OS_AUTH_URL": "https://user:pw@keys.example.com/v3", "OS_PASSWORD": "secret"}}, "swift:velero:/restic/shop (https://******@keys.example.com/v3)"},
		{Repository{URL: "rest:https://user:pw@example.com/shop"}, "rest:https://******@example.com/shop"},
		{Repository{URL: "rest:https://example.com/shop?sig=abc", Env: map[string]Secret{"AZURE_ACCOUNT_NAME": "backups"}}, "rest:https://example.com/shop?sig=******"},
	} {
		if got := test.repository.Identity(); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}

func TestHider(t *testing.T) {
	t.Parallel()
	hide := Repository{
		Password: "static-passw0rd\n", Env: map[string]Secret{"AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI", "AWS_S3_FORCE_PATH": "true"},
	}.Hider()
	for text, want := range map[string]string{
		"no secret, true":                          "no secret, true",
		"wrong password static-passw0rd":           "wrong password ******",
		"signed with wJalrXUtnFEMI/wJalrXUtnFEMI":  "signed with ******/******",
		"Get https://user:pw@host/path: refused":   "Get https://******@host/path: refused",
		"Fatal: rest:https://user:p@w@host/p, a@b": "Fatal: rest:https://******@host/p, a@b",
		`Head "https://a.blob.core.windows.net/c/config?se=2027-01-01T00%3A00%3A00Z&sig=a%2Fb%3D&sp=rl": no such host`: `Head "https://a.blob.core.windows.net/c/config?se=2027-01-01T00%3A00%3A00Z&sig=******&sp=rl": no such host`,
		"GET /b/k?X-Amz-Credential=AKIA%2F1&X-Amz-Date=7&X-Amz-Security-Token=FQ&X-Amz-Signature=0a 403":               "GET /b/k?X-Amz-Credential=******&X-Amz-Date=7&X-Amz-Security-Token=******&X-Amz-Signature=****** 403",
		"GET /b/k?AWSAccessKeyId=a&Signature=b%3D":                                                                     "GET /b/k?AWSAccessKeyId=a&Signature=******",
		"GET /b/k?design=1&signed=2": "GET /b/k?design=1&signed=2",
	} {
		if got := hide(text); got != want {
			t.Errorf("hide(%q) = %q, want %q", text, got, want)
		}
	}
}
