"""`leak-report run` runs a program as `python` does and tells what it leaked; `show` prints it again."""

import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = [sys.executable, "-m", "disposescope.leaks.commands"]
LEAK = "import disposescope as ds\nKEPT = [ds.zeros((1000, 10))[:1]]\n"


def environment() -> dict[str, str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def execute(folder: Path, command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=60, check=False, **options
    )


def report(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return execute(folder, [*COMMANDS, *args])


def program(folder: Path, text: str, name: str = "program.py") -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return name


def without_report(stderr: str) -> str:
    return stderr.partition("leak-report: ")[0]


def assert_as_without(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """A program that runs under us prints, writes to stderr and exits as it does alone."""
    alone = execute(folder, [sys.executable, *args])
    watched = report(folder, "run", *args)
    assert (watched.returncode, watched.stdout) == (alone.returncode, alone.stdout)
    assert without_report(watched.stderr) == alone.stderr
    return watched


def test_a_clean_program_has_no_leaks(tmp_path: Path) -> None:
    name = program(
        tmp_path,
        "import disposescope as ds\n"
        "samples = ([1.0] * n for n in (3, 2, 5, 1))\n"
        "for packed in ds.scoped_batches(map(lambda s: ds.pack_sequence([ds.tensor(s)]), samples)):\n"
        "    print(float(packed.data.sum()))\n"
        "with ds.dispose_scope('epoch') as epoch:\n"
        "    for step in range(3):\n"
        "        with ds.dispose_scope('step') as inner:\n"
        "            batch = {'inputs': ds.ones(10), 'targets': [ds.zeros(3)]}\n"
        "            loss = inner.move_to_outer(batch['inputs'].sum())\n"
        "    print(float(loss))\n",
    )
    done = report(tmp_path, "run", "--fail-on", "any", name)
    assert (done.returncode, done.stdout) == (0, "3.0\n2.0\n5.0\n1.0\n10.0\n")
    assert done.stderr.splitlines()[0] == "leak-report: no leaks"


def test_a_program_without_tensors_has_no_leaks(tmp_path: Path) -> None:
    done = report(tmp_path, "run", program(tmp_path, "print('hello')\n"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "leak-report: no leaks\n")


def test_what_main_held_in_locals_has_died_and_is_no_leak(tmp_path: Path) -> None:
    name = program(tmp_path, "import disposescope as ds\ndef main():\n    batch = ds.zeros(10)\nmain()\n")
    assert report(tmp_path, "run", name).stderr == "leak-report: no leaks\n"


def test_arguments_paths_and_main_are_the_programs_own(tmp_path: Path) -> None:
    name = program(
        tmp_path,
        "import sys, os, neighbour\n"
        "import __main__\n"
        "print(sys.argv, sys.path[0], __name__, __file__, __package__, __spec__, type(__loader__).__name__, __doc__)\n"
        "print(__main__.__dict__ is globals(), sorted(globals()))\n",
        "sub/program.py",
    )
    program(tmp_path, "", "sub/neighbour.py")
    assert_as_without(tmp_path, name, "-o", "x", "--fail-on", "any", "-m", "--", "a b")


def test_a_safe_path_stays_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    name = program(tmp_path, "import sys\nprint(sys.path)\nimport neighbour\n", "sub/program.py")
    program(tmp_path, "", "sub/neighbour.py")
    assert "No module named 'neighbour'" in assert_as_without(tmp_path, name).stderr


def test_a_module_runs_as_with_python_m(tmp_path: Path) -> None:
    program(tmp_path, "", "package/__init__.py")
    program(
        tmp_path,
        "import sys\nfrom . import other\n"
        "print(sys.argv, sys.path[0], __name__, __file__, __package__, __spec__.name)\nraise SystemExit(7)\n",
        "package/__main__.py",
    )
    program(tmp_path, "raise ValueError('from a module')\n", "package/other.py")
    assert_as_without(tmp_path, "-m", "package", "-o", "x")
    assert_as_without(tmp_path, "-m", "package.other")
    program(tmp_path, "", "package/other.py")
    assert assert_as_without(tmp_path, "-m", "package", "-o", "x").returncode == 7


def test_folders_and_zip_files_run_as_with_python(tmp_path: Path) -> None:
    program(tmp_path, "import sys, near\nprint(sys.argv, sys.path[0], __name__)\n", "app/__main__.py")
    program(tmp_path, "", "app/near.py")
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.write(tmp_path / "app/__main__.py", "__main__.py")
        archive.write(tmp_path / "app/near.py", "near.py")
    assert_as_without(tmp_path, "app", "1")
    assert_as_without(tmp_path, "app.zip", "1")


@pytest.mark.parametrize(
    "text",
    [
        "raise SystemExit",
        "raise SystemExit(0)",
        "raise SystemExit(5)",
        "raise SystemExit(True)",
        "raise SystemExit('the reason')",
        "raise SystemExit(['a list'])",
        "import sys\nsys.exit(300)",
        "def f():\n    raise ValueError('no')\nf()",
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('x') from e",
        "raise ExceptionGroup('some', [ValueError(1), KeyError(2)])",
        "def broken(:",
        "import nowhere_to_be_found",
        "import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__)\nraise ValueError",
        "import sys\ndef hook(*a):\n    sys.exit(9)\nsys.excepthook = hook\nraise ValueError",
        "import sys\ndef hook(*a):\n    raise KeyError('in the hook')\nsys.excepthook = hook\nraise ValueError",
        "import sys\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    sys.exit()",
        "import atexit, sys\natexit.register(print, 'at exit')\natexit.register(sys.stderr.write, 'err\\n')\nprint(1)",
        "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\nprint(1)",
        "import sys\nsys.stdout.write('no newline')",
        "import os\nprint('lost?', flush=True)\nos._exit(4)",
        "import warnings\nwarnings.warn('here')",
    ],
)
def test_output_errors_and_status_are_as_without(tmp_path: Path, text: str) -> None:
    assert_as_without(tmp_path, program(tmp_path, text + "\n"))


def test_ctrl_c_ends_the_program_as_python_does(tmp_path: Path) -> None:
    # As a shell's foreground job: the tests themselves may run where the signal is ignored.
    default = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    name = program(tmp_path, LEAK + default + "import time\nprint('ready', flush=True)\ntime.sleep(60)\n")
    with subprocess.Popen(
        [*COMMANDS, "run", name],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    assert stderr.count("KeyboardInterrupt") == 1
    assert "_program.py" not in stderr
    assert "held by module __main__.KEPT[0]" in stderr


def test_a_report_comes_also_after_an_exception(tmp_path: Path) -> None:
    name = program(tmp_path, LEAK + "def f():\n    batch = ds.ones(20)\n    raise ValueError\nf()\n")
    done = report(tmp_path, "run", "--fail-on", "any", name)
    assert done.returncode == 1, "the program did not succeed: its own status counts"
    assert "held by module __main__.KEPT[0]" in done.stderr
    last = "last_exc" if sys.version_info >= (3, 12) else "last_value"
    assert f"sys.{last}.__traceback__ frame program.py:5 f(): local 'batch'" in done.stderr


def test_fail_on_leak_exits_with_3_where_the_program_succeeded(tmp_path: Path) -> None:
    name = program(tmp_path, LEAK)
    assert report(tmp_path, "run", name).returncode == 0
    assert report(tmp_path, "run", "--fail-on", "any", name).returncode == 3
    name = program(tmp_path, LEAK + "raise SystemExit(8)\n")
    assert report(tmp_path, "run", "--fail-on", "any", name).returncode == 8


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    report(tmp_path, "run", "-o", "leaks.json", program(tmp_path, LEAK))
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "disposescope.leaks.commands", "show", "leaks.json"]
    done = subprocess.run(command, cwd=tmp_path, stdout=writing, stderr=subprocess.PIPE, text=True, env=environment())
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_written_report_is_shown_as_it_was_printed(tmp_path: Path) -> None:
    name = program(tmp_path, LEAK + "import os\nos.mkdir('elsewhere')\nos.chdir('elsewhere')\n")
    done = report(tmp_path, "run", "-o", "leaks.json", name, "-o", "mine")
    content = json.loads((tmp_path / "leaks.json").read_text())
    assert content["format"] == "disposescope-leak-report"
    ran = content["program"]
    assert (ran["argv"], ran["module"], ran["status"], ran["ended"]) == (["program.py", "-o", "mine"], False, 0, "exit")
    again = report(tmp_path / "elsewhere", "show", str(tmp_path / "leaks.json"))
    assert (again.returncode, again.stderr) == (0, "")
    assert f"leak-report: {again.stdout}" == done.stderr
    refused = report(tmp_path, "run", "-o", "leaks.json", program(tmp_path, "pass\n"))
    assert (refused.returncode, "--force" in refused.stderr) == (2, True)
    assert json.loads((tmp_path / "leaks.json").read_text()) == content
    over = report(tmp_path, "run", "--force", "-o", "leaks.json", program(tmp_path, "pass\n"))
    assert (over.returncode, json.loads((tmp_path / "leaks.json").read_text())["leaks"]) == (0, [])
    assert [path.name for path in tmp_path.iterdir() if "leaks" in path.name] == ["leaks.json"]


def test_the_report_goes_to_stderr_also_where_the_program_replaced_it(tmp_path: Path) -> None:
    done = report(
        tmp_path, "run", program(tmp_path, LEAK + "import io, sys\nsys.stderr = io.StringIO()\nprint('out')\n")
    )
    assert done.stdout == "out\n"
    assert done.stderr.startswith("leak-report: 1 leak at 1 site")
    done = report(tmp_path, "run", program(tmp_path, LEAK + "import sys\nsys.stderr.close()\n"))
    assert (done.returncode, done.stderr) == (0, "")


def test_classes_of_main_pickle_and_processes_that_are_spawned_work(tmp_path: Path) -> None:
    name = program(
        tmp_path,
        "import multiprocessing, pickle\n"
        "class Point:\n    pass\n"
        "def work(x):\n    return x + 1\n"
        "if __name__ == '__main__':\n"
        "    print(type(pickle.loads(pickle.dumps(Point()))) is Point)\n"
        "    for method in ('spawn', 'fork'):\n"
        "        with multiprocessing.get_context(method).Pool(1) as pool:\n"
        "            print(pool.map(work, [1, 2]))\n",
    )
    assert assert_as_without(tmp_path, name).stdout == "True\n[2, 3]\n[2, 3]\n"


def test_a_forked_child_that_comes_back_leaves_the_report_to_its_parent(tmp_path: Path) -> None:
    name = program(tmp_path, LEAK + "import os\nchild = os.fork()\nif child:\n    os.waitpid(child, 0)\n")
    done = report(tmp_path, "run", name)
    assert done.stderr.count("leak-report: ") == 1


def test_what_is_born_in_exit_functions_and_threads_is_seen_at_the_end(tmp_path: Path) -> None:
    name = program(
        tmp_path,
        "import atexit, threading, disposescope as ds\n"
        "KEPT = {}\n"
        "atexit.register(lambda: KEPT.setdefault('exit', ds.zeros(2)))\n"
        "threading.Thread(target=lambda: KEPT.setdefault('thread', ds.zeros(3))).start()\n",
    )
    stderr = report(tmp_path, "run", name).stderr
    assert "module __main__.KEPT['exit']" in stderr
    assert "module __main__.KEPT['thread']" in stderr


def test_errors_under_the_command_tell_both_sites(tmp_path: Path) -> None:
    name = program(tmp_path, "import disposescope as ds\nx = ds.zeros(2)\nx.dispose()\nx + 1\n")
    stderr = report(tmp_path, "run", name).stderr
    assert "has been disposed (born at program.py:2, disposed at program.py:3)" in stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "the following arguments are required: VERB"),
        (["fly"], "invalid choice: 'fly'"),
        (["run"], "name a program: a SCRIPT, -m MODULE, or -c CODE"),
        (["run", "--quick", "x.py"], "unrecognized arguments: --quick"),
        (["run", "missing.py"], "can't open file 'missing.py': No such file or directory"),
        (["run", "-m", "missing_module"], "No module named 'missing_module'"),
        (["run", "-m"], "name a program"),
        (["run", "-o", "no/where.json", "program.py"], "cannot write 'no/where.json'"),
        (["run", "-o", ".", "program.py"], "cannot write '.'"),
        (["show"], "the following arguments are required: FILE"),
        (["show", "missing.json"], "cannot read 'missing.json': No such file or directory"),
        (["show", "program.py"], "'program.py' is truncated or no JSON"),
        (["show", "binary"], "'binary' is no leak report"),
        (["show", "other.json"], "'other.json' has version 9 of the format"),
    ],
)
def test_usage_errors_are_one_clear_line_and_status_2(tmp_path: Path, args: list[str], message: str) -> None:
    program(tmp_path, "print('ran')\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "other.json").write_text('{"format": "disposescope-leak-report", "version": 9}')
    done = report(tmp_path, *args)
    assert (done.returncode, done.stdout) == (2, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("leak-report")
    assert message in last
    assert "Traceback" not in done.stderr


def test_help_reads_well(tmp_path: Path) -> None:
    for args, words in (
        (["--help"], ["run", "show", "exit status"]),
        (["run", "--help"], ["(SCRIPT | -m MODULE | -c CODE) [ARGS ...]", "Run a program and report what it leaked."]),
        (["show", "--help"], ["Print a report that was written by"]),
    ):
        done = report(tmp_path, *args)
        assert (done.returncode, done.stderr) == (0, "")
        for word in words:
            assert word in done.stdout


def test_a_reader_that_goes_away_does_no_harm(tmp_path: Path) -> None:
    name = program(tmp_path, LEAK + "print('first', flush=True)\n")
    done = execute(tmp_path, ["sh", "-c", f"{' '.join(COMMANDS)} run {name} | head -n 1"])
    assert done.stdout == "first\n"
    assert "held by module __main__.KEPT[0]" in done.stderr
