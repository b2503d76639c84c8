package kopiaworker

import (
	"context"
	"io"
	"log/slog"
	"sync/atomic"

	"github.com/kopia/kopia/repo/logging"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// lastLine is the last line of its kind that kopia logged. Some errors it does not return, such as why a checkpoint failed.
type lastLine struct{ text atomic.Pointer[string] }

func (e *lastLine) String() string {
	if text := e.text.Load(); text != nil {
		return *text
	}
	return "kopia does not say why"
}

// withLog makes kopia log to the agent.
func (j *job) withLog(ctx context.Context) context.Context {
	core := zapcore.NewCore(zapcore.NewConsoleEncoder(zapcore.EncoderConfig{}), zapcore.AddSync(io.Discard), zapcore.InfoLevel)
	core = zapcore.RegisterHooks(core, func(entry zapcore.Entry) error {
		text := entry.LoggerName + ": " + entry.Message
		if entry.Level < zapcore.ErrorLevel {
			j.lastSaid.text.Store(&text)
			j.note(slog.LevelInfo, text)
			return nil
		}
		j.complain.text.Store(&text)
		j.note(slog.LevelWarn, text)
		return nil
	})
	return logging.WithLogger(ctx, zap.New(core).Sugar().Named)
}
