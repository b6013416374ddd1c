// The table of leaks: search, filter, sort, pages.
const PAGE = 50;
const LISTS = {
  leaks: ["leaks", report.leaks],
  kept: ["held (no leaks)", report.kept],
  leftovers: ["left-over variables (no leaks)", report.leftovers],
  suppressed: ["suppressed", report.suppressed.map(([row]) => row)],
};
const reasons = new Map(report.suppressed.map(([row, reason]) => [row, textAt(reason)]));
const COLUMNS = [
  ["kind", "Kind", (row) => kindName(textAt(row[LEAK.kind])), 1],
  ["tensor", "What", (row) => textAt(row[LEAK.tensor]) ?? "", 1],
  ["nbytes", "Bytes", (row) => row[LEAK.nbytes], -1],
  ["site", "Born at", (row) => { const site = siteAt(row[LEAK.site]); return site === null ? "\uffff" : `${site.file}:${String(site.line).padStart(9)}`; }, 1],
  ["holder", "Held by", (row) => textAt(row[LEAK.held_by][0] ?? null) ?? "\uffff", 1],
  ["growth", "Per pass", (row) => (row[LEAK.trend] === null ? -Infinity : row[LEAK.trend].nbytes_per_pass), -1],
];
const MORE_ORDERS = [
  ["count", "Count", (row) => row[LEAK.count], -1],
  ["age", "Age", (row) => row[LEAK.oldest_age_s] ?? -1, -1],
];
const ORDERS = new Map([...COLUMNS, ...MORE_ORDERS].map(([name, title, key, way]) => [name, { title, key, way }]));

const state = { list: "leaks", kind: "", words: [], device: "", sure: "", least: 0, order: "nbytes", way: -1, page: 0 };
const opened = new Set();
let shown = [];

function passes(row, { kinds = true } = {}) {
  return (!kinds || state.kind === "" || textAt(row[LEAK.kind]) === state.kind)
    && (state.device === "" || textAt(row[LEAK.device]) === state.device)
    && (state.sure === "" || textAt(row[LEAK.sure]) === state.sure)
    && row[LEAK.nbytes] >= state.least
    && (state.words.length === 0 || matches(row, state.words));
}

function refresh({ keepPage = false } = {}) {
  const rows = LISTS[state.list][1];
  const almost = rows.filter((row) => passes(row, { kinds: false }));
  drawKinds(almost);
  shown = state.kind === "" ? almost : almost.filter((row) => textAt(row[LEAK.kind]) === state.kind);
  const { key } = ORDERS.get(state.order);
  const keys = new Map(shown.map((row) => [row, key(row)]));
  const compare = (a, b) => { const x = keys.get(a), y = keys.get(b); return x < y ? -state.way : x > y ? state.way : 0; };
  shown = [...shown].sort(compare);
  if (!keepPage) state.page = 0;
  drawPage();
}

function drawKinds(rows) {
  const tally = new Map();
  for (const row of rows) {
    const kind = textAt(row[LEAK.kind]);
    const sum = tally.get(kind) ?? [0, 0];
    tally.set(kind, [sum[0] + 1, sum[1] + row[LEAK.nbytes]]);
  }
  if (state.kind !== "" && !tally.has(state.kind)) tally.set(state.kind, [0, 0]);
  const chip = (kind, name, number, title) => h("button", {
    type: "button", class: "chip", "aria-pressed": String(state.kind === kind), title, style: kind === "" ? null : kindColour(kind), "data-kind": kind,
    onclick: () => { state.kind = state.kind === kind ? "" : kind; refresh(); $("kinds").querySelector(`[data-kind="${CSS.escape(state.kind)}"]`)?.focus(); },
  }, kind === "" ? null : h("span", { class: "dot" }), name, h("span", { class: "n" }, number));
  const kinds = [...tally].sort((a, b) => b[1][1] - a[1][1]);
  $("kinds").replaceChildren(...(kinds.length < 2 && state.kind === "" ? [] : [
    chip("", "all", NUMBER.format(rows.length), null),
    ...kinds.map(([kind, [count, nbytes]]) => chip(kind, kindName(kind), `${NUMBER.format(count)} · ${bytesText(nbytes)}`, (KINDS[kind] ?? [kind, kind])[1])),
  ]));
}

function drawHead() {
  $("leak-head").replaceChildren(h("th", { role: "columnheader", scope: "col" }, h("span", { class: "hidden" }, "Details")), ...COLUMNS.map(([name, title]) => {
    const number = name === "nbytes" || name === "growth";
    const sorted = state.order === name;
    return h("th", { role: "columnheader", scope: "col", class: number ? "number" : null, "aria-sort": sorted ? (state.way > 0 ? "ascending" : "descending") : null },
      h("button", { type: "button", class: "sorter", onclick: () => sortBy(name, true) }, title, h("span", { class: "arrow", "aria-hidden": "true" }, sorted ? (state.way > 0 ? "↑" : "↓") : "")));
  }));
  $("sort").value = state.order;
}

function sortBy(name, turn) {
  state.way = turn && state.order === name ? -state.way : ORDERS.get(name).way;
  state.order = name;
  const focused = document.activeElement?.classList.contains("sorter") ? [...$("leak-head").querySelectorAll(".sorter")].indexOf(document.activeElement) : -1;
  drawHead();
  if (focused >= 0) $("leak-head").querySelectorAll(".sorter")[focused].focus();
  refresh();
}

function drawPage() {
  const from = state.page * PAGE;
  const rows = shown.slice(from, from + PAGE);
  const most = shown.reduce((a, row) => Math.max(a, row[LEAK.nbytes]), 1);
  closeDetails();
  $("leak-rows").replaceChildren(...rows.flatMap((row, i) => rowElements(row, from + i, most)));
  if (rows.length === 0) {
    const empty = LISTS[state.list][1].length === 0;
    $("leak-rows").append(h("tr", { role: "row" }, h("td", { role: "cell", colspan: COLUMNS.length + 1, class: "none" }, empty ? "Nothing here." : "No leak matches the search and the filters.")));
  }
  const total = LISTS[state.list][1].length;
  const sum = shown.reduce((a, row) => a + row[LEAK.nbytes], 0);
  $("shown").textContent = shown.length === 0 ? `0 of ${NUMBER.format(total)} shown`
    : `${shown.length > PAGE ? `${NUMBER.format(from + 1)}–${NUMBER.format(from + rows.length)} of ${NUMBER.format(shown.length)}` : NUMBER.format(shown.length)}`
      + `${shown.length < total ? ` that match, of ${NUMBER.format(total)}` : ""} · ${bytesText(sum)}`;
  drawPages();
}

function drawPages() {
  const last = Math.max(0, Math.ceil(shown.length / PAGE) - 1);
  if (last === 0) { $("pages").replaceChildren(); return; }
  const go = (label, page, name) => h("button", { type: "button", class: "page-button", "data-go": name, disabled: page < 0 || page > last || page === state.page,
    onclick: () => { state.page = page; drawPage(); const again = $("pages").querySelector(`[data-go="${name}"]:not(:disabled)`); (again ?? $("leaks")).focus({ preventScroll: true }); $("shown").scrollIntoView({ block: "start" }); } }, label);
  $("pages").replaceChildren(go("First", 0, "first"), go("Previous", state.page - 1, "previous"),
    h("span", {}, `Page ${NUMBER.format(state.page + 1)} of ${NUMBER.format(last + 1)}`), go("Next", state.page + 1, "next"), go("Last", last, "last"));
}

function rowElements(row, number, most) {
  const kind = textAt(row[LEAK.kind]);
  const site = siteAt(row[LEAK.site]);
  const trend = row[LEAK.trend];
  const holder = row[LEAK.held_by].length ? textAt(row[LEAK.held_by][0]) : null;
  const id = `leak-${number}`;
  const bar = h("i", {});
  bar.style.width = `${Math.max(1, (100 * row[LEAK.nbytes]) / most)}%`;
  const opener = h("button", { type: "button", class: "opener", "aria-expanded": "false", "aria-controls": id, "aria-label": `Details of ${kindName(kind)}, ${bytesText(row[LEAK.nbytes])}, ${siteText(site)}` }, arrow());
  const element = h("tr", { role: "row", class: "leak", style: kindColour(kind) },
    h("td", { role: "cell", class: "c-open" }, opener),
    h("td", { role: "cell", class: "c-kind" }, h("span", { class: "kind", title: (KINDS[kind] ?? [kind, kind])[1] }, h("span", { class: "dot" }), h("span", {}, kindName(kind), h("span", { class: "sub" }, textAt(row[LEAK.sure]), row[LEAK.known] === null ? null : ` (known, ${row[LEAK.known].library})`)))),
    h("td", { role: "cell", class: "c-what" }, whatElement(row)),
    h("td", { role: "cell", class: "c-bytes number" }, bytesText(row[LEAK.nbytes]), h("span", { class: "bar", "aria-hidden": "true" }, bar)),
    h("td", { role: "cell", class: "c-site" }, site === null && kind === "native" ? "" : siteElement(site)),
    h("td", { role: "cell", class: "c-held" }, holder === null || holder.startsWith("not found") ? h("span", { class: "sub" }, kind === "native" ? "" : `holder ${holder ?? "not found"}`) : h("code", {}, ...breakable(clipped(holder, 160)))),
    h("td", { role: "cell", class: "c-growth number" }, ...(trend === null ? [] : [growthElement(trend)])));
  const toggle = () => toggleDetail(row, element, opener, id);
  opener.addEventListener("click", (event) => { event.stopPropagation(); toggle(); });
  element.addEventListener("click", (event) => { if (!event.target.closest("a, button, input") && String(getSelection()) === "") toggle(); });
  element.toggle = toggle;
  return [element];
}

const clipped = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function whatElement(row) {
  const tensor = textAt(row[LEAK.tensor]);
  const count = row[LEAK.count];
  if (tensor === null) return h("span", {}, count > 0 ? counted(count, textAt(row[LEAK.kind]) === "scope" ? "scope" : "time") : "resident memory");
  const used = row[LEAK.used_nbytes], op = textAt(row[LEAK.op]);
  const more = [op === null ? null : `made by ${op}`, row[LEAK.graph_nbytes] ? `graphs of ${bytesText(row[LEAK.graph_nbytes])}` : null, used < row[LEAK.nbytes] && textAt(row[LEAK.state]) === "alive" ? `${bytesText(used)} used` : null].filter((part) => part !== null);
  return h("span", {}, count === 1 ? "" : `${NUMBER.format(count)} × `, tensor, more.length ? h("span", { class: "sub" }, more.join(", ")) : null);
}

function growthElement(trend) {
  const sign = (value) => (value > 0 ? "+" : "");
  return h("span", {}, h("span", { class: trend.nbytes_per_pass > 0 || trend.count_per_pass > 0 ? "up" : null }, `${sign(trend.nbytes_per_pass)}${bytesText(trend.nbytes_per_pass)}`),
    h("span", { class: "sub" }, `${sign(trend.count_per_pass)}${trend.count_per_pass.toFixed(trend.count_per_pass % 1 === 0 ? 0 : 2)} each`), h("span", { class: "narrow" }, "with each pass"));
}

function arrow() {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [name, value] of [["viewBox", "0 0 16 16"], ["width", "14"], ["height", "14"], ["aria-hidden", "true"]]) svg.setAttribute(name, value);
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", "M5.500 2.500 11 8l-5.500 5.500");
  path.setAttribute("fill", "none");
  path.setAttribute("stroke", "currentColor");
  path.setAttribute("stroke-width", "2");
  svg.append(path);
  return svg;
}

function searchFor(text) {
  Object.assign(state, { list: "leaks", kind: "", device: "", sure: "", least: 0 });
  for (const id of ["device", "sure"]) $(id).value = "";
  $("least").value = "0";
  $("list").value = "leaks";
  $("query").value = text;
  state.words = wordsOf(text);
  refresh();
  $("leaks").scrollIntoView();
  $("query").focus({ preventScroll: true });
}

const wordsOf = (text) => text.toLowerCase().split(/\s+/).filter((word) => word !== "");

function startTable() {
  const option = (value, text) => h("option", { value }, text);
  $("list").append(...Object.entries(LISTS).filter(([name, [, rows]]) => name === "leaks" || rows.length).map(([name, [title, rows]]) => option(name, `${title} (${NUMBER.format(rows.length)})`)));
  const devices = new Set();
  for (const [, rows] of Object.values(LISTS)) for (const row of rows) {
    const device = textAt(row[LEAK.device]);
    if (device) devices.add(device);
  }
  $("device").append(option("", "any"), ...[...devices].sort().map((device) => option(device, device)));
  $("least").append(option("0", "any size"), ...[1e3, 1e6, 1e7, 1e8, 1e9].map((size) => option(String(size), bytesText(size).replace(".0", ""))));
  $("sort").append(...[...ORDERS].map(([name, { title }]) => option(name, title)));
  drawHead();

  let waiting = 0;
  const searchNow = () => {
    clearTimeout(waiting);
    waiting = 0;
    state.words = wordsOf($("query").value);
    refresh();
  };
  $("query").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(searchNow, LISTS[state.list][1].length > 5000 ? 180 : 0);
  });
  $("query").addEventListener("keydown", (event) => {
    if (event.key === "Escape" && $("query").value !== "") { $("query").value = ""; searchNow(); event.preventDefault(); }
    if (event.key === "ArrowDown") {
      // What was typed last must not redraw the rows after one of them has the focus.
      if (waiting) searchNow();
      $("leak-rows").querySelector(".opener")?.focus();
      event.preventDefault();
    }
  });
  for (const name of ["list", "device", "sure"]) $(name).addEventListener("change", () => { state[name] = $(name).value; refresh(); });
  $("least").addEventListener("change", () => { state.least = Number($("least").value); refresh(); });
  $("sort").addEventListener("change", () => sortBy($("sort").value, false));
  $("leak-rows").addEventListener("keydown", (event) => {
    if (!event.target.classList.contains("opener") || !["ArrowDown", "ArrowUp", "Home", "End"].includes(event.key)) return;
    const all = [...$("leak-rows").querySelectorAll(".opener")];
    const now = all.indexOf(event.target);
    const next = { ArrowDown: now + 1, ArrowUp: now - 1, Home: 0, End: all.length - 1 }[event.key];
    if (next < 0) $("query").focus(); else all[next]?.focus();
    event.preventDefault();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName ?? "")) return;
    $("query").focus();
    $("query").select();
    event.preventDefault();
  });
  refresh();
}
