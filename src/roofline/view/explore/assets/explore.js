"use strict";
// All of our own that runs in the page: whether its colours are dark, by the reader's choice or the system's.
(() => {
const system = matchMedia("(prefers-color-scheme: dark)");
const dark = theme => theme === "dark" || theme !== "light" && system.matches;
let chosen = "system";

system.addEventListener("change", () => window.dash_clientside.set_props("dark", {data: dark(chosen)}));

window.dash_clientside = Object.assign({}, window.dash_clientside, {explore: {dark(theme) {
  chosen = theme;
  document.documentElement.dataset.theme = theme;
  return dark(theme);
}}});
})();
