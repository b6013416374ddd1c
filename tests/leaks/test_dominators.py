"""Dominators, against deleting each object of small heaps."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disposescope.leaks.holders.dominators import UNREACHED, dominators_of

Heap = tuple[list[list[int]], list[int]]


def reached(successors: Sequence[Sequence[int]], without: int | None = None) -> set[int]:
    met, stack = set[int](), [0]
    while stack:
        node = stack.pop()
        if node in met or node == without:
            continue
        met.add(node)
        stack += successors[node]
    return met


@st.composite
def heaps(draw: st.DrawFn) -> Heap:
    objects = draw(st.integers(1, 14))
    storages = draw(st.integers(1, 5))
    node = st.integers(0, objects + storages - 1)
    successors = [draw(st.lists(node, max_size=4)) for _ in range(objects)]
    nbytes = [draw(st.integers(1, 100)) for _ in range(storages)]
    none: list[int] = []
    return [*successors, *([none] * storages)], [*([0] * objects), *nbytes]


@pytest.mark.long
@settings(max_examples=1000, deadline=None)
@given(heaps())
def test_retained_bytes_equal_what_deleting_the_object_frees(heap: Heap) -> None:
    successors, nbytes = heap
    there = reached(successors)
    retained = dominators_of(successors).totals(nbytes)
    for node in range(1, len(successors)):
        freed = there - reached(successors, without=node) if node in there else set[int]()
        assert retained[node] == sum(nbytes[other] for other in freed)
    assert retained[0] == sum(nbytes[node] for node in there)


@settings(max_examples=200, deadline=None)
@given(heaps())
def test_the_order_names_a_dominator_before_what_it_dominates(heap: Heap) -> None:
    found = dominators_of(heap[0])
    places = {node: place for place, node in enumerate(found.order)}
    assert set(places) == reached(heap[0])
    for node, above in enumerate(found.above):
        assert above == UNREACHED if node == 0 or node not in places else places[above] < places[node]


def test_a_storage_that_two_tensors_show_counts_once_at_what_holds_both() -> None:
    # root -> list -> two tensors -> one storage
    successors: list[list[int]] = [[1], [2, 3], [4], [4], []]
    assert dominators_of(successors).totals([0, 0, 0, 0, 100]) == [100, 100, 0, 0, 100]


@pytest.mark.parametrize("doubly", [False, True])
def test_a_long_linked_list_takes_neither_recursion_nor_quadratic_time(doubly: bool) -> None:
    size = 50_000
    successors: list[list[int]] = [[1, size], *([node + 1] for node in range(1, size)), []]
    if doubly:
        successors = [successors[0], *([*after, node - 1] for node, after in enumerate(successors[1:], 1))]
        successors[1].remove(0)
    retained = dominators_of(successors).totals([1] * (size + 1))
    assert retained[0] == size + 1
    assert retained[1] == (1 if doubly else size - 1)
