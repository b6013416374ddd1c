"""Watching PyTorch's memory for a leak detector: on every thread, inside of scopes and outside.

What is watched is a tensor's storage: a weak reference to ``t.untyped_storage()`` fires when the
memory goes, whoever has it: views, graphs, NumPy and DLPack exports. The compiled part looks at the
storage of each tensor a moment after it was made (see `births`), and one that the log does not know
is new memory. So the log must know what was there before: when a detector is opened, the storages
of all tensors that Python can see.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterator
from functools import partial
from types import CodeType
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
import torch
from torch import Tensor

from ...leaks.births.log import LOG, Row, Seen, Told, is_referenced, see
from ...leaks.detector.recording import CACHES
from ...leaks.detector.watching import RELEASES, add_watcher
from ...scopes.forks import at_forks
from ...scopes.kinds import device_name
from ...scopes.listeners import HOOKS
from ...scopes.sites import KEEPER, PASSING, THROUGH, add_judge
from ..tensor.watching import ALIASES
from .births import (
    HIDDEN_KEEPERS,
    LOCAL,
    MODE,
    MODELS_OWN,
    SEAM,
    BirthMode,
    add_mode,
    backward_running,
    keeps_births,
    look,
    remove_mode,
)
from .disposal import PENDING
from .extension import TORCH_COMPILED
from .instructions import name_of_call
from .references import STEPS, show_edges
from .storages import storage_of

if TYPE_CHECKING:
    from ...leaks.births.log import Escape, Rows
    from ...scopes.identity import Entry
    from ...scopes.kinds import Kind
    from ...scopes.scope import DisposeScope

__all__ = [
    "storage_undisturbed",
    "watch_memory",
]

_C: Final[Any] = torch._C
_Undisturbed: Final[Any] = _C.DisableTorchFunction
_owners_of: Final[Callable[[int], int]] = _C._storage_Use_Count
_NAME: Final = "torch.Tensor"
_BELOW: Final = 3
# Code whose tensors are PyTorch's or the model's own.
_KEEPERS: Final = ("torch.nn.parameter", "torch.jit._trace", *HIDDEN_KEEPERS)
# What a call for a tensor without memory runs, written in Python.
_KERNELS: Final = ("torch._decomp", "torch._meta_registrations", "torch._prims", "torch._refs")


def storage_undisturbed(tensor: Any) -> Any:
    """The storage of a tensor, or None, without that anybody sees it asked."""
    with _Undisturbed():
        return storage_of(tensor)


def _device_of(storage: Any) -> str | None:
    """The name of the device of a storage; None where it has no memory."""
    device = storage.device
    return None if device.type == "meta" else device_name(device)


def _look_at_other(tensor: Any) -> None:
    """Have a leak detector look at the memory of a tensor of a subclass, unless it is the model's or for show."""
    if isinstance(tensor, Tensor) and not issubclass(type(tensor), MODELS_OWN) and not _is_hollow(tensor):
        TORCH_COMPILED.look_at(tensor)


def _is_hollow(tensor: Any) -> bool:
    """Whether the storage of a tensor of a subclass is for show: it wraps other tensors."""
    storage = storage_of(tensor)
    # A lazy copy would be made by asking.
    if storage is None or _device_of(storage) is None or _C._is_cow_tensor(tensor):
        return False
    try:
        storage.data_ptr()
    except RuntimeError:
        return True
    return False


def _tensors_in(tree: Any, levels: int) -> Iterator[Any]:
    cls: Any = type(tree)  # pyright: ignore[reportUnknownVariableType] (from Any)
    if issubclass(cls, Tensor):
        if not issubclass(cls, MODELS_OWN):
            yield tree
    elif levels and issubclass(cls, (list, tuple, dict)):
        for child in tree.values() if issubclass(cls, dict) else tree:
            yield from _tensors_in(child, levels - 1)


def _know_what_is_there() -> None:
    """Have the log know the memory of all tensors that Python can see: nothing that uses it is new."""
    with _Undisturbed():
        TORCH_COMPILED.know(gc.get_objects)


def _begin_as_child() -> None:
    # The log has forgotten what the parent knew, and what was made last is the parent's.
    TORCH_COMPILED.forget_looks()
    if SEAM.detector is not None:
        _know_what_is_there()


def _judge(code: CodeType, module: str) -> int | None:
    """What code of PyTorch is to births."""
    if code is torch.overrides.handle_torch_function.__code__:
        return THROUGH
    if module in (__name__, BirthMode.__module__) or module.startswith(_KERNELS):
        return PASSING
    if code.co_name == "flatten_parameters" or module.startswith(_KEEPERS) or keeps_births(module, code):
        return KEEPER
    return None


@final
class TorchWatcher:
    """The one instance is among the watchers: see `Watcher`."""

    __slots__ = ("kind",)

    def __init__(self, kind: Kind) -> None:
        self.kind: Kind | None = kind

    def begin(self) -> None:
        """Watch all threads; where births are not seen at the allocation, this one."""
        if not SEAM.at_allocation and not any(mode is MODE for mode in LOCAL.here.modes):
            add_mode(LOCAL.here, MODE)
        if SEAM.detector is None:
            _know_what_is_there()
            STEPS.begin()
            if _let_out not in HOOKS.array_moved_out:
                HOOKS.array_moved_out.append(_let_out)
            SEAM.detector = self

    def end(self) -> None:
        """Watch no more."""
        self.look()
        SEAM.detector = None
        if _let_out in HOOKS.array_moved_out:
            HOOKS.array_moved_out.remove(_let_out)
        if not SEAM.at_allocation and not LOCAL.here.scopes:
            remove_mode(LOCAL.here, MODE)

    def see(self, result: Any) -> None:
        """Have the log know the memory of the tensors in what a call returned."""
        if backward_running() != -1:
            return
        look()
        with _Undisturbed():
            for tensor in _tensors_in(result, _BELOW):
                storage = storage_of(tensor)
                if storage is None or LOG.recall_memory(storage) is not None:
                    continue
                device, nbytes = _device_of(storage), storage.nbytes()
                if device is not None and nbytes:
                    LOG.sight(storage, None, nbytes, _NAME, device)

    def exclude(self, tensor: Any) -> None:
        """Report no more of the memory of a tensor: it is the model's."""
        if isinstance(tensor, Tensor):
            look()
            storage = storage_undisturbed(tensor)
            if storage is not None:
                LOG.exclude(storage)

    def stepped(self) -> None:
        """Count a step of an optimizer."""
        STEPS.stepped()

    def look(self) -> None:
        """Look at the memory of the tensors that were made last."""
        look()

    def recall(self, entry: Entry) -> Row | None:
        """What is known of the memory of a tensor."""
        if entry.kind is not self.kind:
            return None
        look()
        tensor = entry()
        storage = None if tensor is None else storage_undisturbed(tensor)
        row: Row | None = None if storage is None else LOG.recall_memory(storage)
        return row

    def seen(self, after: int, until: int, but: Container[Hashable]) -> tuple[list[Seen], Rows]:
        """The memory of a window that is there now."""
        PENDING.settle()
        references, rows = LOG.sightings(after, until)
        identify = partial(_identify, Counter(map(_address_of, PENDING.waiting())))
        return see(_NAME, but, identify, is_referenced, references, rows, _escape if LOG.escapes() else None)


def _identify(waiting: Counter[int], storage: Any) -> Told | None:
    # The log has memory of other frameworks as well.
    if type(storage) is not torch.UntypedStorage:
        return None
    address: int = storage._cdata
    # Memory that only disposed tensors hold goes when other threads have left their operations. The
    # storage asked is an owner too.
    if waiting and _owners_of(address) <= waiting[address] + 1:
        return None
    return ("torch", address), storage.nbytes()


def _address_of(tensor: Any) -> int:
    storage = storage_undisturbed(tensor)
    return 0 if storage is None else storage._cdata


def _of_others() -> Iterator[int]:
    """Where the memory of tensors is that PyTorch did not allocate: that of ``from_numpy``."""
    references, _ = LOG.sightings(0, LOG.counts()[0])
    for reference in references:
        storage = reference()
        if type(storage) is torch.UntypedStorage and not storage.resizable() and storage.device.type == "cpu":
            yield storage.data_ptr()


def _released(entry: Entry, _: DisposeScope | None) -> None:
    tensor = entry()
    storage = None if tensor is None else storage_undisturbed(tensor)
    if storage is not None:
        LOG.escape(storage)


def _escape(_: Seen, reference: Callable[[], object]) -> Escape | None:
    storage = reference()
    return "disposed" if storage is not None and LOG.has_escaped(storage) else None


def _let_out(array: Any) -> None:
    """An array was moved out: where it is an alias of a tensor, its memory is meant to be there."""
    look()
    while isinstance(array, np.ndarray):
        array = array.base
    storage = storage_undisturbed(array) if isinstance(array, Tensor) else None
    if storage is not None:
        LOG.let_out(storage)


def _cached_nbytes() -> int:
    """What the allocator for CUDA keeps for later use; asking shall not start CUDA."""
    cuda: Any = torch.cuda
    if not cuda.is_initialized():
        return 0
    devices = range(cuda.device_count())
    return sum(cuda.memory_reserved(device) - cuda.memory_allocated(device) for device in devices)


def watch_memory(kind: Kind) -> None:
    """Watch PyTorch's memory whenever a detector is open, from now on."""
    LOG.describe_kind(kind, _NAME, None, storage_undisturbed, "", False)
    TORCH_COMPILED.bind_log(
        {
            "device_of": _device_of,
            "log": LOG.api,
            "look_at_other": _look_at_other,
            "name_of_call": name_of_call,
            "nbytes_of": torch.UntypedStorage.nbytes,
        }
    )
    add_judge(_judge)
    CACHES.append(_cached_nbytes)
    RELEASES[id(kind)] = _released
    ALIASES.append(_of_others)
    show_edges()
    at_forks(in_child=_begin_as_child)
    add_watcher(TorchWatcher(kind))
