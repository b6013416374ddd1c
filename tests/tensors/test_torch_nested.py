"""A jagged nested tensor of PyTorch is one resource.

Its values, offsets and lengths are members.
"""

import contextlib
import copy
import pickle
import threading
import weakref

import pytest

torch = pytest.importorskip("torch")

from torch.nested._internal import nested_tensor

import disposescope as ds


def jagged(*rows):
    return torch.nested.nested_tensor([torch.ones(count, 4) for count in rows], layout=torch.jagged)


@pytest.fixture
def scopes():
    with ds.dispose_scope() as outer, ds.dispose_scope() as inner:
        yield outer, inner


def test_it_counts_as_one_with_the_bytes_of_its_memory(scopes):
    _, inner = scopes
    ds.reset_statistics()
    nested = jagged(3, 2)
    assert inner.live == (nested,)
    assert ds.statistics().live_nbytes == 5 * 4 * 4 + 3 * 8
    statistics = ds.statistics()
    # The two rows have died.
    assert statistics.created_in_scope - statistics.disposed_in_scope == statistics.live == 1
    assert nested.offsets() in inner


def test_it_moves_and_goes_as_one():
    with ds.dispose_scope() as outer:
        with ds.dispose_scope() as inner:
            nested, other = jagged(3, 2), jagged(1)
            assert inner.move_to_outer({"nested": nested})
            assert (len(inner), len(outer)) == (1, 1)
        assert ds.is_disposed(other)
        values, offsets = nested._values, nested.offsets()
        assert (nested * 2).values().sum() == 40
        ds.dispose([nested])
        assert ds.is_disposed(values)
        assert ds.is_disposed(offsets)
        with pytest.raises(ds.DisposedError):
            nested * 2


def test_what_was_computed_from_one_shares_its_offsets_and_lives_on_without_it():
    with ds.dispose_scope() as outer:
        with ds.dispose_scope() as inner:
            nested = jagged(3, 2)
            doubled = nested * 2
            assert doubled.offsets() is nested.offsets()
            assert len(inner) == 2
            inner.move_to_outer(doubled)
            assert nested in inner
            assert doubled in outer
        assert ds.is_disposed(nested)
        assert (doubled + 1).values().sum() == 60
        assert doubled.offsets() in outer
        assert len(outer) == 1


def test_what_others_own_is_no_part_of_one(scopes):
    outer, _inner = scopes
    values = outer.attach(torch.ones(5, 4))
    parameter = torch.nn.Parameter(torch.ones(5, 4))
    offsets = torch.tensor([0, 3, 5])
    nested = torch.nested.nested_tensor_from_jagged(values, offsets)
    ds.dispose(nested)
    assert ds.is_disposed(offsets)
    assert values in outer
    learned = torch.nested.nested_tensor_from_jagged(parameter, torch.tensor([0, 3, 5]))
    ds.dispose(learned)
    assert float(parameter.detach().sum()) == 20.0


def test_tensors_that_it_was_made_of_and_that_outlive_it_are_resources_of_its_owner(scopes):
    _, inner = scopes
    values, offsets = torch.ones(5, 4), torch.tensor([0, 3, 5])
    nested = torch.nested.nested_tensor_from_jagged(values, offsets)
    assert len(inner) == 1
    del nested
    assert len(inner) == 2
    assert values in inner


@pytest.mark.parametrize("copied", [lambda nested: pickle.loads(pickle.dumps(nested)), torch.clone])
def test_a_copy_is_one_too(scopes, copied):
    _, inner = scopes
    nested = jagged(3, 2)
    twin = copied(nested)
    # PyTorch 2.5 gives a copy what was computed of its rows when it has been made: resources of
    # their own.
    is_whole = hasattr(nested_tensor, "_rebuild_njt") or copied is torch.clone
    assert len(inner) == (2 if is_whole else 4)
    inner.move_to_outer(twin)
    assert inner.live == (nested,)
    assert twin.values().sum() == 20


def test_what_a_deep_copy_is_made_of_moves_with_it(scopes):
    outer, inner = scopes
    twin = copy.deepcopy(jagged(3, 2))
    inner.move_to_outer(twin)
    assert len(inner) == 0
    outer.dispose_everything_but(twin)
    assert twin.values().sum() == 20


def test_under_a_budget():
    with ds.dispose_scope(budget="1MiB") as scope:
        nested = jagged(3, 2)
        assert len(scope) == 1
        assert (nested * 2).values().sum() == 40
        assert scope.arena.charged_nbytes >= 80
        with pytest.raises(MemoryError):
            jagged(100_000)


def test_through_layers_and_backward(scopes):
    _, inner = scopes
    layer = torch.nn.Linear(4, 2)
    plain = torch.nn.Linear(4, 2)
    plain.load_state_dict(layer.state_dict())
    for each in (layer, plain):
        loss = torch.cat(list(each(jagged(3, 2)).relu().unbind())).sum()
        loss.backward()
        inner.dispose_everything()
    assert torch.equal(layer.weight.grad, plain.weight.grad)


def test_in_a_compiled_function(scopes):
    _, inner = scopes
    compiled = torch.compile(lambda x: (x * 2).relu(), backend="aot_eager")
    result = compiled(jagged(3, 2))
    assert result.values().sum() == 40
    assert result in inner


@pytest.fixture(params=["alone", "beside another thread"])
def threads(request):
    """A disposal waits for other threads, which may compute with the tensor."""
    end = threading.Event()
    other = threading.Thread(target=end.wait)
    if request.param != "alone":
        other.start()
    yield
    end.set()
    if other.ident is not None:
        other.join()


@pytest.mark.usefixtures("threads")
def test_a_graph_goes_on_when_its_nested_tensors_have_been_disposed():
    def gradient(around):
        weight = torch.ones(4, requires_grad=True)
        with around() as scope:
            values = torch.arange(20.0).view(5, 4)
            nested = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 2, 5]))
            scaled = nested * weight
            loss = (scaled * scaled).values().sum()
            if scope is not None:
                scope.move_to_outer(loss)
        loss.backward()
        return weight.grad

    assert torch.equal(gradient(ds.dispose_scope), gradient(contextlib.nullcontext))
    assert ds.current_scope() is None


@pytest.mark.usefixtures("threads")
def test_the_memory_of_a_disposed_nested_tensor_goes_with_its_graph():
    weight = torch.ones(4, requires_grad=True)
    with ds.dispose_scope() as scope:
        nested = torch.nested.nested_tensor_from_jagged(torch.ones(5, 4), torch.tensor([0, 2, 5]))
        memory = weakref.ref(nested.values().untyped_storage())
        loss = scope.move_to_outer((nested * weight).values().sum())
        del nested
    assert memory() is not None
    loss.backward()
    del loss
    assert memory() is None
