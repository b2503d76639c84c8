package restorecontroller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
	"github.com/plimsoll-io/plimsoll/pkg/restore"
)

// input gathers what the engine needs. Its archive is for the caller to close.
func (c *Controller) input(ctx context.Context, store *backupstore.Store, r *velerov1.Restore, from origin) (input restore.Input, err error) {
	input = restore.Input{Restore: r, Backup: from.backup, Modifiers: from.modifiers}
	stored, err := store.Backup(from.backup.Name)
	if err != nil {
		return input, err
	}
	if input.PodVolumeBackups, err = c.podVolumeBackups(ctx, stored, from.backup); err != nil {
		return input, err
	}
	if input.VolumeInfos, err = optional(stored.VolumeInfos(ctx)); err != nil {
		return input, err
	}
	if input.NativeSnapshots, err = optional(stored.NativeSnapshots(ctx)); err != nil {
		return input, err
	}
	if input.Operations, err = optional(stored.ItemOperations(ctx)); err != nil { // they give only warnings
		c.cfg.Logger.Warn("The backup's item operations cannot be read", "backup", from.backup.Name, "error", err)
	}
	if input.StorageClasses, err = c.mapping(ctx, "velero.io/change-storage-class", func(into map[string]string, key, value string) { into[key] = value }); err != nil {
		return input, err
	}
	if input.Images, err = c.mapping(ctx, "velero.io/change-image-name", addImage); err != nil {
		return input, err
	}
	if input.WaitContainer, err = c.waitContainer(ctx); err != nil {
		return input, err
	}
	input.Archive, err = stored.OpenArchive(ctx, backupstore.ArchiveOptions{Dir: c.cfg.TempDir})
	return input, err
}

// optional makes nothing of a file that need not exist.
func optional[T any](value T, err error) (T, error) {
	if errors.Is(err, backupstore.ErrNotFound) {
		err = nil
	}
	return value, err
}

// podVolumeBackups are those that the store has, and those that only the cluster has. Velero believes the cluster alone, and
// restores empty volumes where a sync was interrupted.
func (c *Controller) podVolumeBackups(ctx context.Context, stored backupstore.Backup, backup *velerov1.Backup) ([]velerov1.PodVolumeBackup, error) {
	records, err := optional(stored.PodVolumeBackups(ctx))
	if err != nil {
		return nil, err
	}
	var list velerov1.PodVolumeBackupList
	if err := c.client.List(ctx, &list, recordsOf(backup)); err != nil {
		return nil, fmt.Errorf("list the backup's PodVolumeBackups: %w", err)
	}
	all := list.Items
	for i := range records {
		record := &records[i].Typed
		if slices.ContainsFunc(all, func(known velerov1.PodVolumeBackup) bool { return known.Name == record.Name }) {
			continue
		}
		record.Namespace = c.cfg.Namespace
		record.Spec.BackupStorageLocation = backup.Spec.StorageLocation
		all = append(all, *record)
	}
	return all, nil
}

// pluginConfigs returns the ConfigMaps with Velero's configuration of a restore item action.
func (c *Controller) pluginConfigs(ctx context.Context, action string) ([]corev1.ConfigMap, error) {
	var list corev1.ConfigMapList
	err := c.api.List(ctx, &list, client.InNamespace(c.cfg.Namespace), client.HasLabels{"velero.io/plugin-config"}, client.MatchingLabels{action: "RestoreItemAction"})
	if err != nil {
		return nil, fmt.Errorf("list the ConfigMaps of %s: %w", action, err)
	}
	return list.Items, nil
}

// waitContainer reads how the init container is configured that holds pods until their volumes are there. Two ConfigMaps are an
// error, as in Velero: it is not clear which one is meant.
func (c *Controller) waitContainer(ctx context.Context) (map[string]string, error) {
	const action = "velero.io/pod-volume-restore"
	configs, err := c.pluginConfigs(ctx, action)
	switch {
	case err != nil || len(configs) == 0:
		return nil, err
	case len(configs) > 1:
		return nil, fmt.Errorf("ConfigMaps %s and %s both configure %s: delete one of them", configs[0].Name, configs[1].Name, action)
	default:
		return configs[0].Data, nil
	}
}

// mapping reads the ConfigMaps of a restore item action that say what to replace by what.
func (c *Controller) mapping(ctx context.Context, action string, add func(into map[string]string, key, value string)) (map[string]string, error) {
	configs, err := c.pluginConfigs(ctx, action)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for i := range configs {
		for key, value := range configs[i].Data {
			add(all, key, value)
		}
	}
	return all, nil
}

// addImage reads "old,new"; the key is any name.
func addImage(into map[string]string, _, value string) {
	if before, after, ok := strings.Cut(value, ","); ok {
		into[strings.TrimSpace(before)] = strings.TrimSpace(after)
	}
}
