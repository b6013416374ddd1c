"""`run --live` shows a table on a terminal, and plain lines elsewhere.

Numbers are read as people write them.
"""

import argparse
import contextlib
import io
import os
import re
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

import disposescope as ds
from disposescope.leaks.births.open_scopes import OPENINGS
from disposescope.leaks.commands.arguments import growth_of_text, nbytes_of_text, seconds_of_text
from disposescope.leaks.running import live_view as _live
from disposescope.leaks.running.live_view import Lines, LiveTable, live_view, stack_lines

DOOR = Path(ds.__file__).parent


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO, words: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(_live, "_LINE_S", 0.01)
    monkeypatch.setattr(_live, "_REFRESH_S", 0.01)
    view = live_view(stream, argparse.ArgumentParser())
    assert isinstance(view, LiveTable if stream.isatty() else Lines)
    with ds.LeakDetector() as detector:
        kept = [ds.zeros((100, 10)) for _ in range(3)]
        more = [ds.zeros(size) for size in range(1, 3)]
        with ds.dispose_scope("epoch"), ds.dispose_scope("step"):
            view.start(detector)
            deadline = time.monotonic() + 500
            while words not in stream.getvalue() and time.monotonic() < deadline:
                time.sleep(0.01)
            view.stop()
        del kept, more
    return stream.getvalue()


def test_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(io.StringIO(), "live tensors", monkeypatch)
    assert "24.0 kB in 5 live tensors, most at " in text


def test_a_table_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich", reason="the table needs rich")
    monkeypatch.setattr(_live, "_ROWS", 1)
    text = shown(Terminal(), "step (", monkeypatch)
    assert "born at" in text
    assert re.search(r"in epoch \(\d+\.\d s\) > step \(\d+\.\d s\)", text)
    assert "24.0 kB" in text
    assert "and 1 more lines" in text


def test_open_scopes_are_reported_as_stacks() -> None:
    with ds.LeakDetector():
        assert stack_lines(OPENINGS.stacks(), time.monotonic()) == ["in no scope"]
        inside, leave = threading.Event(), threading.Event()

        def other() -> None:
            with ds.dispose_scope("loader"):
                inside.set()
                leave.wait(500)

        with ds.dispose_scope("epoch"), ds.dispose_scope():
            thread = threading.Thread(target=other)
            thread.start()
            inside.wait(500)
            stacks = OPENINGS.stacks()
            leave.set()
            thread.join()
        assert [[opening.name for opening in stack] for stack in stacks] == [["epoch", ""], ["loader"]]
        now_s = max(opening.at_s for stack in stacks for opening in stack)
        lines = stack_lines(stacks, now_s)
        assert re.fullmatch(r"in epoch \(\d+\.\d s\) > .*test_live_view.py:\d+ in .*\(\d+\.\d s\)", lines[0])
        assert lines[1] == "in loader (0.0 s)"


def test_many_and_deep_stacks_of_scopes_are_cut() -> None:
    with ds.LeakDetector():
        with ExitStack() as scopes:
            for depth in range(9):
                scopes.enter_context(ds.dispose_scope(f"d{depth}"))
            [stack] = OPENINGS.stacks()
        lines = stack_lines([stack] * 6, stack[-1].at_s)
        assert len(stack) == 9
        assert lines[0].startswith("in ... > d3 (")
        assert lines[0].endswith("> d8 (0.0 s)")
        assert lines[4:] == ["and in 2 more"]


def test_a_terminal_without_rich_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_live, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        live_view(Terminal(), argparse.ArgumentParser())
    assert "needs rich" in capsys.readouterr().err


def test_numbers_are_read_as_people_write_them() -> None:
    assert (nbytes_of_text("4096"), nbytes_of_text("1.5kB")) == (4096, 1500)
    assert (growth_of_text("1MiB/pass"), growth_of_text("0/pass"), growth_of_text("10")) == (1 << 20, 0, 10)
    assert seconds_of_text("0.5") == 0.5
    for read, text in (
        (nbytes_of_text, "much"),
        (growth_of_text, "fast"),
        (seconds_of_text, "long"),
        (seconds_of_text, "0"),
    ):
        with pytest.raises(argparse.ArgumentTypeError, match=text):
            read(text)


PRINTING = """
import sys
import disposescope as ds
kept = []
for number in range(30):
    kept.append(ds.zeros(1000))
    print(f"output {number}")
    print(f"error {number}", file=sys.stderr)
    if number % 10 == 0:
        time.sleep(0.6)
raise ValueError("the end of it")
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_what_the_program_prints_to_the_terminal_stays_whole(tmp_path: Path) -> None:
    pytest.importorskip("rich", reason="the table needs rich")
    pyte = pytest.importorskip("pyte", reason="the terminal is emulated by pyte")
    (tmp_path / "program.py").write_text("import time\n" + PRINTING)
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "disposescope.leaks.commands", "run", "--live", "program.py"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30", "PYTHONPATH": str(DOOR.parent)}
    process = subprocess.Popen(command, cwd=tmp_path, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    screen = pyte.HistoryScreen(100, 30, history=10_000)
    stream = pyte.ByteStream(screen)
    with contextlib.suppress(OSError):  # the end of a terminal
        while content := os.read(ours, 4096):
            stream.feed(content)
    os.close(ours)
    assert process.wait() == 1
    past = ["".join(row[column].data for column in range(100)) for row in screen.history.top]
    lines = [line.rstrip() for line in [*past, *screen.display]]
    wanted = [line for number in range(30) for line in (f"output {number}", f"error {number}")]
    assert [line for line in lines if line in wanted] == wanted
    assert "ValueError: the end of it" in lines
