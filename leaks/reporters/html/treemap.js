// Live bytes by site, and retained bytes by holder, as nested boxes, and as a table.
const CHILDREN_AT_MOST = 150;
const ROWS_AT_MOST = 200;

const GROUPS = {
  file: (row, site) => [site === null ? "unknown site" : shortFile(site.file), site === null ? textAt(row[LIVE.kind]) : functionText(site.name), site === null ? "" : `line ${site.line}`],
  kind: (row, site) => [textAt(row[LIVE.kind]), site === null ? "unknown site" : shortFile(site.file), site === null ? "" : `line ${site.line}`],
  device: (row, site) => [textAt(row[LIVE.device]) || "no device", site === null ? "unknown site" : shortFile(site.file), site === null ? "" : `line ${site.line}`],
};

// White text on these, by day and by night: at least 4.5 to 1 (WCAG 2.2, 1.4.3).
const FILLS = ["#2a63bb", "#a15a10", "#1b7a50", "#9c3a83", "#6750bd", "#a83f3c", "#1a7082", "#63671f"];
const REST = "#5a6273";
const FRAME = "#000000";

/** A colour `share` of the way from one "#rrggbb" to another. */
function mixed(colour, other, share) {
  const channel = (text, i) => parseInt(text.slice(1 + 2 * i, 3 + 2 * i), 16);
  return `#${[0, 1, 2].map((i) => Math.round(channel(colour, i) * (1 - share) + channel(other, i) * share).toString(16).padStart(2, "0")).join("")}`;
}

/** The rows as nested boxes; `valueOf(row)` is the area of one, `namesOf(row)` the boxes it is in, outermost first. */
function boxesOf(rows, valueOf, namesOf) {
  const root = { children: new Map(), value: 0 };
  for (const row of rows) {
    const value = valueOf(row);
    if (!(value > 0)) continue;
    let node = root;
    node.value += value;
    for (const name of namesOf(row).filter((part) => part !== "")) {
      if (!node.children.has(name)) node.children.set(name, { name, children: new Map(), value: 0, rows: [] });
      node = node.children.get(name);
      node.value += value;
    }
    node.rows.push(row);
  }
  // One colour for each of the outermost boxes that are several.
  const coloured = root.children.size === 1 ? 1 : 0;
  const frozen = (node, depth, above) => {
    const sorted = [...node.children.values()].sort((a, b) => b.value - a.value);
    const kept = sorted.slice(0, CHILDREN_AT_MOST).map((child, i) => {
      const fill = depth === coloured ? FILLS[i % FILLS.length] : above ?? FILLS[0];
      const style = { color: fill, borderColor: mixed(fill, FRAME, depth === 0 ? 0.22 : 0.1) };
      return { name: child.name, value: child.value, rows: child.rows, itemStyle: style, children: child.children.size ? frozen(child, depth + 1, fill) : undefined };
    });
    const rest = sorted.slice(CHILDREN_AT_MOST);
    if (rest.length) kept.push({ name: `${NUMBER.format(rest.length)} others`, value: rest.reduce((sum, child) => sum + child.value, 0), rows: [], itemStyle: { color: REST } });
    return kept;
  };
  return frozen(root, 0, null);
}

/** A chart of nested boxes in `element`. `boxes()` gives them, `sizeText(value)` and `sizeName()` say what an area is,
 *  `pick(rows)` is called with the rows of a box that is clicked. */
function treemapIn(element, boxes, sizeText, sizeName, pick) {
  const optionOf = (c) => {
    const boxText = { color: "#ffffff", textBorderWidth: 0 };
    return {
      chart: {
        tooltip: { ...tipBox(c), formatter: (params) => tip(params.treePathInfo.slice(1).map((node) => node.name).join(" › ") || "everything", [[null, sizeName(), sizeText(params.value)]]) },
        series: [{
          type: "treemap", data: boxes(), name: "everything", roam: false, nodeClick: "zoomToNode", leafDepth: 3,
          left: 0, right: 0, top: 36, bottom: 0, visibleMin: 60, childrenVisibleMin: 400, squareRatio: 0.8,
          breadcrumb: {
            top: 0, left: 0, height: 26, itemStyle: { color: c.faint, borderColor: c.line, textStyle: { color: c.ink } },
            emphasis: { itemStyle: { color: c.line, textStyle: { color: c.ink } } },
          },
          label: {
            ...boxText, fontSize: 12.5, lineHeight: 16, padding: [5, 6], position: "insideTopLeft", overflow: "truncate",
            formatter: (params) => `${params.name}\n${sizeText(params.value)}`,
          },
          upperLabel: { ...boxText, show: true, height: 24, fontSize: 12.5, fontWeight: 600, overflow: "truncate", padding: [0, 6],
            formatter: (params) => `${params.name}  ${sizeText(params.value)}` },
          emphasis: { itemStyle: { opacity: 0.85 }, upperLabel: { ...boxText, show: true }, label: boxText },
          levels: [
            { itemStyle: { borderWidth: 0, gapWidth: 4, borderColor: c.panel }, upperLabel: { show: false } },
            { itemStyle: { borderWidth: 2, gapWidth: 2, borderRadius: 4 } },
            { itemStyle: { borderWidth: 2, gapWidth: 2, borderRadius: 3 } },
            { itemStyle: { borderWidth: 0, gapWidth: 1, borderRadius: 2 } },
          ],
        }],
      },
    };
  };
  const chart = chartIn(element, optionOf);
  chart.started = (instance) => instance.on("click", (params) => { if (params.data?.rows?.length) pick(params.data.rows); });
  chart.draw();
  return chart;
}

function searchButton(site) {
  return h("button", { type: "button", class: "link", onclick: () => searchFor(`${site.file}:${site.line}`) }, "its leaks");
}

function drawLive() {
  const rows = report.sites;
  if (rows.length === 0) {
    $("live").replaceChildren(h("h2", { id: "live-heading" }, "Live bytes by site"), h("p", { class: "hint" }, "Nothing was live when the report was made."));
    return;
  }
  const sizeText = (value) => ($("size").value.endsWith("bytes") ? bytesText(value) : NUMBER.format(value));
  const boxes = () => boxesOf(rows, (row) => row[LIVE[$("size").value]], (row) => GROUPS[$("group").value](row, siteAt(row[LIVE.site])));
  const chart = treemapIn($("live-chart"), boxes, sizeText, () => $("size").selectedOptions[0].text, pick);
  const again = () => { $("live-picked").replaceChildren(); chart.draw(); fillTable(); };
  $("group").addEventListener("change", again);
  $("size").addEventListener("change", again);

  function pick(found) {
    $("live-picked").replaceChildren(...found.slice(0, 5).map((row) => h("p", {}, ...rowWords(row))));
  }
  function rowWords(row) {
    const site = siteAt(row[LIVE.site]);
    const what = `${NUMBER.format(row[LIVE.count])} × ${textAt(row[LIVE.kind])}`;
    return [h("strong", {}, site === null ? "unknown site" : `${siteText(site)} in ${functionText(site.name)}`), `: ${what}, ${bytesText(row[LIVE.nbytes])} live, ` +
      `at most ${bytesText(row[LIVE.peak_nbytes])}, ${counted(row[LIVE.births], "birth")}`, textAt(row[LIVE.device]) === "" ? "" : ` on ${textAt(row[LIVE.device])}`, site === null ? "" : "; ", site === null ? "" : searchButton(site)];
  }
  function fillTable() {
    const box = $("live-table").querySelector(".scroll");
    if (!$("live-table").open) return box.replaceChildren();
    const column = LIVE[$("size").value];
    const sorted = [...rows].sort((a, b) => b[column] - a[column]).slice(0, ROWS_AT_MOST);
    box.replaceChildren(plainTable(
      [["site", false], ["kind of tensor", false], ["device", false], ["live", true], ["bytes", true], ["peak", true], ["births", true], ["", false]],
      sorted.map((row) => {
        const site = siteAt(row[LIVE.site]);
        return [siteElement(site), textAt(row[LIVE.kind]), textAt(row[LIVE.device]), NUMBER.format(row[LIVE.count]), bytesText(row[LIVE.nbytes]),
          bytesText(row[LIVE.peak_nbytes]), NUMBER.format(row[LIVE.births]), site === null ? "" : searchButton(site)];
      })), rows.length > sorted.length ? h("p", { class: "hint" }, `The first ${NUMBER.format(sorted.length)} of ${counted(rows.length, "site")}.`) : "");
  }
  $("live-table").addEventListener("toggle", fillTable);
}

function drawHeld() {
  const rows = report.retainers;
  if (rows.length === 0) {
    $("held").hidden = true;
    return;
  }
  const boxes = () => boxesOf(rows, (row) => row[HELD.nbytes], (row) => [textAt(row[HELD.holder])]);
  const pick = (found) => $("held-picked").replaceChildren(...found.slice(0, 5).map((row) => h("p", {}, textAt(row[HELD.text]),
    ...row[HELD.sites].flatMap((place) => ["; ", siteText(siteAt(place)), " ", searchButton(siteAt(place))]))));
  treemapIn($("held-chart"), boxes, bytesText, () => "retained bytes", pick);
  const fillTable = () => {
    const box = $("held-table").querySelector(".scroll");
    if (!$("held-table").open) return box.replaceChildren();
    const shown = rows.slice(0, ROWS_AT_MOST);
    box.replaceChildren(plainTable(
      [["holder", false], ["tensors", true], ["bytes", true], ["lines", true]],
      shown.map((row) => [textAt(row[HELD.text]), NUMBER.format(row[HELD.count]), bytesText(row[HELD.nbytes]), NUMBER.format(row[HELD.sites].length)])),
      rows.length > shown.length ? h("p", { class: "hint" }, `The first ${NUMBER.format(shown.length)} of ${counted(rows.length, "holder")}.`) : "");
  };
  $("held-table").addEventListener("toggle", fillTable);
}
