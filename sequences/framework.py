"""PyTorch's packed sequences as a framework of scopes. Imports nothing of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from ..scopes.framework import Framework, register
from ..scopes.kinds import Kind

__all__ = [
    "TorchSequences",
]


@final
class TorchSequences(Framework):
    """PyTorch's packed sequences.

    The module that imports PyTorch is imported when the program has.
    """

    module = "torch"

    @property
    def kinds(self) -> Sequence[Kind]:
        """The kind of ``torch.nn.utils.rnn.PackedSequence``."""
        from .torch_adapter import TORCH_PACKED_SEQUENCE

        return [TORCH_PACKED_SEQUENCE]

    def install(self) -> None:
        """See packed sequences made from now on, on every thread."""
        from .torch_adapter import see_births

        see_births()


register(TorchSequences())
