// Light or dark: as the system says, until somebody presses the button.

import { byId, setAttribute, setIcon } from "./dom.js";

const systemIsDark = matchMedia("(prefers-color-scheme: dark)");

export function startTheme() {
  const button = byId("theme");
  const root = document.documentElement;
  const current = () => root.dataset.theme ?? (systemIsDark.matches ? "dark" : "light");
  const other = () => (current() === "dark" ? "light" : "dark");
  const show = () => {
    setIcon(button.firstElementChild, other());
    setAttribute(button, "aria-label", `Use the ${other()} theme`);
    setAttribute(button, "title", `Use the ${other()} theme`);
  };
  button.addEventListener("click", () => {
    root.dataset.theme = other();
    show();
  });
  systemIsDark.addEventListener("change", show);
  show();
}
