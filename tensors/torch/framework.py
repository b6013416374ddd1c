"""PyTorch as a framework of scopes and of leak detectors.

Imports PyTorch: ``__init__.py`` of this room has it loaded, once the program has imported PyTorch.

A detector sees memory on every thread, inside of scopes and outside. What is recorded is a tensor's
storage: a weak reference to ``t.untyped_storage()`` fires when the memory goes, whoever has it:
views, graphs, NumPy and DLPack exports. The compiled part looks at the storage of each tensor a
moment after it was made (see `births`), and one that the log does not know is new memory. So the
log must know what was there before: when a detector is opened, the storages of all tensors that
Python can see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from functools import partial, wraps
from types import CodeType
from typing import Any, Final, final
from weakref import ref

import numpy as np
import torch
from torch import Tensor

from ...scopes.base.process import PATCHES, at_forks
from ...scopes.base.sites import Role
from ...scopes.compiled import tracked_objects
from ...scopes.framework import Escape, LifeLog, LiveMemory, MemoryByAddress, MemoryFacts, recording
from ...scopes.identity import Entry
from ...scopes.kinds import Kind, device_name
from ...scopes.scope import DisposeScope
from ..numpy.storage import OWN_REFERENCES, count_references, owner_of_buffer
from ..patches import TORCH_BUFFERS
from .adapter import KIND, current_cuda_index, install
from .births import (
    HIDDEN_KEEPERS,
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
from .compiled import thread_state
from .disposal import PENDING, RECORDER
from .graphs.references import STEPS, TorchReferences
from .lives import note_lives
from .models import Models
from .storages import components_of, storage_of
from .threads import RefusingMode, entered, left

__all__ = [
    "TorchFramework",
]

_C: Final[Any] = torch._C
_Undisturbed: Final[Any] = _C.DisableTorchFunction
_owners_of: Final[Callable[[int], int]] = _C._storage_Use_Count
_eval_frame: Final[Any] = getattr(getattr(_C, "_dynamo", None), "eval_frame", None)
_set_eval_frame: Final[Callable[[Any], Any]] = getattr(_eval_frame, "set_eval_frame", lambda _callback: None)
_NAME: Final = "torch.Tensor"
_BELOW: Final = 3
_OF_A_STORAGE: Final = 2
"""References to a buffer: a storage's own, and the one that is noted."""
# Code whose tensors are PyTorch's or the model's own.
_OWN_TENSORS: Final = ("torch.jit._trace", *HIDDEN_KEEPERS)
# What the caller wants of it: it may keep each.
_STATES: Final = ("get_rng_state", "get_rng_state_all")
# Code that keeps what it makes in models and optimizers, where a detector finds it.
_MODELS: Final = ("torch.nn.modules", "torch.optim")
# Where our modes are, and what looks at storages.
_PASSING: Final = (__name__, BirthMode.__module__, RefusingMode.__module__)
# What a call for a tensor without memory runs, written in Python.
_KERNELS: Final = ("torch._decomp", "torch._meta_registrations", "torch._prims", "torch._refs")
# What torch.fx calls the file of code that it writes.
_GENERATED: Final = "<eval_with_key>"


def storage_undisturbed(tensor: Any) -> Any:
    """Return the storage of a tensor, or None, without a call that a mode could see."""
    with _Undisturbed():
        return storage_of(tensor)


def _device_of(storage: Any) -> str | None:
    """Return the name of the device of a storage; None where it has no memory."""
    device = storage.device
    return None if device.type == "meta" else device_name(device)


def _look_at_other(tensor: Any) -> None:
    """Have a leak detector look at the memory of a tensor of a subclass, or of a sparse one.

    Not if the tensor is the model's, or the memory a placeholder.
    """
    if isinstance(tensor, Tensor) and not issubclass(type(tensor), MODELS_OWN):
        for part in components_of(tensor):
            if _has_memory(part):
                RECORDER.look_at(part)


def _has_memory(tensor: Any) -> bool:
    """Return whether a tensor has a storage that is no placeholder, as that of a wrapper is."""
    storage = storage_of(tensor)
    if storage is None:
        return False
    # A lazy copy would be made by asking.
    if _device_of(storage) is None or _C._is_cow_tensor(tensor):
        return True
    try:
        storage.data_ptr()
    except RuntimeError:
        return False
    return True


def _tensors_in(tree: Any, levels: int) -> Iterator[Any]:
    cls: Any = type(tree)  # pyright: ignore[reportUnknownVariableType] (from Any)
    if issubclass(cls, Tensor):
        if not issubclass(cls, MODELS_OWN):
            yield tree
    elif levels and issubclass(cls, (list, tuple, dict)):
        for child in tree.values() if issubclass(cls, dict) else tree:
            yield from _tensors_in(child, levels - 1)


def _know_what_is_there() -> None:
    """Have the log know the memory of all tensors that Python can see: what uses it is not new."""
    with _Undisturbed():
        RECORDER.know(tracked_objects(Tensor))


def _begin_as_child() -> None:
    # The log has forgotten what the parent knew, and what was made last is the parent's.
    RECORDER.forget()
    if SEAM.detector is not None:
        _know_what_is_there()


@final
class TorchFramework(TorchReferences):
    """PyTorch."""

    module = "torch"
    reported_by_memory = (KIND,)

    def __init__(self) -> None:
        super().__init__()
        self._log: Any = None
        self._models: Models | None = None
        self._buffers = _Buffers()
        self._by_address = MemoryByAddress(_span_of)

    @property
    def kinds(self) -> Sequence[Kind]:
        """The kind of ``torch.Tensor`` and of its subclasses."""
        return [KIND]

    @property
    def keepers(self) -> Sequence[str | type]:
        """Modules, optimizers and the cache of parametrizations: what they hold is the model's."""
        return [torch.nn.Module, torch.optim.Optimizer, "torch.nn.utils.parametrize"]

    @property
    def current_indices(self) -> Mapping[str, Callable[[], int]]:
        """The CUDA device that is current."""
        return {"cuda": current_cuda_index}

    def install(self) -> None:
        """See births, and leave what models own to them, from now on."""
        # The first scope may be inside of a compiled function, whose callees are compiled too.
        callback = _set_eval_frame(None)
        try:
            install()
        finally:
            _set_eval_frame(callback)
        PATCHES.replace(TORCH_BUFFERS, torch, "frombuffer", self._telling)
        # Plain functions: on the path of every scope.
        self.scope_entered, self.scope_left = entered, left  # type: ignore[method-assign]  # of this one instance

    def role_of_code(self, code: CodeType, module: str, /) -> Role | None:
        """Return what code of PyTorch is to births."""
        if code is torch.overrides.handle_torch_function.__code__:
            return Role.THROUGH
        if code.co_filename.startswith("<"):
            # In no file: written by torch.fx, or none of PyTorch's, whatever its name is.
            return Role.GENERATED if code.co_filename.startswith(_GENERATED) else None
        if module in _PASSING or module.startswith(_KERNELS):
            return Role.PASSING
        keeps = keeps_births(module, code) and not module.startswith(_MODELS)
        is_own = module.startswith(_OWN_TENSORS) and code.co_name not in _STATES
        return Role.KEEPER if code.co_name == "flatten_parameters" or is_own or keeps else None

    def array_moved_out(self, array: object, /) -> None:
        """Take the memory for meant to be there, where the array is an alias of a tensor."""
        if SEAM.detector is None:
            return
        look()
        base: Any = array
        while isinstance(base, np.ndarray):
            base = base.base
        storage = storage_undisturbed(base) if isinstance(base, Tensor) else None
        if storage is not None:
            self._log.let_out(storage)

    def start_watching(self, log: Any, /) -> None:
        """Watch all threads; where births are not seen at the allocation, this one."""
        if self._log is None:
            log.describe_kind(KIND, _NAME, None, storage_undisturbed, "", False)
            RECORDER.record_into(log.c_api, device_of=_device_of, look_at_other=_look_at_other)
            at_forks(in_child=_begin_as_child)
            self._log = log
            self._models = Models(log)
        if not SEAM.at_allocation and not any(mode is MODE for mode in thread_state().modes):
            add_mode(thread_state(), MODE)
        if SEAM.detector is None:
            _know_what_is_there()
            STEPS.begin()
            SEAM.detector = self

    def stop_watching(self) -> None:
        """Watch no more."""
        look()
        SEAM.detector = None
        if not SEAM.at_allocation and not thread_state().scopes:
            remove_mode(thread_state(), MODE)

    def record_pending(self) -> None:
        """Look at the memory of the tensors that were made last."""
        look()

    def note_lives(self, lives: LifeLog, /) -> Callable[[], None]:
        """Note the memory that operations of this thread allocate on the CPU."""
        return note_lives(lives)

    def anchor_of(self, entry: Entry, /) -> object | None:
        """Return the storage of a tensor."""
        if entry.kind is not KIND:
            return None
        look()
        tensor = entry()
        return None if tensor is None else storage_undisturbed(tensor)

    def live_memory(self, after: int, until: int, /) -> LiveMemory | None:
        """Return the storages of a window that are there now."""
        if self._log is None:
            return None
        PENDING.settle()
        references, rows = self._log.recorded_memory(after, until)
        owned = set[Hashable]()
        if self._models is not None:
            owned = self._models.memory_of_models(references, rows, after, until)
        identify = partial(_identify, Counter(map(_address_of, PENDING.waiting())), owned, self._buffers)
        escape = self._escape if self._log.escapes() else None
        return LiveMemory(_NAME, references, rows, identify, _is_there, escape)

    def live_models(self, after: int, until: int, /) -> LiveMemory | None:
        """Return the models of a window that are there now: see `models`."""
        return None if self._models is None else self._models.live(after, until)

    def disposing(self, entry: Entry, owner: DisposeScope | None, /) -> None:
        """Remember its storage: what uses it from then on has escaped."""
        storage = self.anchor_of(entry)
        if storage is not None:
            self._log.escape(storage)

    def cached_nbytes(self) -> int:
        """Return what the allocator for CUDA keeps for later use; asking does not start CUDA."""
        cuda: Any = torch.cuda
        if not cuda.is_initialized():
            return 0
        devices = range(cuda.device_count())
        return sum(cuda.memory_reserved(device) - cuda.memory_allocated(device) for device in devices)

    def borrowed_addresses(self) -> Iterator[int]:
        """Yield the addresses of memory that PyTorch did not allocate: that of ``from_numpy``."""
        if self._log is None:
            return
        references, _ = self._log.recorded_memory(0, self._log.counts()[0])
        for reference in references:
            storage = reference()
            if type(storage) is torch.UntypedStorage and not storage.resizable() and storage.device.type == "cpu":
                yield storage.data_ptr()

    def identity_at(self, address: int, /) -> Hashable | None:
        """Return the storage in which an address lies."""
        if self._log is None:
            return None
        storage = self._by_address.at(address, self._log)
        return None if storage is None else ("torch", storage._cdata)

    # What the births call, while a detector is open: see `births.SEAM`.

    @recording
    def see(self, result: Any) -> None:
        """Have the log know the memory of the tensors in what a call returned."""
        if backward_running() != -1:
            return
        look()
        with _Undisturbed():
            for tensor in _tensors_in(result, _BELOW):
                RECORDER.look_at(tensor, True)

    def registered(self, module: Any, name: str, part: Any) -> None:
        """Record a module that is being made or grows, and the memory of a tensor given to it."""
        if self._models is None:
            return
        self._models.registered(module, name)
        if isinstance(part, Tensor):
            # The tensor that a parameter was made of may be gone before it was looked at.
            look()
            with _Undisturbed():
                RECORDER.look_at(part)

    def _telling(self, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return a function that also records a buffer's memory, which PyTorch did not allocate."""

        @wraps(original)
        @recording
        def frombuffer(*args: Any, **options: Any) -> Tensor:
            tensor = original(*args, **options)
            buffer = args[0] if args else options.get("buffer")
            if SEAM.detector is self and owner_of_buffer(buffer) is not None:
                storage = storage_undisturbed(tensor)
                if storage is not None and self._log.recall_memory(storage) is None:
                    self._buffers.add(storage, buffer)
                    self._log.record_memory(storage, "frombuffer", self._buffers.nbytes_of(storage), _NAME, "cpu:0")
            return tensor

        return frombuffer

    def restored(self, module: Any) -> None:
        """Record a module that was copied or unpickled."""
        if self._models is not None:
            self._models.restored(module)

    def given(self, optimizer: torch.optim.Optimizer, /) -> None:
        """Record an optimizer that is being made."""
        if self._models is not None:
            self._models.given(optimizer)

    def stepped(self, optimizer: torch.optim.Optimizer, /) -> None:
        """Count a step of an optimizer."""
        STEPS.stepped(optimizer)

    def _escape(self, _memory: Any, reference: Callable[[], object]) -> Escape | None:
        storage = reference()
        return "disposed" if storage is not None and self._log.has_escaped(storage) else None


def _is_there(reference: Callable[[], object], _number: int) -> bool:
    return reference() is not None


def _span_of(storage: Any) -> tuple[int, int] | None:
    if type(storage) is not torch.UntypedStorage or storage.device.type != "cpu":
        return None
    try:
        start: int = storage.data_ptr()
    except RuntimeError:  # it has no memory
        return None
    return start, start + storage.nbytes()


@final
class _Buffers:
    """The buffers whose memory tensors show.

    A storage keeps its whole buffer, however few bytes it has itself.
    """

    def __init__(self) -> None:
        # By the address of the storage. It has a reference to the buffer itself.
        self._known: dict[int, tuple[ref[Any], Any]] = {}

    def add(self, storage: Any, buffer: Any) -> None:
        """Take note of the buffer of a storage, for as long as that lives."""
        key, known = storage._cdata, self._known

        def forget(_: object) -> None:
            known.pop(key, None)

        known[key] = ref(storage, forget), buffer

    def nbytes_of(self, storage: Any) -> int:
        """Return the bytes that a storage keeps.

        Of a buffer that others hold too, it keeps only those of its own.
        """
        nbytes: int = storage.nbytes()
        found = self._known.get(storage._cdata)
        if found is None:
            return nbytes
        buffer = found[1]
        users = sum(other is buffer for _, other in self._known.values())
        if users > 1 or count_references(buffer) - OWN_REFERENCES > _OF_A_STORAGE:
            return nbytes
        owner: Any = owner_of_buffer(buffer)
        if owner is not buffer and count_references(owner) - OWN_REFERENCES > 1:
            return nbytes
        try:
            return memoryview(owner).nbytes
        except ValueError:  # closed since, for a map of a file
            return nbytes


def _identify(
    waiting: Counter[int], owned: Collection[Hashable], buffers: _Buffers, storage: Any
) -> MemoryFacts | None:
    # The log has memory of other frameworks as well.
    if type(storage) is not torch.UntypedStorage:
        return None
    address: int = storage._cdata
    # Memory that only disposed tensors hold goes when other threads have left their operations. The
    # storage asked is an owner too.
    if waiting and _owners_of(address) <= waiting[address] + 1:
        return None
    identity = "torch", address
    # What belongs to a model is reported with the model.
    return None if identity in owned else (identity, buffers.nbytes_of(storage))


def _address_of(tensor: Any) -> int:
    storage = storage_undisturbed(tensor)
    return 0 if storage is None else storage._cdata
