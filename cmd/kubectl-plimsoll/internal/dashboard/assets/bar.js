import { setAttribute } from "./dom.js";

// setBar shows how far something is, to the eye and to a screen reader. Without a percentage the bar is striped.
export function setBar(element, bar) {
  const known = bar.percent !== null;
  element.classList.toggle("unknown", !known && !bar.ended);
  element.firstElementChild.style.transform = known ? `translateX(${bar.percent - 100}%)` : "";
  if (known) {
    setAttribute(element, "aria-valuenow", String(bar.percent));
  } else {
    element.removeAttribute("aria-valuenow");
  }
  setAttribute(element, "aria-valuetext", [bar.percentText, sizeText(bar)].join(", "));
}

export function sizeText(bar) {
  return bar.of ? `${bar.done} of ${bar.of}` : bar.done;
}
