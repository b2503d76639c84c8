package backupstore

import (
	"context"
	"encoding/json"
	"net/http"

	"cloud.google.com/go/storage"
	"gocloud.dev/blob/gcsblob"
	"gocloud.dev/gcp"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
	"google.golang.org/api/option"

	"github.com/plimsoll-io/plimsoll/pkg/repository"
)

// googleCredentials is the variable under which package repository hands over the credentials file.
const googleCredentials = "GOOGLE_APPLICATION_CREDENTIALS" //nolint:gosec // G101: the name of a variable

// openGCS makes the client from a credentials file, an access token or, with neither, the metadata server's identity. URLs
// can be signed with the key of a service account only.
func (c *cloud) openGCS(ctx context.Context, b repository.Bucket, config map[string]string, transport *http.Transport) error {
	file := []byte(b.Files[googleCredentials].Reveal())
	tokens, err := googleTokens(context.WithValue(ctx, oauth2.HTTPClient, &http.Client{Transport: transport}), b, file)
	if err != nil {
		return err
	}
	client, err := gcp.NewHTTPClient(transport, tokens)
	if err != nil {
		return err
	}
	account := googleAccount(file)
	options := &gcsblob.Options{GoogleAccessID: account.Email, PrivateKey: []byte(account.PrivateKey)}
	if endpoint := config["storeEndpoint"]; endpoint != "" {
		options.ClientOptions = append(options.ClientOptions, option.WithEndpoint(endpoint))
	}
	if domain := config["universeDomain"]; domain != "" {
		options.ClientOptions = append(options.ClientOptions, option.WithUniverseDomain(domain))
	}
	if c.blobs, err = gcsblob.OpenBucket(ctx, client, b.Storage.Bucket, options); err != nil {
		return err
	}
	if key := config["kmsKeyName"]; key != "" {
		c.beforeWrite = func(as func(any) bool) error {
			var w *storage.Writer
			if as(&w) {
				w.KMSKeyName = key
			}
			return nil
		}
	}
	if account.PrivateKey == "" || account.Email == "" {
		return nil
	}
	c.signer = c.signedURL
	return nil
}

// googleTokens renew themselves, for as long as ctx's values live; ctx itself may end.
func googleTokens(ctx context.Context, b repository.Bucket, file []byte) (oauth2.TokenSource, error) {
	ctx = context.WithoutCancel(ctx)
	switch token := environment(b.Env).get("GOOGLE_ACCESS_TOKEN"); {
	case len(file) > 0:
		found, err := google.CredentialsFromJSONWithType(ctx, file, google.CredentialsType(googleAccount(file).Type), storage.ScopeReadWrite)
		if err != nil {
			// The decoder's error may quote the file.
			return nil, misconfigured("the Google Cloud credentials file is of no known type or incomplete")
		}
		return found.TokenSource, nil
	case token != "":
		return oauth2.StaticTokenSource(&oauth2.Token{AccessToken: token}), nil
	default:
		return google.ComputeTokenSource("", storage.ScopeReadWrite), nil
	}
}

// account is the part of a credentials file that signs URLs. It is empty for identities without a key.
type account struct {
	Type       string `json:"type"`
	Email      string `json:"client_email"`
	PrivateKey string `json:"private_key"`
}

func googleAccount(file []byte) account {
	var a account
	if json.Unmarshal(file, &a) != nil {
		return account{}
	}
	return a
}
