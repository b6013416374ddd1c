"""What is born in a scope, and what is not."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import warnings

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from torch.utils.checkpoint import checkpoint

import disposescope as ds

F = torch.nn.functional
"""How many modes a scope needs."""


@pytest.fixture
def x():
    return torch.rand(3, 4)


BIRTHS = {
    "factory": lambda x: torch.zeros(3),
    "tensor": lambda x: torch.tensor([1, 2]),
    "as_tensor of a list": lambda x: torch.as_tensor([1, 2]),
    "like": lambda x: torch.zeros_like(x),
    "new": lambda x: x.new_zeros(2),
    "operator": lambda x: x + 1,
    "reflected operator": lambda x: 1 - x,
    "function": lambda x: torch.sin(x),
    "python function": lambda x: F.relu(x),
    "method": lambda x: x.sum(),
    "view": lambda x: x[1:],
    "property": lambda x: x.T,
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "reshape": lambda x: x.view(12),
    "conversion": lambda x: x.double(),
    "copy": lambda x: x.clone(),
    "list argument": lambda x: torch.cat([x, x]),
    "operator overload": lambda x: torch.ops.aten.relu(x),
    "C++ entry point": lambda x: torch._C._nn.gelu(x),
    "deepcopy": lambda x: __import__("copy").deepcopy(x),
    "module": lambda x: torch.nn.Linear(4, 4)(x),
    "einsum": lambda x: torch.einsum("ij->i", x),
    "fft": lambda x: torch.fft.fft(x),
    "linalg": lambda x: torch.linalg.norm(x),
    "where": lambda x: torch.where(x > 0.5, x, 0),
}


@pytest.mark.parametrize("make", BIRTHS.values(), ids=BIRTHS)
def test_what_a_call_returns_belongs_to_the_scope(make, x):
    with ds.dispose_scope() as scope:
        result = make(x)
        assert result in scope
        assert scope.live == (result,)
    assert ds.is_disposed(result)
    assert not ds.is_disposed(x)


CONTAINERS = {
    "split": (lambda x: x.split(1), 3),
    "unbind": (lambda x: list(x), 3),
    "max": (lambda x: x.max(0), 2),
    "svd": (lambda x: torch.linalg.svd(x), 3),
    "meshgrid": (lambda x: torch.meshgrid(x[0], x[0], indexing="ij"), 2),
    "unique": (lambda x: torch.unique(x, return_inverse=True), 2),
    "GRU": (lambda x: torch.nn.GRU(4, 2)(torch.rand(2, 3, 4)), 2),
    "LSTM": (lambda x: torch.nn.LSTM(4, 2)(torch.rand(2, 3, 4)), 3),
    "foreach": (lambda x: torch._foreach_add([x, x], 1), 2),
    "nonzero": (lambda x: x.nonzero(as_tuple=True), 2),
}


@pytest.mark.parametrize(("make", "count"), CONTAINERS.values(), ids=CONTAINERS)
def test_tensors_in_a_returned_container_belong_to_the_scope(make, count, x):
    # Without a graph: what a graph saves lives with it, also as a Python object.
    with torch.no_grad(), ds.dispose_scope() as scope:
        result = make(x)
        gc.collect()
        assert len(scope) == count
        del result


def test_gradients_that_are_asked_for_belong_to_the_scope():
    weight = torch.rand(3, requires_grad=True)
    with ds.dispose_scope() as scope:
        loss = (weight * 2).sum()
        (gradient,) = torch.autograd.grad(loss, weight)
        assert gradient in scope


NOT_BIRTHS = {
    "in place": lambda x: x.add_(1),
    "in place operator": lambda x: x.__iadd__(1),
    "out": lambda x: torch.add(x, 1, out=x),
    "to the same": lambda x: x.to(torch.float32),
    "contiguous": lambda x: x.contiguous(),
    "dropout in eval": lambda x: F.dropout(x, training=False),
    "as_tensor of a tensor": lambda x: torch.as_tensor(x),
    "requires_grad_": lambda x: x.requires_grad_(),
    "identity module": lambda x: torch.nn.Identity()(x),
    "float of float": lambda x: x.float(),
    "cpu of cpu": lambda x: x.cpu(),
    "broadcast of equals": lambda x: x.expand_as(x) if False else x,
    "atleast": lambda x: torch.atleast_2d([x, x])[0],
}


@pytest.mark.parametrize("call", NOT_BIRTHS.values(), ids=NOT_BIRTHS)
def test_a_result_that_is_an_argument_is_no_birth(call, x):
    with ds.dispose_scope() as scope:
        result = call(x)
        assert result is x
        assert result not in scope
        assert len(scope) == 0
    assert not ds.is_disposed(x)


def test_out_in_a_tuple_is_no_birth(x):
    values, indices = torch.empty(4), torch.empty(4, dtype=torch.long)
    with ds.dispose_scope() as scope:
        torch.max(x, 0, out=(values, indices))
        assert len(scope) == 0
    assert values.shape == (4,)


def test_accessors_are_no_births():
    weight = torch.rand(3, requires_grad=True)
    (weight * 2).sum().backward()
    base = torch.rand(4)
    view = base[1:]
    with ds.dispose_scope() as scope:
        weight.grad, view._base
        assert weight.grad not in scope
        assert view._base is base
        assert len(scope) == 0
    assert weight.grad.tolist() == [2, 2, 2]


def test_a_known_tensor_stays_with_its_owner():
    with ds.dispose_scope() as outer:
        base = torch.rand(4)
        view = base[1:]
        with ds.dispose_scope() as inner:
            assert view._base is base
            assert base in outer
            assert len(inner) == 0


def test_what_was_there_before_is_not_touched(x):
    with ds.dispose_scope():
        x * 2
    assert x.sum() > 0


def test_a_temporary_dies_by_reference_count():
    with ds.dispose_scope() as scope:
        (torch.rand(3) + 1) * 2
        assert len(scope) == 0
        assert ds.statistics().live == 0 or scope.nbytes == 0


def test_inner_scopes_take_their_own(x):
    with ds.dispose_scope() as outer:
        a = x + 1
        with ds.dispose_scope() as inner:
            b = a + 1
            c = inner.move_to_outer(b * 2)
            assert b in inner
        assert ds.is_disposed(b)
        assert c in outer
        d = x + 2
        assert d in outer
    assert all(ds.is_disposed(tensor) for tensor in (a, c, d))


def test_after_the_scope_nothing_watches(x):
    with ds.dispose_scope():
        assert torch._C._len_torch_function_stack() == 0
        with ds.dispose_scope():
            assert torch._C._len_torch_function_stack() == 0
    assert torch._C._len_torch_function_stack() == 0
    created = ds.statistics()
    torch.rand(3)
    assert ds.statistics().created_unscoped == created.created_unscoped


def test_the_mode_goes_when_an_exception_passes_and_when_a_scope_is_closed():
    with pytest.raises(KeyError), ds.dispose_scope():
        raise KeyError
    assert torch._C._len_torch_function_stack() == 0
    with ds.dispose_scope() as scope:
        scope.close()
        assert torch._C._len_torch_function_stack() == 0
    assert torch._C._len_torch_function_stack() == 0


def test_modes_of_the_users_keep_their_place():
    seen = []

    class Log(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    log = Log()
    log.__enter__()
    scope = ds.dispose_scope().__enter__()
    a = torch.zeros(1)
    log.__exit__(None, None, None)
    b = torch.ones(1)
    assert a in scope
    assert b in scope
    scope.__exit__(None, None, None)
    assert torch._C._len_torch_function_stack() == 0
    assert seen == ["zeros"]


def test_a_default_device_can_be_set_and_reset_inside_and_outside():
    try:
        torch.set_default_device("meta")
        with ds.dispose_scope() as scope:
            a = torch.zeros(1)
            assert a.device.type == "meta"
            assert a in scope
            torch.set_default_device("cpu")
            b = torch.zeros(1)
            assert b.device.type == "cpu"
            assert b in scope
            with torch.device("meta"):
                assert torch.zeros(1).device.type == "meta"
        assert torch.zeros(1).device.type == "cpu"
        with ds.dispose_scope():
            torch.set_default_device(None)
        torch.set_default_device("cpu")
    finally:
        torch.set_default_device(None)
    assert torch._C._len_torch_function_stack() == 0


def test_what_happens_inside_backward_is_no_birth():
    kept = []

    class Doubles(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            kept.append(grad * 2)
            return kept[-1]

    weight = torch.rand(3, requires_grad=True)
    for backward in (torch.Tensor.backward, torch.autograd.backward):
        with ds.dispose_scope() as scope:
            loss = Doubles.apply(weight).sum()
            weight.register_hook(lambda grad: kept.append(grad + 1))
            backward(loss)
            assert scope.live == (loss,)
    assert all(tensor.sum() > 0 for tensor in kept)


def test_a_gradient_that_is_assigned_belongs_to_the_parameter():
    weight = torch.rand(3, requires_grad=True)
    with ds.dispose_scope() as scope:
        weight.grad = torch.ones(3)
        assert weight.grad not in scope
    assert weight.grad.tolist() == [1, 1, 1]


def test_inside_a_transform_nothing_is_born():
    with ds.dispose_scope() as scope:
        kept = []

        def double(x):
            kept.append(x * 2)
            return kept[-1].sum()

        torch.func.grad(double)(torch.ones(3))
        assert not [tensor for tensor in kept if tensor in scope]


TRANSFORMS = {
    "vmap": lambda x: torch.vmap(lambda row: row * 2)(x),
    "grad": lambda x: torch.func.grad(lambda y: (y * y).sum())(x),
    "grad_and_value": lambda x: torch.func.grad_and_value(lambda y: (y * y).sum())(x),
    "vjp": lambda x: torch.func.vjp(torch.sin, x)[1](torch.ones(3, 4)),
    "jvp": lambda x: torch.func.jvp(torch.sin, (x,), (torch.ones(3, 4),)),
    "jacrev": lambda x: torch.func.jacrev(torch.sin)(x),
    "jacfwd": lambda x: torch.func.jacfwd(torch.sin)(x),
    "hessian": lambda x: torch.func.hessian(lambda y: (y * y).sum())(x),
    "vmap of grad": lambda x: torch.vmap(torch.func.grad(lambda y: (y * y).sum()))(x),
}


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_what_a_transform_returns_is_born(transform, x):
    with ds.dispose_scope() as scope:
        results = transform(x)
        results = results if isinstance(results, tuple) else (results,)
        assert all(result in scope for result in results)
        assert all(torch.isfinite(result).all() for result in results)
    assert all(ds.is_disposed(result) for result in results)
    assert x.sum() > 0


def test_tensors_of_a_subclass_are_born():
    class Meters(torch.Tensor):
        pass

    metres = torch.rand(3).as_subclass(Meters)
    with ds.dispose_scope() as scope:
        double = metres * 2
        assert type(double) is Meters
        assert scope.live == (double,)
    with pytest.raises(ds.DisposedError):
        double.sum()


def test_outputs_of_custom_operators_are_born():
    @torch.library.custom_op("disposescope_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    with ds.dispose_scope() as scope:
        result = twice(torch.ones(3))
        other = torch.ops.disposescope_tests.twice(torch.ones(3))
        assert result in scope
        assert other in scope


class Meters(torch.Tensor):
    pass


def saved(tensor):
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return file


# What docs/reference.md says of each way to a tensor that is no call of an ordinary function.
SEEN = {
    "as_tensor of an array": lambda: torch.as_tensor(np.ones(3)),
    "asarray": lambda: torch.asarray(np.ones(3)),
    "tensor of an array": lambda: torch.tensor(np.ones(3)),
    "default_collate": lambda: torch.utils.data.default_collate([np.ones(3)]),
    "load": lambda: torch.load(saved(torch.ones(3)), weights_only=True),
    "unpickling": lambda: pickle.loads(pickle.dumps(torch.ones(3))),
    "copy": lambda: copy.copy(torch.ones(3)),
    "method new": lambda: torch.ones(3).new(3),
    "custom function": lambda: Doubled.apply(torch.ones(3, requires_grad=True)),
    "checkpoint": lambda: checkpoint(torch.sin, torch.ones(3, requires_grad=True), use_reentrant=False),
    "reentrant checkpoint": lambda: checkpoint(torch.sin, torch.ones(3, requires_grad=True), use_reentrant=True),
    "unregistered buffer": lambda: torch.nn.Buffer(torch.ones(3)),
}
PAST_A_MODE = {
    "from_numpy": lambda: torch.from_numpy(np.ones(3)),
    "frombuffer": lambda: torch.frombuffer(bytearray(12), dtype=torch.float32),
    "from_dlpack": lambda: torch.from_dlpack(np.ones(3)),
    "Tensor": lambda: torch.Tensor(3),
    "FloatTensor": lambda: torch.FloatTensor(3),
    "script": lambda: torch.jit.script(doubled)(torch.ones(3)),
    "trace": lambda: torch.jit.trace(doubled, torch.ones(3))(torch.ones(3)),
    "as_subclass": lambda: torch.ones(3).as_subclass(Meters),
    "subclass": lambda: Meters(torch.ones(3)),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(3)]),
    "saved for backward": lambda: torch.ones(3, requires_grad=True).exp().grad_fn._saved_result,
}
LEFT_ALONE = {
    "generator state": lambda: torch.get_rng_state(),
    "parameter": lambda: torch.nn.Parameter(torch.ones(3)),
}


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


SEEN |= PAST_A_MODE


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", SEEN.values(), ids=SEEN)
def test_what_comes_another_way_belongs_to_the_scope_too(make):
    with ds.dispose_scope() as scope:
        tensor = make()
        assert tensor in scope
    assert ds.is_disposed(tensor)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_births_that_cannot_be_seen_are_left_to_attach(make):
    with ds.dispose_scope() as scope:
        tensor = make()
        assert ds.owner_of(tensor) is None
        untouched = make()
        scope.attach(tensor)
        assert tensor in scope
    assert ds.is_disposed(tensor)
    assert not ds.is_disposed(untouched)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_attention_in_eval_mode_is_the_same_bit_for_bit(x):
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2).eval()
    inputs = torch.rand(3, 5, 16)
    with torch.no_grad():
        plain = encoder(inputs)
        with ds.dispose_scope() as scope:
            scoped = encoder(inputs)
            assert scoped in scope
            assert torch.equal(plain, scoped)
            attention = torch.nn.MultiheadAttention(16, 4, batch_first=True).eval()
            assert attention(inputs, inputs, inputs)[0] in scope


def test_other_modes_and_subclasses_are_still_asked_for():
    class Meters(torch.Tensor):
        pass

    metres = torch.rand(3).as_subclass(Meters)
    with ds.dispose_scope():
        assert torch.overrides.has_torch_function((metres,))
        assert not torch.overrides.has_torch_function((torch.rand(3),))
        with torch.overrides.TorchFunctionMode():
            assert torch._C._len_torch_function_stack() == 1
    assert torch._C._len_torch_function_stack() == 0


def test_a_warning_of_pytorchs_names_the_line_of_the_program():
    with ds.dispose_scope(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = torch.ones(3, requires_grad=True) * 2
        result.grad
        torch.tensor(result)
    assert [warning.filename for warning in caught] == [__file__] * 2
