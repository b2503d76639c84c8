package restorecontroller

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
)

// A file of a restore that its location does not take is kept in the cluster, packed, in ConfigMaps of the controller's
// namespace. They belong to the Restore, and the garbage collector deletes them with it. A new version of a file is written
// before the old one is deleted, and one whose parts are not all there does not count.
const (
	clusterFileRestoreLabel   = "plimsoll.io/restore-uid"
	clusterFileKindLabel      = "plimsoll.io/restore-file"         // a kind of DownloadRequests, such as RestoreLog
	clusterFileVersionLabel   = "plimsoll.io/restore-file-version" // when it was written: nanoseconds since 1970
	clusterFilePartAnnotation = "plimsoll.io/part"                 // such as 2/3
	clusterFileKey            = "content"
)

const (
	// partBytes leaves room for what else is in a ConfigMap: the API server lets it have 1 MiB of data.
	partBytes = 512 << 10
	// clusterFileLimit bounds a file, packed: etcd has 2 GiB for everything.
	clusterFileLimit = 4 << 20
	// clusterFileTimeout bounds the wait for an API server that does not take what is to be kept. One that is away for longer has cost the
	// controller its Lease before.
	clusterFileTimeout = 3 * time.Minute
)

// errTooBig is the error for a file larger than clusterFileLimit.
var errTooBig = errors.New("it is too big to be kept in the cluster")

// saveInCluster keeps a packed file of a restore in the cluster and deletes the versions that were kept before.
func (c *Controller) saveInCluster(ctx context.Context, restore *velerov1.Restore, kind velerov1.DownloadTargetKind, packed []byte) error {
	if len(packed) > clusterFileLimit {
		return fmt.Errorf("%w: %d bytes, packed, of at most %d", errTooBig, len(packed), clusterFileLimit)
	}
	ctx, cancel := savingContext(ctx)
	defer cancel()
	version := strconv.FormatInt(time.Now().UnixNano(), 10)
	parts := slices.Collect(slices.Chunk(packed, partBytes))
	for i, part := range parts {
		object := c.clusterFilePart(restore, kind, version, i+1, len(parts), part)
		err := retryUntilAnswered(ctx, func() error {
			err := c.client.Create(ctx, object.DeepCopy())
			if apierrors.IsAlreadyExists(err) {
				return nil // by this very write, whose answer was lost
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("keep %s in the cluster: %w", kind, err)
		}
	}
	return c.deleteFromCluster(ctx, restore.UID, kind, version)
}

// clusterFilePart is one of the ConfigMaps of a file.
func (c *Controller) clusterFilePart(restore *velerov1.Restore, kind velerov1.DownloadTargetKind, version string, number, of int, content []byte) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.cfg.Namespace,
			Name:      fmt.Sprintf("restore-%s-%s-%s-%d", restore.UID, strings.ToLower(string(kind)), version, number),
			Labels: map[string]string{
				clusterFileRestoreLabel: string(restore.UID), clusterFileKindLabel: string(kind), clusterFileVersionLabel: version,
				velerov1.ExcludeFromBackupLabel: "true",
			},
			Annotations:     map[string]string{clusterFilePartAnnotation: fmt.Sprintf("%d/%d", number, of)},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: velerov1.SchemeGroupVersion.String(), Kind: "Restore", Name: restore.Name, UID: restore.UID}},
		},
		Immutable:  new(true),
		BinaryData: map[string][]byte{clusterFileKey: content},
	}
}

// deleteFromCluster deletes what is kept of a file, but for one version, which may be empty.
func (c *Controller) deleteFromCluster(ctx context.Context, uid types.UID, kind velerov1.DownloadTargetKind, but string) error {
	selector := labels.SelectorFromSet(labels.Set{clusterFileRestoreLabel: string(uid), clusterFileKindLabel: string(kind)})
	if but != "" {
		newer, err := labels.NewRequirement(clusterFileVersionLabel, selection.NotEquals, []string{but})
		if err != nil {
			return err
		}
		selector = selector.Add(*newer)
	}
	err := retryUntilAnswered(ctx, func() error {
		return c.client.DeleteAllOf(ctx, &corev1.ConfigMap{}, client.InNamespace(c.cfg.Namespace), client.MatchingLabelsSelector{Selector: selector})
	})
	if err != nil {
		return fmt.Errorf("delete what the cluster has of an older %s: %w", kind, err)
	}
	return nil
}

// loadFromCluster returns the newest version of a file that is kept in the cluster, packed; nil if there is none.
func (c *Controller) loadFromCluster(ctx context.Context, uid types.UID, kind velerov1.DownloadTargetKind) ([]byte, error) {
	var list corev1.ConfigMapList
	err := c.api.List(ctx, &list, client.InNamespace(c.cfg.Namespace), client.MatchingLabels{clusterFileRestoreLabel: string(uid), clusterFileKindLabel: string(kind)})
	if err != nil {
		return nil, fmt.Errorf("look for %s in the cluster: %w", kind, err)
	}
	versions := map[int64][]*corev1.ConfigMap{}
	for i := range list.Items {
		if version, err := strconv.ParseInt(list.Items[i].Labels[clusterFileVersionLabel], 10, 64); err == nil {
			versions[version] = append(versions[version], &list.Items[i])
		}
	}
	var content []byte
	newest := int64(0)
	for version, parts := range versions {
		if whole := join(parts); whole != nil && version > newest {
			content, newest = whole, version
		}
	}
	return content, nil
}

// join returns the content of a file, nil if not all parts are there.
func join(parts []*corev1.ConfigMap) (content []byte) {
	number := func(o *corev1.ConfigMap) (n, of int) {
		first, second, _ := strings.Cut(o.Annotations[clusterFilePartAnnotation], "/")
		n, _ = strconv.Atoi(first) // 0 is no part
		of, _ = strconv.Atoi(second)
		return n, of
	}
	slices.SortFunc(parts, func(a, b *corev1.ConfigMap) int {
		first, _ := number(a)
		second, _ := number(b)
		return cmp.Compare(first, second)
	})
	for i, part := range parts {
		if n, of := number(part); n != i+1 || of != len(parts) {
			return nil
		}
		content = append(content, part.BinaryData[clusterFileKey]...)
	}
	return content
}

// retryUntilAnswered calls do until the API server has answered: with success, or with what it would say again.
func retryUntilAnswered(ctx context.Context, do func() error) error {
	again := func(err error) bool { return !apiretry.Final(err) && !apierrors.IsForbidden(err) }
	return apiretry.Policy{Retry: again}.Do(ctx, do)
}

// withHalfOf bounds what may be tried before something that matters more, to which it leaves half of the time that there is.
func withHalfOf(ctx context.Context, atMost time.Duration) (context.Context, context.CancelFunc) {
	if deadline, ok := ctx.Deadline(); ok {
		atMost = min(atMost, time.Until(deadline)/2)
	}
	return context.WithTimeout(ctx, atMost)
}

// clusterFileGrace is how long a file may still be kept after its context has ended: a process that is told to stop has 60 seconds, of
// which recording the end takes 50.
const clusterFileGrace = 5 * time.Second

// savingContext is the context of what is kept: it ends after a portion of ctx, and clusterFileGrace.
func savingContext(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancelPortion := withHalfOf(ctx, clusterFileTimeout)
	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(clusterFileGrace):
			cancel()
		case <-lasting.Done():
		}
	})
	return lasting, func() { stop(); cancel(); cancelPortion() }
}

// packJSON packs a value as backupstore does.
func packJSON(value any) ([]byte, error) {
	var packed bytes.Buffer
	packer := gzip.NewWriter(&packed)
	if err := json.NewEncoder(packer).Encode(value); err != nil {
		return nil, err
	}
	if err := packer.Close(); err != nil {
		return nil, err
	}
	return packed.Bytes(), nil
}

// packLog packs a log up to a limit in bytes, packed. One that has more is cut off, says so in its last line, and cut is true.
func packLog(log io.Reader, limit int) (content []byte, cut bool, err error) {
	const step = 16 << 10 // what one more piece and the end may take
	var packed bytes.Buffer
	packer := gzip.NewWriter(&packed)
	piece := make([]byte, step)
	for {
		n, err := io.ReadFull(log, piece)
		if n == 0 && errors.Is(err, io.EOF) {
			break
		}
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, false, fmt.Errorf("read the log: %w", err)
		}
		if packed.Len()+2*step > limit {
			_, _ = io.WriteString(packer, "\n")
			slog.New(newTextHandler(packer, slog.LevelInfo)).Warn("The log is cut off here: there was more of it than is kept in the cluster")
			cut = true
			break
		}
		if _, err := packer.Write(piece[:n]); err != nil {
			return nil, false, err
		}
		if err := packer.Flush(); err != nil {
			return nil, false, err
		}
	}
	if err := packer.Close(); err != nil {
		return nil, false, err
	}
	return packed.Bytes(), cut, nil
}
