package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/filerequest/protocol"
)

// fileSource says of which backup of which volume the files are.
type fileSource struct {
	backup, volume, from string
}

func (s *fileSource) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&s.backup, "backup", "", "the Velero Backup")
	f.StringVar(&s.volume, "volume", "", "the volume: NAMESPACE/POD:VOLUME; not needed if the backup has one volume")
	f.StringVar(&s.from, "from", "", "the PodVolumeBackup, in place of --backup and --volume")
}

// spec returns the FileRequest that the flags ask for. The error is one of usage.
func (s *fileSource) spec() (v1alpha1.FileRequestSpec, error) {
	switch {
	case s.from != "" && (s.backup != "" || s.volume != ""):
		return v1alpha1.FileRequestSpec{}, program.Misused(errors.New("--from cannot be combined with --backup or --volume"))
	case s.from == "" && s.backup == "":
		return v1alpha1.FileRequestSpec{}, program.Misused(errors.New("--backup NAME is missing"))
	}
	volume, err := parseVolumeSelector(s.volume)
	return v1alpha1.FileRequestSpec{Backup: s.backup, Volume: volume, PodVolumeBackup: s.from}, err
}

var (
	errSessionLost = errors.New("the connection to the files has ended before the answer was complete: the FileRequest expired or was deleted, " +
		"its pod has stopped, or the API server was away; run the command again ('repository get' goes on where it was)")
	errNoServer = errors.New("nobody has answered the FileRequest: deployment plimsoll-repository-tasks does not run in this namespace, or is of an earlier version (docs/repositories.md)")
)

// sessionTimeout is how long a command waits for the answer to a FileRequest.
const sessionTimeout = time.Minute

// fileSession reads files of backups through the API server, as long as its FileRequest exists.
type fileSession struct {
	api     client.Client
	request *v1alpha1.FileRequest
	token   string
	address string
	http    *http.Client
	stop    func() // ends the port-forward
}

// withFiles opens a session for do, and ends it. It writes to errOut that the cluster may not know all volumes of a Backup.
func withFiles(ctx context.Context, c *connection, spec *v1alpha1.FileRequestSpec, errOut io.Writer, do func(*fileSession) error) (err error) {
	config, err := c.config()
	if err != nil {
		return err
	}
	api, err := c.client()
	if err != nil {
		return err
	}
	s := &fileSession{api: api, token: protocol.NewToken(), http: &http.Client{}, stop: func() {}}
	spec.TokenHash = protocol.HashToken(s.token)
	s.request = &v1alpha1.FileRequest{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, GenerateName: "files-"}, Spec: *spec}
	// Who leaves now must not leave a FileRequest behind whose name nobody knows.
	creating, cancel := context.WithTimeout(context.WithoutCancel(ctx), sessionTimeout)
	defer cancel()
	if err := api.Create(creating, s.request); err != nil {
		return explainMissing("create the FileRequest", "FileRequests", c.namespace, err)
	}
	defer func() { err = s.close(ctx, err) }()
	if err := s.awaitReady(ctx); err != nil {
		return err
	}
	if err := s.forward(config); err != nil {
		return fmt.Errorf("reach pod %s: %w", s.request.Status.Pod, err)
	}
	if missing := s.request.Status.Message; missing != "" {
		fmt.Fprintln(errOut, describe.Clean(missing))
	}
	return do(s)
}

// close deletes the FileRequest: nobody can use its token any more.
func (s *fileSession) close(ctx context.Context, err error) error {
	s.stop()
	s.http.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deleteTimeout)
	defer cancel()
	if failed := client.IgnoreNotFound(s.api.Delete(ctx, s.request)); failed != nil {
		return errors.Join(err, fmt.Errorf("delete FileRequest %s, which expires later: %w", s.request.Name, failed))
	}
	return err
}

func (s *fileSession) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, sessionTimeout, errNoServer)
	defer cancel()
	ticks := time.NewTicker(answerInterval)
	defer ticks.Stop()
	for {
		err := s.api.Get(ctx, client.ObjectKeyFromObject(s.request), s.request)
		status := &s.request.Status
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case apierrors.IsNotFound(err):
			return errSessionLost
		case err != nil:
			return fmt.Errorf("wait for FileRequest %s: %w", s.request.Name, err)
		case status.Phase == v1alpha1.FileRequestReady:
			return nil
		case status.Phase == v1alpha1.FileRequestFailed:
			message := status.Message
			if remedy := status.Reason.Remedy(); remedy != "" {
				message += ". " + remedy
			}
			return &program.ExitError{Code: exitFailed, Err: errors.New(message)} // as for a RepositoryTask
		}
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// forward makes the session's connections lead to the pod.
func (s *fileSession) forward(config *rest.Config) error {
	forward, err := forwardToPod(config, s.request.Namespace, s.request.Status.Pod, s.request.Status.Port)
	if err != nil {
		return err
	}
	s.address, s.stop = "http://"+s.request.Status.Pod, forward.close
	s.http = &http.Client{Transport: &http.Transport{DisableCompression: true, DialContext: forward.dial}}
	return nil
}

// ask sends a question. The caller reads the answer's body to its end, calls end, and closes the body.
func (s *fileSession) ask(ctx context.Context, question string, q protocol.Query) (*fileAnswer, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.address+protocol.URLPath(s.request.Name, question)+"?"+q.Encode(), http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+s.token)
	response, err := s.http.Do(request)
	if err != nil {
		return nil, lost(ctx, err)
	}
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, noteLimit)) // it only explains the status
		return nil, errors.Join(fmt.Errorf("%w (%s: %s)", errSessionLost, response.Status, strings.TrimSpace(string(text))), response.Body.Close())
	}
	return &fileAnswer{ctx, response}, nil
}

// lost explains an error of the connection.
func lost(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w (%w)", errSessionLost, err)
}

// fileAnswer is the answer to a question about files.
type fileAnswer struct {
	ctx context.Context //nolint:containedctx // of the question
	*http.Response
}

// Read reads the body, and explains what cuts it off.
func (a *fileAnswer) Read(p []byte) (int, error) {
	n, err := a.Body.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = lost(a.ctx, err)
	}
	return n, err
}

// end reads the body's rest, and returns an error unless the answer is complete.
func (a *fileAnswer) end() (protocol.End, error) {
	if _, err := io.Copy(io.Discard, a); err != nil {
		return protocol.End{}, err
	}
	end, err := protocol.DecodeEnd(a.Trailer)
	switch {
	case err != nil:
		return end, lost(a.ctx, err)
	case end.SessionEnded:
		return end, lost(a.ctx, &answerError{end})
	case !end.Complete:
		return end, &answerError{end}
	}
	return end, nil
}

// answerError is why the server could not answer, or not completely.
type answerError struct{ end protocol.End }

func (e *answerError) Error() string { return cmp.Or(e.end.Error, "the server does not say why") }

// readList hands the values of a list on, in constant memory. An error means that the list is not complete.
func readList[T any](ctx context.Context, s *fileSession, question string, q protocol.Query, each func(T) error) error {
	answer, err := s.ask(ctx, question, q)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	lines := json.NewDecoder(answer)
	for {
		var value T
		err := lines.Decode(&value)
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = each(value)
		}
		if err != nil {
			return err
		}
	}
	_, err = answer.end()
	return err
}

// list hands on what the directory at the query's path holds, or the file there.
func (s *fileSession) list(ctx context.Context, q protocol.Query, each func(protocol.Entry) error) error {
	top := protocol.Clean(q.Path) != ""
	err := readList(ctx, s, protocol.Entries, q, func(e protocol.Entry) error {
		own := top // the first entry is that of the path itself, whatever is left of its name
		top = false
		if own && e.Mode.IsDir() {
			return nil
		}
		return each(e)
	})
	return explainPath(err, q.Path)
}

func (s *fileSession) volumes(ctx context.Context) ([]protocol.Volume, error) {
	var all []protocol.Volume
	err := readList(ctx, s, protocol.Volumes, protocol.Query{}, func(v protocol.Volume) error {
		all = append(all, v)
		return nil
	})
	return all, err
}

// volume returns the one volume that the FileRequest is about.
func (s *fileSession) volume(ctx context.Context) (protocol.Volume, error) {
	all, err := s.volumes(ctx)
	if err != nil {
		return protocol.Volume{}, err
	}
	return onlyVolume("the backup", all)
}

// onlyVolume returns the one volume that a backup has of those that were asked for.
func onlyVolume(backup string, all []protocol.Volume) (protocol.Volume, error) {
	if len(all) != 1 {
		var names []string
		for i := range all[:min(len(all), 10)] {
			names = append(names, volumeName(&all[i]))
		}
		return protocol.Volume{}, program.Misused(fmt.Errorf("%s has %d such volumes: choose one with --volume, such as %s", backup, len(all), strings.Join(names, ", ")))
	}
	v := all[0]
	switch {
	case v.Problem != "":
		return v, fmt.Errorf("volume %s of %s: %s", volumeName(&v), backup, v.Problem)
	case v.SnapshotID == "":
		return v, fmt.Errorf("volume %s of %s was empty when it was backed up: there is nothing to list, to get or to compare", volumeName(&v), backup)
	}
	return v, nil
}

// content writes the file at the query's path, or the directory there as a tar archive, to the writer that begin returns. Without an error
// it is what the server has read.
func (s *fileSession) content(ctx context.Context, q protocol.Query, begin func(answer *fileAnswer, kind string, size int64) io.Writer) error {
	answer, err := s.ask(ctx, protocol.Content, q)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	kind, size := answer.Header.Get(protocol.HeaderType), int64(-1)
	if kind == protocol.TypeFile {
		if size, err = strconv.ParseInt(answer.Header.Get(protocol.HeaderSize), 10, 64); err != nil {
			return fmt.Errorf("read the size: %w", err)
		}
	}
	if kind != protocol.TypeFile && kind != protocol.TypeDirectory {
		return explainPath(answer.endWithoutContent(), q.Path)
	}
	hash := sha256.New()
	if _, err := io.Copy(io.MultiWriter(begin(answer, kind, size), hash), answer); err != nil {
		return err
	}
	return explainPath(answer.endWith(hash.Sum(nil)), q.Path)
}

func volumeName(v *protocol.Volume) string { return v.Namespace + "/" + v.Pod + ":" + v.Volume }

// pathArgument returns the one path that a command may have. The error is one of usage.
func pathArgument(args []string) (string, error) {
	if len(args) == 0 {
		return "", nil
	}
	if len(args) > 1 {
		return "", program.Misused(errors.New("name one path"))
	}
	if err := protocol.CheckPath(args[0]); err != nil {
		return "", program.Misused(err)
	}
	return args[0], nil
}

// explainPath adds what to do about a path that the snapshot does not have.
func explainPath(err error, path string) error {
	failed, ok := errors.AsType[*answerError](err)
	switch {
	case !ok || !failed.end.NotFound:
		return err
	case strings.ContainsRune(path, '\uFFFD'):
		return fmt.Errorf("%w; a name with U+FFFD is one that is no UTF-8, of which the list shows not all bytes: get the directory that it is in", err)
	}
	return fmt.Errorf("%w; paths are relative to the volume, and 'kubectl plimsoll repository ls' lists them", err)
}
