"""Known holders: find the row of ``known.toml`` that a chain of holders matches.

Some rows are known leaks of libraries. Others are holders of the program's own with a known remedy,
such as a hook or a default argument.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import takewhile
from typing import Any, Final, cast, final

from ..report.leaks import KnownLeak
from .paths import steps
from .references import bases_of, class_of, named_in, qualified_name_of

__all__ = ["is_cycle_of_library", "known_on", "remedy_on", "rows"]

_ENDS: Final = 40
"""How many objects of a long chain, such as a graph's, are looked at from each end."""

_BOUND: Final = re.compile(r"(<=|>=|<|>)(\d+(?:\.\d+)*)")
"""A bound of a range of versions, such as ``>=3.0``."""


@final
@dataclass(frozen=True, slots=True)
class _Pattern:
    """The chains that a row is about: its fields ``chain`` and ``through``, see ``known.toml``."""

    chain: re.Pattern[str] | None
    through: re.Pattern[str] | None

    def matches(self, found: _Chain) -> bool:
        """Return whether the row is about a chain."""
        if self.chain is not None and self.chain.search(found.text) is not None:
            return True
        through = self.through
        return through is not None and any(through.fullmatch(step) for step in found.steps_of_classes())


@final
class _Chain:
    """A chain of holders, and each step of it with the classes of the object that it leaves."""

    __slots__ = ("_objects", "_steps", "text")

    def __init__(self, objects: Sequence[object], text: str) -> None:
        self._objects = objects
        self.text = text
        self._steps: list[str] | None = None

    def steps_of_classes(self) -> list[str]:
        if self._steps is None:
            chain = self._objects
            ends = list(chain) if len(chain) <= 2 * _ENDS else [*chain[:_ENDS], *chain[-_ENDS:]]
            self._steps = list(_steps_of_classes(ends))
        return self._steps


@final
@dataclass(frozen=True, slots=True)
class KnownLeakRow:
    """A known leak of a library, as ``known.toml`` describes it.

    Attributes
    ----------
    library : str
        The name of the module to import.
    versions : tuple of (str, tuple of int)
        The bounds of the versions that have the leak, each a sign and a version.
    condition : str or None
        What must be there and not None for the row to count: the field ``while``.
    pattern : _Pattern
        The chains that lead through the leak.
    what, remedy, link : str
        The texts of a report.
    """

    library: str
    versions: tuple[tuple[str, tuple[int, ...]], ...]
    condition: str | None
    pattern: _Pattern
    what: str
    remedy: str
    link: str

    def is_met(self) -> bool:
        """Return whether the program has imported the library, in a version that has the leak."""
        if sys.modules.get(self.library) is None:
            return False
        found = _numbers_of(self.version() or "")
        if found and not all(_is_within(found, sign, bound) for sign, bound in self.versions):
            return False
        return self.condition is None or _is_there(self.condition)

    def version(self) -> str | None:
        """Return the version of the library; None where it has none."""
        version: object = vars(sys.modules[self.library]).get("__version__")
        return version if isinstance(version, str) else None


def known_on(chain: Sequence[object], text: str) -> KnownLeak | None:
    """Return the known leak that a chain of holders leads through, or None.

    Parameters
    ----------
    chain : sequence of object
        Objects, each of which refers to the next.
    text : str
        The chain as a report shows it.
    """
    found = _Chain(chain, text)
    for row in rows():
        if row.is_met() and row.pattern.matches(found):
            return KnownLeak(row.library, row.version(), row.what, row.remedy, row.link)
    return None


def remedy_on(chain: Sequence[object], text: str) -> str:
    """Return what ends a holder that a chain leads through; ``""`` where that is not known.

    Parameters
    ----------
    chain, text : sequence of object, str
        As `known_on` takes them.
    """
    found = _Chain(chain, text)
    return next((remedy for pattern, remedy in _remedies() if pattern.matches(found)), "")


def is_cycle_of_library(loop: Sequence[object], text: str) -> bool:
    """Return whether a library makes such a cycle in each call, for the garbage collector to free.

    Parameters
    ----------
    loop, text : sequence of object, str
        As `known_on` takes them.
    """
    found = _Chain(loop, text)
    return any(pattern.matches(found) for pattern in _cycles())


@cache
def _cycles() -> tuple[_Pattern, ...]:
    return tuple(_pattern(fields) for fields in _file()["cycle"])


def _steps_of_classes(chain: list[object]) -> Iterator[str]:
    """Yield each step that code shows, with each class of the object that it leaves.

    The classes of the last object follow.
    """
    owner: object = None
    for thing, step in zip(chain, steps(chain), strict=False):
        if not step:
            # The step into the attributes of an object.
            owner = thing
            continue
        if class_of(thing) is not dict or owner is None:
            owner = thing
        for name in _classes_of(owner):
            yield name + step
        owner = None
    for last in chain[-1:]:
        yield from _classes_of(last)


def _classes_of(thing: object) -> Iterator[str]:
    for base in bases_of(class_of(thing)):
        module = named_in(base, "__module__")
        # A type of the interpreter may have none.
        yield f"{module if isinstance(module, str) else 'builtins'}.{qualified_name_of(base)}"


@cache
def rows() -> tuple[KnownLeakRow, ...]:
    """Return the known leaks of ``known.toml``."""
    return tuple(_row(fields) for fields in _file()["known"])


@cache
def _remedies() -> tuple[tuple[_Pattern, str], ...]:
    return tuple((_pattern(fields), fields["remedy"]) for fields in _file()["holder"])


@cache
def _file() -> dict[str, list[dict[str, str]]]:
    text = (files(__name__.rpartition(".")[0]) / "known.toml").read_text(encoding="utf-8")
    return cast("dict[str, list[dict[str, str]]]", tomllib.loads(text))


def _row(fields: dict[str, str]) -> KnownLeakRow:
    return KnownLeakRow(
        library=fields["library"],
        condition=fields.get("while"),
        versions=tuple((sign, _numbers_of(bound)) for sign, bound in _BOUND.findall(fields.get("versions", ""))),
        pattern=_pattern(fields),
        what=fields["what"],
        remedy=fields["remedy"],
        link=fields["link"],
    )


def _pattern(fields: dict[str, str]) -> _Pattern:
    chain, through = (fields.get(name) for name in ("chain", "through"))
    return _Pattern(
        chain=None if chain is None else re.compile(chain), through=None if through is None else re.compile(through)
    )


def _is_there(place: str) -> bool:
    """Return whether an imported module has something other than None at a place.

    A place reads ``"package.module:Class.name"``.
    """
    name, _, path = place.partition(":")
    thing: object = sys.modules.get(name)
    for part in path.split("."):
        # Read from the dict, so that no code of the library runs.
        thing = getattr(thing, "__dict__", {}).get(part)
    return thing is not None


def _numbers_of(version: str) -> tuple[int, ...]:
    """Return the numbers of a version: (2, 13, 0) for ``"2.13.0+cpu"``."""
    return tuple(int(word) for word in takewhile(str.isdigit, re.split(r"[.+]", version)))


def _is_within(found: tuple[int, ...], sign: str, bound: tuple[int, ...]) -> bool:
    """Return whether a version is within a bound."""
    compared: Any = {
        "<": found.__lt__,
        "<=": found.__le__,
        ">": found.__gt__,
        ">=": found.__ge__,
    }
    return bool(compared[sign](bound))
