// The head of the page, the run, the colours; and the order in which all is drawn.
function drawSummary() {
  const { program } = report;
  const started = program.started_at === null ? null : new Date(program.started_at);
  const ended = { exit: "ended", exception: "ended by an exception", interrupt: "interrupted", killed: "killed", "os._exit": "ended by os._exit", running: "still running", unfinished: "had not ended", "not run": "never ran" }[program.ended] ?? program.ended;
  const facts = [
    started === null || Number.isNaN(started.valueOf()) ? null : `started ${started.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" })}`,
    `${ended}${program.duration_s === null ? "" : ` after ${secondsText(program.duration_s)}`}${program.status ? `, status ${program.status}` : ""}`,
    ...["python", "torch", "numpy", "jax"].filter((name) => program[name]).map((name) => `${{ python: "Python", torch: "PyTorch", numpy: "NumPy", jax: "JAX" }[name]} ${program[name]}`),
  ].filter((fact) => fact !== null);
  $("subtitle").replaceChildren(...facts.flatMap((fact, i) => [i ? " · " : "", h("span", {}, fact)]));

  const worst = report.leaks.reduce((a, row) => (a === null || row[LEAK.nbytes] > a[LEAK.nbytes] ? row : a), null);
  if (worst === null) {
    const [word, ...rest] = report.headline.split("; ");
    $("verdict").className = report.verdict === "clean" ? "clean" : "undecided";
    $("verdict").replaceChildren(h("strong", {}, report.verdict === "clean" ? "No leaks." : `Undecided: ${word}.`),
      rest.length ? ` ${rest.join("; ")}.` : "", report.suppressed.length ? ` ${counted(report.suppressed.length, "leak")} suppressed.` : "");
  } else {
    const site = siteAt(worst[LEAK.site]);
    const first = worst[LEAK.held_by].length ? textAt(worst[LEAK.held_by][0]) : null;
    const holder = first === null || first.startsWith("not found") ? null : first;
    $("verdict").replaceChildren(h("strong", {}, `${bytesText(report.nbytes)} ${report.verdict === "suspects" ? "suspected" : "leaked"}.`), " The worst: ", bytesText(worst[LEAK.nbytes]),
      ...(site === null ? [] : [", born at ", h("code", {}, siteText(site)), " in ", h("code", {}, functionText(site.name))]),
      ...(holder === null ? [] : [", held by ", h("code", {}, ...breakable(clipped(holder, 160)))]), ".");
  }

  if (report.undecided.length) $("verdict").append(h("ul", {}, ...report.undecided.map((line) => h("li", {}, `Undecided: ${line}`))));

  const sites = new Set(report.leaks.map((row) => row[LEAK.site]).filter((site) => site !== null)).size;
  const peak = report.timeline.samples.filter(isOwn).reduce((most, s) => Math.max(most, s.rss_nbytes ?? 0), 0);
  const live = report.sites.reduce((sum, row) => sum + row[LIVE.nbytes], 0);
  const growing = report.leaks.filter((row) => row[LEAK.trend] !== null).reduce((sum, row) => sum + row[LEAK.trend].nbytes_per_pass, 0);
  const longest = report.timeline.passes.reduce((a, pass) => (a === null || pass.index > a.index ? pass : a), null);
  const figure = (name, value, note) => h("div", {}, h("dt", {}, name), h("dd", {}, value, note === null ? null : h("small", {}, note)));
  $("figures").replaceChildren(...[
    figure("leaked", bytesText(report.nbytes), counted(report.count, "tensor")),
    figure("leaks", NUMBER.format(report.leaks.length), `at ${counted(sites, "site")}`),
    growing > 0 ? figure("growth", `+${bytesText(growing)}`, "with each pass") : null,
    figure("live in the end", bytesText(live), `at ${counted(report.sites.length, "site")}`),
    peak > 0 ? figure("peak resident", bytesText(peak), null) : null,
    longest === null ? null : figure("passes", NUMBER.format(longest.index), longest.name === "" ? null : `of ${longest.name}`),
  ].filter((one) => one !== null));
}

function drawRun() {
  const { program, settings, processes } = report;
  const facts = [];
  const fact = (name, value) => facts.push(h("dt", {}, name), h("dd", {}, value));
  fact("command", h("code", {}, $("title").textContent));
  for (const [name, title] of [["started_at", "started at"], ["platform", "platform"], ["pid", "process"]]) if (program[name] !== null && program[name] !== undefined) fact(title, String(program[name]));
  fact("exit status", program.status === null ? "unknown" : String(program.status));
  fact("frames of a site", String(settings.frames));
  fact("sampled", settings.sample_nbytes === null ? "no, every birth is seen" : `a birth for each ${bytesText(settings.sample_nbytes)}`);
  fact("kinds", settings.kinds === null ? "all" : settings.kinds.join(", "));
  if (settings.threshold_nbytes) fact("threshold", bytesText(settings.threshold_nbytes));
  const parts = [h("dl", { class: "facts" }, ...facts)];
  if (processes.length > 1) {
    parts.push(h("h3", {}, "Processes"), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Processes" }, plainTable(
      [["process", true], ["parent", true], ["role", false], ["rank", true], ["ended", false], ["status", true], ["peak resident", true]],
      processes.map((p) => [String(p.pid), p.parent === null ? "" : String(p.parent), p.role, p.rank === null ? "" : String(p.rank), p.ended ?? "", p.status === null ? "" : String(p.status), p.peak_rss_nbytes === null ? "" : bytesText(p.peak_rss_nbytes)]))));
  }
  if (report.unused_suppressions.length) {
    parts.push(h("h3", {}, "Suppressions that matched nothing"), h("ul", { class: "frames" }, ...report.unused_suppressions.map((one) => h("li", {}, h("code", {}, `${one.file} #${one.index}`), `: ${one.reason}`))));
  }
  $("run-text").replaceChildren(...parts);
}

const THEMES = { system: "Colours: as the system", light: "Colours: light", dark: "Colours: dark" };

function showTheme() {
  const root = document.documentElement;
  const { chosen } = root.dataset;
  root.dataset.theme = chosen !== "system" ? chosen : matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  $("theme").textContent = { system: "◐ Auto", light: "☀ Light", dark: "☾ Dark" }[chosen];
  $("theme").setAttribute("aria-label", THEMES[chosen]);
}

function startTheme() {
  showTheme();
  $("theme").addEventListener("click", () => {
    const order = Object.keys(THEMES);
    const next = order[(order.indexOf(document.documentElement.dataset.chosen) + 1) % order.length];
    document.documentElement.dataset.chosen = next;
    try { localStorage.setItem("leak-report-theme", next); } catch { /* not remembered */ }
    showTheme();
    redrawCharts();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { showTheme(); redrawCharts(); });
}

startTheme();
drawSummary();
startTable();
drawRun();
performance.mark("leak-report-interactive");
// The charts come after the first paint: the table can be used before they are there.
requestAnimationFrame(() => setTimeout(() => {
  drawTimeline();
  drawPeak();
  drawLive();
  drawHeld();
  document.documentElement.dataset.ready = "true";
}));
