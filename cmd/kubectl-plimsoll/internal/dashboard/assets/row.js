// One volume in the list.

import { make, makeIcon, makeSVG, setAttribute, setFacts, setIcon, setText } from "./dom.js";
import { setBar } from "./bar.js";
import { Sparkline } from "./sparkline.js";
import { iconOf, titleOf } from "./states.js";

// Facts that are read letter by letter.
const code = new Set(["Snapshot", "Current", "PodVolumeBackup", "PodVolumeRestore"]);

let rows = 0;

export class Row {
  #icon = makeIcon("Unknown");
  #state = make("span");
  #button = make("button", { type: "button", "aria-expanded": "false" });
  #where = make("p", { class: "where" });
  #news = make("p", { class: "news" });
  #bar = make("div", { class: "bar", role: "progressbar", "aria-valuemin": "0", "aria-valuemax": "100" }, make("div", { class: "fill" }));
  #percent = make("span", { class: "percent" });
  #done = make("span");
  #of = make("span", { class: "of" });
  #rate = make("span", { class: "rate" });
  #left = make("span", { class: "left" });
  #drawing = makeSVG("svg", "sparkline rate-history");
  #history = new Sparkline(this.#drawing);
  #details = make("dl", { class: "details", id: `details-${++rows}`, hidden: "" });
  #files = make("a", {}, "Browse the files of this backup");
  #browse = make("p", { class: "browse", hidden: "" }, this.#files);
  #volume;

  constructor() {
    setAttribute(this.#drawing, "aria-hidden", "true");
    this.#button.setAttribute("aria-controls", this.#details.id);
    this.#button.addEventListener("click", () => this.toggle(!this.open));
    this.element = make("li", { class: "volume" },
      make("div", { class: "row" },
        make("span", { class: "state" }, this.#icon, this.#state),
        make("div", { class: "what" }, make("h3", {}, this.#button), this.#where),
        make("div", { class: "meter" }, this.#bar, this.#percent),
        make("span", { class: "size" }, this.#done, this.#of),
        this.#rate, this.#drawing, this.#left, makeIcon("chevron", "chevron"), this.#news),
      this.#details, this.#browse);
  }

  get open() {
    return !this.#details.hidden;
  }

  get state() {
    return this.#volume.state;
  }

  // words is what a filter looks at.
  get words() {
    const { volume, pod, state, how, news, details } = this.#volume;
    return [volume, pod, state, how, news, ...details.map((fact) => fact.text)].join("\n").toLowerCase();
  }

  toggle(open) {
    this.#details.hidden = !open;
    this.#button.setAttribute("aria-expanded", String(open));
    this.element.classList.toggle("open", open);
    this.#showDetails();
  }

  focus() {
    this.#button.focus();
  }

  show(volume) {
    this.#volume = volume;
    const { bar } = volume;
    setAttribute(this.element, "data-state", volume.state);
    this.element.classList.toggle("ended", bar.ended);
    setIcon(this.#icon, iconOf(volume.state, volume.restores));
    setText(this.#state, volume.state);
    setText(this.#button, volume.volume);
    setText(this.#where, [volume.pod, volume.how].filter(Boolean).join(" · "));
    setText(this.#news, volume.news ?? "");
    this.#news.hidden = !volume.news;
    setBar(this.#bar, bar);
    setAttribute(this.#bar, "aria-label", titleOf(volume));
    setText(this.#percent, bar.percentText);
    setText(this.#done, bar.done);
    setText(this.#of, bar.of ? ` of ${bar.of}` : "");
    setText(this.#rate, bar.ended ? "" : bar.rate);
    setText(this.#left, bar.ended ? "" : bar.left);
    this.#left.classList.toggle("unknown", !/\d/.test(bar.left));
    this.#rate.classList.toggle("unknown", bar.bytesPerSecond === 0);
    if (!bar.ended) this.#history.add(bar.bytesPerSecond, bar.rate);
    this.#drawing.classList.toggle("flat", this.#history.flat);
    this.#showDetails();
  }

  #showDetails() {
    this.#browse.hidden = !this.open || !this.#volume.files;
    if (!this.open) return;
    if (this.#volume.files) setAttribute(this.#files, "href", this.#volume.files);
    setFacts(this.#details, this.#volume.details);
    for (const entry of this.#details.children) entry.classList.toggle("code", code.has(entry.firstElementChild.textContent));
  }
}
