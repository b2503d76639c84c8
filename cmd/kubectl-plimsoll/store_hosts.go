package main

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
)

// storeHosts are the hosts from which files of a namespace's backup stores may come. Whoever can write DownloadRequests could
// else lead a person's machine to any address that it reaches.
type storeHosts struct {
	secure   []string // by https
	insecure []string // by http, as a location says, or --download-host
	buckets  []string // of S3 and GCS, in which a provider's hosts may be named
	accounts []string // of Azure
}

// allow adds the hosts of a location: those of the addresses in its config, and of its provider's service.
func (h *storeHosts) allow(l *velerov1.BackupStorageLocation) {
	bucket := ""
	if l.Spec.ObjectStorage != nil {
		bucket = l.Spec.ObjectStorage.Bucket
		h.buckets = append(h.buckets, bucket)
	}
	h.accounts = append(h.accounts, l.Spec.Config["storageAccount"])
	for _, value := range l.Spec.Config {
		address, err := url.Parse(value)
		if err != nil || address.Host == "" {
			continue
		}
		for _, host := range []string{hostOf(address), bucket + "." + hostOf(address)} { // S3 has both styles
			h.secure = append(h.secure, host)
			if address.Scheme == "http" {
				h.insecure = append(h.insecure, host)
			}
		}
	}
}

// check returns an error if a file of a store cannot be at an address. A restore controller serves what its store cannot sign
// through kubectl port-forward, on this machine.
func (h *storeHosts) check(address *url.URL) error {
	host, loopback := hostOf(address), isLoopback(address.Hostname())
	switch {
	case address.Scheme == "http" && (loopback || slices.Contains(h.insecure, host)):
		return nil
	case address.Scheme == "https" && (loopback || slices.Contains(h.secure, host) || h.ofProvider(host)):
		return nil
	case address.Scheme != "http" && address.Scheme != "https":
		return fmt.Errorf("the server answered with a URL of scheme %q, which is not allowed", address.Scheme)
	}
	return fmt.Errorf("the server answered with a URL at %s://%s, which is not a host of a BackupStorageLocation: if it is the store's, allow it with --download-host=%s",
		address.Scheme, address.Host, address.Host)
}

// hostOf is host and port, in small letters and without the port that the scheme implies.
func hostOf(address *url.URL) string {
	implied := map[string]string{"http": ":80", "https": ":443"}[address.Scheme]
	return strings.TrimSuffix(strings.ToLower(address.Host), implied)
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// ofProvider reports whether a host belongs to the service of a cloud, and to one of the locations as far as it names them.
func (h *storeHosts) ofProvider(host string) bool {
	for _, service := range []string{".amazonaws.com", ".amazonaws.com.cn"} {
		if name, ok := strings.CutSuffix(host, service); ok && h.namesBucket(name, "s3") {
			return true
		}
	}
	if name, ok := strings.CutSuffix(host, ".googleapis.com"); ok {
		return h.namesBucket(name, "storage")
	}
	for _, service := range []string{"core.windows.net", "core.chinacloudapi.cn", "core.usgovcloudapi.net"} {
		if account, ok := strings.CutSuffix(host, ".blob."+service); ok {
			return account != "" && slices.Contains(h.accounts, account)
		}
	}
	return false
}

// namesBucket reports whether name is that of a service, with or without region, or one of our buckets before it.
func (h *storeHosts) namesBucket(name, service string) bool {
	for _, bucket := range h.buckets {
		if rest, ok := strings.CutPrefix(name, bucket+"."); ok && bucket != "" {
			name = rest
			break
		}
	}
	return name == service || strings.HasPrefix(name, service+".") || strings.HasPrefix(name, service+"-")
}
