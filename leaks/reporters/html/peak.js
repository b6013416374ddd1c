// The peak of memory: the bytes in use during the pass that has it, and below, by line, the lives of its largest blocks.
const PEAK_LINES_AT_MOST = 20;
const PEAK_LANE_HEIGHT = 18;

/** A line as text, its file as short as it stays clear. */
function peakLine(line) {
  const end = line.search(/:\d+( |$)/);
  return end < 0 ? line : shortFile(line.slice(0, end)) + line.slice(end);
}

function drawPeak() {
  const { peak } = report;
  if (peak === null) return;
  $("peak").hidden = false;
  const where = peak.pass_name === null ? "the program" : `pass ${peak.pass_index} of ${peak.pass_name}`;
  const first = peak.is_whole ? "" : ` Only the first ${NUMBER.format(peak.births)} births were recorded.`;
  $("peak-text").textContent = `${bytesText(peak.nbytes)} at ${peakLine(peak.line)}, in ${where}.${first}`;

  const totals = new Map();
  for (const life of peak.lives) totals.set(life.line, (totals.get(life.line) ?? 0) + life.nbytes);
  const lines = [...totals].sort((a, b) => b[1] - a[1]).slice(0, PEAK_LINES_AT_MOST).map(([line]) => line);
  const lane = new Map(lines.map((line, index) => [line, index]));
  const lives = peak.lives.filter((life) => lane.has(life.line));
  const last = peak.course[peak.course.length - 1];
  const end = Math.max(last[0] + 1, ...lives.map((life) => life.upper));

  const optionOf = (c, width) => {
    const narrow = width < 560;
    const left = narrow ? 110 : 230, top = 16, height = narrow ? 150 : 180, lower = top + height + 34;
    const xAxis = (grid, show) => ({
      type: "value", gridIndex: grid, min: 0, max: end, axisLine: { lineStyle: { color: c.line } }, axisTick: { show }, splitLine: { show: false },
      axisLabel: { show, color: c.soft, formatter: (value) => NUMBER.format(value), hideOverlap: true }, axisPointer: { show: grid === 0, label: { show: false } },
    });
    return {
      height: lower + lines.length * PEAK_LANE_HEIGHT + 12,
      chart: {
        grid: [{ left, right: 14, top, height }, { left, right: 14, top: lower, height: lines.length * PEAK_LANE_HEIGHT }],
        xAxis: [xAxis(0, true), xAxis(1, false)],
        yAxis: [
          { ...valueAxis(c, axisBytes), gridIndex: 0 },
          { type: "category", gridIndex: 1, data: lines.map(peakLine), inverse: true, axisLine: { show: false }, axisTick: { show: false },
            axisLabel: { color: c.soft, interval: 0, width: left - 12, overflow: "truncate", fontSize: 11.5 } },
        ],
        tooltip: {
          ...tipBox(c), trigger: "axis", axisPointer: { type: "line", lineStyle: { color: c.soft } },
          formatter(params) {
            if (!Array.isArray(params)) {
              const life = lives[params.dataIndex];
              return tip(peakLine(life.line), [[null, "bytes", bytesText(life.nbytes)], [null, "from birth", NUMBER.format(life.lower)], [null, "to birth", NUMBER.format(life.upper)]]);
            }
            const [row] = params.filter((p) => p.seriesType === "line");
            return row ? tip(`birth ${NUMBER.format(row.value[0])}`, [[row.color, "in use", bytesText(row.value[1])]]) : "";
          },
        },
        series: [
          { name: "in use", type: "line", step: "end", data: [...peak.course, [end, last[1]]], showSymbol: false, xAxisIndex: 0, yAxisIndex: 0,
            lineStyle: { width: 2, color: c.series[0] }, itemStyle: { color: c.series[0] }, areaStyle: { color: c.series[0], opacity: 0.22 }, emphasis: { disabled: true } },
          { name: "lives", type: "custom", xAxisIndex: 1, yAxisIndex: 1, clip: true, encode: { x: [0, 1], y: 2 }, tooltip: { trigger: "item" },
            data: lives.map((life) => [life.lower, life.upper, lane.get(life.line), life.at_peak ? 1 : 0]),
            renderItem(params, api) {
              const [x0, y] = api.coord([api.value(0), api.value(2)]);
              const [x1] = api.coord([api.value(1), api.value(2)]);
              return { type: "rect", shape: { x: x0, y: y - PEAK_LANE_HEIGHT / 2 + 2, width: Math.max(x1 - x0, 1.5), height: PEAK_LANE_HEIGHT - 4, r: 2 },
                style: { fill: api.value(3) ? c.series[0] : c.soft, opacity: 0.55 } };
            } },
        ],
      },
    };
  };
  chartIn($("peak-chart"), optionOf).draw();
  $("peak-living").replaceChildren(plainTable([["line", false], ["bytes", true], ["blocks", true]],
    peak.living.map((row) => [peakLine(row.line), bytesText(row.nbytes), NUMBER.format(row.count)])));
  if (peak.advice.length) {
    $("peak-advice").replaceChildren(h("h3", {}, "What would lower it"), h("ul", { class: "frames" }, ...peak.advice.map((one) =>
      h("li", {}, h("code", {}, one.text), `: ${bytesText(one.saved_nbytes)} less, peak ${bytesText(one.peak_nbytes)}`))));
  }
}
