import { byId, make, makeIcon, setTexts } from "./dom.js";

let shown = "";

// showNodes has a line for each node with an agent. They change so rarely that they are made anew.
export function showNodes(nodes) {
  const text = JSON.stringify(nodes);
  if (text === shown) return;
  shown = text;
  byId("nodes-section").hidden = nodes.length === 0;
  byId("nodes").replaceChildren(...nodes.map((node) => make("tr", {},
    make("th", { scope: "row" }, node.name),
    make("td", {}, node.agent),
    node.ready ? cell("Completed", "ready") : cell("Failed", "not ready"),
    make("td", {}, node.live ? "live from the agent" : "from the objects, some seconds old"))));
}

function cell(state, text) {
  return make("td", { "data-state": state }, makeIcon(state), text);
}

export function showNotes(notes) {
  byId("notes-section").hidden = notes.length === 0;
  setTexts(byId("notes"), notes);
}
