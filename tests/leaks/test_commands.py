"""`leak-report run` runs a program as `python` does and reports its leaks; `show` prints them
again.
"""

import io
import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import disposescope
from disposescope.leaks.commands import parser
from disposescope.leaks.reporters.tables import print_report
from disposescope.leaks.running import program as running
from disposescope.scopes.base.process import PATCHES
from tests.leaks.example_reports import training_report

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = [sys.executable, "-m", "disposescope.leaks.commands"]
KEPT = "written to leak-report.json; to see it as a page: leak-report html\n"
LEAK = "import disposescope as ds\nKEPT = [ds.zeros((1000, 10))[:1]]\n"


def environment() -> dict[str, str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def execute(folder: Path, command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, check=False, **options
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


HOLDS_A_FILE = """
class Log:
    def __init__(self):
        self.file = open("log.txt", "w")
        self.file.write("written")

    def __del__(self):
        print("gone")

log = Log()
"""


@pytest.mark.parametrize("args", [("program.py",), ("-m", "program"), ("-c", HOLDS_A_FILE)], ids=["file", "-m", "-c"])
def test_variables_of_the_program_are_released_at_its_end(tmp_path: Path, args: tuple[str, ...]) -> None:
    program(tmp_path, HOLDS_A_FILE)
    assert assert_as_without(tmp_path, *args).stdout == "gone\n"
    assert (tmp_path / "log.txt").read_text(encoding="utf-8") == "written"


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
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", f"leak-report: no leaks\n{KEPT}")


def test_what_main_held_in_locals_has_died_and_is_no_leak(tmp_path: Path) -> None:
    name = program(tmp_path, "import disposescope as ds\ndef main():\n    batch = ds.zeros(10)\nmain()\n")
    assert report(tmp_path, "run", name).stderr == f"leak-report: no leaks\n{KEPT}"


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
        "from threading import *\ngo = Event()\nThread(target=lambda: (go.wait(), print('thread'))).start()\n"
        "import threading\nthreading._register_atexit(go.set)\nprint(1)",
        "import sys\nsys.stdout.write('no newline')",
        "import os\nprint('lost?', flush=True)\nos._exit(4)",
        "import warnings\nwarnings.warn('here')",
    ],
)
def test_output_errors_and_status_are_as_without(tmp_path: Path, text: str) -> None:
    assert_as_without(tmp_path, program(tmp_path, text + "\n"))


# As a shell's foreground job: the tests themselves may run where the signal is ignored. One that
# comes just before a sleep does not end it, on Python 3.14.
WAITING = (
    LEAK + "import signal, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "print('ready', flush=True)\nwhile True: time.sleep(0.1)\n"
)


def interrupted(folder: Path, text: str, *, times: int = 1) -> tuple[int, str]:
    """Run a program that prints a line, press Ctrl-C then and whenever a report is announced."""
    with subprocess.Popen(
        [*COMMANDS, "run", program(folder, text)],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        told = ""
        for _ in range(times - 1):
            while "making the report" not in told:
                told += process.stderr.readline()
            process.send_signal(signal.SIGINT)
        told += process.communicate(timeout=500)[1]
    return process.returncode, told


def test_ctrl_c_ends_the_program_as_python_does(tmp_path: Path) -> None:
    status, stderr = interrupted(tmp_path, WAITING)
    assert status == -signal.SIGINT
    assert stderr.count("KeyboardInterrupt") == 1
    assert "_program.py" not in stderr
    assert "leak-report: making the report; Ctrl-C again ends without it\n" in stderr
    assert "held by module __main__.KEPT[0]" in stderr


def test_ctrl_c_while_the_report_is_made_ends_without_it(tmp_path: Path) -> None:
    # As a search in a large program does, which takes longer than a person waits.
    slow = """
from disposescope.leaks.running import session
def take_inventory(self, ended):
    import time
    while True: time.sleep(0.1)
session.Session.take_inventory = take_inventory
"""
    status, stderr = interrupted(tmp_path, slow + WAITING, times=2)
    assert status == -signal.SIGINT
    assert stderr.count("Traceback") == 1, "that of the program"
    assert stderr.splitlines()[-1] == "leak-report: ended by Ctrl-C, without a report"


def test_what_prints_exceptions_is_put_back_after_an_interrupted_run() -> None:
    before = sys.excepthook
    with pytest.raises(KeyboardInterrupt):
        running.exit_as(running.Outcome(130, interrupted=True))
    try:
        assert sys.excepthook is not before
    finally:
        PATCHES.restore(running._EXCEPTIONS)
    assert sys.excepthook is before


def test_a_report_comes_also_after_an_exception(tmp_path: Path) -> None:
    name = program(tmp_path, LEAK + "def f():\n    batch = ds.ones(20)\n    raise ValueError\nf()\n")
    done = report(tmp_path, "run", "--all", "--fail-on", "any", name)
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
    assert f"leak-report: {again.stdout}{KEPT.replace('-report.json', 's.json')[:-1]} leaks.json\n" == done.stderr
    over = report(tmp_path, "run", "-o", "leaks.json", program(tmp_path, "pass\n"))
    assert (over.returncode, json.loads((tmp_path / "leaks.json").read_text())["leaks"]) == (0, [])
    assert [path.name for path in tmp_path.iterdir() if "leaks" in path.name] == ["leaks.json"]


@pytest.mark.parametrize("verb", ["run", "attach"])
def test_only_force_overwrites_what_is_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    mine = tmp_path / "mine.json"
    mine.write_text("{}")
    with pytest.raises(SystemExit):
        parser.main([verb, "-o", str(mine), "1"])
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.endswith("exists already, and is no report of leak-report; --force overwrites it")
    assert mine.read_text() == "{}"


def test_the_report_goes_to_stderr_also_where_the_program_replaced_it(tmp_path: Path) -> None:
    done = report(
        tmp_path, "run", program(tmp_path, LEAK + "import io, sys\nsys.stderr = io.StringIO()\nprint('out')\n")
    )
    assert done.stdout == "out\n"
    assert done.stderr.startswith("leak-report: 1 leak, 1 tensor")
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
    stderr = report(tmp_path, "run", "--all", name).stderr
    assert "module __main__.KEPT['exit']" in stderr
    assert "module __main__.KEPT['thread']" in stderr


def test_errors_under_the_command_name_both_sites(tmp_path: Path) -> None:
    name = program(tmp_path, "import disposescope as ds\nx = ds.zeros(2)\nx.dispose()\nx + 1\n")
    stderr = report(tmp_path, "run", name).stderr
    assert (
        "has been disposed by a call of dispose(), not by a scope (born at program.py:2, disposed at program.py:3)"
        in stderr
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "name a verb: run, show, "),
        (["doctor"], "there is no verb 'doctor'; the command is: python -m disposescope doctor"),
        (["fly"], "invalid choice: 'fly' (choose from run, show, check, "),
        (["rnu", "program.py"], "invalid choice: 'rnu'; did you mean run? (choose from run, "),
        (["--verison"], "unrecognized arguments: --verison; did you mean --version?"),
        (["run"], "name a program: a SCRIPT, -m MODULE, or -c CODE"),
        (["run", "--quick", "x.py"], "leak-report run: error: unrecognized arguments: --quick"),
        (["run", "--frams=3", "x.py"], "unrecognized arguments: --frams=3; did you mean --frames?"),
        (["run", "missing.py"], "can't open file 'missing.py': No such file or directory"),
        (["run", "-m", "missing_module"], "No module named 'missing_module'"),
        (["run", "-m"], "name a program"),
        (["run", "-o", "no/where.json", "program.py"], "cannot write 'no/where.json'"),
        (["run", "-o", ".", "program.py"], "cannot write '.'"),
        (["run", "--time-limit", "5", "program.py"], "no limit of time any more (given '5'): --object-limit N"),
        (["run", "--object-limit", "0", "program.py"], "'0' is no number of objects"),
        (["show"], "there is no leak-report.json in this folder: leak-report run PROGRAM makes one"),
        (["program.py", "--epochs", "3"], "to run it: leak-report run program.py --epochs 3"),
        (["--print-completion", "fish"], "invalid choice: 'fish'"),
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
        (["show", "--help"], ["Print a report that `run` wrote."]),
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


def test_the_report_is_kept_and_the_other_verbs_find_it(tmp_path: Path) -> None:
    name = program(tmp_path, LEAK)
    done = report(tmp_path, "run", name)
    assert done.stderr.splitlines()[-1] == ("written to leak-report.json; to see it as a page: leak-report html")
    shown = report(tmp_path, "show")
    assert shown.stdout.splitlines()[0] == done.stderr.splitlines()[0].removeprefix("leak-report: ")
    assert report(tmp_path, "html").returncode == 0
    assert (tmp_path / "leak-report.html").is_file()
    assert report(tmp_path, "check").returncode == 3
    # The next run replaces it.
    report(tmp_path, "run", "-q", "-c", "pass")
    assert report(tmp_path, "check").returncode == 0


def test_a_file_of_that_name_that_is_no_report_stays_as_it_is(tmp_path: Path) -> None:
    name = program(tmp_path, LEAK)
    (tmp_path / "leak-report.json").write_text("{}")
    done = report(tmp_path, "run", name)
    assert (done.returncode, (tmp_path / "leak-report.json").read_text()) == (0, "{}")
    assert done.stderr.splitlines()[-1].startswith("the report is not kept, as leak-report.json is no ")


def test_an_option_after_the_program_is_the_programs_and_noticed(tmp_path: Path) -> None:
    name = program(tmp_path, "import sys; print(sys.argv[1:])")
    done = report(tmp_path, "run", name, "-o", "out.json")
    assert done.stdout == "['-o', 'out.json']\n"
    assert "(-o after the program was the program's: name it before)" in done.stderr
    assert "was the program's" not in report(tmp_path, "run", "-o", "x.json", name).stderr
    # A program that succeeds may have options of the same names.
    assert "was the program's" not in report(tmp_path, "run", name, "--frames", "3").stderr
    failing = program(tmp_path, "import sys; sys.exit(2)", "failing.py")
    done = report(tmp_path, "run", failing, "--frames", "3")
    assert done.stderr.startswith("leak-report: the program ended with status 2\nno leaks")
    assert "(--frames after the program was the program's: name it before)" in done.stderr


def test_the_version_is_that_of_the_package(tmp_path: Path) -> None:
    for command in (["-m", "disposescope.leaks.commands"], ["-m", "disposescope"]):
        done = execute(tmp_path, [sys.executable, *command, "--version"])
        assert (done.returncode, done.stdout) == (0, f"leak-report {disposescope.__version__} (disposescope)\n")


def test_python_m_disposescope_has_all_verbs(tmp_path: Path) -> None:
    name = program(tmp_path, LEAK)
    done = execute(tmp_path, [sys.executable, "-m", "disposescope", "run", name])
    assert "held by module __main__.KEPT[0]" in done.stderr
    done = execute(tmp_path, [sys.executable, "-m", "disposescope"])
    assert (done.returncode, done.stderr) == (0, "")
    assert "doctor" in done.stdout
    assert "run, show, check" in done.stdout


def test_a_shell_completes_verbs_options_and_files(tmp_path: Path) -> None:
    pytest.importorskip("shtab", reason="completion needs shtab")
    done = report(tmp_path, "--print-completion", "bash")
    assert (done.returncode, done.stderr) == (0, "")
    (tmp_path / "completion").write_text(done.stdout)
    (tmp_path / "run.json").touch()
    completed = """
        source completion
        COMP_WORDS=(%s); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); ${COMPLETED:=_shtab_leak_report}
        printf '%%s\\n' "${COMPREPLY[@]}"
    """
    for words, found in (("leak-report m", "merge"), ("leak-report run --fa", "--fail-on")):
        done = execute(tmp_path, ["bash", "-c", completed % words])
        assert done.stdout.split() == [found], done.stderr


def test_completion_without_shtab_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(parser, "find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        parser.main(["--print-completion", "zsh"])
    assert "needs shtab: pip install 'disposescope[report]'" in capsys.readouterr().err


def test_options_are_read_from_the_settings_of_the_project(tmp_path: Path) -> None:
    name = program(tmp_path, LEAK)
    settings = tmp_path / "pyproject.toml"
    settings.write_text(
        "[tool.leak-report]\nframes = 3\nfail-on = ['view', 'cycle']\nquiet = true\nmax-growth = '1kB'\n"
    )
    done = report(tmp_path, "run", "-o", "out.json", name)
    assert (done.returncode, done.stderr) == (3, "")
    assert json.loads((tmp_path / "out.json").read_text())["settings"]["frames"] == 3
    # The command line is stronger.
    done = report(tmp_path, "run", "-o", "out.json", "--force", "--frames", "2", "--fail-on", "cycle", name)
    assert done.returncode == 0
    assert json.loads((tmp_path / "out.json").read_text())["settings"]["frames"] == 2
    assert report(tmp_path, "check", "out.json").returncode == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("frams = 3", "has an unknown entry 'frams'; did you mean frames?"),
        ("fail-on = 'views'", "fail-on: unknown kind of leak 'views'"),
        ("quiet = 1", "quiet must be true or false, not 1"),
        ("threshold = 'much'", "threshold: 'much' is no number of bytes"),
        ("time-limit = 5", "time-limit: there is no limit of time any more"),
        ("kinds = []", "kinds must be a text, a number or a list of texts, not []"),
        ("frames = {}", "frames must be a text, a number or a list of texts, not {}"),
    ],
)
def test_settings_that_are_wrong_are_one_line_with_file_and_name(tmp_path: Path, text: str, message: str) -> None:
    name = program(tmp_path, "print('ran')")
    (tmp_path / ".leak-report.toml").write_text(text)
    done = report(tmp_path, "run", name)
    assert (done.returncode, done.stdout) == (2, "")
    assert ".leak-report.toml'" in done.stderr.splitlines()[-1]
    assert message in done.stderr.splitlines()[-1]


def test_check_writes_annotations_for_github(tmp_path: Path) -> None:
    name = program(tmp_path, LEAK, "loop,1.py")
    report(tmp_path, "run", "-q", name)
    done = report(tmp_path, "check", "--format", "github")
    assert done.returncode == 3
    [line] = done.stdout.splitlines()
    assert line.startswith("::error file=loop%2C1.py,line=2,title=view (likely)::1 × Tensor float64 (1, 10), 80.0 kB, ")


def test_of_what_is_held_ten_rows_of_some_size_are_listed(tmp_path: Path) -> None:
    lines = [f"KEPT{number} = ds.zeros(1000)\n" for number in range(12)]
    name = program(tmp_path, "import disposescope as ds\n" + "".join(lines) + "SMALL = ds.zeros(2)\n")
    told = report(tmp_path, "run", name).stderr
    assert told.count("kept by module __main__.KEPT") == 10
    assert "SMALL" not in told
    assert "     and 3 rows more, 16.0 kB (--all lists them)\n" in told
    assert "outside every scope" not in told
    told = report(tmp_path, "show", "--all").stdout
    assert told.count("kept by module __main__.KEPT") == 12
    assert "kept by module __main__.SMALL" in told


def test_the_text_is_drawn_within_the_width_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich", reason="the text is drawn by rich")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    monkeypatch.setenv("COLUMNS", "60")
    print_report(training_report(), stream, prefix="leak-report: ")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())
    lines = [line.rstrip() for line in plain.splitlines()]
    assert lines[0].startswith("leak-report: ")
    assert max(map(len, lines)) <= 60
    assert "".join(plain.split()) == "".join(f"leak-report: {training_report()}".split())
