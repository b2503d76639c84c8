package volume

import (
	"bufio"
	"io"
	"os"
	"strings"
)

// Propagation returns how mounts that the host makes below dir reach this process: private (not at all), slave (Kubernetes'
// HostToContainer) or shared (Bidirectional). It is empty where dir is no mount point, so that nothing separates it from the host's.
func Propagation(dir string) (string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	defer f.Close()
	return propagation(f, dir)
}

// propagation reads mountinfo: of several mounts at dir the last one covers the others.
func propagation(mountinfo io.Reader, dir string) (found string, _ error) {
	// proc_pid_mountinfo(5) has these characters as octal numbers.
	octal := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	lines := bufio.NewScanner(mountinfo)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 7 || octal.Replace(fields[4]) != dir {
			continue
		}
		found = "private"
		for _, tag := range fields[6:] {
			if tag == "-" {
				break
			}
			switch {
			case strings.HasPrefix(tag, "shared:"):
				found = "shared"
			case strings.HasPrefix(tag, "master:") && found != "shared":
				found = "slave"
			}
		}
	}
	return found, lines.Err()
}
