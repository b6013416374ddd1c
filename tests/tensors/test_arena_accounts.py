"""Every block has one owner.

Live bytes are exact, what is still referenced escapes, and the verbs move arrays.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import numpy.ma
import pytest

import disposescope as ds

ESCAPING = {
    "plain": lambda: np.zeros(10),
    "view": lambda: np.zeros(10)[2:4],
    "structured": lambda: np.zeros(3, dtype=[("a", "i4"), ("b", "f8")])["b"],
    "objects": lambda: np.array([None, "a"], dtype=object),
    "masked": lambda: numpy.ma.array(np.arange(3.0), mask=[True, False, True]),
    "subclass": lambda: np.zeros(3).view(np.recarray),
    "rank 0": lambda: np.array(3.0),
    "nothing": lambda: np.empty((0, 3)),
}


def test_live_bytes_of_each_scope_are_exact() -> None:
    with ds.dispose_scope() as outer:
        first = np.zeros(1000)
        with ds.dispose_scope() as inner:
            second = np.zeros(10, dtype="uint8")
            _temporary = (second + 1).sum()
            assert inner.nbytes == 10
            assert outer.nbytes == 8000
            assert (len(inner), inner.live) == (0, ())
            del second
            assert inner.nbytes == 0
        assert inner.arena is not None
        assert (inner.arena.blocks, inner.arena.escapes) == (0, 0)
        del first
        assert outer.nbytes == 0


def test_what_is_still_referenced_escapes_to_the_outer_scope_and_stays_valid() -> None:
    escapes = ds.arena_statistics().escapes
    with ds.dispose_scope() as outer:
        with ds.dispose_scope() as inner:
            array = np.arange(1000)
            view = array[10:20]
        assert array in outer
        assert view in outer
        assert ds.owner_of(view) is outer
        assert outer.nbytes == 8000
        assert inner.arena is not None
        assert (inner.arena.escapes, inner.arena.escaped_nbytes) == (1, 8000)
    assert ds.owner_of(array) is None
    assert array.sum() == 499_500
    assert ds.arena_statistics().escapes == escapes + 2


def test_an_array_of_the_innermost_of_5000_scopes_escapes_through_all_of_them() -> None:
    scopes = [ds.dispose_scope(str(depth)) for depth in range(5000)]
    for scope in scopes:
        scope.__enter__()
    array = np.arange(100)
    held = []
    for scope in reversed(scopes):
        assert array in scope
        held.append(np.zeros(1))
        scope.__exit__(None, None, None)
    assert ds.owner_of(array) is None
    blocks = ds.arena_statistics().blocks
    del array, held
    assert ds.arena_statistics().blocks == blocks - 5001


def test_the_verbs_move_arrays_by_their_views_and_in_any_nesting() -> None:
    with ds.dispose_scope() as outer:
        with ds.dispose_scope(strict=True) as inner:
            plain = np.arange(10)
            masked = numpy.ma.array([1.0, 2.0], mask=[True, False])
            records = np.zeros(3, dtype=[("a", "i4"), ("b", "f8")])
            objects = np.array([np.zeros(3), None], dtype=object)
            tree = {"view": plain[2:4].reshape(1, 2), "more": [masked, (records["b"], objects)]}
            assert inner.move_to_outer(tree) is tree
            assert inner.nbytes == 0
        assert plain in outer
        assert objects[0] in outer
        assert masked.mask in outer
        outer.detach(plain)
        assert ds.owner_of(plain) is None
        outer.attach(plain)
        assert plain in outer
        with ds.dispose_scope() as other:
            outer.move_to(other, plain)
            assert plain in other
            assert ds.move_to_outer(plain) is plain
        assert plain in outer


def test_a_tensor_takes_its_memory_along_and_is_counted_once() -> None:
    with ds.dispose_scope() as outer:
        with ds.dispose_scope(strict=True) as inner:
            tensor = ds.zeros(1000)
            view = tensor[:10]
            assert inner.nbytes == 8000
            inner.move_to_outer(view)
        assert ds.is_disposed(tensor)
        assert outer.nbytes == 8000
    assert ds.is_disposed(view)
    assert outer.arena is not None
    assert outer.arena.escapes == 0


def test_a_strict_scope_lists_the_sites_of_what_escapes() -> None:
    with pytest.raises(ds.EscapedError, match=r"2 arrays with 8800 bytes escaped from strict scope 's'") as caught:
        with ds.dispose_scope("s", strict=True):
            kept = [np.zeros(1000), np.zeros(100)]
            np.zeros(5)
    assert caught.value.count == 2
    assert caught.value.nbytes == 8800
    [site] = caught.value.sites
    assert "test_arena_accounts.py" in site
    assert kept[0].sum() == 0


def test_a_strict_scope_says_it_in_a_note_when_an_exception_passes_through() -> None:
    with pytest.raises(KeyError) as caught:
        with ds.dispose_scope(strict=True):
            _kept = np.zeros(10)
            raise KeyError
    assert "escaped" in "".join(caught.value.__notes__)


def test_a_strict_scope_refuses_to_move_the_array_of_another() -> None:
    with ds.dispose_scope("outer"):
        array = np.zeros(3)
        foreign = np.frombuffer(b"12345678")
        with ds.dispose_scope(strict=True) as inner:
            with pytest.raises(ds.NotOwnedError, match="does not own this ndarray"):
                inner.move_to_outer(array)
            assert inner.move_to_outer(foreign) is foreign


def test_memory_from_elsewhere_is_nobodys_and_unharmed(tmp_path: Any) -> None:
    before = np.arange(5)
    with ds.dispose_scope() as scope:
        for foreign in (
            before,
            np.frombuffer(b"12345678", dtype="u1"),
            np.memmap(tmp_path / "map", dtype="u1", mode="w+", shape=10),
            np.array(7)[()],
        ):
            assert foreign not in scope
            scope.move_to_outer(foreign)
            if isinstance(foreign, np.ndarray):
                scope.attach(foreign)
            else:
                with pytest.raises(ds.UnknownKindError, match="no resource"):
                    scope.attach(foreign)
            assert foreign not in scope
        assert ds.owner_of(before) is None
    assert before.tolist() == [0, 1, 2, 3, 4]


def test_arrays_survive_pickling_resizing_and_growing() -> None:
    with ds.dispose_scope() as scope:
        array = np.arange(10)
        assert pickle.loads(pickle.dumps(array)).tolist() == list(range(10))
        for size in (3, 30, 30_000, 3_000_000, 5):
            head = array[: min(size, array.size)].copy()
            array.resize(size, refcheck=False)
            assert array[: head.size].tolist() == head.tolist()
            assert not array[head.size :].any()
            assert array in scope
        del head
        assert scope.nbytes == array.nbytes


@pytest.mark.parametrize("kind", ESCAPING)
def test_a_strict_scope_refuses_that_any_kind_of_array_escapes_unless_it_was_moved(kind: str) -> None:
    with pytest.raises(ds.EscapedError, match="test_arena_accounts"):
        with ds.dispose_scope(strict=True):
            kept = ESCAPING[kind]()
    with ds.dispose_scope(strict=True) as scope:
        kept = scope.move_to_outer(ESCAPING[kind]())
    assert ds.owner_of(kept) is None


def test_a_strict_scope_leaves_maps_buffers_and_other_libraries_memory_alone(tmp_path: Any) -> None:
    (tmp_path / "map").write_bytes(bytes(100))
    with ds.dispose_scope(strict=True) as scope:
        held = [
            np.memmap(tmp_path / "map", dtype="u1", mode="r+"),
            np.frombuffer(b"12345678"),
            np.asarray(memoryview(b"123")),
        ]
        assert [array in scope for array in held] == [False] * 3
        assert [ds.owner_of(array) for array in held] == [None] * 3
    assert held[0].sum() == 0
