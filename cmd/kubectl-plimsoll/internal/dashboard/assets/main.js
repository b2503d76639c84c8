// The dashboard: each page that the server sends is shown whole.

import { announce } from "./announce.js";
import { showEnd, showLive, showLost } from "./connection.js";
import { byId } from "./dom.js";
import { showNodes, showNotes } from "./nodes.js";
import { follow } from "./stream.js";
import { showSummary } from "./summary.js";
import { startTheme } from "./theme.js";
import { closeOne, narrow, showVolumes } from "./volumes.js";

function show(page) {
  showLive(page);
  showSummary(page);
  showVolumes(page.volumes);
  showNodes(page.nodes);
  showNotes(page.notes);
  byId("backups").hidden = !page.backups;
  announce(page);
}

function handleKey(event) {
  const filter = byId("filter");
  if (event.key === "/" && event.target !== filter && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    filter.select();
    filter.focus();
  } else if (event.key === "Escape" && event.target === filter && filter.value !== "") {
    filter.value = "";
    narrow();
  } else if (event.key === "Escape") {
    closeOne();
  }
}

startTheme();
document.addEventListener("keydown", handleKey);
byId("filter").addEventListener("input", narrow);
const retry = follow({ page: show, end: showEnd, lost: showLost });
byId("retry").addEventListener("click", retry);
