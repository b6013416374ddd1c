"""Promises of the identity set: weak tracking, by identity, never confused by a reused id."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import pytest

import disposescope as ds
from disposescope.scopes.identity import DEAD, LIVE, Entry, StrongEntry, entry_of, release, settle
from tests.scopes.toys import Bundle, Faulty, Packed, Pair, Toy, counts, owned_by, recorded, tables_are_sound


class TestTracking:
    def test_is_weak(self):
        toy = Toy()
        gone = weakref.ref(toy)
        key = id(toy)
        assert LIVE[key]() is toy
        del toy
        assert gone() is None
        assert key not in LIVE

    def test_an_entry_that_goes_is_not_found_among_the_references_of_its_resource(self):
        toy = Toy()
        found: list[object] = []

        class Asking:
            def __del__(self) -> None:
                found.extend(weakref.getweakrefs(toy))

        known = weakref.getweakrefs(toy)
        entry = Entry(toy)
        entry.counted = Asking()
        del entry
        assert found == known == weakref.getweakrefs(toy)

    def test_a_disposed_one_is_remembered_only_while_it_is_referenced(self):
        toy = Toy()
        key = id(toy)
        ds.dispose(toy)
        assert key in DEAD
        assert key not in LIVE
        assert ds.is_disposed(toy)
        del toy
        assert key not in DEAD

    def test_an_address_that_comes_back_is_another_resource(self):
        seen = set()
        for index in range(1_000):
            toy = Toy(index)
            assert not ds.is_disposed(toy)
            assert ds.owner_of(toy) is None
            seen.add(id(toy))
            if index % 2:
                ds.dispose(toy)
                assert ds.is_disposed(toy)
            del toy
        assert len(seen) < 1_000
        assert tables_are_sound()

    def test_one_that_is_resurrected_by_its_own_end_stays_tracked(self):
        saved = []

        class Phoenix(Toy):
            __slots__ = ()

            def __del__(self):
                if not saved:
                    saved.append(self)

        with ds.dispose_scope() as scope:
            toy = Phoenix(1)
            del toy
            assert owned_by(scope, saved[0])
        assert saved[0].value is None
        saved.clear()
        assert tables_are_sound()

    def test_entries_of_equal_resources_are_told_apart(self):
        class Same(Toy):
            __slots__ = ()

            def __eq__(self, other):
                return True

            __hash__ = None

        with ds.dispose_scope() as outer, ds.dispose_scope() as inner:
            a, b = Same(1), Same(2)
            inner.move_to_outer(a)
            assert owned_by(outer, a)
            assert owned_by(inner, b)

    def test_an_entry_cannot_be_pickled_or_copied(self):
        toy = Toy()
        entry = entry_of(toy)
        for how in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError):
                how(entry)

    def test_what_cannot_be_weakly_referenced_is_held_only_while_it_is_owned(self):
        class Slotted:
            __slots__ = ("disposals",)

            def __init__(self):
                self.disposals = 0

            def dispose(self):
                self.disposals += 1

        with ds.dispose_scope() as scope:
            kept, detached = Slotted(), Slotted()
            scope.attach([kept, detached, Slotted()])
            assert type(entry_of(kept)) is StrongEntry
            assert len(scope) == 3
            scope.detach(detached)
            assert entry_of(detached) is None
            assert counts()["live"] == 2
        assert (kept.disposals, detached.disposals) == (1, 0)
        assert tables_are_sound()
        assert counts() == {"attached": 3, "detached": 1, "disposed_in_scope": 2}


class TestRelease:
    def test_whoever_takes_it_first_does_it_once(self):
        toy = Toy()
        entry = entry_of(toy)
        assert release(entry) is None
        assert release(entry) is None
        assert toy.releases == 1

    def test_one_that_disposes_itself_again_is_released_once(self):
        holder = []
        faulty = Faulty(lambda: ds.dispose(holder[0]))
        holder.append(faulty)
        ds.dispose(faulty)
        assert faulty.releases == 1

    def test_two_that_dispose_each_other_are_each_released_once(self):
        with ds.dispose_scope():
            holder = []
            a = Faulty(lambda: ds.dispose(holder))
            b = Faulty(lambda: ds.dispose(holder))
            holder += [a, b]
        assert (a.releases, b.releases) == (1, 1)


class TestSettling:
    def test_a_part_that_dies_before_or_after_the_whole_loses_no_member(self):
        for order in ("inner first", "outer first"):
            with ds.dispose_scope() as scope:
                a, b = Toy(1), Toy(2)
                inner = Pair(a)
                outer = scope.attach(Pair(inner, b))
                if order == "inner first":
                    outer.members = (b,)
                    del inner
                    settle()
                    assert owned_by(scope, outer)
                    assert a in scope
                    del outer
                else:
                    del outer
                    settle()
                    assert owned_by(scope, inner, b) or owned_by(scope, b, inner)
                    del inner
                settle()
                assert a in scope
                assert len(scope) == 2
            assert (a.releases, b.releases) == (1, 1)
            assert tables_are_sound()

    def test_many_that_die_are_settled_without_being_asked(self):
        with ds.dispose_scope():
            members = [Toy(index) for index in range(2_000)]
            for toy in members:
                Packed(toy)
        assert {toy.releases for toy in members} == {1}

    def test_a_survivor_without_owner_is_unowned_and_counted(self):
        toy = Toy(1)
        Packed(toy)
        assert counts() == {"created_unscoped": 2, "disposed_unscoped": 1, "live": 1}
        assert ds.owner_of(toy) is None
        ds.dispose(toy)
        assert counts() == {"created_unscoped": 2, "disposed_unscoped": 2}

    def test_a_bundle_in_a_composite_that_dies_is_settled(self):
        with ds.dispose_scope() as scope:
            toy = Toy(1)
            scope.attach(Pair(Bundle((toy,))))
            gc.collect()
            assert toy in scope
        assert toy.releases == 1

    def test_listeners_hear_of_a_death_once(self):
        with recorded() as recorder:
            toy = Toy(1)
            ds.dispose(toy)
            del toy
            Toy(2)
        assert [event[0] for event in recorder.events] == ["born", "disposed", "died", "born", "died"]
