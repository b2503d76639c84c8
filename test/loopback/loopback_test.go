package loopback

import (
	"net"
	"net/netip"
	"testing"
)

func TestAddressesAreNobodyElses(t *testing.T) {
	t.Parallel()
	for range 100 {
		a, err := Address()
		if err != nil {
			t.Fatal(err)
		}
		if a.Addr() == netip.MustParseAddr("127.0.0.1") || !a.Addr().IsLoopback() || a.Port() < firstPort || a.Port() > lastPort {
			t.Errorf("got %s, want another loopback address, and a port that the kernel gives to nobody", a)
		}
	}
	listener, err := net.Listen("tcp", ForTest(t))
	if err != nil {
		t.Fatal(err)
	}
	_ = listener.Close()
}
