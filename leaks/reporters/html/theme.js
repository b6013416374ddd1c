// Runs in the head, before the first paint: the colours that the reader chose, or those of the system.
(() => {
  "use strict";
  let chosen = null;
  try { chosen = localStorage.getItem("leak-report-theme"); } catch { /* no storage for files: follow the system */ }
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = chosen === "light" || chosen === "dark" ? chosen : dark ? "dark" : "light";
  document.documentElement.dataset.chosen = chosen === "light" || chosen === "dark" ? chosen : "system";
})();
