"""Promises to listeners: each event once, in order, with the owners before and after."""

from __future__ import annotations

import disposescope as ds
from disposescope.scopes.context import HOOKS
from tests.scopes.toys import Disposable, Toy, recorded


def test_nobody_listens_by_itself():
    assert HOOKS.listeners == []


def test_listeners_get_the_events_of_a_life_in_order():
    with recorded() as recorder:
        with ds.dispose_scope("outer") as outer:
            with ds.dispose_scope("inner") as inner:
                toy = Toy(1)
                inner.move_to_outer(toy)
                outer.detach(toy)
                inner.attach(toy)
                thing = inner.attach(Disposable())
            del toy
    assert recorder.events == [
        ("opened", outer),
        ("opened", inner),
        ("born", "Toy", inner),
        ("moved", "Toy", inner, outer),
        ("moved", "Toy", outer, None),
        ("moved", "Toy", None, inner),
        ("born", "Disposable", inner),
        ("moved", "Disposable", None, inner),
        ("disposed", "Disposable", inner),
        ("disposed", "Toy", inner),
        ("closed", inner),
        ("died", "Toy"),
        ("closed", outer),
    ]
    del thing


def test_verbs_that_change_nothing_make_no_event():
    with ds.dispose_scope() as outer, ds.dispose_scope() as inner:
        toy = Toy(1)
        with recorded() as recorder:
            inner.attach(toy)
            outer.detach(toy)
            inner.move_to(inner, toy)
            inner.move_to_outer(None)
        assert recorder.events == []


def test_listeners_get_the_events_of_an_empty_scope():
    with recorded() as recorder:
        with ds.dispose_scope() as scope:
            pass
        with ds.dispose_scope() as second:
            second.close()
    assert recorder.events == [("opened", scope), ("closed", scope), ("opened", second), ("closed", second)]
