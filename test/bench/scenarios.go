package main

import "context"

// Steps of a data path's scenarios.
const (
	backup    = "backup"
	unchanged = "unchanged"
	restore   = "restore"
	walk      = "walk"
	walkCold  = "walk, cold"
)

// scenarios returns all that is measured. scale divides the number of files, or of bytes where the files are few.
func scenarios(scale int) []scenario {
	gigabyte := tree{files: 32, size: 32 << 20 / int64(scale)}
	small := tree{files: 50_000 / scale, size: 2 << 10}
	tiny := tree{files: 200_000 / scale, size: 512}
	return []scenario{
		{
			name:    "restic-1GiB",
			rows:    []row{{backup, 0.95}, {unchanged, 0}, {restore, 1.02}},
			prepare: func(ctx context.Context, dir string) (*sides, error) { return newRestic(ctx, dir, gigabyte) },
		},
		{
			name:    "restic-50k-files",
			keep:    true,
			rows:    []row{{backup, 0.95}, {unchanged, 1.00}, {restore, 1.15}},
			prepare: func(ctx context.Context, dir string) (*sides, error) { return newRestic(ctx, dir, small) },
		},
		{
			name:    "kopia-1GiB",
			rows:    []row{{backup, 0.85}, {unchanged, 0}, {restore, 1.00}},
			prepare: func(_ context.Context, dir string) (*sides, error) { return newKopia(dir, gigabyte) },
		},
		{
			name:    "kopia-200k-files",
			keep:    true,
			rows:    []row{{backup, 0.65}, {unchanged, 1.00}, {restore, 1.00}},
			prepare: func(_ context.Context, dir string) (*sides, error) { return newKopia(dir, tiny) },
		},
		{
			name: "walk-300k-files",
			keep: true,
			rows: []row{{walk, 0.50}, {walkCold, 0.50}},
			prepare: func(_ context.Context, dir string) (*sides, error) {
				return newWalk(dir, tree{files: 300_000 / scale, size: 4})
			},
		},
		{
			name: "walk-1M-files",
			keep: true,
			rows: []row{{walk, 0.50}},
			prepare: func(_ context.Context, dir string) (*sides, error) {
				return newWalk(dir, tree{files: 1_000_000 / scale}) // empty: less to write, and a walk does not read them
			},
		},
	}
}
