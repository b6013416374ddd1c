// What a row opens to: what to do, who holds it, the source, the growth, the records.
function toggleDetail(row, element, opener, id) {
  if (opener.getAttribute("aria-expanded") === "true") {
    opener.setAttribute("aria-expanded", "false");
    element.classList.remove("open");
    endDetail(element.nextElementSibling);
    return;
  }
  const detail = h("tr", { role: "row", class: "detail", id }, h("td", { role: "cell", colspan: COLUMNS.length + 1 }, ...detailElements(row)));
  element.after(detail);
  element.classList.add("open");
  opener.setAttribute("aria-expanded", "true");
  opened.add(detail);
  const trend = detail.querySelector(".trend");
  if (trend) chartIn(trend, (c, width) => trendOption(row, c, width)).draw();
}

function endDetail(detail) {
  detail.querySelector(".trend")?.leakReportChart.end();
  opened.delete(detail);
  detail.remove();
}

function closeDetails() { for (const detail of [...opened]) endDetail(detail); }

function detailElements(row) {
  const reason = reasons.get(row);
  const left = [], right = [];
  const list = (title, texts) => [h("h3", {}, title), h("ul", { class: "chain" }, ...texts.map((text) => h("li", {}, ...breakable(text))))];
  if (row[LEAK.held_by].length) left.push(...list(row[LEAK.held_by].length === 1 ? "Held by" : "Held by (the shortest chains)", textsAt(row[LEAK.held_by])));
  if (row[LEAK.members].length) left.push(...list("Members of the cycle", textsAt(row[LEAK.members])));
  const excerpt = row[LEAK.excerpt];
  if (excerpt !== null) left.push(h("h3", {}, "Source: ", h("code", {}, shortFile(textAt(excerpt.file)))), sourceElement(excerpt));
  if (row[LEAK.frames].length > 1) left.push(h("h3", {}, "Stack, innermost first"), h("ol", { class: "frames" }, ...row[LEAK.frames].map((place) => {
    const site = siteAt(place);
    return h("li", { title: `${site.file}:${site.line}` }, h("code", {}, siteText(site)), " in ", h("code", {}, functionText(site.name)));
  })));
  right.push(h("h3", {}, "Facts"), factsElement(row));
  const trend = row[LEAK.trend];
  if (trend !== null && trend.series.length > 1) {
    const words = `Live bytes after each pass: ${bytesText(trend.series[0][2])} at pass ${trend.series[0][0]}, ${bytesText(trend.series.at(-1)[2])} at pass ${trend.series.at(-1)[0]}`;
    right.push(h("h3", {}, `Growth over ${counted(trend.passes, "pass")}`), h("div", { class: "trend", role: "img", "aria-label": words }));
  }
  return [
    h("p", { class: "explanation" }, textAt(row[LEAK.explanation]) ?? ""),
    knownElement(row[LEAK.known]),
    reason === undefined ? null : h("p", { class: "hint" }, `Suppressed: ${reason}`),
    h("div", { class: "columns" }, h("div", {}, ...left), h("div", {}, ...right)),
    recordsElement(row),
  ].filter((part) => part !== null);
}

function knownElement(known) {
  if (known === null) return null;
  const name = known.version === null ? known.library : `${known.library} ${known.version}`;
  // A report may come from anywhere.
  const link = known.link.startsWith("https://") ? h("a", { href: known.link, rel: "noreferrer" }, known.link) : known.link;
  return h("p", { class: "hint" }, `A known leak of ${name}: `, link);
}

function factsElement(row) {
  const facts = [];
  const fact = (name, ...values) => facts.push(h("dt", {}, name), h("dd", {}, ...values));
  fact("pins", bytesText(row[LEAK.nbytes]), ` in ${counted(row[LEAK.count], textAt(row[LEAK.tensor]) === null ? "thing" : "tensor")}`, row[LEAK.used_nbytes] < row[LEAK.nbytes] ? `, ${bytesText(row[LEAK.used_nbytes])} used` : "");
  if (row[LEAK.graph_nbytes]) fact("graphs", bytesText(row[LEAK.graph_nbytes]));
  if (textAt(row[LEAK.device])) fact("device", textAt(row[LEAK.device]));
  fact("state", textAt(row[LEAK.state]) === "disposed" ? "disposed under a live reference" : "alive");
  if (row[LEAK.disposal] !== null) fact("disposed at", siteElement(siteAt(row[LEAK.disposal])));
  const scopes = row[LEAK.scopes].map((scope) => (scope === null ? "outside every scope" : textAt(scope) === "" ? "a scope without a name" : `scope ${textAt(scope)}`));
  if (scopes.length) fact("born in", scopes.join(", "));
  if (row[LEAK.oldest_age_s] !== null) fact("age", row[LEAK.newest_age_s] === null || row[LEAK.newest_age_s] === row[LEAK.oldest_age_s] ? secondsText(row[LEAK.oldest_age_s]) : `${secondsText(row[LEAK.newest_age_s])} to ${secondsText(row[LEAK.oldest_age_s])}`,
    row[LEAK.generation] === null ? "" : `, ${counted(row[LEAK.generation], "closed scope")} ago`);
  const trend = row[LEAK.trend];
  if (trend !== null) fact("growth", `${bytesText(trend.nbytes_per_pass)} and ${trend.count_per_pass.toFixed(2)} a pass, since pass ${trend.first_pass} (fit ${trend.fit.toFixed(2)})`);
  if (row[LEAK.rank] !== null) fact("rank", String(row[LEAK.rank]));
  if (report.processes.length > 1) fact("process", String(row[LEAK.pid]));
  fact("fingerprint", h("code", {}, textAt(row[LEAK.fingerprint])));
  return h("dl", { class: "facts" }, ...facts);
}

function recordsElement(row) {
  const records = row[LEAK.records];
  if (records.length === 0) return null;
  const scope = (index) => (index === null ? "none" : textAt(index) === "" ? "without a name" : textAt(index));
  return h("details", {}, h("summary", {}, records.length < row[LEAK.count] ? `The oldest ${records.length} of ${counted(row[LEAK.count], "record")}` : counted(records.length, "record")),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Records" }, plainTable([["tensor", false], ["pins", true], ["uses", true], ["scope", false], ["age", true], ["disposed at", false]],
      records.map((record) => [textAt(record[RECORD.tensor]), bytesText(record[RECORD.nbytes]), bytesText(record[RECORD.used_nbytes]), scope(record[RECORD.scope]),
        secondsText(record[RECORD.age_s]), record[RECORD.disposal] === null ? "" : siteText(siteAt(record[RECORD.disposal]))]), "records")));
}

function trendOption(row, c, width) {
  const series = row[LEAK.trend].series;
  return {
    chart: {
      grid: { left: 64, right: 12, top: 12, bottom: 26 },
      xAxis: { type: "value", min: series[0][0], max: series.at(-1)[0], minInterval: 1, splitNumber: width < 400 ? 4 : 6, splitLine: { show: false }, axisLine: { lineStyle: { color: c.line } }, axisLabel: { color: c.soft, hideOverlap: true, formatter: (value) => `pass ${value}` } },
      yAxis: { ...valueAxis(c, axisBytes), splitNumber: 3 },
      tooltip: { ...tipBox(c), trigger: "axis", formatter: ([point]) => tip(`pass ${point.value[0]}`, [[c.series[1], "live bytes", bytesText(point.value[1])], [null, "live", NUMBER.format(series[point.dataIndex][1])]]) },
      series: [{ type: "line", data: series.map(([pass, , nbytes]) => [pass, nbytes]), showSymbol: false, lineStyle: { color: c.series[1], width: 2 }, itemStyle: { color: c.series[1] }, areaStyle: { color: c.series[1], opacity: 0.18 }, emphasis: { disabled: true } }],
    },
  };
}

// Enough of Python to make an excerpt easier to read; what it takes for wrong is only coloured wrong.
const TOKENS = /(#.*$)|((?:\b[rbfu]{1,2})?(?:"""|'''|"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?))|\b(False|None|True|and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|nonlocal|not|or|pass|raise|return|try|while|with|yield)\b|\b(\d[\d_.]*(?:e[+-]?\d+)?)\b/g;

function sourceElement(excerpt) {
  return h("pre", { class: "source", tabindex: "0", role: "region", "aria-label": "Source" }, h("code", {}, ...excerpt.lines.map((index, i) => {
    const line = textAt(index), number = excerpt.first + i;
    const parts = [];
    let from = 0;
    for (const match of line.matchAll(TOKENS)) {
      if (match.index > from) parts.push(line.slice(from, match.index));
      parts.push(h("span", { class: match[1] !== undefined ? "c" : match[2] !== undefined ? "s" : match[3] !== undefined ? "k" : "d" }, match[0]));
      from = match.index + match[0].length;
    }
    parts.push(line.slice(from));
    const here = number === excerpt.line;
    return h("span", { class: here ? "row here" : "row", "aria-current": here ? "true" : null }, h("span", { class: "no", "aria-hidden": "true" }, String(number)), ...parts, "\n");
  })));
}
