"""Whether inputs are PyTorch's tensors, asked without importing PyTorch, and when to install what follows."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast, final

import numpy as np

from ..scopes.errors import DeviceMismatchError
from ..scopes.framework import Framework, register
from ..scopes.kinds import Kind, device_name
from ..scopes.tree_walk import resources_in
from ..tensors.tensor.tensor import Tensor

if TYPE_CHECKING:
    import torch
    from torch.nn.utils.rnn import PackedSequence as TorchPackedSequence
    from typing_extensions import TypeIs

__all__ = [
    "LISTS",
    "PLAIN",
    "PLAIN_PACKED",
    "TorchFunctions",
    "TorchSequences",
    "check_batch",
    "check_one_device",
    "has_torch",
    "is_torch",
    "is_torch_packed",
    "listed",
    "torch_functions",
]

# PyTorch's packed sequences as a framework of scopes. Imports nothing of PyTorch.


@final
class TorchSequences(Framework):
    """PyTorch's packed sequences."""

    module = "torch"

    @property
    def kinds(self) -> Sequence[Kind]:
        """The kind of ``torch.nn.utils.rnn.PackedSequence``."""
        from .torch_packed import TORCH_PACKED_SEQUENCE

        return [TORCH_PACKED_SEQUENCE]

    def install(self) -> None:
        """See packed sequences made from now on, on every thread."""
        from .torch_packed import see_births

        see_births()


register(TorchSequences())

# Whose inputs are these: the one place that tells PyTorch's tensors from others. Imports nothing of
# PyTorch.


LISTS: Final = frozenset({list, tuple})

PLAIN: Final[set[type]] = set()
"""PyTorch's own classes of tensors, once one has been met here: what consists of them alone needs few questions."""

PLAIN_PACKED: Final[set[type]] = set()
"""PyTorch's own class of packed sequences, likewise."""


class TorchFunctions(NamedTuple):
    """The sequence functions for PyTorch's tensors."""

    pack_sequence: Callable[[Any, Any], TorchPackedSequence]
    pack_padded_sequence: Callable[[Any, Any, Any, Any], TorchPackedSequence]
    pad_sequence: Callable[[Any, Any, Any, Any], torch.Tensor]
    pad_plain_sequences: Callable[[Any, Any, Any, Any], torch.Tensor]
    pad_packed_sequence: Callable[[Any, Any, Any, Any], tuple[torch.Tensor, torch.Tensor]]
    unpack_sequence: Callable[[Any], list[torch.Tensor]]
    unpad_sequence: Callable[[Any, Any, Any], list[torch.Tensor]]


@functools.cache
def torch_functions() -> TorchFunctions:
    """The functions. Only where the program has a tensor of PyTorch's already."""
    from .torch_pad import FUNCTIONS

    return FUNCTIONS


def has_torch() -> bool:
    """Whether the program has imported PyTorch, and all of it."""
    module = sys.modules.get("torch")
    return module is not None and hasattr(module, "Tensor") and "torch.nn.utils.rnn" in sys.modules


def is_torch(thing: object) -> TypeIs[torch.Tensor]:
    """Whether an object is a tensor of PyTorch's, disposed or not."""
    # Its class is asked by type(), because a disposed one answers nothing.
    return type(thing) in PLAIN or (has_torch() and issubclass(type(thing), sys.modules["torch"].Tensor))


def is_torch_packed(thing: object) -> TypeIs[TorchPackedSequence]:
    """Whether an object is a packed sequence of PyTorch's."""
    return type(thing) in PLAIN_PACKED or (
        has_torch() and isinstance(thing, sys.modules["torch.nn.utils.rnn"].PackedSequence)
    )


def listed(sequences: Any, what: str) -> tuple[Any, list[Any] | None]:
    """A list of sequences for the functions that take one, and the same where its tensors are PyTorch's.

    Parameters
    ----------
    sequences : object
        What the user gave.
    what : str
        The function, for the message.

    Returns
    -------
    sequences : object
        What was given; an iterator, which can be gone through only once, as a list.
    tensors : list of torch.Tensor or None
        None where there is no tensor of PyTorch's among them. A single tensor gives its rows.

    Raises
    ------
    TypeError
        Only some of them are.
    """
    if type(sequences) in LISTS and sequences and PLAIN.issuperset(map(type, sequences)):
        return sequences, sequences
    if not has_torch():
        return sequences, None
    if is_torch(sequences):
        return sequences, list(sequences)
    known = sequences
    if not isinstance(known, Iterable) or isinstance(known, (np.ndarray, Tensor)):
        return sequences, None
    items: Any = sequences
    given: Sequence[Any] = items if isinstance(sequences, (list, tuple)) else list(items)
    theirs = sys.modules["torch"].Tensor
    own = [issubclass(type(sequence), theirs) for sequence in given]
    if not any(own):
        return given, None
    if not all(own):
        torch_at, other_at = own.index(True), own.index(False)
        cls = cast("type[object]", type(given[other_at]))
        raise TypeError(
            f"{what}: sequence {torch_at} is a torch.Tensor and sequence {other_at} a "
            f"{cls.__module__}.{cls.__qualname__}; give sequences of one kind: torch.from_numpy(array) makes a tensor "
            "of an array, tensor.numpy() an array of a tensor"
        )
    return given, list(given)


def check_batch(batch: object, what: str) -> None:
    """Raise `ValueError` where a batch has a packed sequence of PyTorch's whose fields cannot belong together."""
    if not has_torch():
        return
    for resource in resources_in(batch):
        if is_torch_packed(resource):
            from .torch_packed import check_whole

            check_whole(resource, what)


def check_one_device(tensors: Iterable[tuple[str, Any]], what: str) -> None:
    """Raise `DeviceMismatchError` where two tensors live on different devices, also where PyTorch copies in silence."""
    first: tuple[str, Any, str] | None = None
    for name, tensor in tensors:
        device = tensor.device
        if first is None:
            first = name, device, device_name(device)
        elif device != first[1] and device_name(device) != first[2]:
            raise DeviceMismatchError(
                f"{what}: {first[0]} is on {first[2]} and {name} on {device_name(device)}; "
                "move them to one device first, with .to(device)",
                members=(first[0], name),
                devices=(first[2], device_name(device)),
            )
