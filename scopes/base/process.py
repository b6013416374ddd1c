"""Changes to the whole process: patches of other code, fork handlers, the import hook, kept pages.

Each patch has a row in one table, `PATCHES`, which ``python -m disposescope doctor`` prints. The
package registers one fork handler with Python. It has one finder on ``sys.meta_path``, and only
while a module is awaited.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader, SourcelessFileLoader
from operator import index, itemgetter
from types import ModuleType
from typing import Any, Final, Protocol, SupportsIndex, cast, final
from warnings import warn

from ..compiled import AWAITED, note_modules_seen

__all__ = [
    "PATCHES",
    "Patch",
    "PatchRow",
    "TESTED_PYTHON",
    "Patches",
    "at_forks",
    "await_module",
    "bytes_text",
    "can_keep_pages",
    "hold_across_forks",
    "install_at_import_while",
    "install_imported",
    "keep_pages",
    "load_frameworks",
    "parse_budget",
    "return_pages",
    "trim",
    "version_of",
    "warn_without_raising",
    "when_imported",
]

# Patches: code of Python, NumPy, PyTorch or JAX that this package replaces.


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A change that this package makes in other code, for one purpose.

    Attributes
    ----------
    library : str
        The module whose code is changed, such as ``"torch"``; ``"python"`` for the standard
        library.
    name : str
        What is changed.
    why : str
        The purpose.
    tested : str
        The versions of the library that the tests run with.
    guard : str
        The condition that is checked before anything is changed.
    otherwise : str
        What happens if the guard does not hold. Nothing is changed then.
    warns : bool
        Whether a `RuntimeWarning` tells of a guard that does not hold. False if only speed is lost.
    unseen : str
        What a detector does not see if the guard does not hold; empty if it sees as much.
    uses : tuple of str
        Private names, symbols and layouts of the library that are read or called for it. A name
        stands for what is in it, too.
    """

    library: str
    name: str
    why: str
    tested: str
    guard: str
    otherwise: str
    warns: bool = True
    unseen: str = ""
    uses: tuple[str, ...] = ()


@final
@dataclass(frozen=True, slots=True)
class PatchRow:
    """A row of the table: a patch and its state in this process.

    Attributes
    ----------
    patch : Patch
        The patch.
    is_installed : bool
        Whether any of it is in place now.
    failures : tuple of str
        What its guard found missing; empty if the guard holds, or was not asked yet.
    """

    patch: Patch
    is_installed: bool
    failures: tuple[str, ...]


_MISSING: Final = object()
"""Stands for an attribute that a module or class does not have itself."""


def _own(owner: object, name: str) -> object:
    """Return an attribute of a module or class, without inherited ones and descriptors."""
    return cast("Mapping[str, object]", vars(owner)).get(name, _MISSING)


@final
class _Attribute:
    """An attribute of a module or a class that is replaced."""

    def __init__(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        self._owner = owner
        self._name = name
        self._wrap = wrap
        self._before: object = _MISSING
        self._replacement: object = _MISSING

    def install(self) -> bool:
        self.restore()
        if self._replacement is _MISSING:
            self._before = _own(self._owner, self._name)
            replacement = self._wrap(getattr(self._owner, self._name))
            self._replacement = replacement
            setattr(self._owner, self._name, replacement)
        return True

    def restore(self) -> None:
        # If others have replaced the attribute since, their replacement stays, and so does this
        # one, which theirs probably calls.
        found = _own(self._owner, self._name)
        if found is self._before:
            self._replacement = _MISSING
        elif found is self._replacement:
            if self._before is _MISSING:
                delattr(self._owner, self._name)
            else:
                setattr(self._owner, self._name, self._before)
            self._replacement = _MISSING

    def is_installed(self) -> bool:
        return self._replacement is not _MISSING


@final
class _Change:
    """A change that is made and undone by functions."""

    def __init__(self, install: Callable[[], object], restore: Callable[[], object]) -> None:
        self._install = install
        self._restore = restore
        self._is_installed = False

    def install(self) -> bool:
        self._is_installed = True
        # False where the guard does not hold.
        self._is_installed = self._install() is not False
        return self._is_installed

    def restore(self) -> None:
        if self._is_installed:
            self._restore()
            self._is_installed = False

    def is_installed(self) -> bool:
        return self._is_installed


def warn_without_raising(text: str) -> None:
    """Warn of what scopes or detectors do not see; print that where warnings are errors.

    Entering a scope, or importing a library, must not fail because of it.
    """
    try:
        warn(text, RuntimeWarning, stacklevel=3)
    except RuntimeWarning as warning:
        print(f"RuntimeWarning: {warning}", file=sys.stderr)


@final
class Patches:
    """The table of patches. The one instance is `PATCHES`.

    Every method may be called again: after an interrupt it begins from the start.
    """

    def __init__(self) -> None:
        self._changes: dict[Patch, dict[object, _Attribute | _Change]] = {}
        self._failures: dict[Patch, dict[str, None]] = {}
        self._unseen: dict[str, None] = {}
        self._met: dict[Patch, int] = {}

    def declare(self, *patches: Patch) -> None:
        """Give patches a row in the table; nothing is changed yet."""
        for patch in patches:
            self._changes.setdefault(patch, {})

    def replace(self, patch: Patch, owner: Any, name: str, wrap: Callable[[Any], Any]) -> bool:
        """Replace an attribute of a module or a class.

        Parameters
        ----------
        patch : Patch
            The patch that the replacement belongs to.
        owner : module or type
            The module or class that has the attribute.
        name : str
            The attribute; ``"Class.attribute"`` for an attribute of a class in a module.
        wrap : callable
            Called with the original, as read from the owner; returns the replacement.

        Returns
        -------
        bool
            False if there is no such attribute: the guard of the patch does not hold.
        """
        self.declare(patch)
        within, _, last = name.rpartition(".")
        if within and hasattr(owner, within):
            owner, name = getattr(owner, within), last
        changes = self._changes[patch]
        change = changes.get((owner, name))
        if change is None:
            if not hasattr(owner, name):
                place = owner.__name__ if isinstance(owner, ModuleType) else f"{owner.__module__}.{owner.__qualname__}"
                self.fail(patch, f"{place} has no {name}")
                return False
            change = changes[owner, name] = _Attribute(owner, name, wrap)
        return change.install()

    def change(self, patch: Patch, install: Callable[[], object], restore: Callable[[], object]) -> bool:
        """Make a change other than the replacement of an attribute.

        Parameters
        ----------
        patch : Patch
            The patch that the change belongs to.
        install : callable
            Makes the change; returns False if the guard does not hold.
        restore : callable
            Undoes the change.

        Returns
        -------
        bool
            Whether it is in place.
        """
        self.declare(patch)
        changes = self._changes[patch]
        change = changes.get(install)
        if change is None:
            change = changes[install] = _Change(install, restore)
        is_installed = change.install()
        if not is_installed and patch not in self._failures:
            self.fail(patch, f"not so: {patch.guard}")
        return is_installed

    def fail(self, patch: Patch, found: str) -> None:
        """Record, and warn once, that the guard of a patch does not hold.

        Raises nothing, even if warnings are errors: entering a scope must not fail because of it.
        """
        failures = self._failures.setdefault(patch, {})
        if found in failures:
            return
        failures[found] = None
        self._warn(patch, found)

    def note_unseen(self, patch: Patch, found: str) -> None:
        """Record, and warn once, that something was met for which a patch's guard does not hold.

        Only reports of detectors that were open then say so: see `unwatched_since`.
        """
        if patch not in self._met:
            self._warn(patch, found)
        self._met[patch] = self._met.get(patch, 0) + 1

    def times_unseen(self) -> dict[Patch, int]:
        """Return how often `note_unseen` was called for each patch."""
        return self._met.copy()

    def _warn(self, patch: Patch, found: str) -> None:
        if patch.warns:
            warn_without_raising(
                f"{patch.library} {version_of(patch.library)} is not known to disposescope "
                f"(tested: {patch.tested}): {found}; {patch.otherwise}"
            )

    def restore(self, patch: Patch) -> None:
        """Undo all changes of a patch, the last first.

        Changes made by functions are forgotten, so that the functions can be freed.
        """
        changes = self._changes.get(patch, {})
        for key, change in [*reversed(changes.items())]:
            change.restore()
            if isinstance(change, _Change):
                del changes[key]

    def restore_all(self) -> None:
        """Undo all changes of all patches, the last first."""
        for changes in reversed(self._changes.values()):
            for change in reversed(changes.values()):
                change.restore()

    def install_all(self) -> None:
        """Make all changes again that `restore_all` has undone."""
        for changes in self._changes.values():
            for change in changes.values():
                change.install()

    def rows(self) -> list[PatchRow]:
        """Return the table, in the order in which the patches were declared."""
        return [
            PatchRow(
                patch, any(change.is_installed() for change in changes.values()), (*self._failures.get(patch, ()),)
            )
            for patch, changes in self._changes.items()
        ]

    def note_unwatched(self, what: str) -> None:
        """Record something that a detector does not see, for another reason than a patch."""
        self._unseen[what] = None

    def unwatched_since(self, before: Mapping[Patch, int]) -> list[str]:
        """Return what a detector does not see in this process, as one text for each reason.

        Parameters
        ----------
        before : mapping of Patch to int
            What `times_unseen` returned when the detector was opened.
        """
        failed = [patch for patch, failures in self._failures.items() if failures]
        failed += [patch for patch, times in self._met.items() if times > before.get(patch, 0)]
        return [
            *self._unseen,
            *(
                f"{patch.library} {version_of(patch.library)} (tested: {patch.tested}): {patch.unseen}"
                for patch in dict.fromkeys(failed)
                if patch.unseen
            ),
        ]


PATCHES: Final = Patches()
"""The table of all changes that this package makes in Python, NumPy, PyTorch and JAX."""

TESTED_PYTHON: Final = "3.11 to 3.14"
"""The versions of Python that the tests run with."""


def version_of(library: str) -> str:
    """Return the version of an imported library; ``"(unknown)"`` if it has none."""
    if library == "python":
        return sys.version.partition(" ")[0]
    return str(getattr(sys.modules.get(library), "__version__", "(unknown)"))


# Forks: locks that are held while the process forks, and functions that are called.


class _Lock(Protocol):
    @property
    def acquire(self) -> Callable[[], object]: ...
    @property
    def release(self) -> Callable[[], object]: ...


@final
class _Forks:
    """The fork handler of this package. The one instance is registered with Python."""

    def __init__(self) -> None:
        self.locks: list[tuple[int, _Lock]] = []
        self.before: list[Callable[[], object]] = []
        self.in_parent: list[Callable[[], object]] = []
        self.in_child: list[Callable[[], object]] = []

    def prepare(self) -> None:
        _call_all([*reversed(self.before), *(lock.acquire for _, lock in self.locks)])

    def go_on_in_parent(self) -> None:
        _call_all([*(lock.release for _, lock in reversed(self.locks)), *self.in_parent])

    def go_on_in_child(self) -> None:
        _call_all([*(lock.release for _, lock in reversed(self.locks)), *self.in_child])


def _call_all(functions: Sequence[Callable[[], object]]) -> None:
    """Call each function, even if others raise, and raise their exceptions as a group in the end.

    Python prints exceptions of fork handlers, and goes on.
    """
    errors: list[BaseException] = []
    for function in functions:
        try:
            function()
        except BaseException as error:
            errors.append(error)
    if errors:
        raise BaseExceptionGroup("functions that disposescope calls at a fork failed", errors)


_FORKS: Final = _Forks()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_FORKS.prepare, after_in_parent=_FORKS.go_on_in_parent, after_in_child=_FORKS.go_on_in_child
    )


def hold_across_forks(lock: _Lock, order: int) -> None:
    """Acquire a lock before every fork of the process, and release it in the parent and the child.

    A child has only one thread. It would wait forever for a lock that another thread of its parent
    held at the fork.

    Parameters
    ----------
    lock : threading.Lock or threading.RLock
        The lock.
    order : int
        Locks with lower numbers are acquired first. A thread that holds a lock may acquire locks
        with higher numbers only. The lock is held while, 0: a framework is installed; 1: a detector
        is opened or closed; 2: the garbage collector is paused, or frameworks are told that births
        are recorded; 4: a member gets or loses a composite; 5: the C library is told to keep pages;
        8: a workspace plans.
    """
    _FORKS.locks.append((order, lock))
    _FORKS.locks.sort(key=itemgetter(0))


def at_forks(
    *,
    before: Callable[[], object] | None = None,
    in_parent: Callable[[], object] | None = None,
    in_child: Callable[[], object] | None = None,
) -> None:
    """Call functions at every fork of the process.

    The functions `before` are called in reverse order of registration, the others in order. The
    locks of `hold_across_forks` are acquired after all `before`, and released before all
    `in_parent` and `in_child`. A function that is registered twice is called once.
    """
    for function, functions in (
        (before, _FORKS.before),
        (in_parent, _FORKS.in_parent),
        (in_child, _FORKS.in_child),
    ):
        if function is not None and function not in functions:
            functions.append(function)


# Imports: a framework is installed when the program has imported its library. This package imports
# no library of tensors by itself.


_IMPORTS: Final = Patch(
    library="python",
    name="sys.meta_path",
    why="a framework is installed as soon as the program has imported its library in a scope",
    tested=TESTED_PYTHON,
    guard="the module is loaded from a file by Python's own loader",
    otherwise="the framework is installed when the next scope is entered",
    warns=False,
)
PATCHES.declare(_IMPORTS)

_installing: Final = threading.RLock()
# Number 0, because installing a framework acquires other locks: it may begin to watch and to count.
hold_across_forks(_installing, 0)
_under_way: Final[set[str]] = set()
"""The names of the modules whose frameworks are being installed, on the thread with the lock."""


def await_module(name: str, install: Callable[[], None]) -> None:
    """Call `install` once, when the program has imported a module.

    That is when a scope is entered or a type is looked up after the import; if a scope is open, it
    is at the end of the import.
    """
    AWAITED[name] = (*AWAITED.get(name, ()), install)
    note_modules_seen(0)


_at_end_of_import: Final[dict[str, tuple[Callable[[ModuleType], object], ...]]] = {}
"""By the name of a module, functions to call with the module at the end of its import.

Unlike those of `await_module`, they are called whether a scope is open or not.
"""


def when_imported(name: str, function: Callable[[Any], object]) -> None:
    """Call a function with a module, now if it is imported, else at the end of its import."""
    module = sys.modules.get(name)
    if module is None or _is_half_made(module):
        _at_end_of_import[name] = (*_at_end_of_import.get(name, ()), function)
        _watch_imports()
    else:
        function(module)


def _is_half_made(module: ModuleType) -> bool:
    """Return whether a module in ``sys.modules`` is still being imported."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


_ROOT: Final = __name__.rpartition(".scopes.")[0]
"""The name of this package."""


@cache
def load_frameworks() -> None:
    """Import `tensors` and `sequences` once, by name: `scopes` and `leaks` do not import them."""
    for floor in ("tensors", "sequences"):
        import_module(f"{_ROOT}.{floor}")


def install_imported() -> None:
    """Install the frameworks whose modules the program has imported since the last look.

    A framework is installed once. A look on another thread waits until it is installed.
    """
    if not AWAITED:
        return
    seen = len(sys.modules)
    looked: set[str] = set()
    # In a loop, because a framework that is installed may await further modules.
    while names := AWAITED.keys() - looked:
        looked |= names
        for name in names:
            module = sys.modules.get(name)
            if module is None:
                continue
            if _is_half_made(module):
                # Its framework is installed at a later look, which 0 brings about.
                seen = 0
            else:
                _install(name)
    # Not earlier, so that other threads look too, and wait for the installation.
    note_modules_seen(seen)
    _watch_imports()


def _install(name: str) -> None:
    with _installing:
        if name in _under_way:
            # A framework that is being installed has called install_imported() itself.
            return
        _under_way.add(name)
        try:
            while functions := AWAITED.get(name, ()):
                try:
                    functions[0]()
                except Exception:
                    # A function that failed is not called again. The next look calls the others.
                    AWAITED[name] = AWAITED[name][1:]
                    raise
                # Removed after the call, so that it is called again after an interrupt.
                AWAITED[name] = AWAITED[name][1:]
            AWAITED.pop(name, None)
        finally:
            _under_way.discard(name)


def _watch_imports() -> None:
    """Install the import hook if a module is awaited, and remove it if none is."""
    if AWAITED or _at_end_of_import:
        PATCHES.change(_IMPORTS, _FINDER.install, _FINDER.remove)
    else:
        PATCHES.restore(_IMPORTS)


@final
class _Finder:
    """The import hook: a finder that finds nothing itself, but sees the imports of awaited modules.

    Attributes
    ----------
    installs : callable
        Returns whether frameworks are to be installed at the end of an import: see
        `install_at_import_while`.
    """

    def __init__(self) -> None:
        self.installs: Callable[[], bool] = bool

    def install(self) -> None:
        """Put this finder before the others."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Take this finder out."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return another finder's spec for an awaited module; None for any other module.

        The loader of the spec calls the functions that wait for the module at the end of the
        import.
        """
        is_installed = name in AWAITED and self.installs()
        if not is_installed and name not in _at_end_of_import:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if type(spec.loader) in (SourceFileLoader, SourcelessFileLoader):
                    _call_when_executed(name, cast("SourceFileLoader", spec.loader), is_installed)
                return spec
        return None


def _call_when_executed(name: str, loader: SourceFileLoader, is_installed: bool) -> None:
    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        loader.exec_module(module)
        for function in _at_end_of_import.pop(name, ()):
            function(module)
        if is_installed:
            _install(name)

    loader.exec_module = exec_module  # type: ignore[method-assign]  # of this one loader


_FINDER: Final = _Finder()


def install_at_import_while(condition: Callable[[], bool]) -> None:
    """While a condition holds, install frameworks at the end of an import, not at the next look.

    The condition is called at each import of an awaited module.
    """
    _FINDER.installs = condition


# Numbers of bytes as text.


_WRITTEN: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_budget(budget: object, option: str = "budget") -> int:
    """Return the bytes of a budget.

    Parameters
    ----------
    budget : int or str
        Bytes, or a number with a unit: ``"512MiB"`` (1024 to a KiB), ``"1.5 GB"`` (1000 to a kB),
        ``"64k"``.
    option : str, default "budget"
        The name of the option, for messages.

    Raises
    ------
    TypeError, ValueError
        The budget is none of these, or not positive.

    Examples
    --------
    >>> parse_budget("512MiB"), parse_budget("1.5 kB"), parse_budget(10)
    (536870912, 1500, 10)
    """
    nbytes = None if isinstance(budget, (bool, str)) else _integer(budget)
    if nbytes is None and not isinstance(budget, str):
        raise TypeError(f'{option} must be a number of bytes or a string such as "512MiB", not {budget!r}')
    if isinstance(budget, str):
        found = _WRITTEN.fullmatch(budget)
        if found is None:
            raise ValueError(f'{option} {budget!r} is not a number with a unit, such as "512MiB" or "2 GB"')
        number, power, binary = found.groups()
        base = 1024 if binary else 1000
        whole, _, fraction = number.partition(".")
        scale = int(base ** _POWERS[power.lower()])
        nbytes = int(whole) * scale + int(fraction or 0) * scale // 10 ** len(fraction)
    if nbytes is None or nbytes <= 0:
        raise ValueError(f"{option} must be positive, not {budget!r}")
    # Compiled code keeps a budget in a size_t, whose largest value stands for no budget.
    return min(nbytes, (1 << 62))


def _integer(number: object) -> int | None:
    try:
        return index(cast("SupportsIndex", number))
    except TypeError:
        return None


def bytes_text(nbytes: int) -> str:
    """Return a number of bytes with a unit, in powers of 1000."""
    if nbytes < 1000:
        return "1 byte" if nbytes == 1 else f"{nbytes} bytes"
    size = float(nbytes)
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 999.95:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


# Keeping the pages of freed memory: an option of the GNU C library's allocator.
#
# Large blocks (above 32 MiB at the latest) are mapped from the system one by one and unmapped when
# they are freed. So each operation on large CPU tensors touches fresh pages, and the kernel clears
# every page of every result. Without mappings (``M_MMAP_MAX`` 0) and without trimming
# (``M_TRIM_THRESHOLD`` -1), the allocator takes such blocks from its heap and reuses them.
#
# The settings belong to the process, not to a thread or a scope. They are made when the first scope
# with the option is entered. When the last one is closed, mappings are allowed again and
# ``malloc_trim`` returns free memory. The first call of ``mallopt`` ends the allocator's own
# adjustment of its mapping threshold (see its manual page). Therefore the threshold is set to where
# that adjustment would end: 32 MiB.


# Parameters of mallopt(3), from <malloc.h>.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_MMAP_MAX: Final = -4
_MMAP_MAX: Final = 65536
"""How many blocks may be mapped at once: glibc's DEFAULT_MMAP_MAX."""
_MMAP_THRESHOLD_NBYTES: Final = 32 * 1024 * 1024
"""Blocks from this size on are mapped: glibc's DEFAULT_MMAP_THRESHOLD_MAX."""


def _find_glibc() -> Any:
    """Return the C library of this process if it is the GNU one and can keep pages; else None."""
    if os.name != "posix":
        return None
    library = ctypes.CDLL(None)
    if not all(hasattr(library, name) for name in ("gnu_get_libc_version", "mallopt", "malloc_trim")):
        return None
    library.malloc_trim.argtypes = [ctypes.c_size_t]
    return library


_GLIBC: Final = _find_glibc()
_pages_lock: Final = threading.RLock()
hold_across_forks(_pages_lock, 5)
_askers: Final[set[int]] = set()
"""The ids of the objects that asked to keep pages and have not returned them."""


def can_keep_pages() -> bool:
    """Return whether the C library of this process can keep pages."""
    return _GLIBC is not None


def keep_pages(asker: object) -> None:
    """Keep freed pages in the process until every asker has called `return_pages`."""
    if _GLIBC is None:
        warn(
            "keep_pages has no effect here: it is a setting of the GNU C library, and this process has another",
            RuntimeWarning,
            stacklevel=3,
        )
        return
    with _pages_lock:
        _askers.add(id(asker))
        if len(_askers) > 1:
            return
        _GLIBC.mallopt(_M_MMAP_MAX, 0)
        _GLIBC.mallopt(_M_TRIM_THRESHOLD, -1)


def return_pages(asker: object) -> None:
    """Undo `keep_pages` for one asker; the last one returns free memory to the system."""
    if _GLIBC is None:
        return
    with _pages_lock:
        if id(asker) not in _askers:
            return
        is_last = len(_askers) == 1
        if is_last:
            _GLIBC.mallopt(_M_MMAP_MAX, _MMAP_MAX)
            _GLIBC.mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_NBYTES)
            _GLIBC.mallopt(_M_TRIM_THRESHOLD, 2 * _MMAP_THRESHOLD_NBYTES)
        _askers.discard(id(asker))
    if is_last:
        trim()


def trim() -> bool:
    """Give free pages of the C heap back to the system, if possible. Return whether it did."""
    return _GLIBC is not None and bool(_GLIBC.malloc_trim(0))
