"""A small view, moved out compact, lets the big storage behind it go, and is the same tensor."""

import numpy as np
import pytest

import disposescope as ds


def pinned(tensor: object) -> int:
    with ds.dispose_scope() as scope:
        scope.attach(tensor)
        nbytes = scope.nbytes
        scope.detach(tensor)
    return nbytes


def test_a_tensor_is_the_same_with_memory_of_its_own() -> None:
    with ds.dispose_scope() as scope:
        big = ds.arange(100_000)
        row = big[10:20]
        assert scope.move_to_outer(row, compact=True) is row
    assert row.tolist() == list(range(10, 20))
    assert pinned(row) == 80


def test_without_it_the_storage_stays() -> None:
    with ds.dispose_scope() as scope:
        row = scope.move_to_outer(ds.arange(100_000)[10:20])
    assert pinned(row) == 800_000


def test_what_is_no_view_is_not_copied() -> None:
    with ds.dispose_scope() as scope:
        whole = ds.arange(10)
        address = np.asarray(whole).ctypes.data
        scope.move_to_outer(whole, compact=True)
    assert np.asarray(whole).ctypes.data == address


def test_containers_and_composites_are_made_compact_in_place() -> None:
    with ds.dispose_scope() as scope:
        big = ds.zeros((1000, 100))
        batch = {"first": big[:1], "rest": [big[1:3]]}
        packed = ds.pack_sequence([big[:3], big[:2]])
        assert scope.move_to_outer((batch, packed), compact=True) == (batch, packed)
    assert (pinned(batch["first"]), pinned(batch["rest"])) == (800, 1600)
    assert not packed.disposed


def test_an_array_is_returned_as_a_copy() -> None:
    with ds.dispose_scope() as outer:
        with ds.dispose_scope() as scope:
            content = np.arange(100_000)
            header = scope.move_to_outer(content[:10], compact=True)
            same = scope.move_to_outer(header, compact=True)
        assert same is header
        assert header.base is None
        assert header.tolist() == list(range(10))
        assert ds.owner_of(header) is outer


def test_an_array_in_a_container_is_refused_and_nothing_moves() -> None:
    with ds.dispose_scope() as outer, ds.dispose_scope() as scope:
        content = np.arange(100_000)
        tensor = ds.zeros(3)
        with pytest.raises(TypeError, match="move the array out by itself"):
            scope.move_to_outer([content[:10], tensor], compact=True)
        assert ds.owner_of(tensor) is scope
        assert tensor not in outer


def test_the_copy_belongs_to_the_outer_scope_also_where_an_inner_one_is_current() -> None:
    with ds.dispose_scope() as outer:
        with ds.dispose_scope() as scope:
            row = ds.arange(1000)[:3]
            with ds.dispose_scope():
                scope.move_to_outer(row, compact=True)
        assert ds.owner_of(row) is outer
        assert row.tolist() == [0, 1, 2]


def test_the_function_does_the_same() -> None:
    with ds.dispose_scope():
        row = ds.move_to_outer(ds.arange(1000)[:3], compact=True)
    assert pinned(row) == 24
