"""``python -m disposescope plan``: files of buffers in, plans out."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import disposescope as ds
from disposescope.__main__ import main
from disposescope.planner.table import TableError, read_table

TABLE = "id,lower,upper,size\nx,0,2,64\ny,1,3,32\nz,2,4,64\n"


def test_a_plan_is_written_with_the_ids_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given, planned = tmp_path / "in.csv", tmp_path / "out.csv"
    given.write_text(TABLE)
    assert main(["plan", str(given), "-o", str(planned), "--time-limit", "0.1"]) == 0
    assert capsys.readouterr().out == "3 buffers in 96 bytes: no plan is lower\n"
    assert planned.read_text() == "id,lower,upper,size,offset\nx,0,2,64,0\ny,1,3,32,64\nz,2,4,64,0\n"
    assert read_table(planned).buffers.tolist() == [[0, 2, 64], [1, 3, 32], [2, 4, 64]]
    assert main(["plan", str(planned)]) == 0


def test_where_it_is_not_known_that_no_plan_is_lower_the_bound_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    buffers = [(i % 37, i % 37 + 5 + i * i % 23, 100 + 37 * i % 991) for i in range(120)]
    given = tmp_path / "in.csv"
    given.write_text("id,lower,upper,size\n" + "".join(f"{i},{a},{b},{c}\n" for i, (a, b, c) in enumerate(buffers)))
    found = ds.plan(buffers, time_limit=0)
    assert not found.is_optimal
    assert main(["plan", str(given), "--time-limit", "0"]) == 0
    expected = f"120 buffers in {found.height:,} bytes: {found.ratio:.4f} times the lower bound {found.lower_bound:,}\n"
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: no column id, lower, upper, size; expected id,lower,upper,size"),
        ("id,lower,size\n", "line 1: no column upper"),
        ("id,lower,upper,size\na,0,1,8\na,0,1,8\n", "line 3: the id a is there twice"),
        ("id,lower,upper,size\na,0,x,8\n", "line 2: upper is an integer, not 'x'"),
        ("id,lower,upper,size\na,0,1\n", "line 2: size is an integer, not None"),
        (
            "id,lower,upper,size\na,0,1,99999999999999999999\n",
            "line 2: size 99999999999999999999 does not fit into 64 bits",
        ),
        ("id,lower,upper,size\na,1,1,8\n", "line 2: buffer a: its life ends before or when it begins"),
        ("id,lower,upper,size\na,0,1,-8\n", "line 2: buffer a: its size is negative"),
        ('id,lower,upper,size\n"a,0,1,8\n', "no comma-separated values"),
        ("id,lower,upper,size\na,0,1,8,9\n", "line 2: 5 values, and 4 columns"),
        ("id,lower,upper,size,size\na,0,1,8,9\n", "line 1: the column size is there twice"),
        ("id,lower,upper,size\na,0,1,1_000\n", "line 2: size is an integer, not '1_000'"),
        ("id,lower,upper,size\na,0,1,\u0661\n", "line 2: size is an integer, not '\u0661'"),
    ],
)
def test_what_is_no_table_is_refused_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    given, planned = tmp_path / "in.csv", tmp_path / "out.csv"
    given.write_text(text)
    with pytest.raises(TableError, match="^" + str(given)):
        read_table(given)
    assert main(["plan", str(given), "-o", str(planned)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"python -m disposescope plan: error: {given}: ")
    assert message in captured.err
    assert captured.out == ""
    assert not planned.exists()


def test_more_bytes_than_can_be_planned_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = tmp_path / "in.csv"
    given.write_text(f"id,lower,upper,size\na,0,1,{2**61}\nb,0,1,{2**61}\n")
    assert main(["plan", str(given)]) == 2
    expected = f"{given}: the buffers have {2**62} bytes together, more than can be planned\n"
    assert capsys.readouterr().err == f"python -m disposescope plan: error: {expected}"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_plan_that_cannot_be_written_is_refused_with_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = tmp_path / "in.csv"
    given.write_text(TABLE)
    assert main(["plan", str(given), "-o", "/dev/full"]) == 2
    assert capsys.readouterr().err.startswith("python -m disposescope plan: error: /dev/full: ")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    given = tmp_path / "in.csv"
    given.write_bytes(b"id,lower,upper,size\n\xff,0,1,8\n")
    with pytest.raises(TableError, match="no comma-separated values"):
        read_table(given)


def test_files_that_are_not_there_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(tmp_path / "none.csv")]) == 2
    assert (
        capsys.readouterr().err
        == f"python -m disposescope plan: error: {tmp_path}/none.csv: No such file or directory\n"
    )
    given = tmp_path / "in.csv"
    given.write_text(TABLE)
    assert main(["plan", str(given), "-o", str(tmp_path / "none" / "out.csv")]) == 2
    assert "none/out.csv: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize("limit", ["-1", "inf", "nan", "soon"])
def test_a_wrong_time_limit_is_refused(capsys: pytest.CaptureFixture[str], limit: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan", "x.csv", f"--time-limit={limit}"])
    assert ended.value.code == 2
    assert "--time-limit" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT for one process")
def test_ctrl_c_ends_it_and_writes_nothing(tmp_path: Path) -> None:
    given, planned = tmp_path / "in.csv", tmp_path / "out.csv"
    given.write_text(
        "id,lower,upper,size\n"
        + "".join(f"{i},{i % 37},{i % 37 + 5 + i * i % 23},{100 + 37 * i % 991}\n" for i in range(120))
    )
    code = """if True:
        import signal, sys, types
        import disposescope.planner.plan as module
        from disposescope.__main__ import main

        # As a shell's foreground job: the tests themselves may run where the signal is ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        compiled = module.compiled

        def plan(*arguments):
            print("in", flush=True)
            return compiled.plan(*arguments)

        module.compiled = types.SimpleNamespace(plan=plan)
        sys.exit(main())
    """
    with subprocess.Popen(
        [sys.executable, "-c", code, "plan", str(given), "-o", str(planned), "--time-limit", "600"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(ds.__file__).parents[1],
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=500)
    assert errors == "python -m disposescope plan: error: interrupted; nothing was written\n"
    assert process.returncode == 2
    assert not planned.exists()


@pytest.mark.skipif(not os.path.exists("/dev/stdout"), reason="this system has no such file")
def test_a_plan_is_written_to_the_standard_output_where_that_is_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text(TABLE)
    done = subprocess.run(
        [sys.executable, "-m", "disposescope", "plan", str(tmp_path / "in.csv"), "-o", "/dev/stdout"],
        capture_output=True,
        text=True,
        cwd=Path(ds.__file__).parents[1],
    )
    assert done.returncode == 0, done.stderr
    assert "id,lower,upper,size,offset\nx,0,2,64,0\n" in done.stdout


def test_a_plan_that_cannot_be_written_leaves_the_file_that_was_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str, **_options: object) -> int:
        path.write_bytes(text[:5].encode())
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    given = tmp_path / "in.csv"
    given.write_text(TABLE)
    with monkeypatch.context() as context:
        context.setattr(Path, "write_text", full)
        assert main(["plan", str(given), "-o", str(given)]) == 2
    assert capsys.readouterr().err == f"python -m disposescope plan: error: {given}: {os.strerror(errno.ENOSPC)}\n"
    assert given.read_text() == TABLE
    assert list(tmp_path.iterdir()) == [given]


def test_a_time_limit_that_is_no_number_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["plan", "in.csv", "--time-limit", "soon"])
    assert "expected a number of seconds, 0 or more, not 'soon'" in capsys.readouterr().err


def test_one_buffer_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = tmp_path / "in.csv"
    given.write_text("id,lower,upper,size\na,0,1,8\n")
    assert main(["plan", str(given)]) == 0
    assert capsys.readouterr().out.startswith("1 buffer in 8 bytes")


def test_a_plan_goes_through_a_link_and_leaves_the_rights_of_a_file(tmp_path: Path) -> None:
    given, planned, link = tmp_path / "in.csv", tmp_path / "out.csv", tmp_path / "link.csv"
    given.write_text(TABLE)
    planned.write_text("")
    planned.chmod(0o640)
    link.symlink_to(planned)
    assert main(["plan", str(given), "-o", str(link)]) == 0
    assert link.is_symlink()
    assert planned.read_text().startswith("id,lower,upper,size,offset\n")
    assert planned.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "link.csv", "out.csv"]
