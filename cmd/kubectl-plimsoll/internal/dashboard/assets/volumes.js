// The list of volumes, its filter, and the states that it can be narrowed to.

import { byId, make, makeIcon, setAttribute, setChildren, setText } from "./dom.js";
import { Row } from "./row.js";
import { iconOf, states } from "./states.js";

const rows = new Map(); // by the volume's UID
const chips = new Map(); // by state
const chosen = new Set(); // states; none: all of them
let order = [];
let lastOpened;

export function showVolumes(volumes) {
  order = volumes.map((volume) => {
    const row = rows.get(volume.id) ?? addRow(volume.id);
    row.show(volume);
    return row;
  });
  const present = new Set(volumes.map((volume) => volume.id));
  for (const id of rows.keys()) if (!present.has(id)) rows.delete(id);
  showChips();
  narrow();
}

function addRow(id) {
  const row = new Row();
  row.element.addEventListener("click", () => {
    if (row.open) lastOpened = row;
  });
  rows.set(id, row);
  return row;
}

// narrow shows the rows that the filter and the chosen states leave.
export function narrow() {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const left = order.filter((row) => (chosen.size === 0 || chosen.has(row.state)) && words.every((word) => row.words.includes(word)));
  setChildren(byId("volumes"), left.map((row) => row.element));
  byId("nothing").hidden = left.length > 0;
  setText(byId("nothing"), order.length > 0 ? `None of ${order.length} volumes matches.` : "There are no volumes to show.");
}

// showChips has a button for each state that a volume is in, and for those that were chosen.
function showChips() {
  const counts = new Map();
  for (const row of order) counts.set(row.state, (counts.get(row.state) ?? 0) + 1);
  const known = [...states, ...[...counts.keys()].filter((state) => !states.includes(state))];
  const shown = known.filter((state) => counts.has(state) || chosen.has(state));
  for (const state of shown) {
    const chip = chips.get(state) ?? addChip(state);
    setText(chip.lastElementChild, String(counts.get(state) ?? 0));
    setAttribute(chip, "aria-pressed", String(chosen.has(state)));
  }
  setChildren(byId("states"), shown.map((state) => chips.get(state)));
}

function addChip(state) {
  const chip = make("button", { type: "button", "data-state": state }, makeIcon(iconOf(state, false)), make("span", {}, state), make("b"));
  chip.addEventListener("click", () => {
    if (!chosen.delete(state)) chosen.add(state);
    showChips();
    narrow();
  });
  chips.set(state, chip);
  return chip;
}

// closeOne closes the details that have the focus, or that were opened last.
export function closeOne() {
  const focused = [...rows.values()].find((row) => row.open && row.element.contains(document.activeElement));
  const row = focused ?? (lastOpened?.open ? lastOpened : order.find((other) => other.open));
  row?.toggle(false);
  if (row?.element.isConnected) row.focus();
}
