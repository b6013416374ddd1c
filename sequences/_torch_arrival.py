"""Says what to do once the program has PyTorch. Imports nothing of it."""

from __future__ import annotations

from ..scopes._arrivals import await_module

__all__ = ["install"]


def install() -> None:
    """Teach the scopes PyTorch's packed sequences. Called once, after the program has imported ``torch``."""
    from ._torch_packed import teach

    teach()


await_module("torch", install)
