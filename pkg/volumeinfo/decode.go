package volumeinfo

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// MaxBytes bounds the size of a list, unpacked: more than a hundred thousand volumes.
const MaxBytes = 64 << 20

// ErrDamaged comes from the Decode functions, with what could be read before, for a list that is not what Velero writes,
// is cut off, or has more than MaxBytes.
var ErrDamaged = errors.New("the list of volumes is damaged")

// Volume is an element of a list as it was stored.
type Volume[T any] struct {
	Typed T
	// Content is all of it, with the fields of other versions of Velero that T does not know. Numbers are json.Number, as they
	// were written: a float64 would not hold every size.
	Content map[string]any
}

// UnmarshalJSON fills in both.
func (v *Volume[T]) UnmarshalJSON(data []byte) error {
	if err := json.Unmarshal(data, &v.Typed); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	return d.Decode(&v.Content)
}

// DecodeRestore reads the list of a restore, unpacked. An element that makes no sense costs only itself: the error, which
// wraps ErrDamaged, comes with all others. An empty file and null are no error.
func DecodeRestore(r io.Reader) ([]Volume[RestoredVolume], error) { return decode[RestoredVolume](r) }

// DecodeBackup is DecodeRestore for the list of a backup.
func DecodeBackup(r io.Reader) ([]Volume[BackupVolume], error) { return decode[BackupVolume](r) }

func decode[T any](r io.Reader) ([]Volume[T], error) {
	limited := &io.LimitedReader{R: r, N: MaxBytes + 1}
	d := json.NewDecoder(limited)
	cut := func(err error) error {
		if limited.N == 0 {
			return fmt.Errorf("%w: it has more than %d bytes", ErrDamaged, MaxBytes)
		}
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	opening, err := d.Token()
	if errors.Is(err, io.EOF) {
		return nil, nil
	}
	if err != nil {
		return nil, cut(err)
	}
	if opening == nil {
		return nil, nil // null
	}
	if opening != json.Delim('[') {
		return nil, fmt.Errorf("%w: it begins with %v", ErrDamaged, opening)
	}
	var list []Volume[T]
	var damage error
	for d.More() {
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return list, errors.Join(damage, cut(err))
		}
		var v Volume[T]
		if err := json.Unmarshal(raw, &v); err != nil {
			damage = errors.Join(damage, fmt.Errorf("%w: volume %d: %w", ErrDamaged, len(list)+1, err))
			continue
		}
		list = append(list, v)
	}
	if _, err := d.Token(); err != nil {
		return list, errors.Join(damage, cut(err))
	}
	return list, damage
}
