"""``Optimizer.zero_grad`` without the modes of this library, while a leak detector is open.

It makes nothing, and it reads and sets an attribute of each parameter, of which every mode is told: in a training step
of many small calls that is half of all that the modes are told.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from sys import _getframe
from typing import Any, Final, final

import torch
from torch.optim import Optimizer

from ._torch_modes import LOCAL, pause_births, resume_births

__all__ = ["ZEROING", "Zeroing"]

_class: Final[Any] = Optimizer


@final
class Zeroing:
    """The one instance is `ZEROING`."""

    __slots__ = ("_ours", "_theirs")

    def __init__(self) -> None:
        self._theirs: Callable[..., Any] | None = None
        self._ours: Callable[..., Any] | None = None

    def begin(self) -> None:
        """Take the modes off in every call from now on."""
        if self._theirs is None:
            theirs: Callable[..., Any] = _class.zero_grad
            self._theirs = theirs
            _class.zero_grad = self._ours = _quiet(theirs)

    def end(self) -> None:
        """Let the calls be as they were, unless somebody else has replaced the method since: then it stays beneath."""
        if _class.zero_grad is self._ours:
            _class.zero_grad = self._theirs
            self._theirs = self._ours = None


def _quiet(zero_grad: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(zero_grad)
    def quiet(self: Any, *args: Any, **kwargs: Any) -> Any:
        here = LOCAL.here
        if torch.compiler.is_compiling() or here.stepping or not here.watched:
            return zero_grad(self, *args, **kwargs)
        reason = id(_getframe())
        pause_births(reason)
        try:
            return zero_grad(self, *args, **kwargs)
        finally:
            resume_births(here, reason)

    return quiet


ZEROING: Final = Zeroing()
