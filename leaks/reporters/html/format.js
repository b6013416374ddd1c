// Numbers and small elements. Texts from the report become text nodes, never markup.
const KINDS = {
  escaped: ["Escaped", "its scope has ended, and something still references it"],
  growth: ["Growth", "grows from pass to pass"],
  graph: ["Graph-retained", "alive only because an autograd graph saved it"],
  view: ["Pinned by a view", "a small view pins a big storage"],
  cycle: ["Cycle", "alive until the next garbage collection"],
  exception: ["Held by an exception", "a traceback keeps its frames"],
  scope: ["Unclosed scope", "a scope that was never left"],
  suspended: ["Suspended", "a generator or task waits inside a scope"],
  worker: ["Worker", "a DataLoader worker keeps batches"],
  native: ["Native growth", "resident memory grows, tracked bytes do not"],
  alive: ["Alive", "alive and unexplained"],
};
const KIND_COLOURS = { escaped: 6, growth: 2, graph: 5, view: 1, cycle: 4, exception: 8, scope: 7, suspended: 3, worker: 1, native: 2, alive: 8 };
const kindName = (kind) => (KINDS[kind] ?? [kind])[0];
const kindColour = (kind) => `--kind: var(--c${KIND_COLOURS[kind] ?? 1})`;

const NUMBER = new Intl.NumberFormat("en");
const counted = (count, noun) => `${NUMBER.format(count)} ${noun}${count === 1 ? "" : noun.endsWith("s") ? "es" : "s"}`;

/** Bytes with a unit, in powers of 1000, as `leak-report show` prints them. */
function bytesText(nbytes) {
  const sign = nbytes < 0 ? "−" : "";
  let size = Math.abs(nbytes);
  if (size < 999.5) return `${sign}${Math.round(size)} ${Math.round(size) === 1 ? "byte" : "bytes"}`;
  for (const unit of ["kB", "MB", "GB", "TB"]) {
    size /= 1000;
    if (size < 999.95 || unit === "TB") return `${sign}${size.toFixed(1)} ${unit}`;
  }
}

const axisBytes = (nbytes) => bytesText(nbytes).replace(".0 ", " ").replace(/^0 bytes$/, "0");

function secondsText(seconds) {
  if (seconds === null) return "unknown";
  if (seconds === 0) return "0 s";
  if (seconds < 0.0995) return `${(seconds * 1000).toFixed(seconds < 0.00995 ? 1 : 0)} ms`;
  if (seconds < 99.5) return `${seconds.toFixed(1)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 100 ? `${minutes} min` : `${(seconds / 3600).toFixed(1)} h`;
}

/** An element: h("a", {href: "#x", onclick: f}, "text", child). Attributes that are null or false are left out. */
function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** A text that may be broken after its dots and before its brackets, a path after its slashes, and where it must. */
const breakable = (text, after = /(?<=[.(])(?=\w)|(?=\[)/) => text.split(after).flatMap((part, i) => (i ? [h("wbr", {}), part] : [part]));

const $ = (id) => document.getElementById(id);

function siteElement(site, { withFunction = true } = {}) {
  if (site === null) return h("span", {}, "unknown site");
  return h("span", { title: `${site.file}:${site.line}` }, h("code", {}, ...breakable(siteText(site), /(?<=\/)/)),
    withFunction ? h("span", { class: "sub" }, "in ", h("code", {}, ...breakable(functionText(site.name)))) : null);
}

/** A plain table: columns are [heading, isNumber], rows are arrays of texts or elements. */
function plainTable(columns, rows, className) {
  const head = columns.map(([title, number]) => h("th", { scope: "col", class: number ? "number" : null }, title));
  return h("table", { class: className ?? null }, h("thead", {}, h("tr", {}, ...head)),
    h("tbody", {}, ...rows.map((row) => h("tr", {},
      ...row.map((cell, i) => h("td", { class: columns[i][1] ? "number" : null }, cell))))));
}
