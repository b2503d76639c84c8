// What is said of volumes. The states are in order: those first that people should look at. Each has a word and a shape, and
// only then a color.

export const states = ["Stalled", "Failed", "Transferring", "Finishing", "Scanning", "Waiting", "Queued", "Canceled", "Completed"];

export function iconOf(state, restores) {
  if (state === "Transferring") return restores ? "Restore" : "Backup";
  return states.includes(state) ? state : "Unknown";
}

// titleOf names a volume to people who hear the page. That of a plugin has no pod.
export function titleOf({ volume, pod }) {
  return pod ? `${volume} of ${pod}` : volume;
}
