"""The interface between a library of tensors and scopes: one `Framework` a library, registered once.

A framework teaches scopes the types of one library: how their instances are released and measured
(`Kind`), how scopes learn of births, and what the rest of this package asks of that library.
Nothing is imported for it: it is installed once the program itself has imported the library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import CodeType
from typing import TYPE_CHECKING, Any, Final
from warnings import warn

from .identity import find_births_with
from .kinds import Kind, add_kind, await_module, set_current_index
from .listeners import HOOKS
from .scope import DisposeScope
from .sites import add_judge, add_library
from .tree_walk import add_walker

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "Framework",
    "register",
]


class Framework:
    """What scopes ask of one library of tensors. Subclass it, and `register` one instance.

    Every method has a default that does nothing, and costs nothing where it is not overridden.

    Attributes
    ----------
    module : str
        The name of the library's top module, such as ``"torch"``. The framework is installed when
        the program has imported it: as the next scope is entered, or at the end of the import where
        a scope is open then.
    packages : sequence of str
        Top packages of the library besides that of `module`. Their lines are no birth sites; their
        callers' are.

    Examples
    --------
    >>> from disposescope.frameworks import Framework, Kind, register
    >>> class Adapter(Framework):
    ...     module = "some_library"
    ...
    ...     @property
    ...     def kinds(self):
    ...         import some_library
    ...
    ...         return [
    ...             Kind(
    ...                 cls=some_library.Array,
    ...                 name="some_library.Array",
    ...                 release=some_library.Array.free,
    ...                 storages=lambda array: [(array.address, array.nbytes)],
    ...                 device=lambda array: f"card:{array.card}",
    ...                 describe=lambda array: f"some_library.Array {array.shape}",
    ...             )
    ...         ]
    >>> register(Adapter())  # nothing is imported: it waits until the program imports it
    """

    module: str = ""
    packages: Sequence[str] = ()

    @property
    def kinds(self) -> Sequence[Kind]:
        """The kinds of its tensors. Read once, when the library has been imported."""
        return ()

    @property
    def current_indices(self) -> Mapping[str, Callable[[], int]]:
        """For a device type that it knows ("cuda"), what tells the index that an unnumbered name stands for."""
        return {}

    def install(self) -> None:
        """Do what is needed for births to be seen.

        Called once, after the kinds have been registered.
        """

    def scope_entered(self, scope: DisposeScope, /) -> object:
        """Take note that a scope was entered, in its thread."""

    def scope_left(self, scope: DisposeScope, /) -> object:
        """Take note that a scope is left or closed, once, before it releases what it owns."""

    def find_births(self, scope: DisposeScope | None, /) -> object:
        """Record births that could not be told when they happened.

        Asked before anything is counted, and before a verb acts on an instance of one of the kinds;
        and only then.

        Parameters
        ----------
        scope : DisposeScope or None
            The scope that is asked about; None for all.
        """

    def children(self, node: Any, /) -> Iterator[tuple[str, object]] | None:
        """Return what an object of the library's holds that is no resource, labelled as code would reach it.

        None for any other object. No code of the program may be run.
        """
        return None

    def array_moved_out(self, array: object, /) -> object:
        """Take note that a plain array was moved out of a scope, whoever has its memory."""

    def role_of_code(self, code: CodeType, module: str, /) -> int | None:
        """Return what code of the library's is to somebody who looks for a line: see `sites`; None for any other."""
        return None


def register(framework: Framework) -> None:
    """Have a framework installed once the program has imported its module.

    Parameters
    ----------
    framework : Framework
        The framework. It lives as long as the process.

    Raises
    ------
    TypeError
        It is no `Framework`.
    ValueError
        It names no module.
    """
    if not isinstance(framework, Framework):  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
        raise TypeError(f"register: expected an instance of Framework, not {framework!r}")
    if not framework.module:
        raise ValueError(f"register: {type(framework).__qualname__} does not say which module it is for")
    await_module(framework.module, partial(_install, framework))


# Frameworks of other packages: the name of an entry point is that of the module that it is for, its
# value a subclass of `Framework`, which is loaded only once the program has imported that module.

_GROUP: Final = "disposescope.frameworks"


def _register_installed() -> None:
    from importlib.metadata import entry_points

    for entry_point in entry_points(group=_GROUP):
        await_module(entry_point.name, partial(_load, entry_point))


def _load(entry_point: EntryPoint) -> None:
    try:
        framework: Any = entry_point.load()()
        if not isinstance(framework, Framework):
            raise TypeError(f"it is no {Framework.__qualname__}")
        _install(framework)
    except Exception as error:
        # Of another package: the program in whose scope it is met can do nothing about it.
        warn(
            f"scopes do not own what {entry_point.name} makes: the entry point of {_GROUP} for it, "
            f"{entry_point.value}, failed with {type(error).__name__}: {error}",
            RuntimeWarning,
            stacklevel=2,
        )


# The interpreter's own module is always there: packages are asked when the first scope is entered,
# not at our import.
await_module("sys", _register_installed)


def _install(framework: Framework) -> None:
    add_library(framework.module.partition(".")[0], *framework.packages, module=type(framework).__module__)
    kinds = framework.kinds
    for device_type, current_index in framework.current_indices.items():
        set_current_index(device_type, current_index)
    for kind in kinds:
        add_kind(kind)
    framework.install()
    if _overrides(framework, "children"):
        add_walker(framework.children)
    if _overrides(framework, "role_of_code"):
        add_judge(framework.role_of_code)
    if _overrides(framework, "find_births"):
        for kind in kinds:
            find_births_with(kind.cls, framework.find_births)
    for method, hooks in (
        ("scope_entered", HOOKS.entered),
        ("scope_left", HOOKS.left),
        ("array_moved_out", HOOKS.array_moved_out),
    ):
        if _overrides(framework, method):
            hooks.append(getattr(framework, method))


def _overrides(framework: Framework, method: str) -> bool:
    """Whether a framework has a method of its own; others are never called."""
    return method in vars(framework) or getattr(type(framework), method) is not getattr(Framework, method)
