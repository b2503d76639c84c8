package describe

import (
	"cmp"
	"fmt"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// explainPlugin is about a volume that a volume snapshotter plugin backs up or restores: no node agent and no pod has to do
// with it, and all that is known is what the plugin tells.
func (c *VolumeCase) explainPlugin(e *Explanation) {
	v, s := &c.Volume, &c.Volume.Progress
	plugin := "plugin " + cmp.Or(v.Uploader, "without a name")
	e.See = seePlugins
	switch {
	case s.State == progress.StateFailed:
		e.Why = "it has failed: " + cmp.Or(v.Message, "the plugin does not say why")
		e.do("look at the storage of " + plugin + ", and at the log of the Velero server, which has the plugin's")
		return
	case v.Ended():
		e.Why, e.See = "it has completed", ""
	case v.Silent(c.At):
		e.Why, e.general = fmt.Sprintf("%s has said nothing for %s", plugin, Age(c.At, s.Heartbeat)), plugin+" has said nothing for some time"
		e.fact("Velero ends the processes of plugins soon after a backup or restore; the next process goes on with it")
		e.do("look at the log of the Velero server, which has the plugin's")
	case s.State == progress.StateQueued:
		e.Why, e.general = fmt.Sprintf("%s has not started it in the %s since it was made", plugin, Age(c.At, v.Created)), plugin+" has not started it"
	case s.State == progress.StateStalled:
		e.Why, e.general = "no byte has moved for "+StallAge(c.At, s), "no byte has moved for some time"
		e.do("look at the storage of " + plugin)
	case s.State == progress.StateScanning:
		e.Why = "its size is not known yet"
	case s.State == progress.StateFinishing:
		e.Why = "all bytes are done; the plugin ends it"
	default:
		e.Why, e.general = fmt.Sprintf("it moves: %s, %s, time left %s", v.done(), Rate(s.BytesPerSecond), ETA(s.ETASeconds)), "it moves"
	}
	if v.Message != "" {
		e.fact("the plugin says: %s", v.Message)
	}
}
