// Package loopback hands out addresses of this machine for servers that run as processes of their own and have to be told
// where to listen.
//
// A port of 127.0.0.1 that was free a moment ago is somebody else's on a machine that runs many tests. So each address has
// an IP of its own out of 127.0.0.0/8, and a port that the kernel gives to nobody who asks for any.
package loopback

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
)

const (
	// The kernel takes ports from 32768 on for whoever does not care (ip_local_port_range).
	firstPort, lastPort = 10_000, 32_767

	maxTries = 100
)

// Address returns an IP and a port that nobody listens on, nor will.
func Address() (netip.AddrPort, error) {
	var tried error
	for range maxTries {
		ip := netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(254)), byte(rand.IntN(256)), byte(1 + rand.IntN(254))})
		address := netip.AddrPortFrom(ip, uint16(firstPort+rand.IntN(lastPort-firstPort+1)))
		listener, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(address)) // fails if somebody listens on all IPs
		if err == nil {
			return address, listener.Close()
		}
		tried = errors.Join(tried, err)
	}
	return netip.AddrPort{}, fmt.Errorf("find an address to listen on: %w", tried)
}

// ForTest is Address, as text, for tests.
func ForTest(tb testing.TB) string {
	tb.Helper()
	address, err := Address()
	if err != nil {
		tb.Fatal(err)
	}
	return address.String()
}
