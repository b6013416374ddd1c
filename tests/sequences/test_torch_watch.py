"""PyTorch's functions run where somebody follows operations.

Elsewhere rows are moved, and nothing else is born.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

torch = pytest.importorskip("torch")
rnn = pytest.importorskip("torch.nn.utils.rnn")

from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import disposescope as ds

FUNCTIONS = (
    "pack_sequence",
    "pack_padded_sequence",
    "pad_sequence",
    "pad_packed_sequence",
    "unpack_sequence",
    "unpad_sequence",
)


class Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of PyTorch's functions that were called."""
    names: list[str] = []
    for name in FUNCTIONS:
        function = getattr(rnn, name)
        monkeypatch.setattr(
            rnn, name, lambda *args, name=name, call=function, **kw: names.append(name) or call(*args, **kw)
        )
    return names


def calls(graph: bool = False, count: int = 20) -> dict[str, Callable[[], Any]]:
    counts = [(7 * place) % 15 + 1 for place in range(count)]
    sequences = [torch.randn(length, 2, requires_grad=graph) for length in counts]
    packed = ds.pack_sequence([sequence.detach() for sequence in sequences], False)
    packed = packed._replace(data=packed.data.requires_grad_(graph))
    padded = ds.pad_sequence([sequence.detach() for sequence in sequences], True).requires_grad_(graph)
    lengths = torch.tensor(counts)
    return {
        "pack_sequence": lambda: ds.pack_sequence(sequences, False),
        "pack_padded_sequence": lambda: ds.pack_padded_sequence(padded, lengths, True, False),
        "pad_sequence": lambda: ds.pad_sequence(sequences, True, 1.5, "left"),
        "pad_packed_sequence": lambda: ds.pad_packed_sequence(packed, True),
        "unpack_sequence": lambda: ds.unpack_sequence(packed),
        "unpad_sequence": lambda: ds.unpad_sequence(padded, lengths, True),
    }


def flat(tree: Any) -> list[Any]:
    if isinstance(tree, (list, tuple)):
        return [tensor for each in tree for tensor in flat(each)]
    return [] if tree is None else [tree]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_plain_tensors_are_moved_without_a_call_of_pytorchs_function(name: str, called: list[str]) -> None:
    calls()[name]()
    with torch.inference_mode():
        calls()[name]()
    with torch.no_grad():
        calls(graph=True)[name]()
    assert called == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_graph_is_pytorchs(name: str, called: list[str]) -> None:
    moving = [tensor for tensor in flat(calls(graph=True)[name]()) if tensor.requires_grad]
    assert moving != []
    assert name in called


@pytest.mark.parametrize("mode", [Functions, Operators, torch.autograd.forward_ad.dual_level, ds.LeakDetector])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_whoever_follows_operations_sees_pytorchs(
    name: str, mode: Callable[[], AbstractContextManager[Any]], called: list[str]
) -> None:
    call = calls()[name]
    with mode():
        watched = call()
    assert name in called
    assert all(torch.equal(one, other) for one, other in zip(flat(watched), flat(call()), strict=True))


@pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning")
def test_in_a_transform_and_in_a_trace_it_is_pytorchs_too(called: list[str]) -> None:
    call = calls()["pad_sequence"]

    def function(x: Any) -> Any:
        call()
        return x * 2

    torch.vmap(function)(torch.ones(2))
    torch.func.grad(lambda x: function(x).sum())(torch.ones(2))
    torch.jit.trace(function, torch.ones(2), check_trace=False)
    assert called == ["pad_sequence"] * 3


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("count", [3, 20])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_made_is_born_once_and_nothing_on_the_way(name: str, count: int, graph: bool) -> None:
    call = calls(graph, count)[name]
    with ds.dispose_scope() as scope:
        before = ds.statistics().created_in_scope
        made = call()
        born = 1 if name.startswith("pack") else len(flat(made))
        assert len(scope) == born
        assert ds.statistics().created_in_scope - before == born
    assert all(map(ds.is_disposed, flat(made)))


def test_what_is_refused_leaves_nothing_and_the_next_birth_is_one() -> None:
    with ds.dispose_scope() as scope:
        with pytest.raises(RuntimeError, match="sorted"):
            ds.pack_sequence([torch.ones(1), torch.ones(2)])
        scope.dispose_everything()
        tensor = torch.ones(2)
        assert scope.live == (tensor,)


def test_lengths_in_a_list_go_to_the_device_of_the_padded_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[Any] = []
    monkeypatch.setattr(rnn, "unpad_sequence", lambda padded, lengths, batch_first: met.append(lengths) or [])
    ds.unpad_sequence(torch.ones(2, 3, device="meta"), [1, 2, 1])
    assert met[0].device.type == "meta"


def test_what_was_moved_can_still_be_resized() -> None:
    given = [torch.ones(20) for _ in range(20)]
    packed = ds.pack_sequence(given)
    for tensor in (*given, *ds.unpack_sequence(packed), packed.data, packed.batch_sizes):
        assert tensor.untyped_storage().resizable()
