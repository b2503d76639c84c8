package testenv

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// PodOfThisProcess creates a pod whose ports are those of this machine's loopback address: the API server's port-forwards to it lead there,
// through a stand-in for kubelet.
func (e *Env) PodOfThisProcess(name string) *corev1.Pod {
	e.T.Helper()
	kubelet := httptest.NewTLSServer(http.HandlerFunc(forwardPorts))
	e.T.Cleanup(func() {
		kubelet.CloseClientConnections()
		kubelet.Close()
	})
	address := kubelet.Listener.Addr().(*net.TCPAddr)
	node := &corev1.Node{}
	node.Name = "kubelet-" + e.Namespace
	e.Create(node)
	before := client.MergeFrom(node.DeepCopy())
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address.IP.String()}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(address.Port)
	if err := e.Client.Status().Patch(e.Context(), node, before); err != nil {
		e.T.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: e.Meta(name), Spec: corev1.PodSpec{NodeName: node.Name, Containers: []corev1.Container{{Name: "process", Image: "none"}}}}
	e.Create(pod)
	return pod
}

// forwardPorts serves kubelet's port-forwards: a data stream for each connection, and an error stream, which stays empty.
func forwardPorts(w http.ResponseWriter, r *http.Request) {
	if _, err := httpstream.Handshake(r, w, []string{"portforward.k8s.io"}); err != nil {
		return // it has answered
	}
	connection := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(stream httpstream.Stream, replySent <-chan struct{}) error {
		go func() {
			<-replySent
			if stream.Headers().Get(corev1.StreamType) == corev1.StreamTypeData {
				forward(stream)
			} else {
				_ = stream.Close()
			}
		}()
		return nil
	})
	if connection == nil {
		return // it has answered
	}
	defer connection.Close()
	select {
	case <-connection.CloseChan():
	case <-r.Context().Done():
	}
}

func forward(stream httpstream.Stream) {
	defer func() { _ = stream.Reset() }()
	to, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", stream.Headers().Get(corev1.PortHeader))) //nolint:noctx // it ends with the test
	if err != nil {
		return
	}
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(to, stream)
		_ = to.Close()
	})
	_, _ = io.Copy(stream, to)
	_ = stream.Close()
	both.Wait()
}
