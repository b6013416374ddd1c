"""The walk goes through arrays of objects."""

import numpy as np
import pytest

import disposescope as ds
from disposescope.tensors.numpy.storage import children


def box(*things):
    array = np.empty(len(things), dtype=object)
    for index, thing in enumerate(things):
        array[index] = thing
    return array


def test_a_verb_finds_tensors_in_an_array_of_objects():
    with ds.dispose_scope() as outer:
        with ds.dispose_scope() as inner:
            kept, lost = ds.ones(1), ds.ones(1)
            array = box(kept, None, [box(ds.zeros(2))])
            assert inner.move_to_outer(array) is array
        assert lost.disposed
        assert kept in outer
        assert array[2][0][0] in outer


def test_a_verb_finds_tensors_in_fields_of_records():
    array = np.zeros(2, dtype=[("x", "f4"), ("in", [("t", object)])])
    with ds.dispose_scope() as outer:
        with ds.dispose_scope() as inner:
            array["in"]["t"][1] = ds.ones(1)
            inner.move_to_outer(array)
        assert array["in"]["t"][1] in outer
    assert array["in"]["t"][1].disposed


def test_labels_show_how_to_reach_an_object():
    array = np.zeros(1, dtype=[("x", "f4"), ("in", [("t", object)])])
    assert [label for label, _ in children(array)] == ["['in']['t'][0]"]
    assert [label for label, _ in children(np.array(None, dtype=object))] == ["[()]"]
    assert list(children(np.ones(3))) == []
    assert children([1]) is None


def test_an_array_that_holds_itself_ends():
    array = box(None)
    array[0] = array
    with ds.dispose_scope() as scope:
        assert scope.move_to_outer(array) is array


def test_an_unknown_object_in_an_array_is_named_by_its_place():
    class Hides:
        def __init__(self, t):
            self.t = t

    with ds.dispose_scope() as scope, pytest.raises(ds.UnknownKindError, match=r"\[1\]"):
        scope.move_to_outer(box(None, Hides(ds.ones(1))))


def test_code_of_a_subclass_is_not_run():
    class Loud(np.ndarray):
        def __getitem__(self, key):
            raise AssertionError

        def __array_finalize__(self, obj):
            self.seen = True

    with ds.dispose_scope() as outer:
        with ds.dispose_scope() as inner:
            array = box(ds.ones(1)).view(Loud)
            inner.move_to_outer(array)
        assert np.asarray(array)[0] in outer
    # The class lives until the next collection. While it has this, workspaces give no advice.
    del Loud.__array_finalize__
