"""Tensors that no scope owns: those of models, and those that PyTorch keeps for itself.

Parameters, buffers, gradients and the state of optimizers belong to models.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from sys import _getframe
from types import CodeType, FrameType
from typing import Any, Final, cast, final
from weakref import WeakKeyDictionary

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import saved_tensors_hooks
from torch.distributions.utils import lazy_property
from torch.jit import _builtins
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.parameter import Parameter
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from ...scopes.base.errors import DisposedError
from ...scopes.base.process import PATCHES, when_imported
from ...scopes.compiled import variables_of
from ...scopes.context import CURRENT
from ...scopes.framework import recording
from ...scopes.identity import entry_of
from ...scopes.ownership import leave_to_keepers
from ..patches import (
    TORCH_COMPILED_FUNCTIONS,
    TORCH_CONTEXTS,
    TORCH_FAST_PATHS,
    TORCH_LAZY_PROPERTIES,
    TORCH_LOADERS,
    TORCH_MODULES,
    TORCH_SAVED_TENSORS,
    TORCH_TRACES,
    TORCH_TRANSFORMS,
)
from . import compiled as TORCH_COMPILED
from .births import (
    SEAM,
    TRACING,
    Compiled,
    births_in,
    flattened,
    give_up,
    is_looked_at,
    pause_births,
    put_on,
    resume_after_a_failed_step,
    resume_births,
    take_off,
)
from .compiled import ThreadState, thread_state
from .graphs.walk import SHOWS_SAVED, showing_what_was_packed

__all__ = [
    "exclude_what_models_own",
    "keep_fast_paths",
    "keep_what_contexts_hold",
    "keep_what_distributions_compute",
    "keep_what_hooks_save",
    "watch_compiled_functions",
    "watch_loaders",
    "watch_traces",
    "watch_transforms",
]

# Parameters, registered buffers, gradients, and the tensors that an optimizer has or makes while it
# steps. They are often made in a scope, in the first step, but belong to the model.


def exclude_what_models_own() -> None:
    """Let no scope own the tensors of modules and optimizers, from now on.

    This needs hooks on every registration of a parameter, buffer or module and on every step of an
    optimizer; and wrappers around the methods that fill an optimizer or a module in other ways.
    """
    PATCHES.change(TORCH_MODULES, _register_hooks, _remove_hooks)
    # An optimizer also gets tensors outside of a step: as options, and where it is loaded,
    # unpickled or copied.
    for method in ("add_param_group", "__setstate__"):
        PATCHES.replace(
            TORCH_MODULES,
            torch.optim.Optimizer,
            method,
            functools.partial(_keeping, tensors_of=_tensors_of_an_optimizer),
        )
    # PyTorch calls no registration hooks where a module is unpickled.
    PATCHES.replace(
        TORCH_MODULES,
        torch.nn.Module,
        "__setstate__",
        functools.partial(_keeping, tensors_of=_tensors_of_a_module),
    )


_handles: Final[list[RemovableHandle]] = []


def _register_hooks() -> None:
    _remove_hooks()
    for register, hook in (
        (register_module_parameter_registration_hook, _registered),
        (register_module_buffer_registration_hook, _registered),
        (register_module_module_registration_hook, _registered_module),
        (register_optimizer_step_pre_hook, _step_begins),
        (register_optimizer_step_post_hook, _step_is_over),
    ):
        handle: Any = cast("Callable[[Any], RemovableHandle]", register)(hook)
        # If an interrupt came before `_handles.append`, the hook is registered twice now.
        hooks: dict[int, Any] = handle.hooks_dict_ref()
        for number in [number for number, other in hooks.items() if other is hook and number != handle.id]:
            del hooks[number]
        _handles.append(handle)


def _remove_hooks() -> None:
    while _handles:
        _handles[-1].remove()
        _handles.pop()


def _keeping(method: Callable[..., None], tensors_of: Callable[[Any], Iterable[Any]]) -> Callable[..., None]:
    """Wrap a method of an optimizer or a module so that no scope owns its tensors afterwards."""

    @functools.wraps(method)
    def kept(owner: Any, *args: Any, **kwargs: Any) -> None:
        method(owner, *args, **kwargs)
        for leaf in tensors_of(owner):
            if isinstance(leaf, torch.Tensor):
                give_up(leaf)

    return kept


def _tensors_of_an_optimizer(optimizer: Any) -> Iterable[Any]:
    if SEAM.detector is not None:
        SEAM.detector.given(optimizer)
    return *flattened(optimizer.param_groups, 4), *flattened(optimizer.state, 4)


def _tensors_of_a_module(module: Any) -> Iterable[Any]:
    if SEAM.detector is not None:
        SEAM.detector.restored(module)
    names = module.__dict__
    return *names.get("_parameters", {}).values(), *names.get("_buffers", {}).values()


def _registered(module: torch.nn.Module, name: str, tensor: Any) -> None:
    if SEAM.detector is not None:
        SEAM.detector.registered(module, name, tensor)
    if tensor is not None:
        give_up(tensor)


def _registered_module(module: torch.nn.Module, name: str, part: Any) -> None:
    if SEAM.detector is not None:
        SEAM.detector.registered(module, name, part)


def _step_begins(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
    here = thread_state()
    if here.stepping:
        resume_after_a_failed_step(here)
    if here.stepping or not is_looked_at(here):
        return None
    # The frame that runs the hooks also runs the step. It keeps the arguments that a hook returns
    # until it ends: `_Arguments` notices the end.
    pause_births(id(_getframe(1)))
    return args, _Arguments(kwargs, here)


def _step_is_over(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    resume_births(thread_state(), id(_getframe(1)))
    if SEAM.detector is not None:
        SEAM.detector.stepped(optimizer)


@final
class _Arguments(dict[str, Any]):
    """The keyword arguments of a step; resume births when they are freed.

    That happens when the step's frame ends, also by an exception, where no hook is called.
    """

    __slots__ = ("_here", "_step")

    def __init__(self, kwargs: Any, here: ThreadState) -> None:
        super().__init__(kwargs)
        self._here = here
        self._step = here.stepping

    def __del__(self) -> None:
        resume_births(self._here, self._step)


# Hooks on saved tensors. The tensors that they keep for a backward pass belong to the graph: no
# scope owns them.
#
# PyTorch calls such a hook (``torch.autograd.graph.saved_tensors_hooks``) inside an operator, with
# a tensor, and keeps the object that the hook returns. The program does not get the tensors that
# the hook makes, so they are no births. If the hook returns the tensor itself, the graph would keep
# a handle that is disposed with its scope; it gets another handle of the same memory instead.


_C: Final[Any] = torch._C
_Undisturbed: Final[Any] = _C.DisableTorchFunction

_Hook = Callable[[Any], Any]


def _called(hook: _Hook, tensor: Any) -> Any:
    return hook(tensor)


def _for_the_graph(hook: _Hook, call: Callable[[_Hook, Any], Any]) -> _Hook:
    @functools.wraps(hook)
    def packed(tensor: Any) -> Any:
        if CURRENT.get() is None or issubclass(type(tensor), Parameter):
            return hook(tensor)
        return _without(tensor, call(hook, tensor))

    return packed


def _without(tensor: Any, kept: Any) -> Any:
    """Return the packed object, with another handle in place of the tensor."""
    if kept is tensor:
        # No function mode sees this call, so the new handle is no birth.
        with _Undisturbed():
            return tensor.detach()
    if type(kept) in (tuple, list) and any(item is tensor for item in kept):
        return type(kept)(_without(tensor, item) for item in kept)
    return kept


def keep_what_hooks_save(call: Callable[[_Hook, Any], Any] | None) -> None:
    """Let no scope own the tensors that hooks on saved tensors keep, from now on.

    Parameters
    ----------
    call : callable, optional
        Calls a function with one argument without births. Not needed where a function mode sees
        births: it sees none in a hook.
    """
    push: Any = getattr(_C._autograd, "_push_saved_tensors_default_hooks", None)
    if push is None:
        PATCHES.fail(TORCH_SAVED_TENSORS, "torch._C._autograd has no _push_saved_tensors_default_hooks")
        return

    def wrap(enter: Any) -> Any:
        @functools.wraps(enter)
        def __enter__(self: Any) -> None:
            if torch.compiler.is_compiling():
                enter(self)
            else:
                unpack = self.unpack_hook if SHOWS_SAVED else showing_what_was_packed(self.unpack_hook)
                push(_for_the_graph(self.pack_hook, call or _called), unpack)

        return __enter__

    PATCHES.replace(TORCH_SAVED_TENSORS, saved_tensors_hooks, "__enter__", wrap)
    PATCHES.replace(TORCH_SAVED_TENSORS, torch.autograd.graph, "_AllowMutationOnSavedContext.__init__", _keeping_copies)


def _keeping_copies(initialise: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wrap the method so that no scope owns the copies of saved tensors that the object keeps."""

    @functools.wraps(initialise)
    def __init__(self: Any) -> None:
        initialise(self)
        self.cloned = _Copies(self.cloned)

    return __init__


@final
class _Copies(WeakKeyDictionary[Any, Any]):
    """Copies of saved tensors, by PyTorch's key for the original; no scope owns them."""

    def __setitem__(self, key: Any, copy: Any) -> None:
        super().__setitem__(key, copy)
        _leave_to_the_pass(copy)


def _leave_to_the_pass(tree: object) -> None:
    """Let no scope own the tensors in a tree that is kept for a backward pass."""
    for leaf in flattened(tree, 3):
        entry = entry_of(leaf) if isinstance(leaf, torch.Tensor) else None
        if entry is not None and entry.owner is not None:
            leave_to_keepers(entry.owner, [entry])


# Tensors that a custom function sets on its context, such as ``ctx.mask = x > 0``, belong to the
# graph too.


# Attributes of a context that its methods set, such as ``save_for_backward``: not the program's.
_SAVED_BY_METHODS: Final = frozenset({"dirty_tensors", "non_differentiable", "saved_for_forward", "to_save"})


def keep_what_contexts_hold() -> None:
    """Let no scope own tensors set on the context of a ``torch.autograd.Function``, from now on."""
    PATCHES.replace(TORCH_CONTEXTS, BackwardCFunction, "__setattr__", _for_the_backward_pass)


def _for_the_backward_pass(set_attribute: Callable[[Any, str, Any], None]) -> Callable[[Any, str, Any], None]:
    def __setattr__(self: Any, name: str, value: Any) -> None:
        set_attribute(self, name, value)
        if name not in _SAVED_BY_METHODS and CURRENT.get() is not None:
            _leave_to_the_pass(value)

    return __setattr__


# Tracing: PyTorch runs code in order to make a program of it. The tensors that are made by that
# belong to the program and are no births.
#
# ``torch.compile``, ``torch.export`` and ``make_fx`` run the user's code with tensors without
# memory, which they keep in the graph. Real tensors that the code makes become constants of the
# program, which is used after the scope.


_TRACERS: Final = (
    ("torch.export._trace", "_export"),
    ("torch.export.exported_program", "ExportedProgram.module"),
    ("torch.export.exported_program", "ExportedProgram.run_decompositions"),
    ("torch.export.unflatten", "unflatten"),
    ("torch._export.serde.serialize", "deserialize"),
    ("torch.export.pt2_archive._package", "load_pt2"),
    ("torch.fx.experimental.proxy_tensor", "_MakefxTracer.trace"),
)


def watch_traces() -> None:
    """Let no scope own tensors that are made while code is traced, from now on."""
    when_imported("torch._dynamo.convert_frame", _watch_dynamo)
    for module_name, name in _TRACERS:
        when_imported(module_name, functools.partial(_watch_tracer, name))


def _watch_dynamo(module: Any) -> None:
    PATCHES.replace(TORCH_TRACES, module, "_compile", lambda trace: _explaining_disposed(without_births(trace)))


def _watch_tracer(name: str, module: Any) -> None:
    PATCHES.replace(TORCH_TRACES, module, name, without_births)


def _explaining_disposed(trace: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the function: raise the `DisposedError` that Dynamo has wrapped in an internal error."""

    @functools.wraps(trace)
    def traced(*args: Any, **kwargs: Any) -> Any:
        try:
            return trace(*args, **kwargs)
        except Exception as error:
            cause: BaseException | None = error if type(error).__name__ == "InternalTorchDynamoError" else None
            while cause is not None and not isinstance(cause, DisposedError):
                cause = cause.__cause__ or cause.__context__
            if cause is None:
                raise
            raise DisposedError(str(cause), resource=cause.resource) from None

    return traced


def without_births(trace: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that its calls make no births."""

    @functools.wraps(trace)
    def traced(*args: Any, **kwargs: Any) -> Any:
        here = thread_state()
        if here.stepping:
            resume_after_a_failed_step(here)
        if here.stepping or not is_looked_at(here):
            return trace(*args, **kwargs)
        reason = id(_getframe()) | TRACING
        pause_births(reason)
        try:
            return trace(*args, **kwargs)
        finally:
            resume_births(here, reason)

    return traced


# Transforms: ``torch.vmap`` and ``torch.func``. The results of the outermost transform are births;
# other tensors that are made inside are not.
#
# PyTorch unwraps the results in C++ before the transform has ended. So the Python functions that
# return them are wrapped.


_TRANSFORMS: Final = (
    ("torch._functorch.apis", "vmap_impl"),
    ("torch._functorch.eager_transforms", "grad_impl"),
    ("torch._functorch.eager_transforms", "grad_and_value_impl"),
    ("torch._functorch.eager_transforms", "_vjp_with_argnums"),
    ("torch._functorch.eager_transforms", "_jvp_with_argnums"),
)


def watch_transforms() -> None:
    """Record the results of transforms as born, from now on."""
    for module_name, name in _TRANSFORMS:
        when_imported(module_name, functools.partial(_watch_transform, name))


def _watch_transform(name: str, module: Any) -> None:
    PATCHES.replace(TORCH_TRANSFORMS, module, name, handing_over)


def handing_over(transform: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that its results are born when it returns."""

    @functools.wraps(transform)
    def transformed(*args: Any, **kwargs: Any) -> Any:
        result = transform(*args, **kwargs)
        # Dynamo traces this code, and replaces `is_compiling()` by a constant.
        if not torch.compiler.is_compiling() and is_looked_at(thread_state()):
            refusal = births_in(result, args=args, kwargs=kwargs)
            if refusal is not None:
                del result
                raise refusal
        return result

    return recording(transformed)


# Lazy properties of distributions. ``Categorical(probs=...)`` computes its ``logits`` when they are
# first read, perhaps in the first step of a loop, and keeps them. The distribution may be older
# than the scope, so they belong to it.


def keep_what_distributions_compute() -> None:
    """Let no scope own the lazy properties of distributions, from now on."""
    PATCHES.replace(TORCH_LAZY_PROPERTIES, lazy_property, "__get__", _keeping_what_it_computes)


def _keeping_what_it_computes(get: Callable[..., Any]) -> Callable[..., Any]:
    quietly = without_births(get)

    @functools.wraps(get)
    def __get__(self: Any, instance: Any, obj_type: Any = None) -> Any:
        if instance is None or torch.compiler.is_compiling() or CURRENT.get() is None:
            return get(self, instance, obj_type)
        if SEAM.at_allocation:
            # No birth, but a leak detector still sees the memory.
            return TORCH_COMPILED.unborn(functools.partial(get, self, instance), obj_type)
        return quietly(self, instance, obj_type)

    return __get__


# Functions of ``torch.compile``. They are compiled and run as if no scope were open; their results
# are births.
#
# Dynamo guards on the stack of function modes and would trace the modes of this library: each
# function would be compiled once more for calls in a scope. So the modes are off the stack while a
# compiled function runs. Every call of one sets Dynamo's callback when it begins and resets it when
# it ends, by ``torch._dynamo.eval_frame._maybe_set_eval_frame``.
#
# A scope that is entered in such a function breaks its graph into several. In the block births are
# seen as elsewhere. Of the graphs that run in it, which are globals with names of their own, only
# the results are births: the backward pass keeps the tensors that a graph saves for it.


_WRAPPER: Final = "compile_wrapper"
"""The name of Dynamo's function that calls compiled code."""
_COMPILED_GRAPH: Final = "__compiled_fn"
"""How the names of the globals begin that are compiled graphs."""


def watch_compiled_functions() -> None:
    """Notice when compiled code begins and ends, once the program has imported Dynamo."""
    when_imported("torch._dynamo.eval_frame", _watch_compile)
    when_imported("torch._dynamo.output_graph", _watch_graphs)


def _watch_compile(module: Any) -> None:
    if not _hands_out_its_result(module):
        PATCHES.fail(TORCH_COMPILED_FUNCTIONS, f"{_WRAPPER} of torch._dynamo.eval_frame has no variable result")
        return
    PATCHES.replace(TORCH_COMPILED_FUNCTIONS, module, "_maybe_set_eval_frame", _watching_calls)


def _hands_out_its_result(module: Any) -> bool:
    """Return whether the function that calls compiled code has a variable named ``result``."""
    context: Any = getattr(module, "_TorchDynamoContext", None)
    code = getattr(vars(context).get("__call__") if isinstance(context, type) else None, "__code__", None)
    inside: tuple[Any, ...] = () if code is None else code.co_consts
    return any(
        isinstance(constant, CodeType) and constant.co_name == _WRAPPER and "result" in constant.co_varnames
        for constant in inside
    )


def _watching_calls(set_callback: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @recording
    def _maybe_set_eval_frame(callback: Any) -> Any:
        caller = sys._getframe(1)
        if caller.f_code.co_name != _WRAPPER:
            return set_callback(callback)
        here = thread_state()
        ending = here.compiled
        while ending is not None and ending.frame is not caller:
            ending = ending.around
        if ending is not None:
            before = set_callback(callback)
            was_off = here.runs_compiled
            here.compiled = ending.around
            if not here.stepping:
                if was_off and not here.runs_compiled:
                    put_on()
                if is_looked_at(here):
                    _hand_over_result(caller)
            return before
        # With None or False for a callback nothing is compiled: the function just runs.
        if callback is not None and callback is not False and not here.runs_compiled:
            here.compiled = Compiled(caller, len(here.scopes), here.compiled)
            if here.watched and not here.stepping:
                take_off()
        return set_callback(callback)

    return _maybe_set_eval_frame


def _watch_graphs(module: Any) -> None:
    PATCHES.replace(TORCH_COMPILED_FUNCTIONS, module, "OutputGraph.install_global_unsafe", _watching_its_graphs)


def _watching_its_graphs(install: Callable[[Any, str, Any], None]) -> Callable[[Any, str, Any], None]:
    @functools.wraps(install)
    def install_global_unsafe(graph: Any, name: str, value: Any) -> None:
        install(graph, name, _handing_over_in_scopes(value) if name.startswith(_COMPILED_GRAPH) else value)

    return install_global_unsafe


def _handing_over_in_scopes(graph: Callable[..., Any]) -> Callable[..., Any]:
    in_scope = handing_over(without_births(graph))

    @functools.wraps(graph)
    def run(*args: Any) -> Any:
        here = thread_state()
        # Where the compiled function has entered no scope, only its own result is a birth, and
        # `_hand_over_result` records that.
        return graph(*args) if here.stepping or here.runs_compiled or not here.scopes else in_scope(*args)

    return run


@recording
def _hand_over_result(frame: FrameType) -> None:
    local = variables_of(frame)
    result = local.get("result")
    if result is not None:
        refusal = births_in(result, args=local.get("args", ()), kwargs=local.get("kwargs"), frame=None)
        if refusal is not None:
            raise refusal


# Attention in eval mode must take its fused path in a scope too.
#
# ``torch.nn`` does not take that path, whose results differ in the last bits, where
# ``torch.overrides.has_torch_function`` returns true: some code overrides functions. The modes of
# this library change no result, so they must not count.


_push: Final[Callable[[object], None]] = _C._push_on_torch_function_stack
_pop: Final[Callable[[], Any]] = _C._pop_torch_function_stack
_depth: Final[Callable[[], int]] = _C._len_torch_function_stack
_overrides: Final[Any] = torch.overrides
_asks: Final[Callable[[Any], bool]] = _overrides.has_torch_function


def _has_torch_function(args: Any) -> bool:
    """Return whether other code than this library overrides functions for these arguments."""
    if torch.compiler.is_compiling():
        # Dynamo replaces `is_compiling()` by a constant, and can trace the function of this name.
        return torch.overrides.has_torch_function_variadic(*args)
    ours = thread_state().modes
    depth = _depth()
    if not depth or depth > len(ours):
        return _asks(args)
    modes = [_pop() for _ in range(depth)]
    try:
        return any(not any(mode is own for own in ours) for mode in modes) or _asks(args)
    finally:
        for mode in reversed(modes):
            _push(mode)


def keep_fast_paths() -> None:
    """Replace ``torch.overrides.has_torch_function`` by `_has_torch_function`."""
    register: Callable[[Any, str], None] | None = vars(_builtins).get("_register_builtin")
    if register is None:
        PATCHES.fail(TORCH_FAST_PATHS, "torch.jit._builtins has no _register_builtin")
        return
    register(_has_torch_function, "aten::has_torch_function")
    PATCHES.replace(TORCH_FAST_PATHS, _overrides, "has_torch_function", lambda _: _has_torch_function)


# Batches from the workers of a DataLoader. A batch is born when the loader returns it, not when it
# arrives: while the program waits for the next batch, later ones may arrive first. The loader keeps
# them, also after the scope.


def watch_loaders() -> None:
    """Let scopes own the batches that a loader returns, and none that it keeps, from now on."""
    when_imported("torch.utils.data.dataloader", _watch_loaders)


def _watch_loaders(module: Any) -> None:
    PATCHES.replace(TORCH_LOADERS, module, "_MultiProcessingDataLoaderIter._next_data", _handing_over_batches)


def _handing_over_batches(receive: Callable[[Any], Any]) -> Callable[[Any], Any]:
    quietly = without_births(receive)

    @recording
    @functools.wraps(receive)
    def _next_data(self: Any) -> Any:
        # No births here, but a leak detector still sees the memory.
        batch = TORCH_COMPILED.unborn(receive, self) if SEAM.at_allocation else quietly(self)
        if SEAM.at_allocation and CURRENT.get() is not None:
            refusal = births_in(batch)
            if refusal is not None:
                del batch
                raise refusal
        return batch

    return _next_data
