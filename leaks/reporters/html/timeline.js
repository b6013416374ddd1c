// The time line: resident memory, live bytes of each device, scopes as bands, passes as ticks.
const timeline = report.timeline;
const LANE_HEIGHT = 20;
const LANES_AT_MOST = 14;
const OTHERS_AT_MOST = 6;

// A report of several processes says of each row which one it is of; the first process is the report's own.
const isOwn = (row) => row.pid === null || row.pid === undefined || row.pid === report.program.pid;
const processName = (pid) => {
  const process = report.processes.find((p) => p.pid === pid);
  return `${process?.role ?? "process"} ${pid}${process === undefined || process.rank === null ? "" : ` of rank ${process.rank}`}`;
};

function laneName(band) {
  const thread = band.thread === "MainThread" ? "main" : band.thread;
  const lane = band.depth === 0 ? thread : `${thread} +${band.depth}`;
  return isOwn(band) ? lane : `${band.pid}: ${lane}`;
}

const liveIn = (sample) => Object.values(sample.live_nbytes).reduce((a, b) => a + b, 0);
const mostResident = (samples) => samples.reduce((most, s) => Math.max(most, s.rss_nbytes ?? 0), 0);

/** The samples of the other processes, those with the most resident memory first. */
function othersOf(samples) {
  const found = new Map();
  for (const sample of samples) {
    if (isOwn(sample)) continue;
    if (!found.has(sample.pid)) found.set(sample.pid, []);
    found.get(sample.pid).push(sample);
  }
  return [...found].sort((a, b) => mostResident(b[1]) - mostResident(a[1]));
}

function timelineStart() {
  const starts = [0, ...timeline.samples.map((s) => s.t_s), ...timeline.bands.map((b) => b.from_s), ...timeline.passes.map((p) => p.t_s)];
  return starts.reduce((a, b) => Math.min(a, b));
}

function timelineEnd() {
  const ends = [report.program.duration_s ?? 0, 0.001];
  for (const sample of timeline.samples) ends.push(sample.t_s);
  for (const band of timeline.bands) ends.push(band.to_s ?? band.from_s);
  for (const pass of timeline.passes) ends.push(pass.t_s);
  return ends.reduce((a, b) => Math.max(a, b));
}

function drawTimeline() {
  const { passes, bands } = timeline;
  const samples = timeline.samples.filter(isOwn);
  const others = othersOf(timeline.samples);
  if (timeline.samples.length + passes.length + bands.length === 0) {
    $("time").replaceChildren(h("h2", { id: "time-heading" }, "Time line"), h("p", { class: "hint" }, "The report holds no time line."));
    return;
  }
  const end = timelineEnd(), start = timelineStart();
  const devices = [...new Set(samples.flatMap((sample) => Object.keys(sample.live_nbytes)))].sort();
  const lanes = [...new Set([...bands].sort((a, b) => a.depth - b.depth).map(laneName))].sort().slice(0, LANES_AT_MOST);
  const laneIndex = new Map(lanes.map((name, index) => [name, index]));
  const rows = [...lanes, ...(passes.length ? ["passes"] : [])];
  const names = [...new Set(bands.map((band) => band.name ?? ""))];
  const cached = samples.some((sample) => sample.cached_nbytes > 0);
  const shownBands = bands.filter((band) => laneIndex.has(laneName(band)));

  const optionOf = (c, width) => {
    const narrow = width < 560;
    const left = narrow ? 70 : 132;
    const top = narrow && devices.length + cached > 2 ? 58 : 36;
    const height = narrow ? 190 : 240;
    const lower = top + height + 34;
    const xAxis = (grid, show) => ({
      type: "value", gridIndex: grid, min: start, max: end, axisLine: { lineStyle: { color: c.line } }, axisTick: { show },
      axisLabel: { show, color: c.soft, formatter: (value) => secondsText(value), hideOverlap: true },
      splitLine: { show: false }, axisPointer: { show: grid === 0, label: { show: false } },
    });
    const line = (name, colour, values, more) => ({
      name, type: "line", data: samples.map((sample, i) => [sample.t_s, values[i]]), showSymbol: samples.length === 1,
      symbolSize: 7, lineStyle: { width: narrow ? 1.2 : 2, color: colour }, itemStyle: { color: colour }, emphasis: { disabled: true },
      xAxisIndex: 0, yAxisIndex: 0, sampling: "lttb", ...more,
    });
    const series = [
      line("resident memory", c.soft, samples.map((s) => s.rss_nbytes), { lineStyle: { width: 1.6, color: c.soft } }),
      ...devices.map((device, i) => line(`live on ${device}`, c.series[i % 8], samples.map((s) => s.live_nbytes[device] ?? 0),
        { stack: "live", areaStyle: { color: c.series[i % 8], opacity: 0.22 }, step: samples.length < 400 ? "end" : false, sampling: undefined })),
      ...others.slice(0, OTHERS_AT_MOST).flatMap(([pid, rows], i) => {
        const colour = c.series[(devices.length + i) % 8];
        return [["resident", (s) => s.rss_nbytes, "dotted"], ["live", liveIn, "solid"]].map(([what, value, type]) =>
          line(`${what} in ${processName(pid)}`, colour, [], { data: rows.map((s) => [s.t_s, value(s)]), showSymbol: rows.length === 1, lineStyle: { width: 1.4, type, color: colour } }));
      }),
      ...(cached ? [line("cached", c.series[7], samples.map((s) => s.cached_nbytes), { lineStyle: { width: 1.4, type: "dashed", color: c.series[7] } })] : []),
    ];
    if (rows.length) series.push({
      name: "scopes", type: "custom", xAxisIndex: 1, yAxisIndex: 1, clip: true, encode: { x: [0, 1], y: 2 },
      tooltip: { trigger: "item" },
      data: [
        ...shownBands.map((band) => [band.from_s, band.to_s ?? end, laneIndex.get(laneName(band)), names.indexOf(band.name ?? ""), band.to_s === null ? 1 : 0]),
        ...passes.map((pass) => [pass.t_s, pass.t_s, lanes.length, -1, pass.index]),
      ],
      renderItem(params, api) {
        const [x0, y] = api.coord([api.value(0), api.value(2)]);
        const [x1] = api.coord([api.value(1), api.value(2)]);
        const pass = api.value(3) < 0;
        const lane = Math.min(api.size([0, 1])[1], LANE_HEIGHT);
        const wide = pass ? 1.5 : Math.max(x1 - x0, 1.5);
        const shape = { x: pass ? x0 - 0.75 : x0, y: y - lane / 2 + 2, width: wide, height: lane - 4, r: pass ? 0 : 2 };
        const clipped = echarts.graphic.clipRectByRect(shape, params.coordSys);
        if (!clipped) return null;
        const colour = pass ? c.ink : c.series[(api.value(3) + 2) % 8];
        const name = pass ? "" : names[api.value(3)];
        return {
          type: "rect", shape: { ...shape, ...clipped }, style: { fill: colour, opacity: pass ? 0.8 : 0.72 },
          textContent: clipped.width > 44 && name ? { style: { text: name, fill: c.ink, fontSize: 11, width: clipped.width - 8, overflow: "truncate" } } : undefined,
          textConfig: { position: "insideLeft", distance: 4 },
        };
      },
    });
    const total = rows.length ? lower + rows.length * LANE_HEIGHT + 48 : top + height + 74;
    return {
      height: total,
      chart: {
        legend: { type: others.length ? "scroll" : "plain", top: 0, left: 0, icon: "roundRect", itemWidth: 14, itemHeight: 8, textStyle: { color: c.ink }, data: series.filter((s) => s.type === "line").map((s) => s.name) },
        grid: [
          { left, right: 14, top, height },
          ...(rows.length ? [{ left, right: 14, top: lower, height: rows.length * LANE_HEIGHT }] : []),
        ],
        xAxis: [xAxis(0, true), ...(rows.length ? [xAxis(1, false)] : [])],
        yAxis: [
          { ...valueAxis(c, axisBytes), gridIndex: 0 },
          ...(rows.length ? [{
            type: "category", gridIndex: 1, data: rows, inverse: true, axisLine: { show: false }, axisTick: { show: false },
            axisLabel: { color: c.soft, interval: 0, width: left - 12, overflow: "truncate", fontSize: 11.5 },
          }] : []),
        ],
        dataZoom: [
          { type: "inside", xAxisIndex: rows.length ? [0, 1] : [0], filterMode: "none", zoomOnMouseWheel: "ctrl", moveOnMouseWheel: false, moveOnMouseMove: true, preventDefaultMouseMove: false },
          { type: "slider", xAxisIndex: rows.length ? [0, 1] : [0], filterMode: "none", height: 24, bottom: 8, left, right: 14, borderColor: c.line,
            fillerColor: "rgba(128,150,190,.18)", textStyle: { color: c.soft }, labelFormatter: (value) => secondsText(value), showDataShadow: false,
            handleStyle: { color: c.panel, borderColor: c.soft }, moveHandleStyle: { color: c.line }, brushSelect: false },
        ],
        tooltip: {
          ...tipBox(c), trigger: "axis", axisPointer: { type: "line", lineStyle: { color: c.soft } },
          formatter(params) {
            if (!Array.isArray(params)) {
              const [from, to, , name, extra] = params.value;
              if (name < 0) {
                const pass = passes.find((p) => p.index === extra && p.t_s === from);
                return tip(`pass ${extra}`, [[null, "name", pass?.name ?? "without a name"], [null, "at", secondsText(from)]]);
              }
              return tip(names[name] === "" ? "scope without a name" : `scope ${names[name]}`,
                [[null, "opened at", secondsText(from)], [null, "closed at", extra ? "never" : secondsText(to)], [null, "open for", secondsText(to - from)]]);
            }
            const rows = params.filter((p) => p.seriesType === "line").map((p) => [p.color, p.seriesName, bytesText(p.value[1])]);
            return rows.length ? tip(`at ${secondsText(params[0].value[0])}`, rows) : "";
          },
        },
        series,
      },
    };
  };

  const peak = mostResident(samples);
  const live = liveIn;
  const text = [];
  if (samples.length) {
    const first = samples[0], last = samples[samples.length - 1];
    const most = samples.reduce((a, b) => (live(b) > live(a) ? b : a));
    text.push(`Resident memory: ${bytesText(first.rss_nbytes)} at first, at most ${bytesText(peak)}, ${bytesText(last.rss_nbytes)} in the end. ` +
      `Live bytes: ${bytesText(live(first))} at first, at most ${bytesText(live(most))} at ${secondsText(most.t_s)}, ${bytesText(live(last))} in the end.`);
  }
  if (others.length) text.push(` ${counted(others.length, "other process")}: resident memory at most ${bytesText(others.reduce((most, [, rows]) => Math.max(most, mostResident(rows)), 0))}` +
    (others.length > OTHERS_AT_MOST ? `; the ${OTHERS_AT_MOST} largest are drawn.` : "."));
  if (bands.length > shownBands.length) text.push(` ${counted(bands.length - shownBands.length, "deeper scope")} not shown.`);
  $("time-text").textContent = text.join("");
  chartIn($("time-chart"), optionOf).draw();

  $("time-table").addEventListener("toggle", () => {
    const step = Math.max(1, Math.ceil(samples.length / 200));
    $("time-table").querySelector(".scroll").replaceChildren(plainTable(
      [["at", true], ["resident", true], ...devices.map((device) => [device, true]), ["cached", true]],
      samples.filter((_, i) => i % step === 0 || i === samples.length - 1).map((s) => [secondsText(s.t_s), bytesText(s.rss_nbytes),
        ...devices.map((device) => bytesText(s.live_nbytes[device] ?? 0)), bytesText(s.cached_nbytes)]),
    ));
  }, { once: true });
}
