// Elements and texts. Nothing here or elsewhere makes HTML of a text: the page's policy would not let it.

export const byId = (id) => document.getElementById(id);

// make returns an element with attributes and children; a child may be a text.
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const svg = "http://www.w3.org/2000/svg";

export function makeSVG(tag, className) {
  const element = document.createElementNS(svg, tag);
  element.setAttribute("class", className);
  return element;
}

export function makeIcon(name, className = "") {
  const icon = makeSVG("svg", `icon ${className}`.trim());
  icon.setAttribute("aria-hidden", "true");
  icon.append(document.createElementNS(svg, "use"));
  setIcon(icon, name);
  return icon;
}

export function setIcon(icon, name) {
  setAttribute(icon.firstElementChild, "href", `#icon-${name}`);
}

// What is the same already is not touched: a page of a thousand volumes changes in few places each second.

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

// setChildren makes children the ones of parent, in this order, without moving those that are in their place. What had the
// focus keeps it.
export function setChildren(parent, children) {
  const focused = document.activeElement;
  let next = parent.firstChild;
  for (const child of children) {
    if (child === next) {
      next = next.nextSibling;
    } else {
      parent.insertBefore(child, next);
    }
  }
  while (next) {
    const gone = next;
    next = next.nextSibling;
    gone.remove();
  }
  if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
}

// setTexts shows a list of texts as list items.
export function setTexts(list, texts) {
  if (list.children.length !== texts.length) list.replaceChildren(...texts.map(() => make("li")));
  texts.forEach((text, i) => setText(list.children[i], text));
}

// setFacts shows labels and texts in a description list.
export function setFacts(list, facts) {
  const labels = facts.map((fact) => fact.label).join("\n");
  if (list.dataset.labels !== labels) {
    list.dataset.labels = labels;
    list.replaceChildren(...facts.map((fact) => make("div", {}, make("dt", {}, fact.label), make("dd"))));
  }
  facts.forEach((fact, i) => {
    const entry = list.children[i];
    entry.classList.toggle("long", Boolean(fact.long));
    setText(entry.lastElementChild, fact.text);
  });
}
