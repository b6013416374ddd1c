"""What ``torch.vmap`` and ``torch.func`` return at their outermost level is born; what they make inside is their own.

They unwrap their results in C++, still inside of the transform, so the functions behind them hand the results over.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, Final

import torch

from ._torch_modes import LOCAL, is_looked_at
from ._torch_results import births_in

__all__ = ["watch_transforms"]

_SEAMS: Final = (
    ("torch._functorch.apis", "vmap_impl"),
    ("torch._functorch.eager_transforms", "grad_impl"),
    ("torch._functorch.eager_transforms", "grad_and_value_impl"),
    ("torch._functorch.eager_transforms", "_vjp_with_argnums"),
    ("torch._functorch.eager_transforms", "_jvp_with_argnums"),
)


def watch_transforms() -> None:
    """Record what transforms return from now on."""
    for module_name, name in _SEAMS:
        module = importlib.import_module(module_name)
        setattr(module, name, _handing_over(getattr(module, name)))


def _handing_over(transform: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(transform)
    def transformed(*args: Any, **kwargs: Any) -> Any:
        result = transform(*args, **kwargs)
        # Dynamo traces through here, and takes the first test for a constant.
        if not torch.compiler.is_compiling() and is_looked_at(LOCAL.here):
            refusal = births_in(result, args=args, kwargs=kwargs)
            if refusal is not None:
                del result
                raise refusal
        return result

    return transformed
