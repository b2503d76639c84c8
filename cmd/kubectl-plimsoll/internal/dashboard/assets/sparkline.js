import { makeSVG, setAttribute } from "./dom.js";

const span = 5 * 60 * 1000;

// Only what is on the screen is drawn: there may be thousands.
const drawn = new WeakMap();
const screen = new IntersectionObserver((entries) => {
  for (const entry of entries) drawn.get(entry.target).seen = entry.isIntersecting;
});

// Sparkline draws what it was told in the last five minutes.
export class Sparkline {
  #samples = [];
  #seen = false;
  #line = makeSVG("path", "line");
  #area = makeSVG("path", "area");

  constructor(element) {
    setAttribute(element, "preserveAspectRatio", "none");
    setAttribute(element, "viewBox", "0 0 100 100");
    element.append(this.#area, this.#line);
    drawn.set(element, this);
    screen.observe(element);
  }

  set seen(seen) {
    this.#seen = seen;
    this.#draw();
  }

  // add takes a number with the text that says it.
  add(value, text) {
    const now = performance.now();
    this.#samples.push({ now, value, text });
    while (this.#samples[0].now < now - span) this.#samples.shift();
    this.#draw();
  }

  // peak is the text of the greatest number.
  get peak() {
    return this.#samples.reduce((greatest, sample) => (sample.value > greatest.value ? sample : greatest)).text;
  }

  // flat says that there is nothing to see.
  get flat() {
    return this.#samples.every((sample) => sample.value === 0);
  }

  // window says how long ago the oldest number was.
  get window() {
    const seconds = Math.round((performance.now() - this.#samples[0].now) / 1000);
    return seconds < 90 ? `last ${seconds} s` : `last ${Math.round(seconds / 60)} min`;
  }

  // The newest sample is at the right edge. A short history is stretched, so that something is seen from the start on.
  #draw() {
    if (!this.#seen || this.#samples.length === 0) return;
    const newest = this.#samples.at(-1).now;
    const width = Math.max(newest - this.#samples[0].now, 10 * 1000);
    const height = Math.max(...this.#samples.map((sample) => sample.value), 1);
    const points = this.#samples.map(({ now, value }) => {
      const x = 100 - ((newest - now) / width) * 100;
      return `${x.toFixed(2)},${(98 - (value / height) * 94).toFixed(2)}`;
    });
    const first = points[0].split(",")[0];
    this.#line.setAttribute("d", `M${points.join("L")}`);
    this.#area.setAttribute("d", `M${first},100L${points.join("L")}L100,100Z`);
  }
}
