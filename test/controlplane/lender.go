package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"k8s.io/client-go/tools/clientcmd"
)

// lenderVariable names the unix socket of the Lender that the processes of a test run borrow from.
const lenderVariable = "PLIMSOLL_CONTROLPLANE_LENDER"

// ErrNoLender is returned by Borrow where no Lender has started the process.
var ErrNoLender = errors.New("no lender of control planes")

// Lender lends one control plane, with the CRDs of the latest Velero and ours, to other processes, so that the packages of a
// test run need not start one each. It starts when it is first borrowed.
type Lender struct {
	dir      string
	listener net.Listener

	mu    sync.Mutex
	plane *ControlPlane // nil until it is borrowed
}

// Lend returns a Lender that processes with its Environment can borrow from until Stop.
func Lend() (*Lender, error) {
	dir, err := os.MkdirTemp("", "plimsoll-lender-")
	if err != nil {
		return nil, fmt.Errorf("lend a control plane: %w", err)
	}
	l := &Lender{dir: dir}
	if l.listener, err = (&net.ListenConfig{}).Listen(context.Background(), "unix", l.socket()); err != nil { //nolint:forbidigo // it does not wait
		return nil, fmt.Errorf("lend a control plane: %w", errors.Join(err, os.RemoveAll(dir)))
	}
	server := rpc.NewServer()
	if err := server.RegisterName("Lender", &service{l}); err != nil {
		return nil, fmt.Errorf("lend a control plane: %w", errors.Join(err, l.Stop()))
	}
	go l.serve(server)
	return l, nil
}

// serve returns when the listener is closed. (rpc.Server.Accept would log that.)
func (l *Lender) serve(server *rpc.Server) {
	for {
		connection, err := l.listener.Accept()
		if err != nil {
			return
		}
		go server.ServeConn(connection)
	}
}

func (l *Lender) socket() string { return filepath.Join(l.dir, "socket") }

// Environment returns the variable that lets a process borrow, as in exec.Cmd's Env.
func (l *Lender) Environment() string { return lenderVariable + "=" + l.socket() }

// Stop ends the control plane if it was borrowed.
func (l *Lender) Stop() error {
	err := l.listener.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.plane != nil {
		err = errors.Join(err, l.plane.Stop())
	}
	return errors.Join(err, os.RemoveAll(l.dir))
}

// service has the methods that net/rpc serves.
type service struct{ lender *Lender }

// Borrow sets kubeconfig to the path of that of the control plane.
func (s *service) Borrow(_ struct{}, kubeconfig *string) error {
	l := s.lender
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.plane == nil {
		crds, err := CRDs(LatestVelero)
		if err != nil {
			return err
		}
		if l.plane, err = Start(Options{CRDs: crds}); err != nil {
			return err
		}
	}
	*kubeconfig = l.plane.Kubeconfig()
	return nil
}

// Borrow returns the control plane of the Lender that started this process's test run, or ErrNoLender. The borrower may not
// change what other packages depend on, such as CRDs, nor restart it; its Stop does nothing.
func Borrow() (*ControlPlane, error) {
	// Not os.Getenv: Go's cache of test results would take each run's socket for another input.
	socket, found := syscall.Getenv(lenderVariable)
	if !found {
		return nil, ErrNoLender
	}
	c := &ControlPlane{borrowed: true}
	lender, err := rpc.Dial("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("borrow a control plane: %w", err)
	}
	defer lender.Close()
	if err := lender.Call("Lender.Borrow", struct{}{}, &c.kubeconfig); err != nil {
		return nil, fmt.Errorf("borrow a control plane: %w", err)
	}
	if c.config, err = clientcmd.BuildConfigFromFlags("", c.kubeconfig); err != nil {
		return nil, fmt.Errorf("borrow a control plane: %w", err)
	}
	c.config.QPS, c.config.Burst = clientQPS, clientBurst
	return c, nil
}
