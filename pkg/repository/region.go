package repository

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// regionTimeout bounds one question for a bucket's region.
const regionTimeout = 30 * time.Second

// DetectRegion returns a function for Resolver.BucketRegion that asks S3, without credentials, where a bucket lies. S3
// answers in a header whether or not the bucket may be read, but only for buckets of the standard partition: buckets in
// China and GovCloud need a region in their location. The function's errors wrap ErrMisconfigured if S3 does not know
// the bucket. nil means http.DefaultTransport.
func DetectRegion(transport http.RoundTripper) func(ctx context.Context, bucket string) (string, error) {
	client := &http.Client{
		Transport:     transport,
		Timeout:       regionTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return func(ctx context.Context, bucket string) (string, error) {
		address := "https://s3.us-east-1.amazonaws.com/" + url.PathEscape(bucket)
		req, err := http.NewRequestWithContext(ctx, http.MethodHead, address, http.NoBody)
		if err != nil {
			return "", err
		}
		resp, err := client.Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		region := resp.Header.Get("X-Amz-Bucket-Region")
		switch {
		case region != "":
			return region, nil
		case resp.StatusCode >= http.StatusInternalServerError || resp.StatusCode == http.StatusTooManyRequests:
			return "", fmt.Errorf("S3 answers %s", resp.Status)
		default:
			return "", misconfigured("S3 answers %s without a region", resp.Status)
		}
	}
}
