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

// lastError is the last error that kopia logged: some it does not return, such as why a checkpoint failed.
type lastError struct{ text atomic.Pointer[string] }

func (e *lastError) String() string {
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
			j.note(slog.LevelInfo, text)
			return nil
		}
		j.complain.text.Store(&text)
		j.note(slog.LevelWarn, text)
		return nil
	})
	return logging.WithLogger(ctx, zap.New(core).Sugar().Named)
}
