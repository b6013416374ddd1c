"""The rows of `PATCHES` for changes in NumPy, PyTorch and JAX. Imports none of them."""

from __future__ import annotations

from functools import partial
from typing import Final

from ..scopes.base.process import PATCHES, TESTED_PYTHON, Patch

__all__ = [
    "GARBAGE_COLLECTIONS",
    "JAX_CALLS",
    "JAX_HOOK",
    "JAX_METHODS",
    "JAX_TRANSFERS",
    "NUMPY_BUFFERS",
    "TORCH_ALLOCATION",
    "TORCH_MODULES",
    "TORCH_SAVED_TENSORS",
    "TORCH_CONTEXTS",
    "TORCH_TRACES",
    "TORCH_TRANSFORMS",
    "TORCH_LAZY_PROPERTIES",
    "TORCH_COMPILED_FUNCTIONS",
    "TORCH_DISPATCH_MODES",
    "TORCH_GRAPHS",
    "TORCH_GRAPH_BREAKS",
    "TORCH_DISPOSAL",
    "TORCH_FAST_PATHS",
    "TORCH_BUFFERS",
    "TORCH_LOADERS",
    "TORCH_SWAPS",
    "TORCH_THREADS",
    "TORCH_NESTED_TENSORS",
    "TORCH_PACKED_SEQUENCES",
]

_TESTED_NUMPY: Final = "2.0 to 2.5"
"""The versions of NumPy that the tests run with."""
_THERE: Final = "each of them is there"
"""The guard of patches that only need the attributes to exist."""

GARBAGE_COLLECTIONS: Final = Patch(
    library="python",
    name="gc.callbacks",
    why="cached memory is returned also in programs that use no scope any more",
    tested=TESTED_PYTHON,
    guard="none is needed: the list is public",
    otherwise="cached memory is returned only by scopes and new arrays",
)
_ARENA: Final = Patch(
    library="numpy",
    name="the data-memory handler of a context (PyDataMem_SetHandler), while a scope is open in it",
    why="the arena serves the arrays that are made in a scope",
    tested=_TESTED_NUMPY,
    guard="the C interface of NumPy 2.0, which the extension is built for",
    otherwise="the import fails",
    uses=("numpy._core._multiarray_umath",),
)

NUMPY_BUFFERS: Final = Patch(
    library="numpy",
    name=(
        "array, asarray, asanyarray, ascontiguousarray, asfortranarray, from_dlpack and frombuffer of numpy, and "
        "__new__ and __setstate__ of numpy.ndarray, while a detector is open"
    ),
    why="a detector sees arrays that keep bytes, a bytearray or an mmap alive: those of pickles and files too",
    tested=_TESTED_NUMPY,
    guard="they stand in NumPy's tables of functions, to be called as Python's are",
    otherwise="a detector sees no arrays over memory that NumPy did not make",
    unseen="arrays over memory that NumPy did not make: of pickles, numpy.frombuffer and numpy.memmap",
    uses=("numpy._core._multiarray_umath",),
)

_of_jax: Final = partial(Patch, library="jax", tested="0.5 to 0.12", guard=_THERE)
_of_torch: Final = partial(Patch, library="torch", tested="2.5 to 2.15", guard=_THERE)

_FOUND_LATER: Final = "its results are found when a scope is left, or somebody counts"
JAX_HOOK: Final = _of_jax(
    name="jax._src.api._post_hook_state (before 0.8, the states of jax_jit there)",
    why="what a call of compiled code returns is born in the current scope",
    otherwise=_FOUND_LATER,
    warns=False,
    uses=(
        "jax._src.api",
        "jax._src.array",
        "jax._src.config",
        "jax._src.lib",
        "jax._src.xla_bridge",
    ),
)
JAX_CALLS: Final = _of_jax(
    name="jax._src.interpreters.pxla.ExecuteReplicated.__call__",
    why="what the first call of a function returns is born in the current scope",
    otherwise=_FOUND_LATER,
    warns=False,
    uses=("jax._src.interpreters.pxla",),
)
JAX_TRANSFERS: Final = _of_jax(
    name="jax._src.dispatch._batched_device_put_impl (before 0.8, also device_put_p.impl)",
    why="what is put on a device is born in the current scope",
    otherwise=_FOUND_LATER,
    warns=False,
    uses=("jax._src.dispatch",),
)
JAX_METHODS: Final = _of_jax(
    name="methods of jax._src.array.ArrayImpl that read memory or show it",
    why=(
        "an array that was disposed raises DisposedError, and is shown as disposed; a detector sees NumPy arrays that "
        "keep the memory of one"
    ),
    otherwise="JAX's own error is raised; a detector does not see such NumPy arrays",
    warns=False,
    uses=("jax._src.array",),
)

TORCH_ALLOCATION: Final = _of_torch(
    name=(
        "tp_alloc of torch.Tensor and its subclasses, tp_init of their metaclass, and the attributes grad, _grad, "
        "_base, data, set_, untyped_storage and numpy, and run_backward of torch._C._ImperativeEngine"
    ),
    why="a scope owns each tensor that is made in it, and a detector sees its memory",
    guard=(
        "the classes allocate as Python's do, the attributes are descriptors of the known form, and PyTorch exports "
        "what reads its state"
    ),
    otherwise=(
        "scopes see what calls of PyTorch's functions return, and neither what torch.from_numpy, torch.load, "
        "unpickling and workers of a DataLoader make nor what is made inside of such a call: move or dispose those "
        "by name, or use a PyTorch that was tested"
    ),
    unseen=(
        "tensors of torch.from_numpy, torch.load, unpickling and workers of a DataLoader, and what is made inside of "
        "calls of PyTorch's"
    ),
    uses=(
        "torch.Tensor._make_subclass",
        "torch._C.DispatchKey",
        "torch._C.TensorBase",
        "torch._C._ImperativeEngine",
        "torch._C._current_graph_task_id",
        "torch._C._functorch",
        "torch._C._is_cached_tensor",
        "torch.nested._internal",
        "torch::autograd::get_current_graph_task_id",
        "at::impl::torch_function_all_disabled",
        "c10::impl::tls_is_dispatch_key_included",
        "at::impl::PythonTorchFunctionTLS",
    ),
)
TORCH_DISPOSAL: Final = _of_torch(
    name="torch._C._swap_tensor_impl and other private functions, which are called and not changed",
    why="a disposed tensor raises DisposedError, and what others have of its memory stays",
    guard="a tensor that a probe disposes is dead, and its view is what it was",
    otherwise="scopes do not own tensors of this PyTorch: use one that was tested",
    unseen="tensors of PyTorch",
    uses=(
        "torch._C.DisableTorchFunction",
        "torch._C.TensorBase",
        "torch._C._autograd._unsafe_set_version_counter",
        "torch._C._fft",
        "torch._C._functorch",
        "torch._C._get_function_stack_at",
        "torch._C._is_cow_tensor",
        "torch._C._is_torch_function_mode_enabled",
        "torch._C._len_torch_function_stack",
        "torch._C._linalg",
        "torch._C._nested",
        "torch._C._nn",
        "torch._C._pop_torch_function_stack",
        "torch._C._push_on_torch_function_stack",
        "torch._C._sparse",
        "torch._C._special",
        "torch._C._storage_Use_Count",
        "torch._C._swap_tensor_impl",
        "torch._C._VariableFunctions",
        "torch._tensor",
        "torch.utils._device",
    ),
)
TORCH_GRAPHS: Final = _of_torch(
    name="attributes of autograd's nodes (_raw_saved_*) and of their SavedTensor, which are called and not changed",
    why="graph_nbytes and leak reports find what a graph saved, and run no hook",
    guard="the graph of a probe shows what it saved, as from PyTorch 2.10 on",
    otherwise=(
        "graphs are read by their public attributes: what was changed in place since it was saved is not found, and "
        "hooks on saved tensors are run that were entered before the first scope or detector"
    ),
    unseen="what graphs saved and was changed in place since",
    uses=(
        "torch._C._DisableFuncTorch",
        "torch._C._DisableTorchDispatch",
        "torch._C._FunctionBase",
        "torch._C._autograd.SavedTensor",
        "torch._C._autograd._get_sequence_nr",
        "torch._C._get_tracing_state",
        "torch._C._set_grad_enabled",
        "torch._C._set_tracing_state",
        "torch.autograd.forward_ad._current_level",
    ),
)
TORCH_MODULES: Final = _of_torch(
    name=(
        "torch.optim.Optimizer.add_param_group and __setstate__, torch.nn.Module.__setstate__, and the global hooks of "
        "registrations and optimizer steps"
    ),
    why="no scope owns parameters, buffers and the state of optimizers",
    otherwise="a scope disposes tensors of models and optimizers that are loaded or unpickled in it",
)
TORCH_SAVED_TENSORS: Final = _of_torch(
    name="torch.autograd.graph: saved_tensors_hooks.__enter__ and _AllowMutationOnSavedContext.__init__",
    why="no scope owns what hooks on saved tensors keep for a backward pass",
    otherwise="a backward pass after the scope may raise DisposedError where such hooks are used",
    uses=(
        "torch._C._autograd._pop_saved_tensors_default_hooks",
        "torch._C._autograd._push_saved_tensors_default_hooks",
        "torch._C._autograd._top_saved_tensors_default_hooks",
    ),
)
TORCH_CONTEXTS: Final = _of_torch(
    name="torch.autograd.function.BackwardCFunction.__setattr__",
    why="no scope owns what a torch.autograd.Function keeps on its context for a backward pass",
    otherwise="a backward pass after the scope may raise DisposedError where a function keeps tensors so",
)
TORCH_TRACES: Final = _of_torch(
    name="the functions that trace programs in torch._dynamo, torch.export and torch.fx",
    why="what is made while code is traced belongs to the program, and disposed arguments raise DisposedError",
    otherwise="constants of programs that are traced in a scope are disposed with it",
    uses=(
        "torch._dynamo.convert_frame",
        "torch._export.serde.serialize",
        "torch.export._trace",
        "torch.export.pt2_archive._package",
        "torch.jit._builtins",
        "torch.jit._trace",
    ),
)
TORCH_TRANSFORMS: Final = _of_torch(
    name="the functions behind torch.vmap and torch.func in torch._functorch",
    why="what transforms return is born, and what they make inside is not",
    otherwise="no scope owns what transforms return",
    uses=(
        "torch._functorch.apis",
        "torch._functorch.eager_transforms",
    ),
)
TORCH_LAZY_PROPERTIES: Final = _of_torch(
    name="torch.distributions.utils.lazy_property.__get__",
    why="what a distribution computes once and keeps is no scope's",
    otherwise="a distribution that is older than a scope may hold disposed tensors after it",
)
TORCH_COMPILED_FUNCTIONS: Final = _of_torch(
    name="torch._dynamo.eval_frame._maybe_set_eval_frame, torch._dynamo.output_graph.OutputGraph.install_global_unsafe",
    why="compiled functions run in a scope as outside of it, and their results are born",
    guard="each of them is there, and what calls compiled code has the result in a variable",
    otherwise="what compiled functions make is born as it is made; they may be compiled once more inside of scopes",
    warns=False,
    uses=(
        "torch._C._dynamo",
        "torch._dynamo.eval_frame",
        "torch._dynamo.output_graph",
    ),
)
TORCH_GRAPH_BREAKS: Final = _of_torch(
    name="torch._dynamo.trace_rules.add, BUILTIN_INLINE_WHEN_CALLED and _disallowed_callable_ids",
    why="a compiled function that enters a scope breaks its graph there",
    otherwise="functions that enter a scope cannot be compiled",
    uses=("torch._dynamo.trace_rules",),
)
TORCH_FAST_PATHS: Final = _of_torch(
    name="torch.overrides.has_torch_function",
    why="attention takes its fused path in a scope as outside of it; torch.jit keeps an entry for what replaces it",
    otherwise="it takes the other path in a scope with a budget",
)
TORCH_BUFFERS: Final = _of_torch(
    name="torch.frombuffer",
    why="a detector sees tensors that keep bytes, a bytearray or an mmap alive",
    otherwise="a detector sees no tensors over memory that PyTorch did not allocate",
    unseen="tensors of torch.frombuffer",
)
TORCH_DISPATCH_MODES: Final = _of_torch(
    name="torch.utils._python_dispatch: _push_mode, _pop_mode and _get_current_dispatch_mode_stack, which are called",
    why="torch.compile goes on while a workspace or --peak records, also where several threads do",
    otherwise="with PyTorch before 2.8, torch.compile compiles nothing while a pass is recorded",
    uses=(
        "torch._C._len_torch_dispatch_stack",
        "torch.utils._python_dispatch",
    ),
)
TORCH_LOADERS: Final = _of_torch(
    name="torch.utils.data.dataloader._MultiProcessingDataLoaderIter._next_data",
    why="batches are born where they are handed over",
    otherwise="batches that a loader keeps for later belong to the scope in which they arrive",
)
TORCH_SWAPS: Final = _of_torch(
    name="torch.utils.weakref",
    why="torch.utils.swap_tensors passes over the weak references of scopes",
    otherwise="it refuses tensors that a scope owns",
)
TORCH_THREADS: Final = Patch(
    library="python",
    name="concurrent.futures.ThreadPoolExecutor.submit and threading.Thread.run",
    why="work that runs on another thread in the context of a scope is watched there",
    tested=TESTED_PYTHON,
    guard=_THERE,
    otherwise="budgets are not asked about what such work makes",
)
TORCH_PACKED_SEQUENCES: Final = _of_torch(
    name="torch.nn.utils.rnn.PackedSequence.__new__ and _make",
    why="a packed sequence is one resource, however it was made",
    otherwise="its tensors are resources of their own",
    uses=("torch.nn.utils.rnn.PackedSequence._fields",),
)
TORCH_NESTED_TENSORS: Final = _of_torch(
    name="torch.nested._internal.nested_tensor.NestedTensor.__init__",
    why="a jagged nested tensor is one resource",
    otherwise="its values and offsets are resources of their own",
    uses=("torch.nested._internal.nested_tensor",),
)

_TORCH_FILES: Final = _of_torch(
    name="the names of PyTorch's own modules, which are compared and not changed",
    why="a report names the line of the program, and none inside of PyTorch",
    guard="none is needed: a module that is not there has no lines",
    otherwise="a line of a module that was renamed may be named",
    uses=(
        "torch._compile",
        "torch._decomp",
        "torch._dynamo",
        "torch._library",
        "torch._meta_registrations",
        "torch._ops",
        "torch._prims",
        "torch._refs",
        "torch._utils",
        "torch.distributed._state_dict_utils",
        "torch.jit._script",
        "torch.utils._pytree",
        "torch.utils._stats",
    ),
)
_FRAMES: Final = Patch(
    library="python",
    name="the layout of frames, and private functions in C, which are read and called and not changed",
    why="a scope ends fast, and a detector learns the line of a birth, and what variables hold, without new objects",
    tested=TESTED_PYTHON,
    guard="none is needed: the extension is built with the headers of its Python",
    otherwise="the extension does not build",
    uses=(
        "_PyCFunctionFastWithKeywords",
        "_PyCode_CODE",
        "_PyDict_Pop",
        "_PyFrame",
        "_PyInterpreterFrame",
        "_PyLocals",
        "_PyStackRef",
        "_PyThreadState_UncheckedGet",
        "_PyWeakref_RefType",
    ),
)

PATCHES.declare(
    _FRAMES,
    _TORCH_FILES,
    GARBAGE_COLLECTIONS,
    _ARENA,
    NUMPY_BUFFERS,
    JAX_HOOK,
    JAX_CALLS,
    JAX_TRANSFERS,
    JAX_METHODS,
    TORCH_ALLOCATION,
    TORCH_DISPOSAL,
    TORCH_GRAPHS,
    TORCH_MODULES,
    TORCH_SAVED_TENSORS,
    TORCH_CONTEXTS,
    TORCH_TRACES,
    TORCH_TRANSFORMS,
    TORCH_LAZY_PROPERTIES,
    TORCH_COMPILED_FUNCTIONS,
    TORCH_GRAPH_BREAKS,
    TORCH_FAST_PATHS,
    TORCH_BUFFERS,
    TORCH_DISPATCH_MODES,
    TORCH_LOADERS,
    TORCH_SWAPS,
    TORCH_THREADS,
    TORCH_NESTED_TENSORS,
    TORCH_PACKED_SEQUENCES,
)
