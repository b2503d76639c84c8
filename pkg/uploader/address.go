package uploader

import (
	"log/slog"
	"regexp"
	"strings"
)

// Address is the repository's URL without the user and password that a rest server's URL may hold: for logs, Events,
// status and errors.
func (r Repository) Address() string { return RedactURL(r.URL) }

// decisive are the settings of a storage that decide where an address of it leads, as names of variables in Env. Two storage accounts of Azure may each
// have a container of one name.
var decisive = map[string][]string{
	"azure:": {"AZURE_ACCOUNT_NAME", "AZURE_ENDPOINT_SUFFIX"},
	"swift:": {"OS_STORAGE_URL", "OS_AUTH_URL", "ST_AUTH", "OS_REGION_NAME", "OS_PROJECT_NAME", "OS_TENANT_NAME"},
}

// Identity tells the repository from all others, as far as its settings do: its Address, and what else decides where that leads, in parentheses. It has
// no secret, and does not change with a credential.
func (r Repository) Identity() string {
	scheme, _, _ := strings.Cut(r.URL, ":")
	var settings []string
	for _, name := range decisive[scheme+":"] {
		if value := r.Env[name].Reveal(); value != "" {
			settings = append(settings, RedactURL(value))
		}
	}
	address := signature.ReplaceAllString(r.Address(), "${1}"+redacted)
	if len(settings) == 0 {
		return address
	}
	return address + " (" + strings.Join(settings, ", ") + ")"
}

// String is the Address: a repository prints as nothing else, so that no log can show what opens it.
func (r Repository) String() string { return r.Address() }

// GoString is the Address, for %#v.
func (r Repository) GoString() string { return r.Address() }

// LogValue is the Address, for slog.
func (r Repository) LogValue() slog.Value { return slog.StringValue(r.Address()) }

// MarshalText is the Address, for encoders.
func (r Repository) MarshalText() ([]byte, error) { return []byte(r.Address()), nil }

// RedactURL hides user and password in a repository URL such as "rest:https://user:password@host/path".
func RedactURL(url string) string {
	scheme, rest, ok := strings.Cut(url, "://")
	if !ok {
		return url
	}
	authority, path, slash := strings.Cut(rest, "/")
	at := strings.LastIndexByte(authority, '@')
	if at < 0 && looksLikePassword(authority) && strings.Contains(path, "@") {
		// A password with a bare slash in it: no address that works, but still a password.
		return scheme + "://" + redacted
	}
	if at < 0 {
		return url
	}
	redactedURL := scheme + "://" + redacted + authority[at:]
	if slash {
		redactedURL += "/" + path
	}
	return redactedURL
}

// looksLikePassword says that what follows the host's colon is no port number.
func looksLikePassword(authority string) bool {
	if strings.HasPrefix(authority, "[") {
		return false
	}
	_, port, ok := strings.Cut(authority, ":")
	return ok && strings.Trim(port, "0123456789") != ""
}

// userInfo is greedy: a password may have an @ in it.
var userInfo = regexp.MustCompile(`://[^/\s]+@`)

// signature is what signs an address in its query: an Azure SAS, or a presigned request. The clouds' libraries sort and encode
// a query anew, so that what was handed to them is not found in it.
var signature = regexp.MustCompile(`(?i)([?&](?:sig|signature|x-(?:amz|goog)-(?:signature|credential|security-token))=)[^&\s":]+`)

// minSecret is the shortest secret that is looked for in texts: shorter values, such as "1" or "true", are settings.
const minSecret = 6

// Hider returns a function that replaces the repository's secrets in a text, and user, password and signature in any URL.
func (r Repository) Hider() func(string) string {
	var pairs []string
	secrets := []Secret{r.Password}
	for _, value := range r.Env {
		secrets = append(secrets, value)
	}
	for _, secret := range secrets {
		if s := strings.TrimSpace(secret.Reveal()); len(s) >= minSecret {
			pairs = append(pairs, s, redacted)
		}
	}
	replacer := strings.NewReplacer(pairs...)
	return func(text string) string {
		text = userInfo.ReplaceAllString(replacer.Replace(text), "://"+redacted+"@")
		return signature.ReplaceAllString(text, "${1}"+redacted)
	}
}
