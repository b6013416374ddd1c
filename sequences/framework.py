"""PyTorch's packed sequences as a framework of scopes. Imports nothing of PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import final

from ..scopes.framework import Framework, register
from ..scopes.kinds import Kind, kind_of_type
from ..tensors import torch as torch_room  # noqa: F401  # pyright: ignore[reportUnusedImport]  # registered before

__all__: list[str] = []


@final
class TorchSequences(Framework):
    """PyTorch's packed sequences.

    The adapter, which imports PyTorch, is imported after the program has imported PyTorch.
    """

    module = "torch"

    @property
    def kinds(self) -> Sequence[Kind]:
        """The kind of PyTorch's packed sequences; none if scopes do not own PyTorch's tensors."""
        if kind_of_type(sys.modules["torch"].Tensor) is None:
            return []
        from .torch_adapter import TORCH_PACKED_SEQUENCE

        return [TORCH_PACKED_SEQUENCE]

    def install(self) -> None:
        """See packed sequences made from now on, on every thread."""
        if self.kinds:
            from .torch_adapter import see_births

            see_births()


register(TorchSequences())
