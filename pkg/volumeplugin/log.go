package volumeplugin

import (
	"io"
	"log/slog"
	"strings"
)

// NewLog returns a logger whose lines, written to a plugin's os.Stderr, become lines of the Velero server's log, with level
// and keys. They are JSON with the fields @message and @level, as hashicorp/go-plugin reads them; it shows all other lines
// at level debug only.
func NewLog(w io.Writer) *slog.Logger {
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) > 0 {
			return a
		}
		switch a.Key {
		case slog.TimeKey: // the server has its own
			return slog.Attr{}
		case slog.LevelKey:
			return slog.String("@level", strings.ToLower(a.Value.String()))
		case slog.MessageKey:
			return slog.Attr{Key: "@message", Value: a.Value}
		default:
			return a
		}
	}}))
}
