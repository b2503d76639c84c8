package repository_test

import (
	"maps"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/repository"
)

func TestResolveGCP(t *testing.T) {
	t.Parallel()
	key := `{"type":"service_account","project_id":"p1","private_key":"HuSh"}` + "\n"
	federated := `{"type":"external_account","credential_source":{"file":"/var/run/service-account/token"}}`
	tests := []struct {
		name  string
		own   string // the location's own file
		agent string // the agent's default file
		env   map[string]string
		file  string
		want  map[string]string
		paths []string
	}{
		{name: "own key", own: key, agent: federated, env: map[string]string{"GOOGLE_PROJECT_ID": "p0", "GOOGLE_ACCESS_TOKEN": "HuSh"}, file: key, want: map[string]string{"GOOGLE_PROJECT_ID": "p1"}},
		{name: "default key", agent: key, file: key, want: map[string]string{"GOOGLE_PROJECT_ID": "p1"}},
		{name: "federated", own: federated, file: federated, want: map[string]string{}, paths: []string{"/var/run/service-account"}},
		{name: "metadata server", env: map[string]string{"GOOGLE_PROJECT_ID": "p0"}, want: map[string]string{"GOOGLE_PROJECT_ID": "p0"}},
		{name: "token of the agent", env: map[string]string{"GOOGLE_ACCESS_TOKEN": "HuSh"}, want: map[string]string{"GOOGLE_ACCESS_TOKEN": "HuSh"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster()
			maps.Copy(c.env, tt.env)
			l := location("gcp")
			if tt.own != "" {
				c.withSecret(l, tt.own)
			}
			if tt.agent != "" {
				c.env["GOOGLE_APPLICATION_CREDENTIALS"], c.files[defaultFile] = defaultFile, tt.agent
			}
			repo := c.resolve(t, l)
			wantEnv(t, repo, tt.want)
			wantReadPaths(t, repo, tt.paths...)
			if got := repo.Files["GOOGLE_APPLICATION_CREDENTIALS"].Reveal(); got != tt.file {
				t.Errorf("credentials file = %q, want %q", got, tt.file)
			}
		})
	}
}

func TestResolveGCPErrors(t *testing.T) {
	t.Parallel()
	for _, content := range []string{"HuSh", `{"project_id": HuSh}`, `{"project_id": ["HuSh"]}`, `["HuSh"]`} {
		c := newCluster()
		c.wantError(t, c.withSecret(location("gcp"), content), shop, repository.ErrMisconfigured, "not a JSON file", "velero/own")
	}
}
