"""Programs that a watched program starts are watched too, or it is told that they were not."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from disposescope.leaks.report.report import Report, Settings
from disposescope.leaks.running.children import ChildProcesses
from disposescope.leaks.running.session import Session

POSIX = pytest.mark.skipif(os.name != "posix", reason="processes are started otherwise here")

LEAKY = """\
import numpy as np
import disposescope as ds
KEPT = []
for _ in range(20):
    with ds.dispose_scope():
        KEPT.append(np.zeros(1000))
"""
VIEW = "import numpy as np\nKEPT = [np.zeros((1000, 10))[:1]]\n"
PLAIN = "import sys, os\nprint(os.environ.get('PYTHONPATH'), 'numpy' in sys.modules, 'disposescope' in sys.modules)\n"


def report_of(folder: Path, *commands: list[str], **options: object) -> tuple[Report, list[str]]:
    """Run commands in a session, and return its report with what they print."""
    printed = []
    with Session(("main.py",), False, Settings(), folder / "leaks.json") as session:
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, cwd=folder, **options)
            assert (done.returncode, done.stderr) == (0, "")
            printed.append(done.stdout)
        return session.finish("exit", 0), printed


def of_children(report: Report) -> list[tuple[str, int]]:
    return [(leak.kind, leak.count) for leak in report.leaks if leak.pid != os.getpid()]


def test_a_python_program_that_is_started_is_watched(tmp_path: Path) -> None:
    (tmp_path / "leaky.py").write_text(LEAKY)
    report, _ = report_of(tmp_path, [sys.executable, "leaky.py"])
    assert of_children(report) == [("escaped", 20)]
    assert [process.role for process in report.processes] == ["main", "worker"]
    assert report.unwatched == ()


def test_a_program_that_does_not_import_disposescope_is_watched_also_in_a_shell_with_its_own_environment(
    tmp_path: Path,
) -> None:
    (tmp_path / "view.py").write_text(VIEW)
    command = f"echo begun; {sys.executable} view.py; echo done"
    report, [printed] = report_of(
        tmp_path,
        ["sh", "-c", command],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
    )
    assert printed == "begun\ndone\n"
    assert of_children(report) == [("view", 1)]


def test_arrays_of_a_library_that_imports_numpy_itself_are_seen(tmp_path: Path) -> None:
    # The library is half made when it imports NumPy: whoever watches it has to be there before.
    (tmp_path / "torch.py").write_text("import sys\nprint('disposescope' in sys.modules)\nraise SystemExit")
    report, [printed] = report_of(tmp_path, [sys.executable, "-c", "import torch"])
    assert (printed, len(report.processes)) == ("True\n", 2)


def test_a_program_without_arrays_starts_without_anything_of_ours(tmp_path: Path) -> None:
    report, [printed] = report_of(tmp_path, [sys.executable, "-c", PLAIN])
    assert printed.endswith("False False\n")
    assert len(report.processes) == 1
    assert report.unwatched == ()


def test_the_environment_and_the_sitecustomize_of_a_program_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('customized')\n")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    code = (
        "import numpy, os, sys; import sitecustomize\n"
        "print(os.environ['PYTHONPATH'], 'PYTHONDISPOSESCOPE' in os.environ, sitecustomize.__file__)\n"
        "print([entry for entry in sys.path if 'child_process' in entry])\n"
    )
    report, [printed] = report_of(tmp_path, [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path})
    assert printed == f"customized\n{path} False {tmp_path / 'sitecustomize.py'}\n[]\n"
    assert len(report.processes) == 2


def test_a_program_that_ends_by_an_exception_has_no_leak_for_its_traceback(tmp_path: Path) -> None:
    code = "import numpy\ndef run():\n    batch = numpy.zeros(5000)\n    raise ValueError('no')\nrun()"
    with Session(("main.py",), False, Settings(), tmp_path / "leaks.json") as session:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        report = session.finish("exit", 0)
    assert "ValueError: no" in done.stderr
    assert of_children(report) == []
    assert [process.ended for process in report.processes] == ["exit", "exception"]


def test_a_program_that_does_not_look_at_the_environment_is_told_and_the_verdict_is_undecided(tmp_path: Path) -> None:
    report, _ = report_of(tmp_path, [sys.executable, "-I", "-c", "pass"], [sys.executable, "-V"], ["echo", "python"])
    assert report.unwatched == (f"the process `{sys.executable} -I -c pass`: run it under leak-report run",)
    assert report.verdict in ("undecided", "leaks", "suspects")
    assert f"undecided: not watched: {report.unwatched[0]}" in str(report)


def test_a_program_whose_interpreter_has_no_disposescope_is_told(tmp_path: Path) -> None:
    code = "import sys; sys.modules['disposescope'] = None; import numpy"
    report, _ = report_of(tmp_path, [sys.executable, "-c", code])
    [line] = report.unwatched
    # A long command is cut.
    assert line.startswith(f"the process `{sys.executable} -c {code}"[:95])
    assert line.endswith("`: it left no report")


def test_os_system_is_told(tmp_path: Path) -> None:
    with Session(("main.py",), False, Settings(), tmp_path / "leaks.json") as session:
        assert os.system(f"{sys.executable} -V > {os.devnull}; true") == 0
        assert os.system(f"true || {sys.executable} train.py") == 0
        report = session.finish("exit", 0)
    assert report.unwatched == (f"the process `true || {sys.executable} train.py`: run it under leak-report run",)


@POSIX
def test_programs_that_os_spawns_are_watched(tmp_path: Path) -> None:
    words = [sys.executable, "-c", VIEW]
    with Session(("main.py",), False, Settings(), tmp_path / "leaks.json") as session:
        assert os.waitpid(os.posix_spawn(sys.executable, words, os.environ), 0)[1] == 0
        assert os.spawnv(os.P_WAIT, sys.executable, words) == 0
        assert os.spawnlp(os.P_WAIT, "true", "true") == 0
        report = session.finish("exit", 0)
    # One ran after the other.
    assert (of_children(report), report.unwatched) == ([("view", 1)], ())
    # What spawnv() forks may leave a report before it becomes the program.
    assert [process.role for process in report.processes].count("worker") >= 2


@POSIX
def test_what_os_spawns_and_does_not_sign_in_is_reported(tmp_path: Path) -> None:
    with Session(("main.py",), False, Settings(), tmp_path / "leaks.json") as session:
        assert os.spawnl(os.P_WAIT, sys.executable, "python", "-I", "-c", "pass") == 0
        with pytest.raises(FileNotFoundError):
            os.posix_spawn("/nowhere/python", ["python", "train.py"], {})
        with pytest.raises(TypeError):
            os.posix_spawn()  # type: ignore[call-arg]
        with pytest.raises(FileNotFoundError):
            os.execvp("python0.1", ["python0.1", "train.py"])
        with pytest.raises(TypeError):
            os.execv(None, ["python"])  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            os.execve(sys.executable, ["python"])  # type: ignore[call-arg]
        report = session.finish("exit", 0)
    assert report.unwatched == (f"the process `{sys.executable} -I -c pass`: run it under leak-report run",)


@POSIX
def test_a_forked_process_that_becomes_another_program_is_watched_before_and_after(tmp_path: Path) -> None:
    with Session(("main.py",), False, Settings(), tmp_path / "leaks.json") as session:
        child = os.fork()
        if child == 0:
            kept = [np.zeros((1000, 100))[:1]]
            os.execv(sys.executable, [sys.executable, "-c", f"{VIEW}assert {len(kept)}"])
        assert os.waitpid(child, 0)[1] == 0
        report = session.finish("exit", 0)
    assert sorted(leak.nbytes for leak in report.leaks if leak.pid != os.getpid()) == [80_000, 800_000]
    assert report.unwatched == ()


@POSIX
def test_a_program_that_becomes_another_one_leaves_its_report_and_the_verdict_is_undecided(tmp_path: Path) -> None:
    code = f"import os\nos.execv({sys.executable!r}, ['python', '-c', 'print(1)'])"
    command = [sys.executable, "-m", "disposescope", "run", "-o", "leaks.json", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert f"undecided: not watched: the process `{sys.executable} -c 'print(1)'`: run it" in done.stderr


def test_programs_that_asyncio_starts_are_watched(tmp_path: Path) -> None:
    async def run() -> int:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", VIEW)
        return await process.wait()

    with Session(("main.py",), False, Settings(), tmp_path / "leaks.json") as session:
        assert asyncio.run(run()) == 0
        report = session.finish("exit", 0)
    assert of_children(report) == [("view", 1)]


def test_what_is_wrong_with_a_command_is_said_as_without(tmp_path: Path) -> None:
    with Session(("main.py",), False, Settings(), tmp_path / "leaks.json") as session:
        with pytest.raises(FileNotFoundError, match=r"python0\.1"):
            subprocess.run(["python0.1", "train.py"])
        with pytest.raises(TypeError, match="args"):
            subprocess.Popen()  # type: ignore[call-overload]
        with pytest.raises(TypeError):
            subprocess.Popen(None)  # type: ignore[call-overload]
        with pytest.raises(ValueError, match="illegal environment variable name"):
            subprocess.run([sys.executable, "-V"], env={"A=B": ""})
        with pytest.raises(TypeError):
            subprocess.run([sys.executable, "train.py"], env={"A": 1})  # type: ignore[dict-item]
        assert session.finish("exit", 0).unwatched == ()


def test_arguments_of_any_kind_are_handed_on(tmp_path: Path) -> None:
    program = tmp_path / "program.sh"
    program.write_text('#!/bin/sh\necho "$# $1 $NAME"\n')
    program.chmod(0o755)
    with Session(("main.py",), False, Settings(), tmp_path / "leaks.json"):
        for words in (
            program,
            [program, "a"],
            [os.fsencode(program), b"a"],
            iter([str(program), "a"]),
            os.fsencode(program),
        ):
            done = subprocess.run(words, capture_output=True, env={b"NAME": b"\xff"})
            assert done.stdout == (b"1 a \xff\n" if not isinstance(words, (bytes, Path)) else b"0  \xff\n")


def test_the_environment_is_what_a_process_would_inherit(tmp_path: Path) -> None:
    name, other = "DISPOSESCOPE_TEST", "DISPOSESCOPE_TEST_OTHER"
    try:
        with Session(("main.py",), False, Settings(), tmp_path / "leaks.json"):
            # As the C code of a library does; `os.environ` does not tell.
            os.putenv(name, "1")
            command = f'echo "${name} ${other}"'
            assert subprocess.check_output(["sh", "-c", command]) == b"1 \n"
            printed = subprocess.check_output(
                [sys.executable, "-c", f"import numpy, os; print(os.environ['{other}'])"],
                preexec_fn=lambda: os.environ.update({other: "2"}),
            )
            assert printed == b"2\n"
            assert other not in os.environ
            assert subprocess.check_output(["sh", "-c", command], env={}) == b" \n"
    finally:
        os.unsetenv(name)


def test_a_program_that_only_looks_whether_there_is_numpy_is_left_alone_until_it_imports_it(tmp_path: Path) -> None:
    look = "import importlib.util, sys; [importlib.util.find_spec(n) for n in ('numpy', 'torch')]; "
    report, [printed] = report_of(tmp_path, [sys.executable, "-c", look + "print('numpy' in sys.modules)"])
    assert (printed, len(report.processes), report.unwatched) == ("False\n", 1, ())
    report, _ = report_of(tmp_path, [sys.executable, "-c", look + VIEW])
    assert of_children(report) == [("view", 1)]


def test_a_process_that_forks_before_it_imports_numpy_is_watched(tmp_path: Path) -> None:
    code = f"import os\nif not os.fork():\n    exec({VIEW!r})\nelse:\n    os.wait()"
    report, _ = report_of(tmp_path, [sys.executable, "-c", code])
    assert (of_children(report), report.unwatched) == ([("view", 1)], ())


def test_a_process_that_outlives_the_session_ends_as_without(tmp_path: Path) -> None:
    code = "import numpy, sys; print('begun', flush=True); sys.stdin.read()"
    with Session(("main.py",), False, Settings(), tmp_path / "leaks.json") as session:
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        [missed] = session.finish("exit", 0).unwatched
    assert missed.endswith("it left no report")
    assert process.communicate(b"") == (b"", b"")
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("command", "shell", "is_told"),
    [
        ([sys.executable, "train.py"], False, True),
        (["python3.12", "-m", "train"], False, True),
        (["python3", "--version"], False, False),
        ("python train.py", True, True),
        ("cd x && CUDA_VISIBLE_DEVICES=0 python3 train.py | tee log", True, True),
        ("python -V", True, False),
        ("which python; ls python.txt", True, False),
        ("echo 'done' && command -v python3", True, False),
        ("nohup env LANG=C python3 -u train.py &", True, True),
        ("git rev-parse HEAD", True, False),
        (["git", "rev-parse"], False, False),
        (["torchrun-of-the-test", "train.py"], False, True),
        (["tool-of-the-test"], False, False),
    ],
)
def test_what_looks_like_a_python_program_and_does_not_sign_in_is_told(
    tmp_path: Path, command: str | list[str], shell: bool, is_told: bool
) -> None:
    for name, first in (("torchrun-of-the-test", "#!/usr/bin/env python3\n"), ("tool-of-the-test", "#!/bin/sh\n")):
        (tmp_path / name).write_text(first)
        (tmp_path / name).chmod(0o755)
    children = ChildProcesses(tmp_path, Settings())
    children.expect(command, shell=shell, environment={"PATH": str(tmp_path)})
    assert bool(children.unwatched()) == is_told


def test_processes_that_pytorch_keeps_for_its_compiler_are_left_alone(tmp_path: Path) -> None:
    children = ChildProcesses(tmp_path, Settings())
    command = [sys.executable, "/site-packages/torch/_inductor/compile_worker/__main__.py", "--pickler=x"]
    assert children.expect(command, shell=False, environment={}) is None
    assert children.unwatched() == []
