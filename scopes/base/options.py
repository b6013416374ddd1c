"""The options `graph` and `escapes` of scopes: their values and checks."""

from __future__ import annotations

from typing import Final, Literal, get_args

__all__ = [
    "EscapesOption",
    "GraphOption",
    "check_escapes_option",
    "check_graph_option",
]

GraphOption = Literal["keep", "detach", "error", "none", "refuse"]
"""What happens to the graph of a tensor that leaves a scope.

``"none"`` and ``"refuse"`` limit what the block may record: a framework switches recording when the
scope is entered and left.
"""

EscapesOption = Literal["dispose", "keep", "raise"]
"""What happens at the end of a scope to what is still in use."""

_GRAPH: Final[tuple[str, ...]] = get_args(GraphOption)
_ESCAPES: Final[tuple[str, ...]] = get_args(EscapesOption)


def check_graph_option(option: object) -> None:
    """Raise `ValueError` if an option is none of the five."""
    if option not in _GRAPH:
        raise ValueError(f'dispose_scope: graph must be "keep", "detach", "error", "none" or "refuse", not {option!r}')


def check_escapes_option(option: object, verb: str = "dispose_scope") -> None:
    """Raise `ValueError` if an option of what is called is none of the three."""
    if option not in _ESCAPES:
        raise ValueError(f'{verb}: escapes must be "dispose", "keep" or "raise", not {option!r}')
