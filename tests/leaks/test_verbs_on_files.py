"""Verbs that turn report files into others: what they write, what they refuse, in one line each."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from disposescope.leaks import Process
from disposescope.leaks.commands import main
from disposescope.leaks.commands.export import FORMATS
from disposescope.leaks.reporters.html_page import html_of
from disposescope.leaks.reporters.json_report import json_of, report_from_json
from tests.leaks.example_reports import training_report

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = [sys.executable, "-m", "disposescope.leaks.commands"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each test runs in a folder with a report ``run.json``."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.json").write_text(json_of(training_report()), encoding="utf-8")
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line that is printed where a command is refused with status 2."""
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    *usage, line = capsys.readouterr().err.splitlines()
    assert usage[0].startswith("usage: leak-report")
    return line.partition(": error: ")[2]


def piped(content: bytes, *argv: str) -> subprocess.CompletedProcess[bytes]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [*COMMANDS, *argv],
        input=content,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )


def test_html_writes_beside_the_report(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["html", "run.json"]) == 0
    assert (folder / "run.html").read_text(encoding="utf-8") == html_of(training_report())
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("leak-report: wrote run.html (7")


def test_html_takes_a_title(folder: Path) -> None:
    assert main(["html", "run.json", "-o", "page.html", "--title", "Night <run>"]) == 0
    assert "<title>Night &lt;run&gt;</title>" in (folder / "page.html").read_text(encoding="utf-8")


def test_a_page_is_written_again_and_what_is_no_page_by_force_alone(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["html", "run.json"]) == main(["html", "run.json", "--title", "Again"]) == 0
    assert "<title>Again</title>" in (folder / "run.html").read_text(encoding="utf-8")
    assert main(["html", "run.json", "-o", "run.html"]) == 0
    capsys.readouterr()
    refusal = "exists already, and is no page of leak-report; --force overwrites it"
    assert refused(capsys, "html", "run.json", "-o", "run.json") == f"'run.json' {refusal}"
    (folder / "run.html").write_text("mine")
    assert refused(capsys, "html", "run.json") == f"'run.html' {refusal}"
    assert (folder / "run.html").read_text() == "mine"
    assert main(["html", "run.json", "--force"]) == 0
    assert (folder / "run.html").read_text().startswith("<!doctype html>")
    assert sorted(path.name for path in folder.iterdir()) == ["run.html", "run.json"]


def test_a_folder_and_a_missing_folder_are_no_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "html", "run.json", "-o", ".") == "cannot write '.': it is a folder"
    assert (
        refused(capsys, "html", "run.json", "-o", "no/x.html") == "cannot write 'no/x.html': its folder does not exist"
    )


def test_standard_input_and_output_are_pipes(folder: Path) -> None:
    done = piped((folder / "run.json").read_bytes(), "html", "-")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == html_of(training_report())


def test_a_named_pipe_is_written_to(folder: Path) -> None:
    os.mkfifo("pipe")
    with subprocess.Popen(["cp", "pipe", "copy"]) as reader:
        assert main(["html", "run.json", "-o", "pipe"]) == 0
        assert reader.wait(500) == 0
    assert (folder / "copy").read_text(encoding="utf-8") == html_of(training_report())


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "cannot read 'bad.json': No such file or directory"),
        (b"", "'bad.json' is truncated or no JSON (Expecting value: line 1 column 1 (char 0))"),
        (b"\x89PNG\r\n\x1a\n\0\xff", "'bad.json' is no leak report"),
        (b"[]", "'bad.json' is no leak report"),
        (
            b'{"format": "disposescope-leak-report", "version": 99}',
            "'bad.json' has version 99 of the format, and this program reads version 2",
        ),
    ],
)
@pytest.mark.parametrize("verb", ["html", "export --format csv", "merge"])
def test_a_file_that_is_no_report_gets_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], verb: str, content: bytes | None, line: str
) -> None:
    if content is not None:
        (folder / "bad.json").write_bytes(content)
    assert refused(capsys, *verb.split(), "bad.json", "-o", "out") == line
    assert not (folder / "out").exists()


@pytest.mark.parametrize("order", [["bad.json", "run.json"], ["run.json", "bad.json"]])
def test_diff_refuses_what_is_no_report(folder: Path, capsys: pytest.CaptureFixture[str], order: list[str]) -> None:
    (folder / "bad.json").write_text("{}")
    assert refused(capsys, "diff", *order) == "'bad.json' is no leak report"


def test_a_truncated_report_gets_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (folder / "run.json").read_text()
    (folder / "cut.json").write_text(text[: len(text) // 2])
    assert refused(capsys, "html", "cut.json").startswith("'cut.json' is truncated or no JSON (")


@pytest.mark.parametrize("name", FORMATS)
def test_export_writes_each_format_whole(folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["export", "--format", name, "run.json", "-o", "out"]) == 0
    content = FORMATS[name](training_report())
    written = (folder / "out").read_bytes()
    assert written == (content if isinstance(content, bytes) else content.encode())
    assert capsys.readouterr().err.startswith("leak-report: wrote out (")
    assert refused(capsys, "export", "--format", name, "run.json", "-o", "out") == (
        "'out' exists already; --force overwrites it"
    )


def test_export_wants_a_format_that_it_knows_and_an_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert "invalid choice: 'pdf'" in refused(capsys, "export", "--format", "pdf", "run.json", "-o", "out")
    assert refused(capsys, "export", "--format", "csv", "run.json").endswith("required: -o/--output")


def test_export_to_a_pipe_is_the_content_and_nothing_else(folder: Path) -> None:
    done = piped((folder / "run.json").read_bytes(), "export", "--format", "memory-viz", "-", "-o", "-")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == FORMATS["memory-viz"](training_report())


def test_names_that_are_no_text_are_written_as_escapes(folder: Path) -> None:
    report = training_report()
    odd = replace(report.leaks[0], holders=("a\udcff",))
    (folder / "odd.json").write_text(json_of(replace(report, leaks=(odd,))))
    for name in FORMATS:
        assert main(["export", "--format", name, "odd.json", "-o", name]) == 0
    assert "a\\udcff" in (folder / "csv").read_text(encoding="utf-8")
    assert main(["html", "odd.json"]) == 0


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = f"'{sys.executable}' -m disposescope.leaks.commands html run.json -o - | head -c 20"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"<!doctype html>\n<htm", b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
def test_a_full_disk_gets_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "html", "run.json", "-o", "/dev/full") == "cannot write '/dev/full': No space left on device"
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    for command in (["html", "run.json", "-o", "-"], ["show", "run.json"], ["show", "--json", "run.json"]):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                [*COMMANDS, *command],
                stdout=full,
                stderr=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": path},
                check=False,
            )
        assert done.returncode == 2
        assert done.stderr.decode() == "leak-report: error: cannot write '-': No space left on device\n"


def test_what_could_not_be_written_leaves_nothing_behind(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "replace", fail)
    assert refused(capsys, "html", "run.json") == "cannot write 'run.html': Input/output error"
    assert [path.name for path in folder.iterdir()] == ["run.json"]


def test_merge_adds_up_what_differs_and_counts_the_same_process_once(folder: Path) -> None:
    report = training_report()
    other = replace(report, program=replace(report.program, pid=9), processes=(Process(9, None, "main", "exit", 0, 0),))
    (folder / "other.json").write_text(json_of(other))
    assert main(["merge", "run.json", "other.json", "run.json", "-o", "all.json"]) == 0
    whole = report_from_json((folder / "all.json").read_text())
    assert whole.nbytes == 2 * report.nbytes
    assert [process.pid for process in whole.processes] == [4711, 4718, 9]
    assert main(["merge", "run.json", "-o", "one.json"]) == 0
    assert report_from_json((folder / "one.json").read_text()) == report


def test_merge_and_diff_read_standard_input_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "merge", "-", "-", "-o", "out") == "only one FILE can be standard input"
    assert refused(capsys, "diff", "-", "-") == "only one of the two can be standard input"


def test_diff_prints_text_and_json(folder: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    report = training_report()
    (folder / "new.json").write_text(json_of(replace(report, leaks=report.leaks[1:], nbytes=1)))
    assert main(["diff", "run.json", "new.json"]) == 0
    text = capfdbinary.readouterr().out.decode()
    assert text.startswith("0 new, 1 gone, 0 grown, 0 shrunk, 6 the same; 370.9 MB → 1 byte pinned\n\ngone:\n")
    assert main(["diff", "--json", "run.json", "new.json"]) == 0
    content = json.loads(capfdbinary.readouterr().out)
    assert content["gone"][0]["leak"]["fingerprint"] == "a1" * 20


@pytest.mark.parametrize("verb", ["html", "export", "merge", "diff"])
def test_the_help_of_a_verb_begins_with_what_it_does(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    help_text = capsys.readouterr().out
    assert help_text.startswith(f"usage: leak-report {verb} ")
    assert max(map(len, help_text.splitlines())) <= 120
