"""``torch.utils.swap_tensors`` swaps tensors of scopes as it swaps any.

It refuses a tensor that is weakly referenced, since the referent would not be what it was. ``Module.to`` and
``load_state_dict`` end in it where ``torch.__future__.set_swap_module_params_on_conversion`` asks so. The entries of
this library are weak references to the handle, which stays what it is when its content is swapped.
"""

from __future__ import annotations

import types
import weakref
from typing import Any, Final

import torch

from ..scopes._entries import Entry

__all__ = ["allow_swaps"]

_utils: Final[Any] = torch.utils


def _references_of_others(thing: object) -> list[Any]:
    return [reference for reference in weakref.getweakrefs(thing) if not isinstance(reference, Entry)]


def allow_swaps() -> None:
    """Let ``torch.utils.swap_tensors`` pass over this library's weak references from now on."""
    _utils.weakref = types.SimpleNamespace(**{**vars(weakref), "getweakrefs": _references_of_others})
