"""PyTorch's CPU memory in the recording of a pass.

The blocks are PyTorch's, and stay where they are: they have no place in a slab. A dispatch mode sees the
results of every operation on the thread, those of ``backward()`` and of optimizers included; memory is
born where a storage comes up in a result that was in no argument, and dies with the storage, to which
PyTorch keeps one Python object. What an operation allocates and frees inside itself is not seen.

The mode costs some microseconds an operation, so it is on in the pass that is recorded and in no other.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, Final, final

__all__ = ["TorchRecorder", "record_torch"]


@final
class TorchRecorder:
    """Records what operations make into a pass, from `start` until `stop`."""

    __slots__ = ("_known", "_mode", "_pass", "_torch")

    def __init__(self, torch: Any, served: Any) -> None:
        self._torch: Final = torch
        self._pass: Final = served
        # By the storage's C++ object: a reference to its Python object.
        self._known: Final[dict[int, weakref.ref[Any]]] = {}
        self._mode: Final = _mode_class(torch)(self)

    def start(self) -> None:
        """Enter the mode."""
        self._mode.__enter__()

    def stop(self) -> None:
        """Leave the mode."""
        self._mode.__exit__(None, None, None)

    def dispatched(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation, and record the memory that is new in its result."""
        for tensor in self._tensors_in(args):
            self._know(tensor, None)
        for tensor in self._tensors_in(tuple(kwargs.values())):
            self._know(tensor, None)
        result = function(*args, **kwargs)
        for tensor in self._tensors_in((result,)):
            self._know(tensor, self._pass)
        return result

    def _tensors_in(self, things: Any) -> Iterator[Any]:
        for thing in things:
            if isinstance(thing, self._torch.Tensor):
                yield thing
            elif isinstance(thing, (tuple, list)):
                yield from self._tensors_in(thing)

    def _know(self, tensor: Any, served: Any) -> None:
        if tensor.device.type != "cpu" or tensor.layout is not self._torch.strided:
            return
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):
            # A wrapper around other tensors, or a disposed one.
            return
        key = storage._cdata
        if key in self._known:
            return
        nbytes = storage.nbytes()
        note_death: Callable[[], object] | None = None
        if served is not None and nbytes:
            number: int | None = served.note(nbytes)
            note_death = None if number is None else partial(served.note_death, number)
        known = self._known

        def died(reference: object) -> None:
            if known.get(key) is reference:
                del known[key]
            if note_death is not None:
                note_death()

        known[key] = weakref.ref(storage, died)


@cache
def _mode_class(torch: Any) -> Any:
    base: Any = torch.utils._python_dispatch.TorchDispatchMode

    class RecordingMode(base):  # type: ignore[misc]  # the base is PyTorch's, which may be absent
        """Hands each operation to a recorder."""

        def __init__(self, recorder: TorchRecorder) -> None:
            base.__init__(self)
            self.recorder = recorder

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return self.recorder.dispatched(func, args, kwargs or {})

    return RecordingMode


def record_torch(served: Any) -> TorchRecorder | None:
    """Return a recorder of PyTorch's memory into a pass; None where the program has not imported PyTorch."""
    torch = sys.modules.get("torch")
    is_usable = torch is not None and hasattr(torch, "Tensor") and "torch.utils._python_dispatch" in sys.modules
    return TorchRecorder(torch, served) if is_usable else None
