"""A file is written as a whole or not at all."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from disposescope.scopes.base.files import write_whole


def test_a_file_gets_what_it_is_given_and_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "report"
    write_whole(file, b"first")
    file.chmod(0o640)
    write_whole(file, b"second")
    assert file.read_bytes() == b"second"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["report"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "target")
    write_whole(link, b"text")
    assert link.is_symlink()
    assert (tmp_path / "target").read_bytes() == b"text"


def test_a_pipe_is_written_to_directly(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=write_whole, args=(pipe, b"text"))
    writer.start()
    assert pipe.read_bytes() == b"text"
    writer.join()
    assert os.listdir(tmp_path) == ["pipe"]


def test_what_fails_leaves_the_file_and_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "report"
    file.write_bytes(b"old")

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device", "elsewhere")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="No space left") as raised:
        write_whole(file, b"new")
    assert raised.value.filename == str(file)
    assert file.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["report"]


def test_a_pipe_behind_the_standard_output_is_written_to_directly(tmp_path: Path) -> None:
    program = "import pathlib; from disposescope.scopes.base.files import write_whole\n"
    program += "write_whole(pathlib.Path('/dev/stdout'), b'text')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, b"text"), done.stderr


def test_a_name_of_almost_any_length_is_written(tmp_path: Path) -> None:
    file = tmp_path / ("r" * 250)
    write_whole(file, b"text")
    assert file.read_bytes() == b"text"
