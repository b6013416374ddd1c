"""PyTorch as a framework of scopes and of leak detectors.

This module imports PyTorch. ``__init__.py`` of this folder loads it only when the program has
imported PyTorch.

A detector sees memory on every thread, inside and outside of scopes. It records storages, not
tensors: a weak reference to ``t.untyped_storage()`` fires when the memory is freed, whether views,
graphs, NumPy arrays or DLPack exports held it. The compiled part looks at the storage of each new
tensor soon after it was made (see `births`). A storage that the log does not know is new memory. So
when a detector is opened, the log gets to know the storages of all tensors that Python can see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
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
from .disposal import PENDING, RECORDER, DisposedTorchTensor
from .graphs.references import STEPS, TorchReferences
from .graphs.walk import is_leaf, read_of_graph
from .lives import note_lives
from .models import Models
from .storages import components_of, storage_of, storages_behind
from .threads import RefusingMode, entered, left

__all__ = [
    "TorchFramework",
]

_C: Final[Any] = torch._C
_Undisturbed: Final[Any] = _C.DisableTorchFunction
_grad: Final[Callable[[Any], Any]] = _C.TensorBase._grad.__get__
_owners_of: Final[Callable[[int], int]] = _C._storage_Use_Count
_eval_frame: Final[Any] = getattr(getattr(_C, "_dynamo", None), "eval_frame", None)
_set_eval_frame: Final[Callable[[Any], Any]] = getattr(_eval_frame, "set_eval_frame", lambda _callback: None)
_NAME: Final = "torch.Tensor"
_LEVELS: Final = 3
"""How many levels of lists, tuples and dicts in a result are searched for tensors."""
_KNOWN_REFERENCES: Final = 2
"""References to a buffer that the program does not hold: that of its storage, and of `_Buffers`."""
# Modules whose tensors are PyTorch's own or a model's: a detector does not report them.
_OWN_TENSORS: Final = ("torch.jit._trace", *HIDDEN_KEEPERS)
# Functions in these modules that return a new tensor to the program, which may keep it.
_STATES: Final = ("get_rng_state", "get_rng_state_all")
# Modules that keep their tensors in models and optimizers, where a detector finds them.
_MODULES_OF_MODELS: Final = ("torch.nn.modules", "torch.optim")
# Modules of this library whose frames are passed over when a birth site is looked for.
_PASSING: Final = (__name__, BirthMode.__module__, RefusingMode.__module__)
# Modules of operators that PyTorch implements in Python, for tensors without memory.
_KERNELS: Final = ("torch._decomp", "torch._meta_registrations", "torch._prims", "torch._refs")
# How the file name of code begins that torch.fx has written.
_GENERATED: Final = "<eval_with_key>"


def storage_undisturbed(tensor: Any) -> Any:
    """Return the storage of a tensor, or None, without calling a function mode."""
    with _Undisturbed():
        return storage_of(tensor)


def _device_of(storage: Any) -> str | None:
    """Return the name of the device of a storage; None where it has no memory."""
    device = storage.device
    return None if device.type == "meta" else device_name(device)


def _look_at_other(tensor: Any) -> None:
    """Have a leak detector look at the memory of a sparse tensor, or one of a subclass.

    Not at tensors that belong to a model, nor at storages that are placeholders.
    """
    if isinstance(tensor, Tensor) and not issubclass(type(tensor), MODELS_OWN):
        for part in components_of(tensor):
            if _has_memory(part):
                RECORDER.look_at(part)


def _has_memory(tensor: Any) -> bool:
    """Return whether a tensor has a real storage; that of a wrapper is a placeholder."""
    storage = storage_of(tensor)
    if storage is None:
        return False
    # `data_ptr` of a copy-on-write tensor would make the copy.
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
    """Tell the log the storages of all tensors that Python can see, so that none counts as new."""
    with _Undisturbed():
        RECORDER.know(tracked_objects(Tensor))


def _begin_as_child() -> None:
    # In a child after a fork the log is empty, and the latest tensors are those of the parent.
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
        """Modules, optimizers and the cache of parametrizations, which hold tensors of models."""
        return [torch.nn.Module, torch.optim.Optimizer, "torch.nn.utils.parametrize"]

    @property
    def current_indices(self) -> Mapping[str, Callable[[], int]]:
        """The CUDA device that is current."""
        return {"cuda": current_cuda_index}

    def install(self) -> None:
        """See births from now on, except of tensors that models own."""
        # The first scope may be entered in a compiled function. Dynamo would compile `install` too.
        callback = _set_eval_frame(None)
        try:
            install()
        finally:
            _set_eval_frame(callback)
        PATCHES.replace(TORCH_BUFFERS, torch, "frombuffer", self._telling)
        # Plain functions, not methods, because every scope calls them.
        self.scope_entered, self.scope_left = entered, left  # type: ignore[method-assign]  # of this one instance

    def role_of_code(self, code: CodeType, module: str, /) -> Role | None:
        """Return the role of code of PyTorch where a birth site is looked for."""
        if code is torch.overrides.handle_torch_function.__code__:
            return Role.THROUGH
        if code.co_filename.startswith("<"):
            # The code is in no file: torch.fx has written it, or it is not PyTorch's.
            return Role.GENERATED if code.co_filename.startswith(_GENERATED) else None
        if module in _PASSING or module.startswith(_KERNELS):
            return Role.PASSING
        keeps = keeps_births(module, code) and not module.startswith(_MODULES_OF_MODELS)
        is_own = module.startswith(_OWN_TENSORS) and code.co_name not in _STATES
        return Role.KEEPER if code.co_name == "flatten_parameters" or is_own or keeps else None

    def array_moved_out(self, array: object, /) -> None:
        """Report no escape of the memory where the array is an alias of a tensor."""
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
        """Watch all threads; only this one where births are not seen at the allocation."""
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
        """Look at the memory of the latest tensors."""
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
        """Return the storages that still exist, of the births numbered `after` + 1 to `until`.

        Gradients of their tensors are added that were recorded later: by this report or by another
        one, which was the first to read them.
        """
        if self._log is None:
            return None
        PENDING.settle()
        references, rows = self._log.recorded_memory(after, until)
        owned = set[Hashable]()
        if self._models is not None:
            owned = self._models.memory_of_models(references, rows, after, until)
            # It reads all gradients. Those that nobody had read before are recorded only now.
            look()
            late = list(zip(*self._log.recorded_memory(until, self._log.counts()[0]), strict=True))
            gradients = _gradients_of_those_with(references) if late and references else set[Hashable]()
            # Not what other threads have made since.
            late = [(reference, row) for reference, row in late if _identity_of(reference()) in gradients]
            references = [*references, *(reference for reference, _ in late)]
            rows = [*rows, *(row for _, row in late)]
        identify = partial(_identify, Counter(map(_address_of, PENDING.waiting())), owned, self._buffers)
        escape = self._escape if self._log.escapes() else None
        return LiveMemory(_NAME, references, rows, identify, _is_alive, escape)

    def modules(self) -> Iterable[Any]:
        """Return the modules of the program, as the last snapshot has found them if there is one.

        To find them once more takes a fifth of the time of a report.
        """
        found = None if self._models is None else self._models.latest_modules()
        return super().modules() if found is None else found

    def live_models(self, after: int, until: int, /) -> LiveMemory | None:
        """Return the models that still exist, of the births `after` + 1 to `until`."""
        return None if self._models is None else self._models.live(after, until)

    def disposing(self, entry: Entry, owner: DisposeScope | None, /) -> None:
        """Remember the storage of a tensor that is disposed: whatever still uses it has escaped."""
        storage = self.anchor_of(entry)
        if storage is not None:
            self._log.escape(storage)

    def cached_nbytes(self) -> int:
        """Return the bytes that the CUDA allocator keeps for later use; does not start CUDA."""
        cuda: Any = torch.cuda
        if not cuda.is_initialized():
            return 0
        devices = range(cuda.device_count())
        return sum(cuda.memory_reserved(device) - cuda.memory_allocated(device) for device in devices)

    def borrowed_addresses(self) -> Iterator[int]:
        """Yield the addresses of memory that PyTorch did not allocate, as for ``from_numpy``."""
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
        return _identity_of(storage)

    # Methods that `births` calls while a detector is open: see `births.Detector`.

    @recording
    def see(self, result: Any) -> None:
        """Tell the log the memory of the tensors in the result of a call."""
        if backward_running() != -1:
            return
        look()
        with _Undisturbed():
            for tensor in _tensors_in(result, _LEVELS):
                RECORDER.look_at(tensor, True)

    def registered(self, module: Any, name: str, part: Any) -> None:
        """Record a module that is being made or grows, and the memory of a new tensor in it."""
        if self._models is None:
            return
        self._models.registered(module, name)
        if isinstance(part, Tensor):
            # The tensor of which a parameter is made may be freed before it is looked at.
            look()
            with _Undisturbed():
                RECORDER.look_at(part)

    def _telling(self, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return a ``frombuffer`` that also records the buffer's memory.

        PyTorch did not allocate it.
        """

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


def _identity_of(storage: Any) -> Hashable:
    """Return the identity of a storage; None for what is none. The log also has other memory."""
    return ("torch", storage._cdata) if type(storage) is torch.UntypedStorage else None


def _gradients_of_those_with(references: Iterable[Callable[[], object]]) -> set[Hashable]:
    """Return the identities of the gradients of all tensors that have some storages."""
    storages = [reference() for reference in references]
    born = {_identity_of(storage) for storage in storages}
    with TorchReferences().quiet():
        return {
            identity
            for tensor in tracked_objects(Tensor)
            if type(tensor) is not DisposedTorchTensor and is_leaf(tensor)
            if (gradient := read_of_graph(_grad, tensor, tensor)) is not None
            if any(identity in born for identity, _ in storages_behind(tensor))
            for identity, _ in storages_behind(gradient)
        }


def _is_alive(reference: Callable[[], object], _number: int) -> bool:
    return reference() is not None


def _span_of(storage: Any) -> tuple[int, int] | None:
    """Return the addresses of the first byte of a storage and of the byte after it, or None."""
    if type(storage) is not torch.UntypedStorage or storage.device.type != "cpu":
        return None
    try:
        start: int = storage.data_ptr()
    except RuntimeError:  # it has no memory
        return None
    return start, start + storage.nbytes()


@final
class _Buffers:
    """The buffers of tensors made by ``torch.frombuffer``.

    A storage keeps its whole buffer alive, even if it shows only a few of its bytes.
    """

    def __init__(self) -> None:
        # By the address of the storage: a weak reference to it, and the buffer.
        self._known: dict[int, tuple[ref[Any], Any]] = {}

    def add(self, storage: Any, buffer: Any) -> None:
        """Remember the buffer of a storage until the storage is freed."""
        key, known = storage._cdata, self._known

        def forget(_: object) -> None:
            known.pop(key, None)

        known[key] = ref(storage, forget), buffer

    def nbytes_of(self, storage: Any) -> int:
        """Return the bytes that a storage keeps alive.

        These are the bytes of the whole buffer; only its own bytes where others hold the buffer.
        """
        nbytes: int = storage.nbytes()
        found = self._known.get(storage._cdata)
        if found is None:
            return nbytes
        buffer = found[1]
        users = sum(other is buffer for _, other in self._known.values())
        if users > 1 or count_references(buffer) - OWN_REFERENCES > _KNOWN_REFERENCES:
            return nbytes
        owner: Any = owner_of_buffer(buffer)
        if owner is not buffer and count_references(owner) - OWN_REFERENCES > 1:
            return nbytes
        try:
            return memoryview(owner).nbytes
        except ValueError:  # a file map that has been closed
            return nbytes


def _identify(
    waiting: Counter[int], owned: Collection[Hashable], buffers: _Buffers, storage: Any
) -> MemoryFacts | None:
    identity = _identity_of(storage)
    if identity is None:
        return None
    address: int = storage._cdata
    # Memory that only waiting disposed tensors hold is freed later: it is no leak. The storage
    # object itself counts as one more owner.
    if waiting and _owners_of(address) <= waiting[address] + 1:
        return None
    # Memory that belongs to a model is reported with the model.
    return None if identity in owned else (identity, buffers.nbytes_of(storage))


def _address_of(tensor: Any) -> int:
    storage = storage_undisturbed(tensor)
    return 0 if storage is None else storage._cdata
