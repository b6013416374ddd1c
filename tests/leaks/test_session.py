"""A report is there however a program and its processes end."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from .test_commands import COMMANDS, environment, program, report

VIEW = "import disposescope as ds\nKEPT = [ds.zeros((1000, 10))[:1]]\n"
POSIX = pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")


def written(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "leaks.json").read_text(encoding="utf-8"))


def told(content: dict[str, Any]) -> list[tuple[str, int]]:
    return [(leak["kind"], leak["count"]) for leak in content["leaks"]]


@pytest.mark.parametrize(
    ("ending", "status", "ended"),
    [
        ("raise SystemExit(5)", 5, "exit"),
        ("import sys; sys.exit('no')", 1, "exit"),
        ("raise ValueError('no')", 1, "exception"),
        ("import os; os._exit(6)", 6, "os._exit"),
    ],
)
def test_the_ending_of_a_program_is_its_own_and_is_written(
    tmp_path: Path, ending: str, status: int, ended: str
) -> None:
    done = report(tmp_path, "run", "-o", "leaks.json", program(tmp_path, f"{VIEW}{ending}\n"))
    assert done.returncode == status
    content = written(tmp_path)
    assert (content["program"]["status"], content["program"]["ended"]) == (status, ended)
    assert told(content) == [("view", 1)]
    assert "leak-report: 1 leak" in done.stderr


def test_a_program_that_is_killed_leaves_what_was_known(tmp_path: Path) -> None:
    name = program(tmp_path, VIEW + "import time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    process = subprocess.Popen(
        [*COMMANDS, "run", "-o", "leaks.json", name], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        deadline = time.monotonic() + 60
        while not (tmp_path / "leaks.json").exists() or not written(tmp_path)["leaks"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.kill()
    content = written(tmp_path)
    assert (content["program"]["status"], content["program"]["ended"]) == (None, "running")
    assert told(content) == [("view", 1)]
    shown = report(tmp_path, "leaks.json")
    assert (shown.returncode, "1 leak" in shown.stdout) == (0, True)


@POSIX
def test_ctrl_c_ends_the_program_as_without_and_the_report_is_written(tmp_path: Path) -> None:
    # As a shell's foreground job: the tests themselves may run where the signal is ignored.
    default = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    name = program(tmp_path, VIEW + default + "import time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    process = subprocess.Popen(
        [*COMMANDS, "run", "-o", "leaks.json", name],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in stderr
    assert written(tmp_path)["program"]["ended"] == "interrupt"
    assert told(written(tmp_path)) == [("view", 1)]


CHILDREN = """\
import multiprocessing, os, signal, sys, time
import disposescope as ds
KEPT = []

def work(ending):
    KEPT.append(ds.zeros((1000, 10))[:1])
    if ending == "killed":
        while not [name for name in os.listdir(os.environ["FOLDER"]) if name.startswith(str(os.getpid()))]:
            time.sleep(0.05)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    from disposescope.leaks.running import session as _session
    os.environ["FOLDER"] = str(_session._SESSIONS[0]._folder)
    context = multiprocessing.get_context(sys.argv[1])
    process = context.Process(target=work, args=(sys.argv[2],))
    process.start()
    process.join()
    print(process.exitcode)
"""


@POSIX
@pytest.mark.parametrize("ending", ["returns", "killed"])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_what_a_worker_keeps_is_told_with_its_parents_report(tmp_path: Path, method: str, ending: str) -> None:
    done = report(tmp_path, "run", "-o", "leaks.json", program(tmp_path, CHILDREN), method, ending)
    assert done.stdout == ("0\n" if ending == "returns" else "-9\n"), done.stderr
    content = written(tmp_path)
    main, worker = content["processes"]
    assert (main["role"], main["ended"], worker["role"]) == ("main", "exit", "worker")
    assert worker["ended"] == ("exit" if ending == "returns" else "killed")
    assert [(leak["kind"], leak["count"], leak["pid"]) for leak in content["leaks"]] == [("view", 1, worker["pid"])]


@POSIX
def test_what_the_parent_keeps_is_not_told_of_its_children_too(tmp_path: Path) -> None:
    name = program(
        tmp_path,
        VIEW + "import os\npid = os.fork()\nif not pid:\n    os._exit(0)\nos.waitpid(pid, 0)\n",
    )
    done = report(tmp_path, "run", "-o", "leaks.json", name)
    assert done.returncode == 0, done.stderr
    assert told(written(tmp_path)) == [("view", 1)]
    assert len(written(tmp_path)["processes"]) == 2


def test_nothing_is_left_in_the_folder_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    assert report(tmp_path, "run", "-q", "-o", "leaks.json", program(tmp_path, VIEW)).stderr == ""
    assert list(temporary.iterdir()) == []


def test_code_is_run_as_with_python_c(tmp_path: Path) -> None:
    code = "import sys; print(sys.argv, repr(sys.path[0]), __name__)"
    alone = subprocess.run([sys.executable, "-c", code, "-x"], cwd=tmp_path, capture_output=True, text=True, check=True)
    done = report(tmp_path, "run", "-q", "-c", code, "-x")
    assert (done.returncode, done.stdout, done.stderr) == (0, alone.stdout, "")


def test_small_leaks_are_left_out_below_a_threshold(tmp_path: Path) -> None:
    name = program(tmp_path, VIEW)
    assert "1 leak" in report(tmp_path, "run", "--threshold", "80kB", name).stderr
    done = report(tmp_path, "run", "--threshold", "81kB", "--fail-on", "any", name)
    assert (done.returncode, done.stderr.splitlines()[0]) == (0, "leak-report: no leaks")


def test_other_kinds_of_tensor_are_left_out(tmp_path: Path) -> None:
    name = program(tmp_path, VIEW)
    assert "1 leak" in report(tmp_path, "run", "--kinds", "Tensor,torch.Tensor", name).stderr
    assert report(tmp_path, "run", "--kinds", "torch.Tensor", name).stderr == "leak-report: no leaks\n"


def test_a_run_fails_on_the_kinds_that_are_named(tmp_path: Path) -> None:
    name = program(tmp_path, VIEW)
    assert [
        report(tmp_path, "run", "-q", "--fail-on", kinds, name).returncode for kinds in ("any", "cycle,view", "cycle")
    ] == [
        3,
        3,
        0,
    ]
    wrong = report(tmp_path, "run", "--fail-on", "views", name)
    assert (wrong.returncode, "unknown kind of leak 'views'" in wrong.stderr) == (2, True)


def test_a_line_tells_the_course_where_there_is_no_terminal(tmp_path: Path) -> None:
    name = program(tmp_path, VIEW + "import time\ntime.sleep(6)\n")
    done = report(tmp_path, "run", "--live", name)
    first = done.stderr.splitlines()[0]
    assert re.match(r"leak-report: \d+ s, ", first)
    assert "1 live tensors" in first
    assert "program.py:2" in first


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--summary", ["1 leak at 1 site", "program.py:2"]),
        ("--table", ["view", "80.0 kB", "program.py:2", "module __main__.KEPT[0]"]),
        ("--tree", ["program.py", "line 2: 1 × Tensor", "view (", "module __main__.KEPT[0]"]),
        ("--json", ['"format": "disposescope-leak-report"']),
    ],
)
def test_a_report_is_shown_in_several_ways(tmp_path: Path, option: str, words: list[str]) -> None:
    if option in {"--table", "--tree"}:
        pytest.importorskip("rich", reason="tables need rich")
    assert report(tmp_path, "run", "-q", "-o", "leaks.json", program(tmp_path, VIEW)).returncode == 0
    done = report(tmp_path, "show", option, "leaks.json")
    assert (done.returncode, done.stderr) == (0, "")
    for word in words:
        assert word in done.stdout


WAITS = VIEW + "import time\nprint('ready', flush=True)\nwhile True:\n    time.sleep(0.01)\n"


@POSIX
def test_a_running_program_is_asked_and_goes_on(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMANDS, "run", program(tmp_path, WAITS)],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        shown = report(tmp_path, "attach", str(process.pid))
        assert (shown.returncode, "1 leak at 1 site" in shown.stdout) == (0, True), shown.stderr
        assert report(tmp_path, "attach", str(process.pid), "-o", "leaks.json").returncode == 0
        assert (written(tmp_path)["program"]["ended"], told(written(tmp_path))) == ("running", [("view", 1)])
        assert process.poll() is None
        process.kill()
        assert process.stderr is not None
        assert process.stderr.read() == b""


@POSIX
def test_a_process_that_is_not_watched_is_left_alone(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "print('ready', flush=True); input()"], stdin=-1, stdout=-1)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        done = report(tmp_path, "attach", str(process.pid))
        assert (done.returncode, done.stdout) == (2, "")
        assert f"process {process.pid} is not watched" in done.stderr.splitlines()[-1]
        assert process.poll() is None
        process.communicate(b"\n")
    assert process.returncode == 0
    assert "there is no process" in report(tmp_path, "attach", str(process.pid)).stderr
    assert "invalid int value: 'x'" in report(tmp_path, "attach", "x").stderr
