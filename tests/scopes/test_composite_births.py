"""Composites that are born with their members: counted once, and gone without a trace."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import disposescope as ds
from disposescope.scopes import compiled, ownership
from disposescope.scopes import identity as dead_composites
from disposescope.scopes.identity import LIVE
from disposescope.scopes.kinds import Kind, add_kind
from tests.scopes.toys import (
    TOY,
    Bundle,
    Faulty,
    Packed,
    Pair,
    Toy,
    counts,
    no_cyclic_garbage,
    owned_by,
    recorded,
    tables_are_sound,
)


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


class RowKind(Kind):
    cls = Row
    name = "Row"

    def members(self, row):
        return [element for element in row if element is not None]

    def anchor(self, row):
        return row[0]


ROW = RowKind()
add_kind(ROW)


def row(*more):
    return Row((Unborn(1), Unborn(2), None, *more))


def born_together(thing):
    return ownership.born_together(thing, ROW, TOY)


def test_a_tuple_is_one_resource_and_takes_its_elements_along():
    with ds.dispose_scope() as scope:
        thing = row()
        entry = born_together(thing)
        assert scope.live == (thing,)
        assert entry() == thing
        assert type(entry()) is Row
        assert [part() for part in entry.members] == [thing[0], thing[1]]
        assert thing[1] in scope
        assert counts() == {"created_in_scope": 1, "live": 1}
    assert [toy.releases for toy in thing[:2]] == [1, 1]
    assert counts() == {"created_in_scope": 1, "disposed_in_scope": 1}


def member_of_a_composite_whose_scope_ends_while_a_thread_looks(on_release):
    member = Faulty(on_release)
    with ds.dispose_scope():
        packed = Packed(member)
        del packed
        # As another thread takes it, which has not come further when the scope ends.
        taken = dead_composites.DEAD_COMPOSITES.pop()
    dead_composites.DEAD_COMPOSITES.append(taken)
    return member


def test_a_member_that_outlives_its_composite_dies_with_a_scope_that_ends_meanwhile():
    member = member_of_a_composite_whose_scope_ends_while_a_thread_looks(lambda: None)
    assert ds.statistics().live == 0
    assert ds.is_disposed(member)
    assert member.releases == 1
    assert tables_are_sound()
    assert "detached" not in counts()


def test_where_it_cannot_be_released_whoever_looks_hears_of_it():
    def refuse() -> None:
        raise ValueError("it cannot be released")

    member = member_of_a_composite_whose_scope_ends_while_a_thread_looks(refuse)
    with pytest.raises(ExceptionGroup, match="members of composites whose scope has ended: 1 of the releases"):
        ds.statistics()
    assert ds.statistics().live == 1
    assert ds.owner_of(member) is None
    assert tables_are_sound()


class Slow(Packed):
    """A composite whose release takes a while: other threads do something meanwhile."""

    def __init__(self, meanwhile: Any, *members: object) -> None:
        self.meanwhile = meanwhile
        self.members = members
        ownership.born_together(self, SLOW)


class SlowKind(Kind):
    cls = Slow
    name = "Slow"

    def members(self, slow):
        return slow.members

    def release(self, slow):
        slow.meanwhile()


SLOW = SlowKind()
add_kind(SLOW)


def test_a_shared_member_goes_with_the_composite_that_is_being_released_when_the_other_dies():
    shared = Toy(1)
    seen = []

    def the_other_dies():
        others.clear()
        seen.append((scope.live, ds.is_disposed(shared)))

    with ds.dispose_scope() as scope:
        slow = Slow(the_other_dies, shared)
        others = [Packed(shared, Toy(2))]
        ds.dispose(slow)
        assert seen == [((), False)]
        assert ds.is_disposed(shared)
        assert shared.releases == 1
    assert tables_are_sound()


def test_outside_of_scopes_it_is_unowned():
    thing = row()
    assert born_together(thing).owner is None
    assert counts() == {"created_unscoped": 1, "live": 1}
    del thing
    assert counts() == {"created_unscoped": 1, "disposed_unscoped": 1}


def test_tuples_that_die_leave_nothing_behind():
    known = len(LIVE)
    gc.collect()
    gc.disable()
    try:
        with ds.dispose_scope() as scope:
            for _ in range(1_200):
                born_together(row())
            assert len(LIVE) == known
            assert counts() == {"created_in_scope": 1_200, "disposed_in_scope": 1_200}
            assert len(dead_composites.DEAD_COMPOSITES) < 600
            assert len(scope) == 0
        assert gc.collect() == 0
    finally:
        gc.enable()
    assert counts() == {"created_in_scope": 1_200, "disposed_in_scope": 1_200}


def test_an_element_that_outlives_its_tuple_is_the_scopes_own():
    with ds.dispose_scope() as scope:
        survivors = []
        for number in range(700):
            thing = row()
            born_together(thing)
            survivors.append(thing[number % 2])
        del thing
        assert set(scope.live) == set(survivors)
    assert {toy.releases for toy in survivors} == {1}
    assert tables_are_sound()


def test_where_an_element_is_known_nothing_is_recorded():
    with ds.dispose_scope() as scope:
        known = Toy(3)
        live = dict(LIVE)
        assert compiled.born_tuple(row(known), ROW, TOY) is None
        assert live == LIVE
        assert owned_by(scope, known)


def test_listeners_hear_of_its_birth_and_of_each_death_once():
    with recorded() as recorder, ds.dispose_scope():
        born_together(row())
    assert sorted(event[0] for event in recorder.events if event[0] in ("born", "died")) == ["born", *["died"] * 3]


def test_it_goes_to_the_next_scope_out_where_another_thread_closes_the_current_one():
    class Closing(dict):
        def __setitem__(self, key, value):
            inner.close()
            super().__setitem__(key, value)

    with ds.dispose_scope() as outer, ds.dispose_scope() as inner:
        inner._entries = Closing()
        thing = row()
        born_together(thing)
        assert outer.live == (thing,)
    assert thing[0].releases == 1


def test_the_second_of_two_tuples_with_one_element_is_told_apart():
    with ds.dispose_scope():
        first = row()
        born_together(first)
        born_together(second := Row((Unborn(4), first[0])))
        del first
        assert second[1] in ds.current_scope()
    assert second[1].releases == 1


def composed(*elements):
    made = Row(elements)
    ownership.compose(made, ROW)
    return made


class TestComposed:
    def test_it_counts_in_the_place_of_its_elements(self):
        with ds.dispose_scope() as scope:
            thing = composed(Toy(1), Toy(2), None)
            assert scope.live == (thing,)
            assert len(scope) == 1
            assert counts() == {"created_in_scope": 1, "live": 1}
        assert counts() == {"created_in_scope": 1, "disposed_in_scope": 1}
        assert [toy.releases for toy in thing[:2]] == [1, 1]

    def test_elements_that_were_counted_before_a_reset_are_not_taken_back(self):
        with ds.dispose_scope():
            elements = Toy(1), Toy(2)
            ds.reset_statistics()
            thing = composed(*elements)
            assert counts() == {"created_in_scope": 1, "live": 1}
            del thing, elements
            assert counts() == {"created_in_scope": 1, "disposed_in_scope": 1}

    def test_of_elements_that_were_counted_unscoped_as_well(self):
        thing = composed(Toy(1), Toy(2))
        assert counts() == {"created_unscoped": 1, "live": 1}
        assert ds.owner_of(thing[1]) is None
        ds.dispose(thing[1])
        assert thing[0].releases == 1

    def test_what_its_owner_does_not_own_is_left_where_it_is(self):
        unowned = Toy(4)
        with ds.dispose_scope() as outer:
            foreign = Toy(1)
            with ds.dispose_scope() as scope:
                thing = composed(Toy(2), foreign, Toy(3), unowned)
                assert (len(scope), len(outer)) == (1, 1)
                assert ds.owner_of(unowned) is None
            assert [toy.releases for toy in thing] == [1, 0, 1, 0]
        assert foreign.releases == 1
        assert unowned.releases == 0

    def test_without_an_anchor_that_is_known_it_is_nothing(self):
        with ds.dispose_scope() as scope:
            toy = Toy(1)
            composed(Unborn(2), toy)
            composed()
            composed(toy, [2])
            composed(toy, 3)
            assert scope.live == (toy,)

    @pytest.mark.parametrize("number", [2, 511, 1_300])
    def test_many_that_die_leave_what_they_share_to_the_one_that_is_left(self, number):
        with ds.dispose_scope() as scope:
            first = composed(Toy(0), Toy(1))
            for _ in range(number):
                composed(Toy(2), first[1])
                assert len(dead_composites.SHARED.get(LIVE[id(first[1])], ())) <= 1
            assert scope.live == (first,)
            assert len(scope) == 1
            assert len(LIVE) == 3
            assert not dead_composites.SHARED
        assert first[1].releases == 1

    def test_the_owner_of_what_they_share_may_change(self):
        with ds.dispose_scope() as scope:
            shared = Toy(1)
            for _ in range(1_300):
                thing = composed(Toy(2), shared)
            assert scope.live == (thing,)
            assert len(scope) == 1
            del thing
            assert scope.live == (shared,)
            assert len(scope) == 1

    def test_each_tuple_around_one_anchor_keeps_it_alive(self):
        with ds.dispose_scope() as scope:
            anchor = Toy(1)
            first, second = composed(anchor, Toy(2)), composed(anchor, Toy(3))
            assert len(scope) == 1
            assert scope.nbytes == 24
            del first
            assert scope.live == (second,)
            third = composed(anchor, Toy(4))
            del second
            assert scope.live == (third,)
            assert scope.nbytes == 16
            del third
            assert scope.live == (anchor,)

    def test_what_was_disposed_leaves_no_garbage(self):
        with no_cyclic_garbage(), ds.dispose_scope() as scope:
            for _ in range(3):
                ds.dispose(composed(Toy(1), Toy(2)))
                thing = composed(Toy(1), Toy(2))
                scope.dispose_everything()
                del thing
                ds.dispose(scope.attach(Pair(Toy(1), Pair(Toy(2)))))
                ds.dispose(scope.attach(Bundle((Toy(1), Bundle((Toy(2),))))))

    def test_a_member_that_is_set_apart_is_its_own(self):
        with ds.dispose_scope():
            shared = Toy(2)
            things = composed(Toy(1), shared), composed(Toy(3), shared)
            before = counts()
            ownership.set_apart(LIVE[id(shared)])
            ownership.set_apart(LIVE[id(shared)])
            assert ds.owner_of(shared) is None
            assert counts() == before | {"created_unscoped": 1, "live": 3}
        assert [thing[0].releases for thing in things] == [1, 1]
        assert shared.releases == 0


def test_the_table_of_dead_composites_may_change_while_it_is_swept():
    table = compiled.DEAD_COMPOSITES
    lists: list[list[object]] = []

    class Cleared:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            table.clear()

    thresholds = gc.get_threshold()
    try:
        # A collection comes with one of the first objects that are made.
        for later in range(3):
            gc.collect()
            gc.disable()
            for _ in range(400):
                toy = Unborn()
                unit = compiled.Entry(toy)
                unit.members = (compiled.Entry(toy),)
                table.append(unit)
            Cleared()
            lists.extend([] for _ in range(300))
            gc.set_threshold(gc.get_count()[0] + later, 1_000, 1_000)
            gc.enable()
            compiled.sweep()
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()
        table.clear()
    assert tables_are_sound()


def test_what_cannot_be_is_refused():
    with pytest.raises(TypeError, match="of tuples, not of Unborn"):
        compiled.make_entry(Unborn(), ROW)
    with pytest.raises(TypeError, match="takes a tuple"):
        compiled.born_tuple(Toy(), ROW, TOY)
    with pytest.raises(TypeError, match="weak reference"):
        compiled.born_tuple(Row((Unborn(), 2)), ROW, TOY)
    with pytest.raises(IndexError):
        compiled.born_tuple(Row(), ROW, TOY)
    with pytest.raises(TypeError, match="an entry"):
        compiled.anchor_died(object())
    assert counts() == {"created_unscoped": 1, "disposed_unscoped": 1}
