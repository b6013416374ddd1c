"""The verbs that turn report files into others: what they write, what they refuse, in one line each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from disposescope.scopes.leaks.commands import main
from disposescope.scopes.leaks.reporters._html import html_of
from disposescope.scopes.leaks.reporters._json import json_of
from tests.leaks.example_reports import training_report

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = [sys.executable, "-m", "disposescope.scopes.leaks.commands"]


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
        timeout=60,
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


def test_what_exists_is_overwritten_by_force_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "run.html").write_text("mine")
    assert refused(capsys, "html", "run.json") == "'run.html' exists already; --force overwrites it"
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
        assert reader.wait(60) == 0
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
@pytest.mark.parametrize("verb", ["html"])
def test_a_file_that_is_no_report_gets_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], verb: str, content: bytes | None, line: str
) -> None:
    if content is not None:
        (folder / "bad.json").write_bytes(content)
    assert refused(capsys, verb, "bad.json", "-o", "out") == line
    assert not (folder / "out").exists()


def test_a_truncated_report_gets_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (folder / "run.json").read_text()
    (folder / "cut.json").write_text(text[: len(text) // 2])
    assert refused(capsys, "html", "cut.json").startswith("'cut.json' is truncated or no JSON (")
