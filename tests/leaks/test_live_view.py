"""What `run --live` shows: a table on a terminal, plain lines elsewhere; and numbers as people write them."""

import argparse
import io
import time

import pytest

import disposescope as ds
from disposescope.scopes.leaks.commands import _live
from disposescope.scopes.leaks.commands._live import Lines, Table, live_view
from disposescope.scopes.leaks.commands._numbers import growth_of_text, nbytes_of_text, seconds_of_text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO, words: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(_live, "_LINE_S", 0.01)
    monkeypatch.setattr(_live, "_REFRESH_S", 0.01)
    view = live_view(stream, argparse.ArgumentParser())
    assert isinstance(view, Table if stream.isatty() else Lines)
    with ds.LeakDetector() as detector:
        kept = [ds.zeros((100, 10)) for _ in range(3)]
        more = [ds.zeros(size) for size in range(1, 3)]
        view.start(detector)
        deadline = time.monotonic() + 60
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
    text = shown(Terminal(), "born at", monkeypatch)
    assert "24.0 kB" in text
    assert "and 1 more lines" in text


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
