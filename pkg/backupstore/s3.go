package backupstore

import (
	"context"
	"crypto/md5" //nolint:gosec // G501: S3 wants the MD5 of a customer key, to see that it came through whole
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/credentials/ec2rolecreds"
	"github.com/aws/aws-sdk-go-v2/credentials/endpointcreds"
	"github.com/aws/aws-sdk-go-v2/credentials/stscreds"
	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go/middleware"
	"gocloud.dev/blob/s3blob"

	"github.com/plimsoll-io/plimsoll/pkg/repository"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// openS3 makes the client as Velero's plugin for AWS does from the same config.
func (c *cloud) openS3(ctx context.Context, b repository.Bucket, config map[string]string, transport *http.Transport) error {
	settings, err := newS3Settings(b, config)
	if err != nil {
		return err
	}
	httpClient := &http.Client{Transport: transport}
	options := s3.Options{
		Region:       b.Storage.Region,
		UsePathStyle: settings.pathStyle,
		HTTPClient:   httpClient,
		Credentials:  aws.NewCredentialsCache(awsCredentials(b, httpClient)),
		// What checksums requests have is decided in the settings' middleware.
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenRequired,
		APIOptions:                 []func(*middleware.Stack) error{settings.install},
	}
	client := s3.New(options, baseEndpoint(config["s3Url"]))
	c.blobs, err = s3blob.OpenBucket(ctx, client, b.Storage.Bucket, nil)
	if err != nil {
		return err
	}
	if b.CustomerKey != "" {
		return nil // who follows a URL would have to send the key along, which the velero CLI does not
	}
	presigner := s3.NewPresignClient(client)
	if public := config["publicUrl"]; public != "" {
		presigner = s3.NewPresignClient(s3.New(options, baseEndpoint(public)))
	}
	c.signer = func(ctx context.Context, key string, ttl time.Duration) (string, error) {
		request, err := presigner.PresignGetObject(ctx, &s3.GetObjectInput{
			Bucket: aws.String(b.Storage.Bucket), Key: aws.String(b.Storage.Prefix + key),
		}, s3.WithPresignExpires(ttl))
		if err != nil {
			return "", err
		}
		return request.URL, nil
	}
	return nil
}

func baseEndpoint(address string) func(*s3.Options) {
	return func(o *s3.Options) {
		if address != "" {
			o.BaseEndpoint = aws.String(strings.TrimSuffix(address, "/"))
		}
	}
}

// s3Settings are what a location's config says about requests.
type s3Settings struct {
	pathStyle bool
	checksum  types.ChecksumAlgorithm // of what is written; empty: none

	encryption  types.ServerSideEncryption
	kmsKey      *string
	tagging     *string
	customerKey *customerKey
}

// customerKey is an SSE-C key as requests carry it.
type customerKey struct{ algorithm, key, md5 *string }

func newS3Settings(b repository.Bucket, config map[string]string) (*s3Settings, error) {
	s := &s3Settings{checksum: types.ChecksumAlgorithmCrc32, encryption: types.ServerSideEncryption(config["serverSideEncryption"])}
	for _, name := range []string{"s3Url", "publicUrl"} {
		u, err := url.Parse(config[name])
		if config[name] != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
			return nil, misconfigured("config %s %q is no URL such as https://minio:9000", name, uploader.RedactURL(config[name]))
		}
	}
	if value := config["s3ForcePathStyle"]; value != "" {
		var err error
		if s.pathStyle, err = strconv.ParseBool(value); err != nil {
			return nil, misconfigured("config s3ForcePathStyle is %q, want true or false", value)
		}
	}
	// Empty is not the same as absent: servers that know no checksums need the former.
	if algorithm, ok := config["checksumAlgorithm"]; ok {
		s.checksum = types.ChecksumAlgorithm(algorithm)
		if err := knownChecksum(s.checksum); err != nil {
			return nil, err
		}
	}
	if key := config["kmsKeyId"]; key != "" {
		s.encryption, s.kmsKey = types.ServerSideEncryptionAwsKms, &key
	}
	if tags := config["tagging"]; tags != "" {
		s.tagging = &tags
	}
	if b.CustomerKey == "" {
		return s, nil
	}
	if s.kmsKey != nil {
		return nil, misconfigured("config has both kmsKeyId and a customer key")
	}
	sum := md5.Sum([]byte(b.CustomerKey.Reveal())) //nolint:gosec // G401: see the import
	s.encryption = ""
	s.customerKey = &customerKey{
		algorithm: aws.String(string(types.ServerSideEncryptionAes256)),
		key:       aws.String(base64.StdEncoding.EncodeToString([]byte(b.CustomerKey.Reveal()))),
		md5:       aws.String(base64.StdEncoding.EncodeToString(sum[:])),
	}
	return s, nil
}

func knownChecksum(algorithm types.ChecksumAlgorithm) error {
	if algorithm == "" {
		return nil
	}
	if slices.Contains(algorithm.Values(), algorithm) {
		return nil
	}
	return misconfigured("config checksumAlgorithm is %q, want one of %v or nothing", algorithm, algorithm.Values())
}

func misconfigured(format string, args ...any) error {
	return fmt.Errorf("%w: %w", repository.ErrMisconfigured, fmt.Errorf(format, args...))
}

// install makes every request of a client pass through prepare, before anything else sees it. The transfer manager below
// s3blob sets a checksum that no option turns off, and leaves no other place to set the key of a HEAD request.
func (s *s3Settings) install(stack *middleware.Stack) error {
	return stack.Initialize.Add(middleware.InitializeMiddlewareFunc("PlimsollLocationConfig",
		func(ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler) (middleware.InitializeOutput, middleware.Metadata, error) {
			s.prepare(in.Parameters)
			return next.HandleInitialize(ctx, in)
		}), middleware.Before)
}

func (s *s3Settings) prepare(input any) {
	key := customerKey{}
	if s.customerKey != nil {
		key = *s.customerKey
	}
	switch in := input.(type) {
	case *s3.HeadObjectInput:
		in.SSECustomerAlgorithm, in.SSECustomerKey, in.SSECustomerKeyMD5 = key.algorithm, key.key, key.md5
	case *s3.GetObjectInput:
		in.SSECustomerAlgorithm, in.SSECustomerKey, in.SSECustomerKeyMD5 = key.algorithm, key.key, key.md5
	case *s3.PutObjectInput:
		in.SSECustomerAlgorithm, in.SSECustomerKey, in.SSECustomerKeyMD5 = key.algorithm, key.key, key.md5
		in.ChecksumAlgorithm, in.ServerSideEncryption, in.SSEKMSKeyId, in.Tagging = s.checksum, s.encryption, s.kmsKey, s.tagging
	case *s3.CreateMultipartUploadInput:
		in.SSECustomerAlgorithm, in.SSECustomerKey, in.SSECustomerKeyMD5 = key.algorithm, key.key, key.md5
		in.ChecksumAlgorithm, in.ServerSideEncryption, in.SSEKMSKeyId, in.Tagging = s.checksum, s.encryption, s.kmsKey, s.tagging
	case *s3.UploadPartInput:
		in.SSECustomerAlgorithm, in.SSECustomerKey, in.SSECustomerKeyMD5 = key.algorithm, key.key, key.md5
		in.ChecksumAlgorithm = s.checksum
	case *s3.CompleteMultipartUploadInput:
		in.SSECustomerAlgorithm, in.SSECustomerKey, in.SSECustomerKeyMD5 = key.algorithm, key.key, key.md5
	}
}

// The variables in which package repository hands over a role to assume, restic's own.
const (
	assumeRoleARN        = "RESTIC_AWS_ASSUME_ROLE_ARN"
	assumeRoleSession    = "RESTIC_AWS_ASSUME_ROLE_SESSION_NAME"
	assumeRoleExternalID = "RESTIC_AWS_ASSUME_ROLE_EXTERNAL_ID"
	assumeRoleRegion     = "RESTIC_AWS_ASSUME_ROLE_REGION"
	assumeRoleEndpoint   = "RESTIC_AWS_ASSUME_ROLE_STS_ENDPOINT"
	assumeRolePolicy     = "RESTIC_AWS_ASSUME_ROLE_POLICY"
)

// awsCredentials are what package repository found, with the role assumed that it names.
func awsCredentials(b repository.Bucket, client *http.Client) aws.CredentialsProvider {
	env := environment(b.Env)
	source := sourceCredentials(b, client)
	if env.get(assumeRoleARN) == "" {
		return source
	}
	return stscreds.NewAssumeRoleProvider(securityTokens(b, client, source), env.get(assumeRoleARN), func(o *stscreds.AssumeRoleOptions) {
		o.RoleSessionName = env.get(assumeRoleSession)
		o.ExternalID, o.Policy = env.pointer(assumeRoleExternalID), env.pointer(assumeRolePolicy)
	})
}

func sourceCredentials(b repository.Bucket, client *http.Client) aws.CredentialsProvider {
	env := environment(b.Env)
	switch {
	case env.get("AWS_ACCESS_KEY_ID") != "":
		return credentials.NewStaticCredentialsProvider(env.get("AWS_ACCESS_KEY_ID"), env.get("AWS_SECRET_ACCESS_KEY"), env.get("AWS_SESSION_TOKEN"))
	case env.get("AWS_SHARED_CREDENTIALS_FILE") != "":
		return mountedCredentials(env.get("AWS_SHARED_CREDENTIALS_FILE"), env.get("AWS_PROFILE"))
	case env.get("AWS_WEB_IDENTITY_TOKEN_FILE") != "" && env.get("AWS_ROLE_ARN") != "":
		tokens := securityTokens(b, client, aws.AnonymousCredentials{})
		return stscreds.NewWebIdentityRoleProvider(tokens, env.get("AWS_ROLE_ARN"), stscreds.IdentityTokenFile(env.get("AWS_WEB_IDENTITY_TOKEN_FILE")),
			func(o *stscreds.WebIdentityRoleOptions) { o.RoleSessionName = env.get("AWS_ROLE_SESSION_NAME") })
	case env.get("AWS_CONTAINER_CREDENTIALS_FULL_URI") != "":
		return containerCredentials(env, env.get("AWS_CONTAINER_CREDENTIALS_FULL_URI"), client)
	case env.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") != "":
		return containerCredentials(env, "http://169.254.170.2"+env.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"), client)
	default:
		return ec2rolecreds.New(func(o *ec2rolecreds.Options) { o.Client = imds.New(imds.Options{}) })
	}
}

// renewal is how long temporary keys from a mounted file are used before the file is read again.
const renewal = time.Minute

// mountedCredentials reads keys from a file that whoever mounted it renews.
func mountedCredentials(file, profile string) aws.CredentialsProvider {
	return aws.CredentialsProviderFunc(func(ctx context.Context) (aws.Credentials, error) {
		shared, err := awsconfig.LoadSharedConfigProfile(ctx, profile, func(o *awsconfig.LoadSharedConfigOptions) {
			o.CredentialsFiles, o.ConfigFiles = []string{file}, []string{}
		})
		if err != nil {
			return aws.Credentials{}, fmt.Errorf("read AWS credentials file %s: %w", file, err)
		}
		keys := shared.Credentials
		keys.CanExpire, keys.Expires = true, time.Now().Add(renewal)
		return keys, nil
	})
}

// containerCredentials asks the agent of EKS pod identities or of ECS.
func containerCredentials(env environment, address string, client *http.Client) aws.CredentialsProvider {
	return endpointcreds.New(address, func(o *endpointcreds.Options) {
		o.HTTPClient = client
		o.AuthorizationToken = env.get("AWS_CONTAINER_AUTHORIZATION_TOKEN")
		if file := env.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"); file != "" {
			o.AuthorizationTokenProvider = endpointcreds.TokenProviderFunc(func() (string, error) {
				token, err := stscreds.IdentityTokenFile(file).GetIdentityToken()
				return string(token), err
			})
		}
	})
}

func securityTokens(b repository.Bucket, client *http.Client, source aws.CredentialsProvider) *sts.Client {
	env := environment(b.Env)
	region := env.get(assumeRoleRegion)
	if region == "" {
		region = b.Storage.Region
	}
	return sts.New(sts.Options{
		Region: region, HTTPClient: client, Credentials: source, BaseEndpoint: env.pointer(assumeRoleEndpoint),
	})
}

// environment is what package repository found, under the names that restic and kopia read.
type environment map[string]uploader.Secret

func (e environment) get(name string) string { return e[name].Reveal() }

// pointer is nil for an empty value.
func (e environment) pointer(name string) *string {
	if e[name] == "" {
		return nil
	}
	return aws.String(e.get(name))
}
