package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

// printSchedule prints what makes the backup again and again. It takes the backup as it would be made now for what it has found.
func (o *volumeBackup) printSchedule(cmd *cobra.Command, v *volumes, p prepared) error {
	image, err := v.image(cmd.Context(), o.image)
	if err != nil {
		return err
	}
	s := scheduled{
		volumeBackup: o, command: [2]string{cmd.Parent().Name(), cmd.Name()}, namespace: v.namespace, image: image,
		location: p.pvb.Spec.BackupStorageLocation, claim: p.claim,
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "This backs up volume %s of a pod that is always called %s/%s, as pods of StatefulSets are. Nothing is created.\n",
		describe.Clean(o.target.volume), describe.Clean(o.target.namespace), describe.Clean(o.target.pod))
	s.cronJob().warn(cmd.ErrOrStderr())
	return printObjects(cmd.OutOrStdout(), s.objects())
}

// scheduled is a backup that a CronJob makes.
type scheduled struct {
	*volumeBackup
	command   [2]string // volume backup
	namespace string    // of Velero's objects
	image     image
	location  string
	claim     string // empty: the volume has none
}

// name is the same for the same volume that is backed up to the same place, and another one for another: the objects of two
// schedules must not replace each other. A new schedule for the same replaces the old one.
func (s *scheduled) name() string {
	what := []string{s.target.namespace, s.target.pod, s.target.volume, s.namespace, s.location, s.uploader}
	sum := sha256.Sum256([]byte(strings.Join(what, "/")))
	name := "plimsoll-backup-" + s.target.pod + "-" + s.target.volume
	return strings.TrimRight(name[:min(len(name), maxCronJobName-9)], "-.") + "-" + hex.EncodeToString(sum[:4])
}

// objects are a CronJob and the rights that volume backup uses, without that to read PersistentVolumes, which belong to the cluster.
func (s *scheduled) objects() []client.Object {
	velero := []rbacv1.PolicyRule{
		rule("", "pods", nil, "list"),
		rule("velero.io", "backupstoragelocations", []string{s.location}, "get"),
		rule("velero.io", "backuprepositories", nil, "list"),
		rule("velero.io", "podvolumebackups", nil, "create", "get"),
	}
	if len(s.keep.args()) > 0 {
		velero = append(velero, rule(v1alpha1.GroupVersion.Group, "repositorytasks", nil, "create", "get"))
	}
	app := []rbacv1.PolicyRule{rule("", "pods", []string{s.target.pod}, "get")}
	if s.claim != "" {
		app = append(app, rule("", "persistentvolumeclaims", []string{s.claim}, "get"))
	}
	job := s.cronJob()
	if s.target.namespace == s.namespace {
		return append(append(job.account(), job.role(s.namespace, append(velero, app...))...), job.object())
	}
	return append(append(append(job.account(), job.role(s.namespace, velero)...), job.role(s.target.namespace, app)...), job.object())
}

func (s *scheduled) cronJob() *cronJob {
	return &cronJob{namespace: s.namespace, name: s.name(), schedule: s.schedule, image: s.image, args: append(s.args(), s.keep.args()...), timeout: s.timeout}
}

// args are those of the command line in the CronJob.
func (s *scheduled) args() []string {
	return []string{
		s.command[0], s.command[1], s.target.namespace + "/" + s.target.pod, s.target.volume,
		"--to=" + s.location, "--uploader=" + s.uploader, "--namespace=" + s.namespace,
	}
}
