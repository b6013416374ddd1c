// Live bytes by site, as nested boxes, and as a table.
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

function boxesOf(group, size) {
  const root = { children: new Map(), value: 0 };
  for (const row of report.sites) {
    const value = row[LIVE[size]];
    if (!(value > 0)) continue;
    let node = root;
    node.value += value;
    for (const name of GROUPS[group](row, siteAt(row[LIVE.site])).filter((part) => part !== "")) {
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

function drawLive() {
  const rows = report.sites;
  if (rows.length === 0) {
    $("live").replaceChildren(h("h2", { id: "live-heading" }, "Live bytes by site"), h("p", { class: "hint" }, "Nothing was live when the report was made."));
    return;
  }
  const sizeText = (value) => ($("size").value.endsWith("bytes") ? bytesText(value) : NUMBER.format(value));
  const optionOf = (c) => {
    const boxText = { color: "#ffffff", textBorderWidth: 0 };
    return {
      chart: {
        tooltip: { ...tipBox(c), formatter: (params) => tip(params.treePathInfo.slice(1).map((node) => node.name).join(" › ") || "everything", [[null, $("size").selectedOptions[0].text, sizeText(params.value)]]) },
        series: [{
          type: "treemap", data: boxesOf($("group").value, $("size").value), name: "everything", roam: false, nodeClick: "zoomToNode", leafDepth: 3,
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
  const chart = chartIn($("live-chart"), optionOf);
  chart.started = (instance) => instance.on("click", (params) => { if (params.data?.rows?.length) pick(params.data.rows); });
  chart.draw();
  const again = () => { $("live-picked").replaceChildren(); chart.draw(); fillTable(); };
  $("group").addEventListener("change", again);
  $("size").addEventListener("change", again);

  function pick(found) {
    $("live-picked").replaceChildren(...found.slice(0, 5).map((row) => h("p", {}, ...rowWords(row))));
  }
  function searchButton(site) {
    return h("button", { type: "button", class: "link", onclick: () => searchFor(`${site.file}:${site.line}`) }, "its leaks");
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
