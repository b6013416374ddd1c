"""Suppressions and baselines have a reason, match leaks, and are listed if they match none."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import disposescope as ds
from disposescope.leaks import Leak, Report, Site
from disposescope.leaks.commands import main
from disposescope.leaks.report.leaks import fingerprint_of
from disposescope.leaks.reporters.json_report import json_of
from disposescope.leaks.saved.baseline import beyond_baseline, read_baseline, write_baseline
from disposescope.leaks.saved.settings_file import (
    SettingsError,
    Suppression,
    find_settings,
    options_of,
    suppressed_by,
    suppressions_of,
)

KEPT: list[object] = []


@pytest.fixture(scope="module")
def report() -> Report:
    with ds.LeakDetector() as detector:
        KEPT.append(ds.zeros((1000, 10))[:1])
        made = detector.report(object_limit=10**8)
    KEPT.clear()
    [leak] = made.leaks
    return replace(made, leaks=(leak_like(leak, "train.py", 31, "step"), leak_like(leak, "cache.py", 7, "Cache.add")))


def leak_like(leak: Leak, file: str, line: int, function: str) -> Leak:
    site = Site(file, line, function)
    return replace(leak, site=site, fingerprint=fingerprint_of("view", "Tensor", site, None))


def told(report: Report) -> list[str]:
    return [leak.site.file for leak in report.leaks if leak.site is not None]


@pytest.mark.parametrize(
    ("criteria", "left"),
    [
        ({"kind": ("view",)}, []),
        ({"kind": ("cycle",)}, ["train.py", "cache.py"]),
        ({"site": ("cache.py",)}, ["train.py"]),
        ({"site": ("*.py:31",)}, ["cache.py"]),
        ({"function": ("Cache.*",)}, ["train.py"]),
        ({"tensor": ("Tens*",), "function": ("step",)}, ["cache.py"]),
        ({"kind": ("view", "cycle"), "site": ("*/cache.py", "cache.py")}, ["train.py"]),
        ({"tensor": ("torch.*",)}, ["train.py", "cache.py"]),
    ],
)
def test_what_matches_is_told_apart_with_the_reason(
    report: Report, criteria: dict[str, tuple[str, ...]], left: list[str]
) -> None:
    rest = suppressed_by(report, [Suppression("x.toml", 0, "known", **criteria)])
    assert told(rest) == left
    assert len(rest.suppressed) == 2 - len(left)
    assert {row.reason for row in rest.suppressed} <= {"known"}
    assert [row.index for row in rest.unused_suppressions] == ([] if len(left) < 2 else [0])
    assert rest.count == len(left)


def test_suppressions_are_read_from_the_projects_file_or_its_pyproject(tmp_path: Path) -> None:
    assert find_settings(tmp_path) is None
    pyproject = tmp_path / "pyproject.toml"
    pyproject.write_text("[project]\nname = 'x'\n")
    assert find_settings(tmp_path) is None
    pyproject.write_text("[[tool.leak-report.suppress]]\nreason = 'a cache'\nsite = 'cache.py'\n")
    assert find_settings(tmp_path) == pyproject
    assert suppressions_of(pyproject) == (Suppression(str(pyproject), 0, "a cache", site=("cache.py",)),)
    own = tmp_path / ".leak-report.toml"
    own.write_text("[[suppress]]\nreason = 'views'\nkind = ['view', 'cycle']\n")
    assert find_settings(tmp_path) == own
    assert suppressions_of(own) == (Suppression(str(own), 0, "views", kind=("view", "cycle")),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[suppress]]\nkind = 'view'\n", "needs a reason"),
        ("[[suppress]]\nreason = ' '\nkind = 'view'\n", "needs a reason"),
        ("[[suppress]]\nreason = 'x'\n", "say what it is about"),
        ("[[suppress]]\nreason = 'x'\nkind = 'views'\n", "unknown kind of leak 'views'"),
        ("[[suppress]]\nreason = 'x'\nfile = 'a.py'\n", "unknown key 'file'"),
        ("[[suppress]]\nreason = 'x'\nsite = 3\n", "site must be a string or a list of strings, not 3"),
        ("suppress = 3\n", "as a table"),
        ("[[suppres]]\nreason = 'x'\n", "unknown entry 'suppres'"),
        ("time-limit = 5\n", "unknown entry 'time-limit'"),
        ("freams = 5\n", "unknown entry 'freams'; did you mean frames?"),
        ("[tool.leak-report]\nframes = 5\n", "is for pyproject.toml: leave it out here"),
        ("[[suppress\n", "is no TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / ".leak-report.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=message) as raised:
        options_of(file, ["frames"])
        suppressions_of(file)
    assert str(file) in str(raised.value)


def test_a_baseline_tolerates_what_it_lists_until_it_is_worse(report: Report, tmp_path: Path) -> None:
    file = tmp_path / "baseline.toml"
    write_baseline(file, report.leaks[:1])
    known = read_baseline(file)
    assert [(row.count, row.nbytes, row.site) for row in known] == [(1, 80_000, "train.py:31 in step()")]
    difference = beyond_baseline(report, known)
    assert (difference.new, difference.worse, difference.gone) == (report.leaks[1:], (), ())
    worse = replace(report, leaks=(replace(report.leaks[0], count=2, nbytes=160_000),))
    assert beyond_baseline(worse, known).worse == worse.leaks
    assert beyond_baseline(replace(report, leaks=()), known).gone == known


def test_an_update_keeps_reasons_and_what_else_is_in_the_file(report: Report, tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text("[project]\nname = 'x'\n\n[[tool.leak-report.suppress]]\nreason = 'é \"'\nkind = 'view'\n")
    write_baseline(file, report.leaks)
    file.write_text(file.read_text().replace("was there when the baseline was made", "a ticket", 1))
    write_baseline(file, report.leaks)
    assert [row.reason for row in read_baseline(file)] == ["a ticket", "was there when the baseline was made"]
    assert [row.reason for row in suppressions_of(file)] == ['é "']
    write_baseline(file, [])
    assert (
        file.read_text().rstrip()
        == "[project]\nname = 'x'\n\n[[tool.leak-report.suppress]]\nreason = 'é \"'\nkind = 'view'"
    )


class TestCheck:
    @pytest.fixture
    def file(self, report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.chdir(tmp_path)
        Path("leaks.json").write_text(json_of(report))
        return "leaks.json"

    def test_leaks_fail_with_3_and_none_pass(
        self, file: str, report: Report, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["check", file]) == 3
        assert "2 leaks that are not tolerated" in capsys.readouterr().out
        Path(file).write_text(json_of(replace(report, leaks=())))
        assert main(["check", file]) == 0
        assert capsys.readouterr().out == "no leaks\n"

    def test_suppressions_of_the_project_count(self, file: str, capsys: pytest.CaptureFixture[str]) -> None:
        Path(".leak-report.toml").write_text("[[suppress]]\nreason = 'x'\nsite = 'cache.py'\n")
        assert main(["check", file]) == 3
        assert "1 leak that is not tolerated" in capsys.readouterr().out
        Path("other.toml").write_text("[[suppress]]\nreason = 'x'\nkind = 'view'\n")
        assert main(["check", "--config", "other.toml", file]) == 0
        assert capsys.readouterr().out == "no leaks, 2 suppressed\n"

    def test_a_baseline_is_written_and_then_tolerated(self, file: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["check", file, "--baseline", "known.toml", "--update-baseline"]) == 0
        assert main(["check", file, "--baseline", "known.toml"]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "no leaks, 2 tolerated"
        content = json.loads(Path(file).read_text())
        Path(file).write_text(json.dumps({**content, "leaks": content["leaks"][:1]}))
        assert main(["check", file, "--baseline", "known.toml"]) == 0
        assert "not there any more: view at cache.py:7 in Cache.add()" in capsys.readouterr().err

    def test_growth_is_tolerated_up_to_a_rate(self, file: str, report: Report) -> None:
        content = json.loads(json_of(report))
        trend = {
            "passes": 50, "count_per_pass": 1.0, "nbytes_per_pass": 1000.0, "first_pass": 1, "fit": 1.0, "series": []
        }  # fmt: skip
        content["leaks"] = [{**content["leaks"][0], "kind": "growth", "trend": trend}]
        Path(file).write_text(json.dumps(content))
        assert main(["check", file, "--max-growth", "1kB/pass"]) == 0
        assert main(["check", file, "--max-growth", "999/pass"]) == 3
        assert main(["check", file, "--max-growth", "0/pass"]) == 3
        assert main(["check", file, "--fail-on", "view"]) == 0
        # Over births of a line nothing is known of passes.
        content["leaks"][0]["trend"] = {**trend, "over": "births", "series": [[1, 1, 1000], [50, 50, 50000]]}
        Path(file).write_text(json.dumps(content))
        assert main(["check", file, "--max-growth", "1GB/pass"]) == 3

    @pytest.mark.parametrize(
        ("args", "message"),
        [
            (["nothing.json"], "cannot read 'nothing.json'"),
            (["leaks.json", "--update-baseline"], "needs --baseline"),
            (["leaks.json", "--baseline", "none.toml"], "cannot read 'none.toml'"),
            (["leaks.json", "--max-growth", "fast"], "'fast' is no growth"),
            (["leaks.json", "--config", "none.toml"], "cannot read 'none.toml'"),
        ],
    )
    def test_usage_errors_are_one_line_and_status_2(
        self, file: str, args: list[str], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit) as left:
            main(["check", *args])
        assert left.value.code == 2
        assert message in capsys.readouterr().err.splitlines()[-1]
