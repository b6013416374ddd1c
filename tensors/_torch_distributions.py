"""What a distribution computes once and keeps belongs to the distribution: it may be older than the scope.

``Categorical(probs=...)`` computes its ``logits`` when they are first asked for, perhaps in the first step of a loop,
and has them from then on.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.distributions.utils import lazy_property

from ..scopes._current import CURRENT
from ._torch_allocations import SEEN
from ._torch_extension import TORCH_HOT
from ._torch_traces import without_births

__all__ = ["keep_what_distributions_compute"]


def keep_what_distributions_compute() -> None:
    """Let no scope own the lazy properties of distributions, from now on."""
    properties: Any = lazy_property
    get = properties.__get__
    quietly = without_births(get)

    @functools.wraps(get)
    def __get__(self: Any, instance: Any, obj_type: Any = None) -> Any:
        if instance is None or torch.compiler.is_compiling() or CURRENT.get() is None:
            return get(self, instance, obj_type)
        if SEEN:
            # A detector goes on seeing the memory.
            return TORCH_HOT.unborn(functools.partial(get, self, instance), obj_type)
        return quietly(self, instance, obj_type)

    properties.__get__ = __get__
