"""What a scope is opened with: the ``graph`` option, the ``budget`` in bytes, and ``keep_pages``."""

from __future__ import annotations

import ctypes
import os
import re
import threading
import warnings
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, get_args

from .forks import at_forks

if TYPE_CHECKING:
    from .identity import Entry

__all__ = [
    "Cut",
    "GraphOption",
    "Graphs",
    "available",
    "check_graph_option",
    "keep_pages",
    "let_graphs_out",
    "parse_budget",
    "return_pages",
    "trim",
]

# A budget as people write it: bytes, or a number with a unit.


_WRITTEN: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_budget(budget: object) -> int:
    """The bytes of a budget.

    Parameters
    ----------
    budget : int or str
        Bytes, or a number with a unit: ``"512MiB"`` (1024 to a KiB), ``"1.5 GB"`` (1000 to a kB),
        ``"64k"``.

    Raises
    ------
    TypeError, ValueError
        It is none of these, or not positive.

    Examples
    --------
    >>> parse_budget("512MiB"), parse_budget("1.5 kB"), parse_budget(10)
    (536870912, 1500, 10)
    """
    if isinstance(budget, bool) or not isinstance(budget, (int, str)):
        raise TypeError(f'budget must be a number of bytes or a string such as "512MiB", not {budget!r}')
    nbytes: int
    if isinstance(budget, str):
        found = _WRITTEN.fullmatch(budget)
        if found is None:
            raise ValueError(f'budget {budget!r} is not a number with a unit, such as "512MiB" or "2 GB"')
        number, power, binary = found.groups()
        base = 1024 if binary else 1000
        whole, _, fraction = number.partition(".")
        scale = int(base ** _POWERS[power.lower()])
        nbytes = int(whole) * scale + int(fraction or 0) * scale // 10 ** len(fraction)
    else:
        nbytes = budget
    if nbytes <= 0:
        raise ValueError(f"budget must be positive, not {budget!r}")
    return min(nbytes, (1 << 62))


# What happens to the history of what leaves a scope: the ``graph`` option.
#
# A tensor that is moved out may carry an autograd graph, and with it the memory of everything that
# the graph saved. This floor knows no graph: a kind whose instances can carry one says so with a
# `Graphs` of its own.


GraphOption = Literal["keep", "detach", "error"]

_OPTIONS: Final[tuple[str, ...]] = get_args(GraphOption)


class Cut(Protocol):
    """A graph that is about to be cut off: until all are, each can be put back."""

    def finish(self) -> None:
        """Let the graph go. Does not fail."""

    def undo(self) -> None:
        """Put the graph back. Does not fail."""


class Graphs(Protocol):
    """What a kind tells of the graphs behind its instances. Called for live instances only."""

    def carried_by(self, resource: Any, /) -> bool:
        """Whether there is a graph behind an instance. On the path of every move: cheap."""
        ...

    def refusal(self, entry: Entry, leaving: str, /) -> Exception:
        """The error that says what an instance with a graph would pin; `leaving` names the scope and what was asked."""
        ...

    def cut(self, resource: Any, /) -> Cut:
        """Take the graph from an instance, which keeps identity, values and storage; or raise, having done nothing."""
        ...


def check_graph_option(option: object) -> None:
    """Raise `ValueError` where an option is none of the three."""
    if option not in _OPTIONS:
        raise ValueError(f'dispose_scope: graph must be "keep", "detach" or "error", not {option!r}')


def let_graphs_out(entries: list[Entry], option: str, leaving: str) -> int:
    """Do to the graphs of what leaves a scope as the scope's option says.

    Parameters
    ----------
    entries : list of Entry
        What leaves. The members of a composite are looked at one by one.
    option : str
        A `GraphOption`.
    leaving : str
        The scope and what was asked of it, for the message.

    Returns
    -------
    int
        How many of the entries leave with a graph.

    Raises
    ------
    GraphRetainedError
        The option is ``"error"`` and there is a graph, or it is ``"detach"`` and one cannot be
        taken away. Nothing has changed then.
    """
    kept = 0
    cuts: list[Cut] = []
    try:
        for entry in entries:
            carrying = False
            for part in _with_members(entry) if entry.members else (entry,):
                graphs = part.kind.graphs
                resource = None if graphs is None else part()
                if graphs is None or resource is None or not graphs.carried_by(resource):
                    continue
                if option == "error":
                    raise graphs.refusal(part, leaving)
                if option == "detach":
                    cuts.append(graphs.cut(resource))
                carrying = True
            kept += carrying and option == "keep"
    except BaseException:
        for cut in reversed(cuts):
            cut.undo()
        raise
    for cut in cuts:
        cut.finish()
    return kept


def _with_members(entry: Entry) -> list[Entry]:
    found = [entry]
    for part in found:
        found.extend(part.members)
    return found


# Pages that are kept instead of being faulted in again: an option of the GNU C library's allocator.
#
# Large blocks (above 32 MiB at the latest) are mapped from the system one by one and unmapped when
# they are freed, so that each operation on large CPU tensors touches fresh pages: the kernel clears
# every page of every result. Told to use no mappings (``M_MMAP_MAX`` 0) and to give nothing back
# (``M_TRIM_THRESHOLD`` -1), the allocator serves them from its heap and reuses them.
#
# The settings belong to the process, not to a thread or a scope. They are made when the first scope
# that asks is entered; when the last one is closed, mappings are allowed again and ``malloc_trim``
# returns what is free. The allocator's own adjustment of its mapping threshold ends with the first
# call of ``mallopt`` (see its manual page); the threshold is therefore left where that adjustment
# would end, at 32 MiB.


# The parameters of mallopt(3), from <malloc.h>; the last two are glibc's DEFAULT_MMAP_MAX and
# DEFAULT_MMAP_THRESHOLD_MAX.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_MMAP_MAX: Final = -4
_MMAP_MAX: Final = 65536
_MMAP_THRESHOLD_NBYTES: Final = 32 * 1024 * 1024


def _find_glibc() -> Any:
    """The C library of this process, where it is GNU's and has what is needed; else None."""
    if os.name != "posix":
        return None
    library = ctypes.CDLL(None)
    if not all(hasattr(library, name) for name in ("gnu_get_libc_version", "mallopt", "malloc_trim")):
        return None
    library.malloc_trim.argtypes = [ctypes.c_size_t]
    return library


_GLIBC: Final = _find_glibc()
_lock = threading.Lock()
_askers: Final[set[int]] = set()
"""Who keeps pages, by ``id``."""


def available() -> bool:
    """Whether the C library of this process is one whose pages can be kept."""
    return _GLIBC is not None


def keep_pages(asker: object) -> None:
    """Keep freed pages in the process, until `return_pages` has been called by everybody who asked."""
    if _GLIBC is None:
        warnings.warn(
            "keep_pages has no effect here: it is a setting of the GNU C library, and this process has another",
            RuntimeWarning,
            stacklevel=3,
        )
        return
    with _lock:
        _askers.add(id(asker))
        if len(_askers) > 1:
            return
        _GLIBC.mallopt(_M_MMAP_MAX, 0)
        _GLIBC.mallopt(_M_TRIM_THRESHOLD, -1)


def return_pages(asker: object) -> None:
    """Undo `keep_pages`, for who has asked; the last one returns what is free to the system."""
    if _GLIBC is None:
        return
    with _lock:
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
    """Return the free pages of the C heap to the system, where the C library can.

    Tells whether any were returned.
    """
    return _GLIBC is not None and bool(_GLIBC.malloc_trim(0))


def _new_lock() -> None:
    global _lock
    _lock = threading.Lock()


at_forks(in_child=_new_lock)
