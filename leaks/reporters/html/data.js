// The report, as reporters/html_page.py packed it: every text once, every site once, rows in the order of `fields`.
const report = JSON.parse(document.getElementById("report-data").textContent);
const { strings, places } = report;
const LEAK = Object.fromEntries(report.fields.leak.map((name, index) => [name, index]));
const RECORD = Object.fromEntries(report.fields.record.map((name, index) => [name, index]));
const LIVE = Object.fromEntries(report.fields.site.map((name, index) => [name, index]));
const HELD = Object.fromEntries(report.fields.retainer.map((name, index) => [name, index]));

const textAt = (index) => (index === null ? null : strings[index]);
const textsAt = (indices) => indices.map((index) => strings[index]);

/** A site as {file, line, name}, or null. `place` is a number into `places`. */
function siteAt(place) {
  if (place === null) return null;
  const [file, line, name] = places[place];
  return { file: strings[file], line, name: strings[name] };
}

// Files are shown as short as they stay clear: below the folder that the files of all leaks and sites share, or below
// site-packages.
const shared = (() => {
  let folder = null;
  const born = [...report.leaks.map((row) => row[LEAK.site]), ...report.sites.map((row) => row[LIVE.site])];
  for (const index of new Set(born.filter((place) => place !== null).map((place) => places[place][0]))) {
    const parts = strings[index].split("/").slice(0, -1);
    if (!strings[index].startsWith("/") || parts.includes("site-packages")) continue;
    folder = folder === null ? parts : folder.slice(0, folder.findIndex((part, i) => part !== parts[i]) >>> 0);
  }
  return folder === null || folder.length < 2 ? "" : folder.join("/") + "/";
})();

function shortFile(file) {
  const packages = file.lastIndexOf("/site-packages/");
  if (packages >= 0) return file.slice(packages + "/site-packages/".length);
  return shared !== "" && file.startsWith(shared) ? file.slice(shared.length) : file;
}

const siteText = (site) => (site === null ? "unknown site" : `${shortFile(site.file)}:${site.line}`);
const functionText = (name) => (name.startsWith("<") ? name : `${name}()`);

// What is searched: built for all rows at the first search, one lower-case text for each.
const haystacks = new Map();

function haystackOf(row) {
  const site = row[LEAK.site];
  const parts = [
    textAt(row[LEAK.kind]), textAt(row[LEAK.tensor]), textAt(row[LEAK.device]), textAt(row[LEAK.op]),
    ...textsAt(row[LEAK.holders]), ...textsAt(row[LEAK.carriers]), ...textsAt(row[LEAK.members]),
    ...row[LEAK.scopes].map((scope) => textAt(scope) ?? ""), textAt(row[LEAK.explanation]), textAt(row[LEAK.fingerprint]),
  ];
  for (const place of site === null ? row[LEAK.frames] : [site, ...row[LEAK.frames]]) {
    const { file, line, name } = siteAt(place);
    parts.push(`${file}:${line}`, functionText(name));
  }
  return parts.join("\n").toLowerCase();
}

function matches(row, words) {
  let text = haystacks.get(row);
  if (text === undefined) haystacks.set(row, (text = haystackOf(row)));
  return words.every((word) => text.includes(word));
}
