package dashboard

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

// Backup is a backup of a pod's volume that has a snapshot.
type Backup struct {
	describe.Volume

	Claim string // may be empty
	End   string // its phase, and what else people should know
}

// maxRows is how many volumes or backups a page shows.
const maxRows = 500

// volumeKey is a volume of a pod, in whichever location and with whichever uploader its backups are.
type volumeKey struct{ namespace, pod, volume string }

func keyOf(b *Backup) volumeKey { return volumeKey{b.PodNamespace, b.Pod, b.Volume.Volume} }

func (k volumeKey) String() string { return k.namespace + "/" + k.pod + ":" + k.volume }

// address returns where a page of the volume's backups is.
func (k volumeKey) address(page int) string {
	return "backups?" + url.Values{"namespace": {k.namespace}, "pod": {k.pod}, "volume": {k.volume}, "page": {strconv.Itoa(page)}}.Encode()
}

// volumesAddress returns where a page of the volumes is.
func volumesAddress(page int) string { return "backups?page=" + strconv.Itoa(page) }

// backupsPage is what assets/backups.html shows. Texts are clean, and addresses have the bytes of names.
type backupsPage struct {
	Title, Label, What string
	Volumes            []volumeRow
	Backups            []backupRow
	First, Last, Total int // of the rows
	Previous, Next     string
	Problem            string
}

// volumeRow is a volume and its newest backup.
type volumeRow struct {
	Name, Claim, Newest, Size, Address string
	Backups                            int
}

type backupRow struct {
	Ended, Name, Owner, Uploader, Location, Size, End, Files string
}

// serveBackups shows the volumes that have backups, or the backups of the volume that the address names.
func (s *Server) serveBackups(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	number := 1
	if query.Has("page") {
		var err error
		if number, err = strconv.Atoi(query.Get("page")); err != nil || number < 1 {
			http.Error(w, "The address names no page.", http.StatusBadRequest)
			return
		}
	}
	all, err := s.files.Backups(r.Context())
	if r.Context().Err() != nil {
		return
	}
	slices.SortFunc(all, func(a, b Backup) int { return cmp.Or(endOf(&b).Compare(endOf(&a)), cmp.Compare(a.Name, b.Name)) })
	p := backupsPage{Label: "Backups in the cluster", Title: "Volumes and their backups"}
	if query.Has("volume") {
		key := volumeKey{query.Get("namespace"), query.Get("pod"), query.Get("volume")}
		p.Label, p.Title = "Backups of", describe.Clean(key.String())
		p.showBackups(all, key, number)
	} else {
		p.showVolumes(all, number)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if err != nil {
		p.Problem = describe.Clean(err.Error())
		w.WriteHeader(http.StatusBadGateway)
	}
	_ = s.listing.ExecuteTemplate(w, "backups", p) // a write error means that the browser has gone
}

// showVolumes shows a page of the volumes, sorted by name. The backups are sorted, the newest first.
func (p *backupsPage) showVolumes(all []Backup, number int) {
	p.What = "volumes, by name"
	newest, count := map[volumeKey]*Backup{}, map[volumeKey]int{}
	for i := range all {
		key := keyOf(&all[i])
		if count[key]++; newest[key] == nil {
			newest[key] = &all[i]
		}
	}
	keys := make([]volumeKey, 0, len(newest))
	for key := range newest {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b volumeKey) int {
		return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.pod, b.pod), cmp.Compare(a.volume, b.volume))
	})
	for _, key := range pageOfRows(p, keys, number, volumesAddress) {
		b := newest[key]
		p.Volumes = append(p.Volumes, volumeRow{
			Name: describe.Clean(key.String()), Claim: describe.Clean(b.Claim), Newest: timeOf(b), Size: sizeOf(b), Address: key.address(1), Backups: count[key],
		})
	}
}

// showBackups shows a page of the backups of a volume.
func (p *backupsPage) showBackups(all []Backup, key volumeKey, number int) {
	p.What = "backups, the newest first"
	own := slices.DeleteFunc(all, func(b Backup) bool { return keyOf(&b) != key })
	for _, b := range pageOfRows(p, own, number, key.address) {
		p.Backups = append(p.Backups, backupRow{
			Ended: timeOf(&b), Name: describe.Clean(b.Name), Owner: describe.Clean(b.Owner), Uploader: describe.Clean(v1alpha1.UploaderName(b.Uploader)),
			Location: describe.Clean(b.Location), Size: sizeOf(&b), End: describe.Clean(b.End), Files: filesAddress("files", b.Name, ""),
		})
	}
}

// pageOfRows returns the rows of a page, and notes which of how many these are. A page after the last one is the last one.
func pageOfRows[T any](p *backupsPage, rows []T, number int, address func(page int) string) []T {
	pages := max((len(rows)+maxRows-1)/maxRows, 1)
	number = min(number, pages)
	first, last := (number-1)*maxRows, min(number*maxRows, len(rows))
	p.First, p.Last, p.Total = first+1, last, len(rows)
	if number > 1 {
		p.Previous = address(number - 1)
	}
	if number < pages {
		p.Next = address(number + 1)
	}
	return rows[first:last]
}

// endOf returns when a backup ended, or, if its object does not say so, when that was made.
func endOf(b *Backup) time.Time {
	if b.Completed.IsZero() {
		return b.Created
	}
	return b.Completed
}

func timeOf(b *Backup) string { return endOf(b).UTC().Format(time.RFC3339) }

// sizeOf returns the size of the volume, or nothing if it is not known.
func sizeOf(b *Backup) string {
	if b.Progress.TotalBytes <= 0 {
		return ""
	}
	return describe.Bytes(b.Progress.TotalBytes)
}
