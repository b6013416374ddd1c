"""Promises of a birth: who owns the new one, and that a refused composite leaves no trace."""

from __future__ import annotations

import contextvars
import threading

import pytest

import disposescope as ds
from disposescope.scopes.identity import LIVE, entry_of
from disposescope.scopes.kinds import Kind
from disposescope.scopes.ownership import born
from tests.scopes.toys import TOY, Packed, Toy, Unknown, counts, owned_by, recorded, tables_are_sound


def test_the_current_scope_owns_what_is_born():
    with ds.dispose_scope() as scope:
        toy = Toy()
        assert entry_of(toy).owner is scope
        assert entry_of(toy).counted


def test_outside_every_scope_it_is_unowned():
    toy = Toy()
    assert entry_of(toy).owner is None


def test_in_a_closed_scope_it_goes_to_the_next_one_out():
    with ds.dispose_scope() as outer:
        with ds.dispose_scope() as inner:
            context = contextvars.copy_context()
        toy = context.run(Toy)
        assert toy not in inner
        assert owned_by(outer, toy)
    assert ds.owner_of(context.run(Toy)) is None


def test_in_a_scope_that_another_thread_closes_at_that_moment_it_goes_to_the_next_one_that_is_open():
    """The closing comes between the test of the scope and the entry into its list.

    A list that closes scopes when something is entered plays it.
    """

    class Closing(dict):
        def __init__(self, *scopes):
            self.scopes = scopes

        def __setitem__(self, key, value):
            for scope in self.scopes:
                scope.close()
            super().__setitem__(key, value)

    for birth in (lambda: Toy(1), lambda: Packed()):
        with ds.dispose_scope() as top, ds.dispose_scope() as outer, ds.dispose_scope() as inner:
            inner._entries = Closing(inner, outer)
            thing = birth()
            assert owned_by(top, thing)
            assert len(inner._entries) == len(outer._entries) == 0
        assert ds.is_disposed(thing)


def test_a_move_that_meets_a_release_leaves_nothing_in_the_list():
    """The release comes between the claim and the new owner.

    A list that releases what is popped plays it.
    """

    class Releasing(dict):
        def pop(self, key, default=None):
            found = super().pop(key, default)
            ds.dispose(key())
            return found

    with ds.dispose_scope() as outer, ds.dispose_scope() as inner:
        toy = Toy(1)
        inner._entries = Releasing(inner._entries)
        inner.move_to_outer(toy)
        assert ds.is_disposed(toy)
        assert len(outer) == 0
        assert toy.releases == 1


def test_two_scopes_that_attach_the_same_unowned_one_at_once_leave_it_one_owner():
    for _ in range(50):
        toy = Toy(1)
        with ds.dispose_scope() as a, ds.dispose_scope() as b:
            barrier = threading.Barrier(2)

            def attach(scope, toy=toy, barrier=barrier):
                barrier.wait()
                scope.attach(toy)

            threads = [threading.Thread(target=attach, args=(scope,)) for scope in (a, b)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(a) + len(b) == 1
            assert ds.owner_of(toy) in (a, b)
        assert toy.releases == 1


def test_a_composite_takes_its_members_out_of_the_list():
    with ds.dispose_scope() as scope:
        a, b = Toy(1), Toy(2)
        packed = Packed([a], {"b": b}, None, "text")
        assert owned_by(scope, packed)
        assert entry_of(packed).members == (entry_of(a), entry_of(b))
        assert entry_of(a).unit is entry_of(packed)


@pytest.mark.parametrize(
    ("members", "error"),
    [
        (lambda a: (a, Toy(2, device="cuda:0")), ds.DeviceMismatchError),
        (lambda a: (a, dead()), ds.DisposedError),
        (lambda a: (a, Unknown(a)), ds.UnknownKindError),
    ],
)
def test_a_refused_composite_leaves_no_trace(members, error):
    with ds.dispose_scope() as scope:
        a, z = Toy(1), Toy(9)
        parts = members(a)
        before, live, known = counts(), scope.live, dict(LIVE)
        with pytest.raises(error):
            Packed(*parts)
        assert counts() == before
        assert scope.live == live
        assert known == LIVE
        assert a in scope
        assert z.value == 9
    assert tables_are_sound()


def dead():
    toy = Toy(3)
    ds.dispose(toy)
    return toy


def test_listeners_are_called_after_the_owner_is_known():
    with recorded() as recorder, ds.dispose_scope() as scope:
        Toy(1)
        packed = Packed(Toy(2))
    assert recorder.events == [
        ("opened", scope),
        ("born", "Toy", scope),
        ("died", "Toy"),
        ("born", "Toy", scope),
        ("born", "Packed", scope),
        ("disposed", "Packed", scope),
        ("disposed", "Toy", None),
        ("closed", scope),
    ]
    del packed


def test_what_is_born_twice_is_born_once():
    class Other(Kind):
        cls = Toy
        name = "Other"

    with recorded() as recorder, ds.dispose_scope() as scope:
        toy = Toy(1)
        entry = entry_of(toy)
        assert born(toy, Other()) is entry
        assert born(toy, TOY) is entry
        assert owned_by(scope, toy)
    assert toy.releases == 1
    assert [event[0] for event in recorder.events].count("born") == 1
    assert counts() == {"created_in_scope": 1, "disposed_in_scope": 1}
