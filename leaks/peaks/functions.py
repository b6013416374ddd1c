"""Functions and methods of NumPy and PyTorch, by whether their results have memory of their own.

A function that is not named here may return a view of an argument, or keep an argument.
"""

from __future__ import annotations

import ast
import inspect
import sys
from types import CodeType
from typing import Final

import numpy as np

from ...scopes.base.sites import Mark, globals_of_file

__all__ = [
    "BUILTINS_THAT_MAKE_NEW",
    "CHANGING_FUNCTIONS",
    "CHANGING_METHODS",
    "CREATING",
    "FACTS",
    "INEXACT",
    "RANDOM",
    "READING_MORE",
    "VIEWS",
    "has_option",
    "is_library_code",
    "is_library_function",
    "is_number_type",
    "makes_new",
    "plain_module_call",
    "without_notes",
]

BUILTINS_THAT_MAKE_NEW: Final = frozenset(
    {
        *("abs", "all", "any", "bool", "complex", "divmod", "float", "format", "hash", "id", "int", "isinstance"),
        *("len", "pow", "print", "repr", "round", "str", "sum", "type"),
    }
)
"""Builtin functions that neither keep nor return what they are given."""
FACTS: Final = frozenset(
    {
        *("device", "dtype", "element_size", "is_leaf", "itemsize", "layout", "nbytes", "ndim"),
        *("requires_grad", "shape", "size", "strides"),
    }
)
"""Attributes of arrays and tensors that do not refer to their memory."""
VIEWS: Final = frozenset(
    {
        # Of NumPy, functions, methods and attributes.
        *("T", "mT", "H", "mH", "array_split", "asanyarray", "asarray", "ascontiguousarray", "asfortranarray"),
        *("atleast_1d", "atleast_2d", "atleast_3d", "broadcast_arrays", "broadcast_to", "diag", "diagonal", "dsplit"),
        *("expand_dims", "flip", "fliplr", "flipud", "hsplit", "imag", "matrix_transpose", "moveaxis", "nan_to_num"),
        *("permute_dims", "ravel", "real", "reshape", "rollaxis", "rot90", "split", "squeeze", "swapaxes"),
        *("transpose", "trim_zeros", "view", "vsplit", "astype", "array"),
        # Of PyTorch besides.
        *("as_tensor", "chunk", "contiguous", "cpu", "data", "detach", "double", "dropout", "expand", "expand_as"),
        *("flatten", "float", "from_numpy", "half", "int", "long", "movedim", "narrow", "numpy", "permute"),
        *("reshape_as", "select", "t", "tensor_split", "to", "type_as", "unbind", "unflatten", "unfold"),
        *("unsqueeze", "view_as"),
    }
)
"""Functions, methods and attributes that may return a view of an argument, or the argument."""
CREATING: Final = frozenset(
    {
        *("arange", "empty", "eye", "full", "geomspace", "identity", "indices", "linspace", "logspace", "ones"),
        *("tri", "zeros"),
    }
)
"""Functions that make arrays from numbers and shapes. All but `empty` make equal ones each time."""
RANDOM: Final = frozenset(
    {
        *("bernoulli", "beta", "binomial", "choice", "exponential", "gamma", "integers", "laplace", "lognormal"),
        *("multinomial", "normal", "permutation", "poisson", "rand", "rand_like", "randint", "randn", "randn_like"),
        *("random", "randperm", "standard_exponential", "standard_normal", "uniform", "empty_like"),
    }
)
"""Functions that make arrays with other values each time."""
_FUNCTIONS: Final = frozenset(
    {
        # Of NumPy, and of PyTorch by the same names.
        *("ones_like", "zeros_like", "full_like", "tril", "triu", "vander", "copy", "concatenate", "stack", "vstack"),
        *("hstack", "dstack", "column_stack", "block", "tile", "repeat", "append", "insert", "delete", "roll"),
        *("where", "take", "compress", "extract", "pad", "sort", "argsort", "lexsort", "argpartition", "unique"),
        *("searchsorted", "digitize", "bincount", "histogram", "nonzero", "flatnonzero", "argwhere", "argmax"),
        *("argmin", "count_nonzero", "interp", "gradient", "cumsum", "cumprod", "convolve", "correlate", "outer"),
        *("inner", "dot", "vdot", "tensordot", "kron", "cross", "trace", "cov", "corrcoef", "sum", "prod", "mean"),
        *("std", "var", "median", "average", "percentile", "quantile", "min", "max", "amin", "amax", "ptp", "all"),
        *("any", "allclose", "array_equal", "isclose", "nansum", "nanmean", "nanmax", "nanmin", "nanstd", "nanvar"),
        *("clip", "round", "around", "isin", "union1d", "intersect1d", "setdiff1d", "angle", "unwrap"),
        *("fft", "ifft", "rfft", "irfft", "fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "fftshift"),
        *("norm", "inv", "det", "solve", "svd", "eig", "eigh", "eigvalsh", "qr", "cholesky", "lstsq", "pinv"),
        *("matmul", "save", "savetxt", "array_repr", "array2string"),
        # Of PyTorch besides.
        *("abs", "add", "addmm", "argmax", "avg_pool2d", "adaptive_avg_pool2d", "bmm", "cat", "cdist"),
        *("binary_cross_entropy", "binary_cross_entropy_with_logits", "ceil", "clamp", "concat", "conv1d", "conv2d"),
        *("conv3d", "cos", "cosine_similarity", "cross_entropy", "div", "elu", "eq", "equal", "erf"),
        *("exp", "expm1", "floor", "gather", "ge", "gelu", "group_norm", "gt", "histc", "index_select", "isfinite"),
        *("isinf", "isnan", "l1_loss", "layer_norm", "le", "leaky_relu", "lerp", "linear", "log", "log1p"),
        *("log_softmax", "logical_and", "logical_not", "logical_or", "logsumexp", "lt", "masked_select", "max_pool2d"),
        *("maximum", "minimum", "mish", "mm", "mse_loss", "mul", "mv", "ne", "neg", "nll_loss", "normalize", "one_hot"),
        *("pow", "reciprocal", "relu", "rsqrt", "scaled_dot_product_attention", "scatter", "sigmoid", "sign", "silu"),
        *("sin", "smooth_l1_loss", "softmax", "softplus", "sqrt", "square", "std_mean", "sub", "tan", "tanh"),
        *("tensor", "topk", "var_mean"),
    }
)
"""Functions whose results have memory of their own."""
_METHODS: Final = frozenset(
    {
        # Of arrays and tensors.
        *("all", "any", "argmax", "argmin", "argsort", "clip", "cumprod", "cumsum", "dot", "item", "max", "mean"),
        *("min", "nonzero", "prod", "repeat", "round", "std", "sum", "take", "tolist", "trace", "var"),
        # Of arrays.
        *("argpartition", "compress", "copy", "ptp", "searchsorted", "tobytes", "tofile"),
        # Of tensors.
        *("abs", "add", "addmm", "amax", "amin", "backward", "bincount", "bmm", "ceil", "clamp", "clone", "cos"),
        *("count_nonzero", "dim", "div", "eq", "equal", "erf", "exp", "expm1", "floor", "gather", "ge", "gt"),
        *("histc", "index_select", "isfinite", "isinf", "isnan", "le", "lerp", "log", "log1p", "log_softmax"),
        *("logical_not", "logsumexp", "lt", "masked_fill", "masked_select", "matmul", "median", "mm", "mul", "mv"),
        *("nansum", "ne", "neg", "norm", "numel", "outer", "pow", "quantile", "reciprocal", "relu", "rsqrt"),
        *("scatter", "scatter_add", "sigmoid", "sign", "sin", "softmax", "sqrt", "square", "sub", "tan", "tanh"),
        *("topk", "unique"),
    }
)
"""Methods whose results have memory of their own."""
CHANGING_METHODS: Final = frozenset(
    {
        *("fill", "put", "sort"),
        *("abs_", "add_", "ceil_", "clamp_", "clip_", "copy_", "div_", "exp_", "fill_", "floor_", "log_", "mul_"),
        *("neg_", "normal_", "pow_", "relu_", "round_", "sigmoid_", "sqrt_", "sub_", "tanh_", "uniform_", "zero_"),
    }
)
"""Methods that change their array or tensor in place, and keep no reference to it."""
CHANGING_FUNCTIONS: Final = frozenset({"copyto", "fill_diagonal", "place", "put", "putmask", "shuffle"})
"""Functions that change their first argument in place, and return nothing."""
INEXACT: Final = frozenset(
    {
        *("add", "arccos", "arcsin", "arctan", "arctan2", "clip", "cos", "cosh", "divide", "exp", "exp2", "expm1"),
        *("log", "log10", "log1p", "log2", "maximum", "minimum", "multiply", "negative", "power", "round", "around"),
        *("sin", "sinh", "sqrt", "square", "subtract", "tan", "tanh", "true_divide"),
    }
)
"""Elementwise functions whose result is inexact where one operand is, and that take ``out=``."""
READING_MORE: Final = frozenset(
    {
        *("addmm", "conv1d", "conv2d", "conv3d", "group_norm", "interp", "layer_norm", "lerp", "linear"),
        *("scaled_dot_product_attention", "where"),
    }
)
"""Functions that read their third argument. For other functions it may be ``out``."""

_FILES_OF_LEAF_MODULES: Final = frozenset(
    {"activation", "batchnorm", "conv", "linear", "loss", "normalization", "pooling", "sparse"}
)
"""Files of ``torch.nn.modules`` whose modules have no other modules in them."""
_TORCH_FILES: Final = ("functional", "_tensor", "_jit_internal", "_ops", "__init__")
"""Files of PyTorch whose functions call no code of the program."""
_PACKAGE: Final = __name__.partition(".")[0] + "."
_DISPATCHING: Final = ("torch._compile", "torch._dynamo", "torch.utils._python_dispatch")
"""Modules of PyTorch whose frames are between an operation and this package, which records it."""
_ARGUMENTS_BEFORE_INPLACE: Final = {"relu": 1, "silu": 1, "mish": 1, "elu": 2, "leaky_relu": 2}
"""How many positional arguments each function has before ``inplace``."""
_LIBRARIES: Final = frozenset({"np", "numpy", "torch"})
"""The names whose attributes are taken for types of NumPy or PyTorch."""
_NUMBER_TYPES: Final = frozenset({"float", "int", "bool", "complex"})


def makes_new(name: str, call: ast.Call, *, is_method: bool) -> bool:
    """Return whether a call of a function or method makes memory that no argument has."""
    if has_option(call):
        return False
    if name == "astype":
        # It makes a copy, unless an option such as ``copy=False`` says otherwise.
        return is_method and len(call.args) == 1 and not call.keywords
    if is_method:
        return name in _METHODS
    if len(call.args) > _ARGUMENTS_BEFORE_INPLACE.get(name, len(call.args)):
        return False
    if name == "array":
        return len(call.args) == 1 and all(_is_number_type(each) for each in call.keywords)
    if name in ("einsum", "meshgrid"):
        # With one operand `einsum` may return a view, and so may `meshgrid`.
        return name == "einsum" and len(call.args) > 2
    if name == "histogram":
        # It returns an array of edges that it is given.
        bins = [*call.args[1:2], *(each.value for each in call.keywords if each.arg == "bins")]
        return all(isinstance(each, ast.Constant) for each in bins)
    if name == "diff":
        return len(call.args) == 1 and not call.keywords
    if name == "nan_to_num":
        return len(call.args) == 1 and not any(each.arg == "copy" for each in call.keywords)
    return name in _FUNCTIONS or name in CREATING or name in RANDOM


def has_option(call: ast.Call) -> bool:
    """Return whether a call may work in place: with ``out``, ``overwrite_input``, True or ``*``."""
    if any(isinstance(each, ast.Starred) or _is_true(each) for each in call.args):
        return True
    return any(
        each.arg in ("inplace", "out", "overwrite_input", None) and not _is_none(each.value) for each in call.keywords
    )


def is_library_function(function: object) -> bool:
    """Return whether an object is a function of NumPy or PyTorch, and not a class or module."""
    name: object = getattr(function, "__name__", None)
    if not isinstance(name, str) or inspect.isclass(function) or inspect.ismodule(function):
        return False
    module = getattr(function, "__module__", None)
    if isinstance(module, str) and module.partition(".")[0] in ("numpy", "torch"):
        return not module.startswith("numpy.ma")
    named = (sys.modules.get("torch"), sys.modules.get("torch.nn.functional"), np, np.random)
    return any(library is not None and vars(library).get(name) is function for library in named)


def without_notes(marks: tuple[Mark, ...]) -> tuple[Mark, ...]:
    """Return the frames at a birth without those in which PyTorch's memory is recorded."""
    first = 0
    if marks and _module_of(marks[0][0]).startswith(_PACKAGE):
        while first < len(marks) and _module_of(marks[first][0]).startswith((_PACKAGE, *_DISPATCHING)):
            first += 1
    return marks[first:]


def is_library_code(code: CodeType) -> bool:
    """Return whether code is NumPy's, or PyTorch's that calls no code of the program."""
    library, _, rest = _module_of(code).partition(".")
    if library == "numpy":
        return not rest.startswith("ma")
    last = rest.rpartition(".")[2]
    return library == "torch" and (rest == "" or last in _TORCH_FILES or plain_module_call(code) is not None)


def plain_module_call(code: CodeType) -> str | None:
    """Return what code does in a call of a PyTorch module without hooks; None for other code.

    "calls" for the code that calls ``forward``. "computes" for code of a module that has no other
    modules in it. Where a module has hooks, a nested function calls ``forward``: None for that.
    """
    parent, _, last = _module_of(code).rpartition(".")
    if parent != "torch.nn.modules":
        return None
    if last == "module":
        return "calls" if code.co_name in ("_wrapped_call_impl", "_call_impl") else None
    return "computes" if last in _FILES_OF_LEAF_MODULES else None


def _module_of(code: CodeType) -> str:
    return str(globals_of_file(code.co_filename).get("__name__", ""))


def is_number_type(value: ast.expr) -> bool:
    """Return whether an expression is a ``dtype`` of numbers.

    An array of another dtype may be one of objects, which still refers to what it was made of.
    """
    if isinstance(value, ast.Constant):
        return isinstance(value.value, str) and value.value[:1] in "bcfiu"
    if isinstance(value, ast.Name):
        return value.id in _NUMBER_TYPES
    if not isinstance(value, ast.Attribute) or not isinstance(value.value, ast.Name):
        return False
    return value.value.id in _LIBRARIES and not value.attr.startswith("obj")


def _is_number_type(keyword: ast.keyword) -> bool:
    """Return whether a keyword is a ``dtype`` of numbers."""
    return keyword.arg == "dtype" and is_number_type(keyword.value)


def _is_true(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is True


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None
