package volumeplugin

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	maxUnchanged = 200 // bytes of a name; objects may have 253
	maxReadable  = 100 // bytes of a name that are for people, where it had to be changed
)

// NameOf returns the name of the VolumePluginBackup whose snapshot id was known when it began: the id itself where an
// object can have that name. Else it is what is left of it in lower case, and 8 digits of its hash, since other ids may
// leave the same.
func NameOf(snapshotID string) string {
	if len(snapshotID) <= maxUnchanged && len(validation.IsDNS1123Subdomain(snapshotID)) == 0 {
		return snapshotID
	}
	sum := sha256.Sum256([]byte(snapshotID))
	hash := hex.EncodeToString(sum[:4])
	readable := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(snapshotID))
	readable = strings.Trim(readable[:min(len(readable), maxReadable)], "-")
	if readable == "" {
		return hash
	}
	return readable + "-" + hash
}

// nameOfVolume is the name of a VolumePluginBackup that begins before its snapshot has an id.
func nameOfVolume(plugin, backup, volume string) string {
	sum := sha256.Sum256([]byte(plugin + "\x00" + backup + "\x00" + volume))
	return stem(backup+"-"+volume) + "-" + hex.EncodeToString(sum[:4])
}

// nameOfRestore is the name of a VolumePluginRestore. what tells it from other restores of the snapshot.
func nameOfRestore(snapshotID, what string) string { return NameOf(stem(snapshotID) + "/" + what) }

// stem is the begin of a name.
func stem(text string) string {
	name := NameOf(text)
	return strings.TrimRight(name[:min(len(name), maxReadable)], "-.")
}
