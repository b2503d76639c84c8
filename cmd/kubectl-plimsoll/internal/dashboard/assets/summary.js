// The upper part: whose volumes these are, and how far they are together.

import { byId, setAttribute, setFacts, setIcon, setText, setTexts } from "./dom.js";
import { setBar, sizeText } from "./bar.js";
import { Sparkline } from "./sparkline.js";

const verdictIcons = { Running: "Queued", Completed: "Completed", PartiallyFailed: "Stalled", Failed: "Failed", Deleting: "Canceled" };

let history;

export function showSummary(page) {
  const { total } = page;
  setText(byId("kind"), page.kind);
  setText(byId("name"), page.name);
  showVerdict(page);
  setFacts(byId("facts"), page.facts);
  setTexts(byId("alerts"), page.alerts);

  setText(byId("total-percent"), total.percent === null ? "–" : total.percentText);
  setText(byId("total-size"), sizeText(total));
  showNumber(byId("total-left"), total.ended || page.final ? "–" : total.left);
  setText(byId("total-rate"), total.rate);
  setBar(byId("total-bar"), total);
  setAttribute(byId("total-bar"), "data-state", page.verdict ?? "Running");

  if (!page.final) {
    history ??= new Sparkline(byId("total-history"));
    history.add(total.bytesPerSecond, total.rate);
    setText(byId("total-window"), history.window);
    setText(byId("total-peak"), `peak ${history.peak}`);
  }
  document.title = [total.percent === null ? "" : total.percentText, page.phase ?? "", page.name, "Plimsoll"].filter(Boolean).join(" · ");
}

// showNumber writes words smaller than numbers.
function showNumber(element, text) {
  setText(element, text);
  element.classList.toggle("unknown", !/\d/.test(text));
}

function showVerdict(page) {
  const element = byId("verdict");
  element.hidden = !page.phase;
  if (!page.phase) return;
  setAttribute(element, "data-state", page.verdict);
  setIcon(element.firstElementChild, verdictIcons[page.verdict] ?? "Unknown");
  setText(element.lastElementChild, page.phase);
}
