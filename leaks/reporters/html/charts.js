// The charts' common life: drawn when they come near the window, anew when the colours or the width change.
const charts = new Set();

function colours() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(name).trim();
  return {
    ink: value("--ink"), soft: value("--soft"), line: value("--line"), faint: value("--faint"), panel: value("--panel"),
    accent: value("--accent"), series: [1, 2, 3, 4, 5, 6, 7, 8].map((n) => value(`--c${n}`)),
  };
}

const FONT = getComputedStyle(document.body).fontFamily;

/** A chart in `element`; `optionOf(colours, width)` says what it shows. Returns an object with `draw`, `end`, `of`. */
function chartIn(element, optionOf) {
  const chart = {
    of: null,
    draw() {
      if (chart.of === null) {
        chart.of = echarts.init(element, null, { renderer: "svg" });
        chart.started?.(chart.of);
      }
      const option = optionOf(colours(), element.clientWidth);
      if (option.height) chart.of.resize({ height: option.height });
      chart.of.setOption({ animation: false, textStyle: { fontFamily: FONT }, ...option.chart }, { notMerge: true });
    },
    resize() {
      if (chart.of !== null && element.clientWidth > 0) { chart.of.resize(); chart.draw(); }
    },
    end() {
      sizes.unobserve(element);
      charts.delete(chart);
      chart.of?.dispose();
    },
  };
  element.leakReportChart = chart;
  charts.add(chart);
  let width = element.clientWidth;
  chart.widthChanged = () => { const now = element.clientWidth; const changed = now !== width; width = now; return changed; };
  sizes.observe(element);
  return chart;
}

const sizes = new ResizeObserver((entries) => {
  for (const { target } of entries) if (target.leakReportChart.widthChanged()) target.leakReportChart.resize();
});

function redrawCharts() {
  for (const chart of charts) if (chart.of !== null) chart.draw();
}

/** A table for a chart's tooltip: rows are [colour or null, name, value]. */
function tip(title, rows) {
  return h("div", { class: "chart-tip" }, h("strong", {}, title), h("table", {}, ...rows.map(([colour, name, value]) => {
    const swatch = colour === null ? null : h("span", { class: "swatch" });
    if (swatch) swatch.style.background = colour;
    return h("tr", {}, h("td", {}, swatch, name), h("td", {}, value));
  })));
}

const tipBox = (c) => ({
  confine: true, backgroundColor: c.panel, borderColor: c.line, textStyle: { color: c.ink }, transitionDuration: 0,
  extraCssText: "box-shadow: 0 2px 12px rgb(0 0 0 / .25); border-radius: 8px;",
});

const valueAxis = (c, formatter) => ({
  type: "value", axisLabel: { color: c.soft, formatter }, splitLine: { lineStyle: { color: c.line } },
  axisLine: { show: false }, axisTick: { show: false },
});
