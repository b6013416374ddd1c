"""Composites that are born whole: counted once, gone without a trace, compiled and in Python."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import disposescope as ds
from disposescope.scopes import _births, _deaths, _estates
from disposescope.scopes._compiled import HOT
from disposescope.scopes._entries import LIVE
from disposescope.scopes._kinds import Kind, add_kind
from tests.scopes.toys import TOY, Toy, counts, owned_by, recorded, tables_are_sound


class Unborn(Toy):
    """A toy that is not born of its own accord."""

    __slots__ = ()

    def __init__(self, value: object = 1) -> None:
        self.value = value
        self.device = "cpu"
        self.nbytes = 8
        self.releases = 0


class Row(tuple[Any, ...]):
    """A tuple whose first element stands for it."""

    __slots__ = ()


ROW = Kind(
    cls=Row,
    name="Row",
    release=lambda _: None,
    storages=lambda _: (),
    device=lambda _: "cpu",
    describe=lambda _: "Row",
    members=lambda row: [element for element in row if element is not None],
    anchor=lambda row: row[0],
)
add_kind(ROW)


def row(*more):
    return Row((Unborn(1), Unborn(2), None, *more))


@pytest.fixture(params=["as it is", "in Python"])
def born_whole(request, monkeypatch):
    born = _births.born_whole
    if request.param == "in Python":
        monkeypatch.setattr(_births, "part", _births.part_in_python)
        monkeypatch.setattr(_deaths, "anchor_died", _deaths.anchor_died_in_python)
        monkeypatch.setattr(_estates, "HOT", None)
        born = _births.born_whole_in_python
    return lambda thing: born(thing, ROW, thing, TOY)


def test_a_tuple_is_one_resource_and_takes_its_elements_along(born_whole):
    with ds.dispose_scope() as scope:
        thing = row()
        entry = born_whole(thing)
        assert scope.live == (thing,)
        assert entry() == thing
        assert type(entry()) is Row
        assert [part() for part in entry.members] == [thing[0], thing[1]]
        assert thing[1] in scope
        assert counts() == {"created_in_scope": 1, "live": 1}
    assert [toy.releases for toy in thing[:2]] == [1, 1]
    assert counts() == {"created_in_scope": 1, "disposed_in_scope": 1}


def test_outside_of_scopes_nobody_owns_it(born_whole):
    thing = row()
    assert born_whole(thing).owner is None
    assert counts() == {"created_unscoped": 1, "live": 1}
    del thing
    assert counts() == {"created_unscoped": 1, "disposed_unscoped": 1}


def test_tuples_that_die_leave_nothing_behind(born_whole):
    known = len(LIVE)
    gc.collect()
    gc.disable()
    try:
        with ds.dispose_scope() as scope:
            for _ in range(1_200):
                born_whole(row())
            assert len(LIVE) == known
            assert counts() == {"created_in_scope": 1_200, "disposed_in_scope": 1_200}
            assert len(_estates.ESTATES) < 600
            assert len(scope) == 0
        assert gc.collect() == 0
    finally:
        gc.enable()
    assert counts() == {"created_in_scope": 1_200, "disposed_in_scope": 1_200}


def test_an_element_that_outlives_its_tuple_is_the_scopes_own(born_whole):
    with ds.dispose_scope() as scope:
        survivors = []
        for number in range(700):
            thing = row()
            born_whole(thing)
            survivors.append(thing[number % 2])
        del thing
        assert set(scope.live) == set(survivors)
    assert {toy.releases for toy in survivors} == {1}
    assert tables_are_sound()


def test_where_an_element_is_known_nothing_is_recorded(born_whole):
    with ds.dispose_scope() as scope:
        known = Toy(3)
        live = dict(LIVE)
        assert born_whole(row(known)) is None
        assert live == LIVE
        assert owned_by(scope, known)


def test_listeners_hear_of_its_birth_and_of_each_death_once(born_whole):
    with recorded() as recorder, ds.dispose_scope():
        born_whole(row())
    assert sorted(event[0] for event in recorder.events if event[0] in ("born", "died")) == ["born", *["died"] * 3]


def test_it_goes_to_the_next_scope_out_where_another_thread_closes_the_current_one(born_whole):
    class Closing(dict):
        def __setitem__(self, key, value):
            inner.close()
            super().__setitem__(key, value)

    with ds.dispose_scope() as outer, ds.dispose_scope() as inner:
        inner._entries = Closing()
        thing = row()
        born_whole(thing)
        assert outer.live == (thing,)
    assert thing[0].releases == 1


def test_the_second_of_two_tuples_with_one_element_is_told_apart(born_whole):
    with ds.dispose_scope():
        first = row()
        born_whole(first)
        assert born_whole(Row((Unborn(1), first[0]))) is None
        _births.born_composite(second := Row((Unborn(4), first[0])), ROW)
        del first
        assert second[1] in ds.current_scope()
    assert second[1].releases == 1


@pytest.mark.skipif(HOT is None, reason="the extension was not built, or is not wanted")
def test_what_cannot_be_is_refused():
    with pytest.raises(TypeError, match="list of members"):
        HOT.born_whole(Toy(), ROW, [Unborn()], TOY)
    with pytest.raises(TypeError, match="list of members"):
        HOT.born_whole(row(), ROW, iter(()), TOY)
    with pytest.raises(TypeError, match="weak reference"):
        HOT.born_whole(row(), ROW, (1,), TOY)
    with pytest.raises(TypeError, match="weak reference"):
        HOT.born_whole(Row((Unborn(), 2)), ROW, (), TOY)
    with pytest.raises(IndexError):
        HOT.born_whole(Row(), ROW, (), TOY)
    with pytest.raises(TypeError, match="an entry"):
        HOT.anchor_died(object())
    assert counts() == {"created_unscoped": 1, "disposed_unscoped": 1}
