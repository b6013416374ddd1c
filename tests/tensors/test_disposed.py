"""A disposed Tensor raises DisposedError on every path.

New methods, operators and ufuncs are tested by themselves.
"""

import copy
import inspect
import operator
import pickle

import numpy as np
import pytest

import disposescope as ds

# What works on a disposed tensor: the verb of its end, what a container needs to let it go, what
# says that it is dead.
WORKS = {"dispose", "disposed", "__repr__", "__hash__"}
# No access to the value: machinery of the class, and the two protocols, which have tests of their
# own below.
MACHINERY = {"__new__", "__getattr__", "__slots__", "__module__", "__doc__", "__annotations__", "__weakref__"}
MACHINERY |= {"__array_priority__", "__array_ufunc__", "__array_function__", "__final__"}
MACHINERY |= {"__firstlineno__", "__static_attributes__"}

MEMBERS = sorted(
    {
        name
        for cls in ds.Tensor.__mro__[:-1]
        for name in vars(cls)
        if name not in WORKS | MACHINERY and (name.startswith("__") or not name.startswith("_"))
    }
)
UFUNCS = [ufunc for _, ufunc in sorted(vars(np).items()) if isinstance(ufunc, np.ufunc)]


@pytest.fixture
def dead():
    with ds.dispose_scope():
        tensor = ds.ones((2, 2), name="w")
    return tensor


@pytest.mark.parametrize("name", MEMBERS)
def test_every_public_member_of_a_disposed_tensor_raises(dead, name):
    static = inspect.getattr_static(ds.Tensor, name)
    with pytest.raises(ds.DisposedError, match=r"Tensor shape=\(2, 2\) dtype=float64 name='w' has been disposed"):
        if isinstance(static, property):
            getattr(dead, name)
        else:
            call(static, dead)


@pytest.mark.parametrize("name", [name for name in MEMBERS if getattr(getattr(ds.Tensor, name), "fset", None)])
def test_every_assignable_attribute_of_a_disposed_tensor_raises(dead, name):
    with pytest.raises(ds.DisposedError):
        setattr(dead, name, 0)


def call(function, dead):
    """Call a method with a zero for each argument that it must have."""
    positional, named = [dead], {}
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        if parameter.default is not parameter.empty:
            continue
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            positional.append(0)
        elif parameter.kind is parameter.KEYWORD_ONLY:
            named[parameter.name] = 0
    return function(*positional, **named)


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
def test_every_ufunc_raises_for_a_disposed_tensor_at_any_place(dead, last):
    for ufunc in UFUNCS:
        operands = [np.ones((2, 2))] * ufunc.nin
        operands[-1 if last else 0] = dead
        with pytest.raises(ds.DisposedError):
            ufunc(*operands)


def test_every_ufunc_raises_for_a_disposed_target(dead):
    for ufunc in UFUNCS:
        with pytest.raises(ds.DisposedError):
            ufunc(*[np.ones((2, 2))] * ufunc.nin, out=(dead,) * ufunc.nout)


def test_every_method_of_a_ufunc_raises_for_a_disposed_tensor(dead):
    for ufunc in UFUNCS:
        if (ufunc.nin, ufunc.nout, ufunc.signature) != (2, 1, None):
            continue
        for name, arguments in (
            ("reduce", ()),
            ("accumulate", ()),
            ("reduceat", ([0],)),
            ("outer", (1,)),
            ("at", (0, 1)),
        ):
            with pytest.raises(ds.DisposedError):
                getattr(ufunc, name)(dead, *arguments)
        with pytest.raises(ds.DisposedError):
            ufunc.at(np.ones((2, 2)), 0, dead)


BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lshift", "rshift", "and_", "or_", "xor"]
IN_PLACE = ["i" + name.rstrip("_") for name in BINARY]
COMPARISONS = ["lt", "le", "eq", "ne", "ge", "gt"]
OTHERS = [2, 1.5, None, "text", np.ones((2, 2)), np.float32(1), [1, 2], object()]


@pytest.mark.parametrize("name", BINARY + IN_PLACE + COMPARISONS)
def test_every_operator_raises_whatever_stands_on_the_other_side(dead, name):
    operate = getattr(operator, name)
    for other in [*OTHERS, dead, ds.ones((2, 2))]:
        with pytest.raises(ds.DisposedError):
            operate(dead, other)
        if isinstance(other, str) and name in ("mod", "imod"):
            continue  # "text" % dead is formatting, with one argument too many
        with pytest.raises(ds.DisposedError):
            operate(other, dead)


def assign(dead):
    dead[0] = 1


def assign_from(dead):
    ds.ones((2, 2))[0] = dead


def index_with(dead):
    return ds.ones((2, 2))[dead]


PATHS = {
    "str": str,
    "format": lambda t: f"{t}",
    "format with a spec": lambda t: f"{t:.2f}",
    "percent formatting": lambda t: "%s" % t,  # noqa: UP031  # the operator is what is tested
    "bool": bool,
    "int": int,
    "float": float,
    "complex": complex,
    "index": operator.index,
    "round": round,
    "len": len,
    "iter": iter,
    "list": list,
    "reversed": reversed,
    "unpacking": lambda t: [*t],
    "divmod": lambda t: divmod(t, 2),
    "reflected divmod": lambda t: divmod(2, t),
    "pow": lambda t: pow(t, 2),
    "contains": lambda t: 1 in t,
    "in a list": lambda t: t in [ds.ones(2)],
    "in a list of numbers": lambda t: t in [1, 2],
    "item": lambda t: t[0],
    "assignment": assign,
    "assignment from": assign_from,
    "as an index": index_with,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "deepcopy in a list": lambda t: copy.deepcopy([t]),
    "pickle": pickle.dumps,
    "bytes": bytes,
    "bytearray": bytearray,
    "asarray": np.asarray,
    "array": np.array,
    "array of another dtype": lambda t: np.asarray(t, dtype=int),
    "array in a list": lambda t: np.array([t, t]),
    "array beside a number": lambda t: np.array([1, t]),
    "ds.asarray": lambda t: ds.asarray(t),
    "ds.tensor": lambda t: ds.tensor(t),
    "ds.tensor of a list": lambda t: ds.tensor([t, t]),
    "ds.from_dlpack": lambda t: ds.from_dlpack(t),
    "np.from_dlpack": np.from_dlpack,
    "memoryview": lambda t: memoryview(t.data),
    "concatenate": lambda t: np.concatenate([ds.ones((2, 2)), t]),
    "sum": np.sum,
    "shape": np.shape,
    "like": lambda t: np.zeros(2, like=t),
    "zeros_like": np.zeros_like,
    "where": lambda t: np.where(t, 1, 2),
    "out": lambda t: np.sum(np.ones((2, 2)), axis=0, out=t),
    "where=": lambda t: np.add(1, np.ones((2, 2)), where=t, out=np.ones((2, 2))),
    "einsum": lambda t: np.einsum("ij->i", t),
    "norm": np.linalg.norm,
    "fft": np.fft.fft,
    "save": lambda t: np.save("/dev/null", t),
    "sum of Python": lambda t: sum([t, t]),
    "copyto": lambda t: np.copyto(t, 0),
    "shares_memory": lambda t: np.shares_memory(t, np.ones(2)),
    "method out=": lambda t: ds.ones((2, 2)).sum(axis=0, out=t),
    "method argument": lambda t: ds.ones((2, 2)).take(t),
}


@pytest.mark.parametrize("path", PATHS)
def test_no_path_leads_to_the_value_of_a_disposed_tensor(dead, path):
    with pytest.raises(ds.DisposedError):
        PATHS[path](dead)


@pytest.mark.parametrize("path", ["from_dlpack", "as_tensor", "asarray", "add"])
def test_no_way_into_torch_leads_to_the_value_of_a_disposed_tensor(dead, path):
    torch = pytest.importorskip("torch")
    with pytest.raises((ds.DisposedError, TypeError)) as caught:
        torch.add(torch.ones(2), dead) if path == "add" else getattr(torch, path)(dead)
    assert path == "add" or caught.type is ds.DisposedError


def test_a_disposed_tensor_can_be_shown_hashed_compared_by_identity_and_disposed_again(dead):
    assert repr(dead) == "<disposed Tensor shape=(2, 2) dtype=float64 name='w'>"
    assert dead.disposed
    assert ds.is_disposed(dead)
    dead.dispose()
    ds.dispose(dead)
    names = {dead: "dead"}
    assert names.pop(dead) == "dead"
    assert dead in {dead}
    assert isinstance(dead, ds.Tensor)


def test_the_error_names_the_tensor_and_does_not_keep_it(dead):
    with pytest.raises(ds.DisposedError) as caught:
        dead + 1
    assert caught.value.resource == "Tensor shape=(2, 2) dtype=float64 name='w'"
    assert isinstance(caught.value, ReferenceError)


def test_an_unknown_attribute_is_an_attribute_error_live_or_dead(dead):
    for tensor in (dead, ds.ones(2)):
        with pytest.raises(AttributeError, match="'Tensor' object has no attribute 'grad'"):
            tensor.grad
