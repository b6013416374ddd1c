"""Dropping a handle: the tensor is dead for its holder, and what others have of it stays right."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import pickle
import types
import weakref

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

import disposescope as ds


def disposed(make):
    with ds.dispose_scope() as scope:
        tensor = make()
        if tensor not in scope:
            scope.attach(tensor)
    return tensor


def memory_of(tensor):
    """A reference that dies exactly when the memory goes."""
    return weakref.ref(tensor.untyped_storage())


class Meters(torch.Tensor):
    pass


class Wrapper(torch.Tensor):
    """A subclass without storage of its own, which answers to the dispatcher."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return cls(func(*(arg.inner if isinstance(arg, cls) else arg for arg in args), **(kwargs or {})))


KINDS = {
    "dense": lambda: torch.rand(3, 4),
    "zero-dim": lambda: torch.tensor(1.0),
    "empty": lambda: torch.empty(0, 3),
    "expanded": lambda: torch.rand(1, 4).expand(3, 4),
    "complex": lambda: torch.rand(3, dtype=torch.complex64),
    "conjugate view": lambda: torch.rand(3, dtype=torch.complex64).conj(),
    "negative view": lambda: torch.rand(3, dtype=torch.complex64).conj().imag,
    "bfloat16": lambda: torch.rand(3).to(torch.bfloat16),
    "bool": lambda: torch.rand(3) > 0.5,
    "meta": lambda: torch.rand(3, device="meta"),
    "coo": lambda: torch.eye(3).to_sparse(),
    "quantised": lambda: torch.quantize_per_tensor(torch.rand(3), 0.1, 0, torch.qint8),
    "mkldnn": lambda: torch.rand(3, 4).to_mkldnn() if torch.backends.mkldnn.is_available() else torch.rand(3),
    "view": lambda: torch.rand(3, 4)[1:],
    "requires grad": lambda: torch.rand(3, requires_grad=True),
    "with a graph": lambda: torch.rand(3, requires_grad=True) * 2,
    "parameter": lambda: torch.nn.Parameter(torch.rand(3)),
    "subclass": lambda: torch.rand(3).as_subclass(Meters),
    "result of a subclass": lambda: torch.rand(3).as_subclass(Meters) + 1,
    "wrapper subclass": lambda: Wrapper(torch.rand(3)),
    "result of a wrapper subclass": lambda: Wrapper(torch.rand(3)) + 1,
    "uninitialised parameter": lambda: torch.nn.UninitializedParameter(),
    "uninitialised buffer": lambda: torch.nn.UninitializedBuffer(),
    "quantised by channel": lambda: torch.quantize_per_channel(
        torch.rand(3, 3), torch.ones(3), torch.zeros(3, dtype=torch.long), 0, torch.qint8
    ),
    "float8": lambda: torch.rand(3).to(torch.float8_e4m3fn),
    "half complex": lambda: torch.zeros(3, dtype=torch.complex32),
    "hybrid": lambda: torch.sparse_coo_tensor([[0, 1]], torch.ones(2, 3)),
    "zero without storage": lambda: torch._efficientzerotensor(3),
    "shared": lambda: torch.rand(3).share_memory_(),
    "overlapping": lambda: torch.rand(3, 3).as_strided((5, 3), (1, 1)),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_each_sort_of_tensor_goes_dead(make):
    tensor = disposed(make)

    assert ds.is_disposed(tensor)
    assert "disposed" in repr(tensor)
    for use in (
        lambda: tensor + 1,
        lambda: tensor.sum(),
        lambda: tensor.data,
        lambda: torch.stack([tensor]),
        lambda: len(tensor),
    ):
        with pytest.raises(ds.DisposedError):
            use()


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(3).to_sparse_csr(),
        lambda: torch.eye(3).to_sparse_csc(),
        lambda: torch.eye(4).to_sparse_bsr((2, 2)),
        lambda: torch.eye(4).to_sparse_bsc((2, 2)),
        lambda: torch.nested.nested_tensor([torch.rand(2), torch.rand(3)]),
        lambda: torch.nested.nested_tensor([torch.rand(2), torch.rand(3)], layout=torch.jagged),
    ],
    ids=["csr", "csc", "bsr", "bsc", "nested", "jagged"],
)
def test_compressed_and_nested_tensors_go_dead(make):
    tensor = disposed(make)

    assert ds.is_disposed(tensor)
    with pytest.raises(ds.DisposedError):
        tensor.sum()


def test_tensors_made_in_inference_mode_go_dead():
    with torch.inference_mode():
        tensor = disposed(lambda: torch.rand(3))
        with pytest.raises(ds.DisposedError):
            tensor + 1
    with pytest.raises(ds.DisposedError):
        tensor + 1


def test_fake_tensors_go_dead():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), ds.dispose_scope() as scope:
        fake = torch.rand(3)
        assert fake in scope
    assert ds.is_disposed(fake)
    with pytest.raises(ds.DisposedError):
        fake + 1


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_dual_tensors_go_dead():
    with torch.autograd.forward_ad.dual_level(), ds.dispose_scope() as scope:
        dual = torch.autograd.forward_ad.make_dual(torch.ones(3), torch.full((3,), 2.0))
        result = dual * 3
        tangent = scope.detach(torch.autograd.forward_ad.unpack_dual(result).tangent)
        assert dual in scope
        assert result in scope
    assert ds.is_disposed(dual)
    assert ds.is_disposed(result)
    assert tangent.tolist() == [6, 6, 6]


def test_the_tensors_inside_of_a_wrapper_subclass_go_with_it():
    with ds.dispose_scope() as scope:
        inner = scope.detach(torch.zeros(100))
        memory = memory_of(inner)
        wrapper = scope.attach(Wrapper(inner))
        del inner
    assert ds.is_disposed(wrapper)
    assert memory() is None


def test_a_class_with_slots_is_left_alone_and_reported():
    class Slotted(torch.Tensor):
        __slots__ = ("unit",)

    tensor = torch.rand(3).as_subclass(Slotted)
    before = ds.statistics()
    with ds.dispose_scope() as scope:
        born = tensor + 1
        assert type(born) is Slotted
        assert born not in scope
    assert born.sum() > 0

    with pytest.raises(ExceptionGroup, match="releases failed") as failed:
        with ds.dispose_scope() as scope:
            scope.attach(tensor)
    assert "slots of its own" in str(failed.value.exceptions[0])
    assert tensor.sum() > 0
    assert not ds.is_disposed(tensor)
    assert ds.owner_of(tensor) is None
    now = ds.statistics()
    assert (now.attached, now.detached, now.live) == (before.attached + 1, before.detached + 1, before.live + 1)
    assert (now.disposed_in_scope, now.live_nbytes) == (before.disposed_in_scope, before.live_nbytes + 12)
    with pytest.raises(ExceptionGroup, match="dispose"):
        ds.dispose(tensor)


def test_the_error_has_shape_and_dtype():
    tensor = disposed(lambda: torch.zeros(2, 3, dtype=torch.int16))

    with pytest.raises(ds.DisposedError, match=r"torch.Tensor \(2, 3\) torch.int16 has been disposed") as error:
        tensor + 1
    assert error.value.resource == "torch.Tensor (2, 3) torch.int16"
    assert repr(tensor) == "<disposed torch.Tensor (2, 3) torch.int16>"
    assert isinstance(hash(tensor), int)


class Named(torch.Tensor):
    def __hash__(self):
        return hash(self.label)


def named():
    tensor = torch.rand(3).as_subclass(Named)
    tensor.label = "a label"
    return tensor


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.rand(3),
        lambda: torch.nn.Parameter(torch.rand(3)),
        lambda: torch.rand(3).as_subclass(Meters),
        named,
    ],
    ids=["plain", "parameter", "subclass", "subclass with a hash of its own"],
)
def test_a_disposed_tensor_is_found_in_sets_and_dicts_and_removed_from_them(make):
    tensor = make()
    seen, numbers, before = {tensor}, {tensor: 1}, hash(tensor)
    ds.dispose(tensor)

    assert hash(tensor) == before
    assert tensor in seen
    assert numbers.pop(tensor) == 1
    seen.remove(tensor)
    assert not seen


def test_a_tensor_whose_hash_raises_is_disposed():
    class Unhashable(torch.Tensor):
        def __hash__(self):
            raise TypeError("not this one")

    tensor = disposed(lambda: torch.rand(3).as_subclass(Unhashable))

    assert ds.is_disposed(tensor)
    assert hash(tensor) == id(tensor)


@pytest.mark.parametrize(
    "use",
    [
        copy.copy,
        copy.deepcopy,
        pickle.dumps,
        np.asarray,
        str,
        bool,
        float,
        len,
        iter,
        list,
        "{}".format,
        lambda t: f"{t}",
        lambda t: t.shape,
        lambda t: t.device,
        lambda t: t.grad,
        lambda t: t.numpy(),
        lambda t: t.tolist(),
        lambda t: t.__dlpack__(),
        torch.from_dlpack,
        lambda t: t[0],
        lambda t: t.__setitem__(0, 1),
        lambda t: setattr(t, "data", torch.ones(3)),
        lambda t: setattr(t, "requires_grad", True),
        lambda t: t.no_such_attribute,
        lambda t: torch.add(torch.ones(3), torch.ones(3), out=t),
        lambda t: torch.ones(3).add_(t),
        lambda t: torch.ones(3).copy_(t),
        lambda t: np.ones(3) * t,
        lambda t: t == t,
        lambda t: torch.equal(t, t),
        lambda t: torch._C._nn.linear(torch.ones(2, 3), t),
        lambda t: torch.nn.Linear(3, 3)(t),
        lambda t: torch.nn.functional.relu(t),
        lambda t: t.backward(),
        lambda t: t.register_hook(print),
        lambda t: torch.vmap(torch.sin)(t),
        lambda t: torch._C.TensorBase.data_ptr(t),
        lambda t: torch.Generator().set_state(t),
        lambda t: torch.set_rng_state(t),
        torch.utils.dlpack.to_dlpack,
        torch._C._to_dlpack,
        lambda t: torch.save(t, io.BytesIO()),
        lambda t: torch._C._from_dlpack(t.__dlpack__()),
        lambda t: torch._C._VariableFunctions.sum(t),
        lambda t: torch._C._linalg.linalg_norm(t),
        lambda t: torch._C._fft.fft_fft(t),
        lambda t: torch._C._special.special_erf(t),
    ],
)
def test_every_use_of_a_dead_tensor_raises(use):
    tensor = disposed(lambda: torch.rand(3))

    with pytest.raises(ds.DisposedError):
        use(tensor)


def test_a_weak_reference_of_pytorchs_finds_the_dead_tensor():
    """Who keeps one asks for the tensor at any time: compiled functions do, before each step."""
    tensor = torch.rand(3)
    with ds.dispose_scope() as scope:
        scope.attach(tensor)
        reference = torch.utils.weak.TensorWeakRef(tensor)
    assert ds.is_disposed(tensor)
    assert reference() is tensor


# A build for CUDA makes none without a driver.
STREAMS = [] if torch.backends.cuda.is_built() and not torch.cuda.is_available() else [(torch.Stream(),)]


BASE = torch._C.TensorBase

# No question about what the tensor holds: the reference count and the address of the
# implementation, which sort it is, and what Python needs of any object. The function of a view
# gives no answer on what is no view.
HARMLESS = {"_cdata", "_fix_weakref", "_has_symbolic_sizes_strides", "_python_dispatch", "_use_count"}
HARMLESS |= {"__init__", "__new__", "_view_func", "_view_func_unsafe", "_rev_view_func_unsafe"}
INDEX, COLUMN = torch.tensor([0, 1]), torch.tensor([[0], [1]])
SAME, ROWS, ROW, CELLS = torch.ones(3, 4), torch.ones(2, 4), torch.ones(4), torch.ones(2, 1)
ARGUMENTS = [
    *[(), (0,), (0, 0), (0, 0, 1), (2.0, 0, 1.0), (0, (3, 1))],
    *[((3, 4),), ((3, 4), 0), ((3, 4), 2, 0), ((3, 4), (4, 1))],
    *[("cpu",), (torch.float32,), (Meters,), (True,), (b"", {}), ("shape",), ("name", 1), *STREAMS],
    *[(SAME,), (SAME, SAME), (SAME, (3, 4), (4, 1)), (ROW, 0, 0), ((INDEX,), ROW)],
    *[(0, INDEX), (0, INDEX, 1.0), (0, INDEX, ROWS), (0, INDEX, ROWS, "prod")],
    *[(0, COLUMN), (0, COLUMN, CELLS), (0, COLUMN, CELLS, "sum"), (False, True, torch.bfloat16, torch.float32)],
    *[(lambda a, *b: a,), (SAME, lambda a, *b: a), (SAME, SAME, lambda a, *b: a)],
]


def outcome(member, *arguments):
    """None for an answer, or what was raised instead."""
    try:
        return None if member(*arguments) is not NotImplemented else "NotImplemented"
    except Exception as error:
        # Where calls are traced, as for coverage, Python names the class of the tensor.
        return type(error), str(error).replace("DisposedTorchTensor.", "Tensor.")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(set(vars(BASE)) - HARMLESS))
def test_every_method_and_attribute_of_the_base_class_is_refused_past_the_class(name):
    tensor = disposed(lambda: torch.rand(3, 4))
    member = inspect.getattr_static(BASE, name)
    if isinstance(member, types.GetSetDescriptorType):
        with pytest.raises(ds.DisposedError):
            member.__get__(tensor)
    elif isinstance(member, types.MethodDescriptorType):
        for arguments in ARGUMENTS:
            dead = outcome(member, tensor, *arguments)
            if dead is None or dead[0] is not ds.DisposedError:
                # It does not take such arguments, of no tensor.
                assert dead is not None, arguments
                assert dead == outcome(member, torch.rand(3, 4), *arguments)


NO_QUESTION = {"_nnpack_available", "_use_cudnn_rnn_flatten_weight", "is_vulkan_available"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("module", ["_VariableFunctions", "_nn", "_linalg", "_fft", "_special", "_sparse", "_nested"])
def test_no_function_of_pytorchs_answers_for_a_dead_tensor(module):
    tensor = disposed(lambda: torch.rand(3, 4))
    functions = getattr(torch._C, module)
    for name in set(dir(functions)) - NO_QUESTION:
        function = getattr(functions, name)
        if name.startswith("__") or not callable(function):
            continue
        for arguments in ARGUMENTS:
            # Of what is a tensor already, `asarray` returns that one.
            if name != "asarray" or arguments:
                assert outcome(function, tensor, *arguments) is not None, (name, arguments)


def test_a_live_tensor_does_not_take_the_implementation_of_a_dead_one():
    tensor = disposed(lambda: torch.rand(3))
    live = torch.ones(3)

    with pytest.raises((ds.DisposedError, RuntimeError)):
        live.data = tensor
    with pytest.raises((ds.DisposedError, RuntimeError)):
        live.grad = tensor
    with ds.dispose_scope():
        with pytest.raises(ds.DisposedError, match="has been disposed"):
            live.data = tensor
        with pytest.raises(RuntimeError, match="incompatible tensor type"):
            live.data = torch.eye(3).to_sparse()
    assert live.tolist() == [1, 1, 1]


def test_the_memory_comes_back_at_that_moment():
    with ds.dispose_scope():
        tensor = torch.rand(1000)
        memory = memory_of(tensor)
        assert memory() is not None
    assert memory() is None
    assert ds.is_disposed(tensor)


def test_attributes_that_the_user_hung_onto_a_tensor_go_with_it():
    with ds.dispose_scope():
        tensor = torch.rand(3)
        tensor.companion = companion = type("Thing", (), {})()
        gone = weakref.ref(companion)
        del companion
    assert gone() is None
    assert ds.is_disposed(tensor)


def test_a_view_that_was_moved_out_keeps_the_storage():
    with ds.dispose_scope() as scope:
        tensor = torch.arange(10.0)
        view = scope.move_to_outer(tensor[2:4])
        memory = memory_of(tensor)
    assert view.tolist() == [2, 3]
    assert memory() is not None
    del view
    assert memory() is None


def test_numpy_and_dlpack_consumers_keep_their_memory():
    with ds.dispose_scope():
        tensor = torch.arange(1000.0)
        array = tensor.numpy()
        other = np.from_dlpack(tensor)
        capsule = tensor.__dlpack__()
    assert ds.is_disposed(tensor)
    gc.collect()
    assert array[999] == 999
    assert other[998] == 998
    assert torch.from_dlpack(capsule)[997] == 997


def gradients(*, scoped, use):
    torch.manual_seed(0)
    weight = torch.rand(4, 4, requires_grad=True)
    inputs = torch.rand(3, 4)
    scope = ds.dispose_scope()
    if scoped:
        scope.__enter__()
    loss, held = use(weight, inputs)
    if scoped:
        scope.move_to_outer(loss)
        scope.__exit__(None, None, None)
        assert all(ds.is_disposed(tensor) for tensor in held)
    loss.backward()
    return weight.grad


def plain(weight, inputs):
    hidden = inputs @ weight
    squared = hidden**2
    return torch.relu(squared).sum() * hidden.sigmoid().mean(), [hidden, squared]


def in_place(weight, inputs):
    hidden = (inputs @ weight).clone()
    view = hidden[1:]
    view.mul_(2)
    return (hidden.exp() * hidden).sum(), [hidden, view]


def with_hooks(weight, inputs):
    hidden = inputs @ weight
    hidden.register_hook(lambda grad: grad * 3)
    return hidden.tanh().sum(), [hidden]


def with_retain_grad(weight, inputs):
    hidden = inputs @ weight
    hidden.retain_grad()
    squared = hidden**2
    squared.retain_grad()
    return squared.sum() + hidden[0].sum(), [hidden, squared]


def with_retained_view(weight, inputs):
    hidden = (inputs @ weight)[1:]
    hidden.retain_grad()
    return (hidden * 3).sum(), [hidden]


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        assert type(x) is torch.Tensor
        return grad * 3 * x**2


def custom_function(weight, inputs):
    hidden = inputs @ weight
    return Cube.apply(hidden).sum(), [hidden]


@pytest.mark.parametrize("use", [plain, in_place, with_hooks, with_retain_grad, with_retained_view, custom_function])
def test_backward_after_the_scope_gives_the_same_gradients(use):
    assert torch.equal(gradients(scoped=False, use=use), gradients(scoped=True, use=use))


def test_what_a_graph_alone_holds_is_disposed_and_stays_what_it_was_for_the_graph():
    class Exponential(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            # Python refers to it no more when this returns.
            ctx.save_for_backward(x.exp())
            return x.exp()

        @staticmethod
        def backward(ctx, gradient):
            [result] = ctx.saved_tensors
            return gradient * result

    x = torch.arange(4.0, requires_grad=True)
    with ds.dispose_scope() as scope:
        outer = scope.move_to_outer(Exponential.apply(x))
        kept = scope.move_to_outer((x * torch.full((4,), 3.0)).sum())
    for _ in range(2):
        [saved] = outer.grad_fn.saved_tensors
        assert saved.tolist() == outer.tolist()
        del saved
        gc.collect()
    (outer.sum() + kept).backward()
    assert x.grad.tolist() == (x.detach().exp() + 3).tolist()


def test_the_graph_of_a_graph_stays_right():
    def second(scoped):
        torch.manual_seed(0)
        x = torch.rand(3, requires_grad=True)
        scope = ds.dispose_scope()
        if scoped:
            scope.__enter__()
        y = x**3
        (first,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
        if scoped:
            scope.move_to_outer(first)
            scope.__exit__(None, None, None)
        first.sum().backward()
        return x.grad

    assert torch.equal(second(False), second(True))


def test_a_subclass_that_a_graph_saved_comes_back_as_it_was():
    seen = []

    class Saves(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.as_subclass(torch.Tensor) * 2

        @staticmethod
        def backward(ctx, grad):
            seen.append(ctx.saved_tensors[0])
            return grad * 2

    weight = torch.rand(3, requires_grad=True)
    with ds.dispose_scope() as scope:
        metres = (weight * 1).as_subclass(Meters) * 1
        metres.unit = "m"
        loss = scope.move_to_outer(Saves.apply(metres).sum())
    assert ds.is_disposed(metres)
    loss.backward()
    assert type(seen[0]) is Meters
    assert seen[0].unit == "m"


def test_memory_behind_retain_grad_comes_back_where_no_graph_has_it():
    weight = torch.rand(3, requires_grad=True)
    with ds.dispose_scope() as scope:
        hidden = weight + 1
        hidden.retain_grad()
        memory = memory_of(hidden)
        loss = scope.move_to_outer(hidden.sum())
    assert memory() is None
    loss.backward()
    assert weight.grad.tolist() == [1, 1, 1]


def test_memory_behind_retain_grad_that_a_graph_saved_comes_back_at_a_later_scope():
    weight = torch.rand(3, requires_grad=True)
    with ds.dispose_scope() as scope:
        hidden = weight + 1
        hidden.retain_grad()
        memory = memory_of(hidden)
        loss = scope.move_to_outer((hidden * hidden).sum())
    with pytest.raises(ds.DisposedError):
        hidden + 1
    loss.backward()
    assert torch.allclose(weight.grad, 2 * (weight + 1))
    del loss
    with ds.dispose_scope():
        pass
    assert memory() is None
    with pytest.raises(ds.DisposedError):
        hidden + 1
    assert repr(hidden) == "<disposed torch.Tensor (3,) torch.float32>"


def test_weak_references_to_the_tensor_stay():
    with ds.dispose_scope():
        tensor = torch.rand(3)
        reference = weakref.ref(tensor)
    assert reference() is tensor
    del tensor
    assert reference() is None


def test_disposing_twice_is_disposing_once():
    tensor = disposed(lambda: torch.rand(3))
    ds.dispose(tensor)
    ds.dispose([tensor, tensor])
    assert ds.is_disposed(tensor)


def test_a_scope_inside_of_a_function_mode_of_the_users_disposes_unseen():
    calls = []

    class Log(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            calls.append(func)
            return func(*args, **(kwargs or {}))

    with Log():
        with ds.dispose_scope():
            tensor = torch.rand(3)
            count = len(calls)
        assert len(calls) == count
    assert ds.is_disposed(tensor)


def test_a_scope_inside_of_a_transform_disposes_its_own():
    def double(x):
        with ds.dispose_scope():
            y = x * 2
            z = y.sum()
        return y * 1 + z

    assert torch.vmap(double)(torch.ones(2, 3)).tolist() == [[8, 8, 8]] * 2
    gradient = torch.func.grad(lambda x: double(x).sum())(torch.ones(3))
    assert gradient.tolist() == [8, 8, 8]


class TestKind:
    def test_a_storage_counts_once(self):
        with ds.dispose_scope() as scope:
            tensor = torch.zeros(100)
            view = tensor[:10]
            assert scope.nbytes == 400
            assert len(scope) == 2
            del tensor
            assert scope.nbytes == 400
            del view
            assert scope.nbytes == 0

    def test_meta_tensors_weigh_nothing(self):
        with ds.dispose_scope() as scope:
            tensor = torch.empty(1000, device="meta")
            assert tensor in scope
            assert scope.nbytes == 0
            assert ds.statistics().by_device["meta:0"].live == 1

    def test_a_sparse_tensor_weighs_its_indices_and_values(self):
        with ds.dispose_scope() as scope:
            sparse = scope.attach(torch.eye(3).to_sparse())
            assert len(scope) == 1
            assert scope.nbytes == 2 * 3 * 8 + 3 * 4
            del sparse

    def test_asking_for_bytes_makes_no_births(self):
        with ds.dispose_scope() as scope:
            tensor = torch.rand(3)
            created = ds.statistics().created_in_scope
            repr(scope)
            assert scope.nbytes == 12
            assert ds.statistics().created_in_scope == created
            del tensor


def test_ten_thousand_tensors_are_disposed():
    with ds.dispose_scope() as scope:
        tensors = [torch.empty(3) for _ in range(10_000)]
        assert len(scope) == 10_000
    assert all(ds.is_disposed(tensor) for tensor in tensors)
