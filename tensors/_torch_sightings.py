"""Watching PyTorch's memory for a leak detector: on every thread, inside of scopes and outside, owned by nobody.

What is watched is a tensor's storage: a weak reference to ``t.untyped_storage()`` fires when the memory goes, whoever
has it: views, graphs, NumPy and DLPack exports.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterator
from types import CodeType, MethodWrapperType
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.overrides import TorchFunctionMode

from ..scopes._memory import LET_OUT
from ..scopes.leaks._log import LOG, ROWS, Row
from ..scopes.leaks._recording import CACHES
from ..scopes.leaks._sightings import Seen, Told, is_referenced, see
from ..scopes.leaks._site import JUDGES, KEEPER, PASSING, THROUGH
from ..scopes.leaks._watching import RELEASES, add_watcher
from ._arena_sightings import ALIASES
from ._torch_allocations import tell_late
from ._torch_births import MODE, BirthMode
from ._torch_calls import CALLS
from ._torch_extension import TORCH_WATCH
from ._torch_handed_over import (
    MODELS_OWN,
    NAME,
    UNDISTURBED,
    assigned,
    copying_a_module,
    device_of,
    exclude,
    moved,
    storage_undisturbed,
)
from ._torch_makers import keeps_births
from ._torch_modes import LOCAL, WATCHES, add_mode, remove_mode
from ._torch_passes import STEPS
from ._torch_results import GIVEN_UP, SIGHTINGS
from ._torch_storage import storage_of
from ._torch_zeroing import ZEROING

if TYPE_CHECKING:
    from ..scopes._entry import Entry
    from ..scopes._kinds import Kind
    from ..scopes._scope import DisposeScope
    from ..scopes.leaks._rows import Rows
    from ..scopes.leaks._subject import Escape

__all__ = ["watch_memory"]

_C: Final[Any] = torch._C
_storage_of: Final[Callable[[Any], Any]] = _C.TensorBase.untyped_storage
_nbytes_of: Final[Callable[[Any], int]] = torch.UntypedStorage.nbytes
_backward_running: Final[Callable[[], int]] = _C._current_graph_task_id
_PLAIN: Final = (bool, int, float, str, torch.Size, torch.dtype, torch.device, torch.layout)
_DEEPCOPY: Final[Any] = vars(Tensor)["__deepcopy__"]
_BELOW: Final = 3
_OURS: Final = (__name__, exclude.__module__)
# What a call for a tensor without memory runs, written in Python.
_KERNELS: Final = ("torch._decomp", "torch._meta_registrations", "torch._prims", "torch._refs")


class Watch(TorchFunctionMode):
    """The mode, where calls are not seen without one: lets each through, and puts the memory of its result down."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, and put the memory of its result down."""
        result = func(*args) if kwargs is None else func(*args, **kwargs)
        if type(func) is MethodWrapperType:
            if result is None and func.__name__ == "__set__" and len(args) > 1:
                assigned(getattr(func.__self__, "__name__", ""), *args[:2])
        elif type(result) is Tensor:
            if func is _DEEPCOPY:
                _see(result, func, args, kwargs)
            elif _backward_running() == -1:
                _sight(result, func, args, kwargs)
        elif type(result) not in _PLAIN and result is not None and _backward_running() == -1:
            _see(result, func, args, kwargs)
        return result


def _sight_in_python(tensor: Any, func: Any, args: Any, kwargs: Any) -> None:
    """Put the memory of a tensor down, unless an argument has it."""
    with UNDISTURBED():
        storage = storage_of(tensor)
        if storage is None or LOG.recall_memory(storage) is not None:
            return
        given: list[Any] = [*args, *(kwargs or {}).values()]
        given += [one for argument in given if type(argument) in (list, tuple) for one in argument]
        if any(isinstance(one, Tensor) and storage_of(one) is storage for one in given):
            return
        nbytes, device = storage.nbytes(), device_of(storage)
    if nbytes and device is not None:
        LOG.sight(storage, getattr(func, "__name__", None), nbytes, NAME, device)


_sight: Final[Callable[[Any, Any, Any, Any], None]] = _sight_in_python if TORCH_WATCH is None else TORCH_WATCH.sight


def _see(result: Any, func: Any = None, args: Any = (), kwargs: Any = None) -> None:
    """Put the memory of the tensors in what a call returned down."""
    if func is _DEEPCOPY and copying_a_module():
        return
    with UNDISTURBED():
        for tensor in _tensors_in(result, _BELOW):
            # Where all calls are seen, so is what made the tensors that it wraps.
            if not (WATCHES and type(tensor) is not Tensor and _is_hollow(tensor)):
                _sight(tensor, func, args, kwargs)


def _is_hollow(tensor: Any) -> bool:
    """Whether the storage of a tensor of a subclass is for show: it wraps other tensors."""
    storage = storage_of(tensor)
    # A lazy copy would be made by asking.
    if storage is None or device_of(storage) is None or _C._is_cow_tensor(tensor):
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


def _others(result: Any, op: Any, bound: Any, args: Any, kwargs: Any) -> None:
    """Put the memory of the tensors in what a call returned down: of subclasses, or in a dict."""
    _see(result, op, (bound, *args) if type(args) is tuple else (bound, args), kwargs)


def _registered(module: torch.nn.Module, name: str, tensor: Any) -> None:
    if tensor is not None and LOG.counts()[3]:
        exclude(tensor)


def _judge(code: CodeType, module: str) -> int | None:
    """What code of PyTorch is to births."""
    if code is torch.overrides.handle_torch_function.__code__:
        return THROUGH
    if module in _OURS or code is BirthMode.__torch_function__.__code__ or module.startswith(_KERNELS):
        return PASSING
    if module.startswith("torch.nn.parameter") or code.co_name == "flatten_parameters" or keeps_births(module, code):
        return KEEPER
    return None


WATCH: Final = Watch()


@final
class TorchWatcher:
    """The one instance is among the watchers: see `Watcher`."""

    __slots__ = ("kind",)

    def __init__(self, kind: Kind) -> None:
        self.kind: Kind | None = kind

    def begin(self) -> None:
        """Watch this thread, or all of them."""
        if not CALLS.begin():
            here = LOCAL.here
            if not any(mode is WATCH for mode in here.modes):
                add_mode(here, WATCH)
            if here.scopes and not any(mode is MODE for mode in here.modes):
                # It tells of births in the scopes that are open, from now on.
                add_mode(here, MODE)
            ZEROING.begin()
        STEPS.begin()
        if _see not in SIGHTINGS:
            SIGHTINGS.append(_see)
            GIVEN_UP.append(exclude)
            LET_OUT.append(_let_out)

    def end(self) -> None:
        """Watch it no more. The mode of another thread lets everything through from now on."""
        tell_late()
        CALLS.end()
        remove_mode(LOCAL.here, WATCH)
        SIGHTINGS.clear()
        GIVEN_UP.clear()
        LET_OUT.clear()
        STEPS.end()
        ZEROING.end()

    def recall(self, entry: Entry) -> Row | None:
        """What is known of the memory of a tensor."""
        if entry.kind is not self.kind:
            return None
        tensor = entry()
        storage = None if tensor is None else storage_undisturbed(tensor)
        row: Row | None = None if storage is None else LOG.recall_memory(storage)
        return row

    def seen(self, after: int, until: int, but: Container[Hashable]) -> tuple[list[Seen], Rows]:
        """The memory of a window that is there now."""
        references, rows = LOG.sightings(after, until)
        return see(NAME, but, _identify, is_referenced, references, rows, _escape if LOG.escapes() else None)


def _identify(storage: Any) -> Told | None:
    # The log has memory of other frameworks as well.
    return (("torch", storage._cdata), storage.nbytes()) if type(storage) is torch.UntypedStorage else None


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
    ROWS[id(kind)] = (NAME, None, storage_undisturbed, "", False)
    if TORCH_WATCH is not None:
        TORCH_WATCH.bind(
            LOG.api, Tensor, _storage_of, _nbytes_of, device_of, NAME, "cpu:0",
        )  # fmt: skip
    CALLS.find(_others, moved, assigned)
    JUDGES.append(_judge)
    register_module_parameter_registration_hook(_registered)
    register_module_buffer_registration_hook(_registered)
    CACHES.append(_cached_nbytes)
    RELEASES[id(kind)] = _released
    ALIASES.append(_of_others)
    STEPS.hear()
    add_watcher(TorchWatcher(kind))
