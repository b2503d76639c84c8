// What is said of the connection: in the header always, and in a banner when something is wrong.

import { byId, setAttribute, setText } from "./dom.js";

const quietAfter = 5; // seconds; there is news each second

let last; // when the last page came, and what it says
let alive = false;

export function showLive(page) {
  last = { now: performance.now(), at: page.at, final: page.final };
  alive = true;
  byId("banner").hidden = true;
  show(page.final ? "final" : "live", page.final ? `Final, ${page.at}` : `Live, ${page.at}`);
}

export function showLost(seconds) {
  alive = false;
  show("lost", last ? `Last news ${last.at}` : "No connection");
  showBanner("The connection to kubectl plimsoll dashboard is lost.", true);
  setText(byId("banner-pause"), `The next try is in ${seconds} s.`);
}

export function showEnd(reason) {
  alive = false;
  show("lost", last ? `Last news ${last.at}` : "Ended");
  showBanner(`${reason} What is shown here stays as it is.`, false);
}

function show(kind, text) {
  setAttribute(byId("connection"), "data-kind", kind);
  setText(byId("connection-text"), text);
}

function showBanner(text, retry) {
  setText(byId("banner-text"), text);
  byId("retry").hidden = !retry;
  byId("banner-pause").hidden = !retry;
  byId("banner").hidden = false;
}

// A server that is there may have no news, because the API server does not answer it.
setInterval(() => {
  if (!alive || last.final) return;
  const seconds = Math.floor((performance.now() - last.now) / 1000);
  if (seconds >= quietAfter) show("quiet", `No news for ${seconds} s, since ${last.at}`);
}, 1000);
