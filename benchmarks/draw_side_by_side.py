"""Write the tables and plots of README.md and docs/benchmarks.md from the raw results.

``python benchmarks/draw_side_by_side.py`` after ``bench_side_by_side.py``. The same results give
the same text: a test compares what this makes with what the pages show.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "side_by_side.json"
IMAGES = ROOT / "docs" / "images"
BEGIN, END = "<!-- figures: {} -->", "<!-- end of figures -->"

LABELS = {
    "plain": "plain",
    "scope": "in a scope",
    "mended": "plain, fixed",
    "out=": "`out=` by hand",
    "detector": "leak detector",
    "tracemalloc": "tracemalloc",
    "memray": "memray",
}
GREY, BLUE = "#8a93a6", "#2f6fd0"


def main() -> None:
    """Write all of it."""
    for path, text in made(json.loads(RESULTS.read_text())).items():
        path.write_text(text)


def made(results: dict[str, Any]) -> dict[Path, str]:
    """Return the text of each file that results are shown in."""
    readme, page = ROOT / "README.md", ROOT / "docs" / "benchmarks.md"
    files = {
        readme: between(readme.read_text(), "summary", summary(results)),
        page: between(between(page.read_text(), "tables", tables(results)), "machine", machine(results)),
    }
    for name, programs in PLOTS.items():
        files[IMAGES / f"benchmark-{name}.svg"] = plot(results, programs)
    return files


PLOTS = {
    "memory": ["loop that keeps its losses"],
    "arena": ["NumPy chain, 1 MiB", "NumPy chain, 64 MiB"],
    "overhead": ["training step", "small NumPy arrays"],
}


def between(text: str, name: str, new: str) -> str:
    """Return the text with what stands between the two marks of a name replaced."""
    begin = BEGIN.format(name)
    before, found, rest = text.partition(begin)
    _, end, after = rest.partition(END)
    if not (found and end):
        raise SystemExit(f"no marks for {name!r}")
    return f"{before}{begin}\n\n{new.strip()}\n\n{end}{after}"


def values(results: dict[str, Any], program: str) -> dict[str, list[float]]:
    """Return the samples of each side, by round: seconds, or bytes."""
    sides: dict[str, list[float]] = {}
    for row in sorted(results["samples"], key=lambda row: row["round"]):
        if row["program"] == program:
            sides.setdefault(row["side"], []).append(row.get("seconds", row.get("nbytes")))
    return {side: sides[side] for side in LABELS if side in sides}


def ratios(results: dict[str, Any], program: str) -> dict[str, tuple[float, float, float]]:
    """Return the median, least and greatest ratio of each side to plain code in the same round."""
    sides = values(results, program)
    found = {}
    for side, samples in sides.items():
        each = [sample / plain for sample, plain in zip(samples, sides["plain"], strict=True)]
        found[side] = statistics.median(each), min(each), max(each)
    return found


def is_memory(results: dict[str, Any], program: str) -> bool:
    """Return whether a program was measured in bytes."""
    return any("nbytes" in row for row in results["samples"] if row["program"] == program)


def shown(value: float, memory: bool) -> str:
    """Return megabytes or a time as text."""
    if memory:
        return f"{max(value, 0) / 1e6:.0f} MB"
    return f"{value * 1e3:.2f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} us"


def summary(results: dict[str, Any]) -> str:
    """Return the table of the README: a row for each program, ratios to plain code."""
    lines = ["| program | plain | in a scope | for comparison |", "|---|---|---|---|"]
    for program in [name for names in PLOTS.values() for name in names]:
        memory = is_memory(results, program)
        sides, times = values(results, program), ratios(results, program)

        def cell(side: str, memory: bool = memory, sides: Any = sides, times: Any = times) -> str:
            return shown(statistics.median(sides[side]), memory) if memory else f"{times[side][0]:.2f} times"

        beside = ", ".join(f"{LABELS[side]} {cell(side)}" for side in sides if side not in ("plain", "scope"))
        plain = shown(statistics.median(sides["plain"]), memory)
        what = f"{program}: growth of memory in 100 steps" if memory else f"{program}: time"
        lines.append(f"| {what} | {plain} | {cell('scope')} | {beside} |")
    return "\n".join(lines)


def tables(results: dict[str, Any]) -> str:
    """Return a table for each program, with the median and the spread of its sides."""
    parts = []
    for name, programs in PLOTS.items():
        for program in programs:
            memory = is_memory(results, program)
            sides, times = values(results, program), ratios(results, program)
            lines = [f"### {program[0].upper()}{program[1:]}", ""]
            if memory:
                lines += ["| | growth of resident memory, median | range |", "|---|---|---|"]
                for side, samples in sides.items():
                    least, middle, most = (shown(f(samples), True) for f in (min, statistics.median, max))
                    lines.append(f"| {LABELS[side]} | {middle} | {least} to {most} |")
            else:
                lines += ["| | processor time of a step, median | ratio to plain | range |", "|---|---|---|---|"]
                for side, samples in sides.items():
                    time = shown(statistics.median(samples), False)
                    ratio = "{:.2f} | {:.2f} to {:.2f}".format(*times[side])
                    lines.append(f"| {LABELS[side]} | {time} | {ratio if side != 'plain' else '1 | '} |")
            parts.append("\n".join(lines))
        parts.append(f"![{', '.join(programs)}: the figures of the table as bars](images/benchmark-{name}.svg)")
    return "\n\n".join(parts)


def machine(results: dict[str, Any]) -> str:
    """Return where and when it was measured."""
    m = results["machine"]
    rounds = 1 + max(row["round"] for row in results["samples"])
    load = f"{min(m['load_averages']):.0f} to {max(m['load_averages']):.0f}"
    return "\n".join(
        [
            "| | |",
            "|---|---|",
            f"| measured on | {m['date']} |",
            f"| machine | {m['cores']} virtual cores of an {m['processor']}, {m['system']}, shared with other work |",
            f"| other load | load average {load} during the run; the run itself at niceness {m['niceness']} |",
            f"| versions | CPython {m['python']}, NumPy {m['numpy']}, PyTorch {m['torch']}, memray {m['memray']} |",
            f"| rounds | {rounds}; each side of each round in a process of its own, one thread |",
        ]
    )


def plot(results: dict[str, Any], programs: list[str]) -> str:
    """Return bars of the sides of some programs: medians, and lines from the least to the most."""
    rows: list[str] = []
    y = 8
    for program in programs:
        memory = is_memory(results, program)
        if memory:
            samples = values(results, program)
            bars = {side: (statistics.median(found), min(found), max(found)) for side, found in samples.items()}
            title = f"{program}: growth of resident memory"
        else:
            bars = ratios(results, program)
            title = f"{program}: processor time, as a ratio to plain"
        longest = max(most for _, _, most in bars.values())
        rows.append(f'<text x="0" y="{y + 14}" font-weight="bold">{title}</text>')
        y += 26
        for side, numbers in bars.items():
            middle, least, most = (max(number, 0) / longest * 400 for number in numbers)
            text = shown(numbers[0], True) if memory else f"{numbers[0]:.2f}"
            color = BLUE if side in ("scope", "detector") else GREY
            rows += [
                f'<text x="140" y="{y + 13}" text-anchor="end">{LABELS[side].replace("`", "")}</text>',
                f'<rect x="150" y="{y}" width="{middle:.1f}" height="18" fill="{color}"/>',
                f'<path d="M{150 + least:.1f} {y + 9}H{150 + most:.1f}" stroke="#20242c" stroke-width="2"/>',
                f'<text x="{160 + most:.1f}" y="{y + 13}">{text}</text>',
            ]
            y += 24
        y += 14
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-12 0 660 {y}" width="660" height="{y}"'
    style = 'font-family="sans-serif" font-size="13" fill="#20242c"'
    ground = f'<rect x="-12" width="660" height="{y}" fill="#ffffff"/>'
    return "\n".join([f"{head} {style}>", ground, *rows, "</svg>", ""])


if __name__ == "__main__":
    main()
