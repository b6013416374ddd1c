"""Processes that a watched program starts with `subprocess` or `os` join its session.

The report names processes that did not join.

What others do: coverage installs a ``.pth`` file, which every interpreter of the installation runs
at every start. ddtrace and New Relic put a folder with a ``sitecustomize.py`` first on
``PYTHONPATH``. The second way is taken here, only for processes of a watched program:
`subprocess.Popen` gets an environment that names the folder and the session. The command itself
does not matter: a shell script, or ``torchrun``, that starts Python hands the environment on.

A process signs in when Python starts, and joins when it imports NumPy, PyTorch or JAX. Two sorts of
processes are unwatched, so that the verdict of the report is undecided: those that look like Python
and did not sign in (``python -I``, an emptied environment); and those that signed in, imported
NumPy and left no report (another interpreter, a process that was killed at once).
"""

from __future__ import annotations

import ctypes
import inspect
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final, cast, final

from ...scopes.base.files import write_whole
from ...scopes.base.process import PATCHES, TESTED_PYTHON, Patch
from ..report.report import Settings

__all__ = [
    "JOIN",
    "VARIABLE",
    "ChildProcesses",
    "session_of",
    "watches_itself",
    "without_report",
    "watch_children",
]

VARIABLE: Final = "PYTHONDISPOSESCOPE"
JOIN: Final = "session:"
"""How the variable's value begins in a process that joins a session; token and folder follow."""

_FOLDER: Final = os.path.abspath(Path(__file__).with_name("child_process"))
"""The folder that is put first on ``PYTHONPATH``."""
_SETTINGS: Final = "settings"
"""The name of the file with the settings, in the folder of the session."""
_PYTHON: Final = re.compile(r"(?:.*[/\\])?(?:python|pypy)[\d.]*w?t?(?:\.exe)?", re.IGNORECASE)
"""The first word of a command that runs Python."""
_ENDS_AT_ONCE: Final = {"-V", "-VV", "--version", "-h", "-?", "--help", "--help-all"}
"""Options with which Python runs no program."""
_COMMANDS_THAT_RUN_NOTHING: Final = {
    "which",
    "whereis",
    "type",
    "hash",
    "command",
    "ls",
    "echo",
    "printf",
    "pgrep",
    "pkill",
    "killall",
}
_OF_LIBRARIES: Final = ("_inductor/compile_worker", "_inductor.compile_worker")
"""Commands by which libraries start processes that run no code of the program."""

_CHILDREN: Final = Patch(
    library="python",
    name="subprocess.Popen.__init__, and system, posix_spawn, posix_spawnp, execv and execve of os",
    why="Python programs that a program under leak-report starts are watched too",
    tested=TESTED_PYTHON,
    guard="they are there",
    otherwise="processes that are started by subprocess and os are not watched",
    unseen="processes that are started by subprocess and os",
)
PATCHES.declare(_CHILDREN)
_REPLACED_PROGRAM: Final = "exec-"
"""How the names of files begin that say which program a process became; its token follows."""


@final
class ChildProcesses:
    """The processes that one process of a session starts with `subprocess`.

    Parameters
    ----------
    folder : Path
        The folder of the session.
    settings : Settings
        The settings of the detectors of these processes.
    """

    __slots__ = ("_commands", "_folder", "_numbers", "_settings")

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._folder = folder
        self._settings = settings
        self._numbers = itertools.count(1)
        # The commands that run Python, by token: their processes have to sign in.
        self._commands: dict[str, str] = {}

    def _write_settings(self) -> None:
        file = self._folder / _SETTINGS
        if not file.exists():
            # Another process of the session may write it at the same time, and a third one read it.
            write_whole(file, json.dumps(asdict(self._settings)).encode())

    def expect(self, command: str | Sequence[str], *, shell: bool, environment: Mapping[str, str]) -> str | None:
        """Return a token for a process that is about to be started; None if it shall not join.

        Parameters
        ----------
        command : str or sequence of str
            The command.
        shell : bool
            Whether a shell runs it.
        environment : mapping
            The environment of the process.
        """
        text = command if isinstance(command, str) else shlex.join(command)
        if any(part in text for part in _OF_LIBRARIES):
            return None
        token = f"{os.getpid()}.{next(self._numbers)}"
        if _is_python(command, shell, environment):
            self._commands[token] = text
        return token

    def forget(self, token: str) -> None:
        """Record that a process was not started."""
        self._commands.pop(token, None)
        with suppress(OSError):
            (self._folder / f"{_REPLACED_PROGRAM}{token}").unlink(missing_ok=True)

    def becomes(self, token: str) -> None:
        """Record in a file that this process is about to become the process with a token."""
        if token in self._commands:
            (self._folder / f"{_REPLACED_PROGRAM}{token}").write_text(self._commands[token], encoding="utf-8")

    def variables(self, token: str, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables that a process needs to join.

        Parameters
        ----------
        token : str
            The token of the process.
        environment : mapping
            The environment that the process would have otherwise.
        """
        self._write_settings()
        path = environment.get("PYTHONPATH", "")
        if _FOLDER not in path.split(os.pathsep):
            path = f"{_FOLDER}{os.pathsep}{path}" if path else _FOLDER
        return {"PYTHONPATH": path, VARIABLE: f"{JOIN}{token}:{self._folder}"}

    def shell_runs(self, command: str) -> None:
        """Record that a shell runs a command which cannot join."""
        if _is_python(command, True, os.environ):
            self._commands[f"{os.getpid()}.{next(self._numbers)}"] = command

    def replaced_by(self, command: str) -> None:
        """Record that this process is about to become a program which cannot join."""
        self._commands[f"{os.getpid()}.{next(self._numbers)}"] = command

    def unwatched(self) -> list[str]:
        """Return the processes that did not sign in, a sentence each."""
        signed_in = _signed_in(self._folder)
        unsigned = dict.fromkeys(command for token, command in list(self._commands.items()) if token not in signed_in)
        return [_to_be_run(command) for command in unsigned]


def _signed_in(folder: Path) -> set[str]:
    """Return the tokens of the processes that signed in."""
    return {file.name.split("-")[1] for file in folder.glob("python-*")}


def _to_be_run(command: str) -> str:
    return f"the process {_short(command)}: run it under leak-report run"


def without_report(folder: Path, reported: Collection[int]) -> list[str]:
    """Return the processes of a session that left no report, a sentence each.

    These are processes that imported NumPy, and programs that a forked process became and that did
    not sign in.

    Parameters
    ----------
    folder : Path
        The folder of the session.
    reported : collection of int
        The ids of the processes that left a report.
    """
    lines: dict[str, None] = {}
    signed_in = _signed_in(folder)
    for note in sorted(folder.glob(f"{_REPLACED_PROGRAM}*")):
        if note.name.removeprefix(_REPLACED_PROGRAM) not in signed_in:
            lines[_to_be_run(note.read_text(encoding="utf-8"))] = None
    for note in sorted(folder.glob("arrays-*")):
        if int(note.name.partition("-")[2]) not in reported:
            with suppress(OSError):
                lines[f"the process {_short(note.read_text(encoding='utf-8'))}: it left no report"] = None
    return list(lines)


def session_of(value: str) -> tuple[Path, Settings] | None:
    """Return the folder and the settings of the session that this process joins.

    None if the session is over. The variables that named it are removed from the environment.

    Parameters
    ----------
    value : str
        The value of the environment variable.
    """
    token, _, name = value.removeprefix(JOIN).partition(":")
    folder = Path(name)
    # The program sees the environment that it was given. Processes that it starts get the variables
    # again.
    os.environ.pop(VARIABLE, None)
    path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry != _FOLDER]
    os.environ["PYTHONPATH"] = os.pathsep.join(path)
    if path in ([], [""]):
        del os.environ["PYTHONPATH"]
    try:
        facts = json.loads((folder / _SETTINGS).read_text(encoding="utf-8"))
        (folder / f"python-{token}-{os.getpid()}").touch()
    except OSError:
        return None
    kinds = facts.pop("kinds")
    return folder, Settings(kinds=None if kinds is None else tuple(kinds), **facts)


def watches_itself(value: str) -> None:
    """Record that this process makes a report of its own: it is ``leak-report`` itself."""
    with suppress(OSError):
        (Path(value.removeprefix(JOIN).partition(":")[2]) / f"arrays-{os.getpid()}").unlink()


def watch_children(
    current: Callable[[], ChildProcesses | None], replaced: Callable[[str], ChildProcesses | None]
) -> None:
    """Have processes that are started by `subprocess` and `os` join the session of this process.

    Parameters
    ----------
    current : callable
        Returns the child processes of the open session; None where no session is open.
    replaced : callable
        Called with the command before this process becomes another program. Returns the child
        processes of the session that the program can join; None where it cannot join.
    """
    PATCHES.replace(_CHILDREN, subprocess.Popen, "__init__", lambda start: _patched_popen(start, current))
    PATCHES.replace(_CHILDREN, os, "system", lambda run: _patched_system(run, current))
    if os.name == "posix":
        # The other functions of `os` that spawn or execute programs call these.
        for name in ("posix_spawn", "posix_spawnp"):
            PATCHES.replace(_CHILDREN, os, name, lambda spawn: _patched_spawn(spawn, current))
        for name in ("execv", "execve"):
            PATCHES.replace(_CHILDREN, os, name, lambda run: _patched_exec(run, replaced))


def _patched_popen(start: Callable[..., None], current: Callable[[], ChildProcesses | None]) -> Callable[..., None]:
    signature = inspect.signature(start)

    @wraps(start)
    def __init__(*args: Any, **kwargs: Any) -> None:
        children = current()
        if children is None:
            return start(*args, **kwargs)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            # Let the call itself raise for its arguments.
            return start(*args, **kwargs)
        given = bound.arguments
        if isinstance(given["args"], Iterator):
            given["args"] = list(bound.arguments["args"])
        token = _prepare(children, given)
        try:
            return start(*bound.args, **bound.kwargs)
        except BaseException:
            if token is not None:
                children.forget(token)
            raise

    return __init__


def _prepare(children: ChildProcesses, given: dict[str, Any]) -> str | None:
    """Have a process join by its environment, and return its token; None if it shall not join.

    Parameters
    ----------
    children : ChildProcesses
        The children of this process.
    given : dict
        The arguments of `subprocess.Popen`, which are changed.
    """
    try:
        environment = _inherited() if given.get("env") is None else _texts_of(given["env"])
        if environment.get(VARIABLE, "").startswith(JOIN):
            # `subprocess` has prepared it, and calls `os.posix_spawn`.
            return None
        token = children.expect(
            _words_of(given["args"], given.get("executable")), shell=bool(given.get("shell")), environment=environment
        )
        if token is None:
            return None
        variables = children.variables(token, environment)
    except (AttributeError, TypeError, ValueError, OSError):
        # Let the call itself raise for its arguments. If the settings cannot be written, the report
        # names the command if it runs Python.
        return None
    if given.get("env") is None and given.get("preexec_fn") is not None:
        # This function may change the environment that the process inherits.
        given["preexec_fn"] = partial(_call_and_set, given["preexec_fn"], variables)
    else:
        given["env"] = {**environment, **variables}
    return token


def _call_and_set(function: Callable[[], object], variables: Mapping[str, str]) -> None:
    function()
    os.environ.update(variables)


def _inherited() -> dict[str, str]:
    """Return the environment that a process inherits, with variables that C code has set."""
    known = dict(os.environ)
    if os.name == "posix":
        # `os.environ` does not show what `os.putenv`, and setenv(3) in libraries such as MPI, set.
        with suppress(ValueError, OSError):
            entries = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
            found: dict[str, str] = {}
            for index in itertools.count():
                entry = entries[index]
                if entry is None:
                    return found
                name, _, value = os.fsdecode(entry).partition("=")
                found[name] = value
    return known


def _patched_system(run: Callable[[Any], int], current: Callable[[], ChildProcesses | None]) -> Callable[[Any], int]:
    @wraps(run)
    def system(command: Any) -> int:
        children = current()
        if children is not None and isinstance(command, (str, bytes)):
            children.shell_runs(os.fsdecode(command))
        return run(command)

    return system


def _patched_spawn(spawn: Callable[..., int], current: Callable[[], ChildProcesses | None]) -> Callable[..., int]:
    @wraps(spawn)
    def posix_spawn(path: Any, argv: Any, env: Any, /, **options: Any) -> int:
        children = current()
        given = {"args": argv, "env": env, "executable": path}
        token = None if children is None else _prepare(children, given)
        try:
            return spawn(path, argv, given["env"], **options)
        except BaseException:
            if children is not None and token is not None:
                children.forget(token)
            raise

    return posix_spawn


def _patched_exec(run: Callable[..., None], replaced: Callable[[str], ChildProcesses | None]) -> Callable[..., None]:
    signature = inspect.signature(run)

    @wraps(run)
    def execute(*args: Any, **kwargs: Any) -> None:
        try:
            bound = signature.bind(*args, **kwargs).arguments
        except TypeError:
            # Let the call itself raise for its arguments.
            return run(*args, **kwargs)
        given = {"args": bound["argv"], "env": bound.get("env"), "executable": bound["path"]}
        children = _before_exec(bound["path"], bound["argv"], replaced)
        token = None if children is None else _prepare(children, given)
        if children is None or token is None:
            return run(*args, **kwargs)
        try:
            children.becomes(token)
            inspect.unwrap(os.execve)(bound["path"], bound["argv"], given["env"])
        finally:
            # Where execution comes here the process was not replaced.
            children.forget(token)

    return execute


def _before_exec(path: Any, argv: Any, replaced: Callable[[str], ChildProcesses | None]) -> ChildProcesses | None:
    """Return the child processes of the session that this process can join as another program."""
    try:
        # `os.execvp` tries the folders of the path one after the other: act for an existing file.
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return replaced(shlex.join(_words_of(argv, path)))
    except (TypeError, ValueError):
        # Let the call itself raise for its arguments.
        return None
    return None


def _words_of(args: Any, executable: Any) -> str | list[str]:
    if isinstance(args, (str, bytes, os.PathLike)):
        text = os.fsdecode(cast("str", args))
        return text if executable is None else [os.fsdecode(executable), text]
    words = [os.fsdecode(word) for word in args]
    return words if executable is None else [os.fsdecode(executable), *words[1:]]


def _texts_of(environment: Any) -> dict[str, str]:
    return {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}


def _is_python(command: str | Sequence[str], shell: bool, environment: Mapping[str, str]) -> bool:
    """Return whether a command starts a Python program, by its words."""
    words = [command] if isinstance(command, str) else list(command)
    if shell:
        return any(_has_python(part.split()) for part in re.split(r"[;&|()`'\"\n]+", " ".join(words)))
    if not words or (len(words) > 1 and words[1] in _ENDS_AT_ONCE):
        return False
    return _PYTHON.fullmatch(words[0]) is not None or _is_python_script(words[0], environment)


def _has_python(words: Sequence[str]) -> bool:
    """Return whether the words of a shell command run Python with a program."""
    if not words or words[0] in _COMMANDS_THAT_RUN_NOTHING:
        return False
    return any(
        _PYTHON.fullmatch(word) and following not in _ENDS_AT_ONCE
        for word, following in itertools.zip_longest(words, words[1:])
    )


def _is_python_script(name: str, environment: Mapping[str, str]) -> bool:
    """Return whether a command is a file whose first line names Python, such as ``torchrun``."""
    path = shutil.which(name, path=environment.get("PATH"))
    if path is None:
        return False
    try:
        with open(path, "rb") as file:
            first = file.read(200)
    except OSError:
        return False
    return first.startswith(b"#!") and b"python" in first.partition(b"\n")[0]


def _short(command: str) -> str:
    """Return a command on one line, quoted and cut."""
    line = " ".join(command.split())
    return f"`{line}`" if len(line) <= 100 else f"`{line[:97]}...`"
