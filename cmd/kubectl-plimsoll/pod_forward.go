package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
)

// podForward opens connections to a port of a pod through the API server. Unlike the library's port-forward it opens no port of this
// machine: another user could connect to that, and take it over when the forward has ended, be shown the token and answer in the pod's
// place. It is safe for concurrent use.
type podForward struct {
	connection httpstream.Connection
	port       int32
	requests   atomic.Int64
}

// forwardToPod connects to the pod's kubelet. The caller closes the forward.
func forwardToPod(config *rest.Config, namespace, pod string, port int32) (*podForward, error) {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	to := clients.CoreV1().RESTClient().Post().Namespace(namespace).Resource("pods").Name(pod).SubResource("portforward").URL()
	connection, agreed, err := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, to).Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		return nil, err
	}
	if agreed != portforward.PortForwardProtocolV1Name {
		return nil, errors.Join(fmt.Errorf("the API server speaks %q in place of %q", agreed, portforward.PortForwardProtocolV1Name), connection.Close())
	}
	return &podForward{connection: connection, port: port}, nil
}

// close ends all connections.
func (f *podForward) close() { _ = f.connection.Close() }

// dial opens a connection, whatever the address.
func (f *podForward) dial(context.Context, string, string) (net.Conn, error) {
	headers := http.Header{}
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	headers.Set(corev1.PortHeader, strconv.Itoa(int(f.port)))
	headers.Set(corev1.PortForwardRequestIDHeader, strconv.FormatInt(f.requests.Add(1), 10))
	problems, err := f.connection.CreateStream(headers)
	if err != nil {
		return nil, err
	}
	_ = problems.Close() // of our direction: nothing is written
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := f.connection.CreateStream(headers)
	if err != nil {
		return nil, errors.Join(err, problems.Reset())
	}
	c := &podConn{Stream: data, forward: f, problems: problems, failed: make(chan error, 1)}
	go c.awaitProblem()
	return c, nil
}

// podConn is a connection to a pod, a net.Conn without deadlines: http.Transport ends it by Close.
type podConn struct {
	httpstream.Stream
	forward  *podForward
	problems httpstream.Stream
	failed   chan error // gets one error, nil if there was no problem
}

// awaitProblem ends the data when kubelet says that it cannot reach the port.
func (c *podConn) awaitProblem() {
	text, err := io.ReadAll(io.LimitReader(c.problems, noteLimit))
	if len(text) > 0 {
		err = fmt.Errorf("the pod cannot be reached: %s", text)
	}
	c.failed <- err
	if err != nil {
		_ = c.Reset()
	}
}

// Read reads what the pod sends.
func (c *podConn) Read(p []byte) (int, error) {
	n, err := c.Stream.Read(p)
	if err == nil {
		return n, nil
	}
	select {
	case why := <-c.failed:
		return n, cmp.Or(why, err)
	default:
		return n, err
	}
}

// Close ends the connection, also what is on its way.
func (c *podConn) Close() error {
	err := errors.Join(c.Reset(), c.problems.Reset())
	c.forward.connection.RemoveStreams(c.Stream, c.problems)
	return err
}

func (*podConn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (*podConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (*podConn) SetDeadline(time.Time) error      { return nil }
func (*podConn) SetReadDeadline(time.Time) error  { return nil }
func (*podConn) SetWriteDeadline(time.Time) error { return nil }
