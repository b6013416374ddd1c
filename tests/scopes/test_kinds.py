"""Promises of the registry of kinds."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Callable
from unittest import mock

import pytest

import disposescope as ds
from disposescope.scopes import kinds as _kinds
from disposescope.scopes.kinds import kind_of, kind_of_type
from tests.scopes.toys import Disposable, Toy, owned_by


class TestRegistering:
    def test_returns_the_class_and_can_decorate(self):
        class Thing:
            def dispose(self): ...

        assert ds.register_kind(Thing) is Thing

    def test_release_is_called_once_for_each(self):
        released = []

        class Thing:
            pass

        ds.register_kind(Thing, release=released.append, nbytes=lambda _: 12, device=lambda _: "CUDA:3")
        with ds.dispose_scope() as scope:
            thing = scope.attach(Thing())
            assert scope.nbytes == 12
            assert ds.statistics().by_device["cuda:3"] == ds.DeviceStatistics(1, 12)
            ds.dispose(thing)
            ds.dispose(thing)
        assert released == [thing]

    def test_what_is_given_goes_before_a_method_dispose(self):
        released = []

        class Thing:
            def dispose(self):
                pytest.fail("called")

        ds.register_kind(Thing, release=released.append)
        thing = Thing()
        ds.dispose(thing)
        assert released == [thing]

    def test_subclasses_are_of_the_kind_of_their_nearest_base(self):
        class Base:
            pass

        class Child(Base):
            pass

        class Grandchild(Child):
            pass

        ds.register_kind(Base, release=lambda _: None)
        assert kind_of_type(Grandchild).cls is Base
        ds.register_kind(Child, release=lambda _: None)
        assert kind_of_type(Grandchild).cls is Child
        assert kind_of(Base()).cls is Base

    def test_a_type_that_was_met_before_is_taught_all_the_same(self):
        class Late:
            pass

        late = Late()
        with ds.dispose_scope() as scope:
            with pytest.raises(ds.UnknownKindError, match=r"register_kind\(Late, release=\.\.\.\)"):
                scope.attach(late)
            assert len(scope) == 0
            ds.register_kind(Late, release=lambda _: None)
            scope.attach(late)
            assert owned_by(scope, late)

    @pytest.mark.parametrize("option", ["release", "nbytes", "device", "members"])
    def test_an_option_that_cannot_be_called_is_refused_by_name(self, option):
        class Thing:
            pass

        with pytest.raises(TypeError, match=option):
            ds.register_kind(Thing, **{option: 3})
        assert kind_of_type(Thing) is None

    def test_what_says_nothing_about_release_is_refused_and_named(self):
        class Thing:
            pass

        with pytest.raises(TypeError, match=r"Thing.*dispose\(\)"):
            ds.register_kind(Thing)

    def test_what_is_no_class_is_refused(self):
        with pytest.raises(TypeError, match="class"):
            ds.register_kind(3)

    def test_a_second_time_is_refused(self):
        class Thing:
            pass

        ds.register_kind(Thing, release=lambda _: None)
        with pytest.raises(ValueError, match="Thing"):
            ds.register_kind(Thing, release=lambda _: None)


class TestFinding:
    def test_any_class_with_a_method_dispose_is_one(self):
        assert kind_of(Disposable()) is not None
        assert kind_of(Disposable) is None

        class Child(Disposable):
            pass

        assert kind_of_type(Child).name.endswith("Child")

    def test_dispose_set_to_none_takes_it_back(self):
        class Never(Disposable):
            dispose = None

        assert kind_of_type(Never) is None or not callable(Never.dispose)

    def test_ordinary_objects_are_of_no_kind(self):
        for thing in (None, 3, "text", [], {}, object(), Toy, len, mock.Mock()):
            assert kind_of(thing) is None

    def test_a_metaclass_is_not_asked(self):
        class Meta(type):
            def __getattr__(cls, name):
                raise AssertionError(name)

        class Thing(metaclass=Meta):
            pass

        assert kind_of(Thing()) is None

    def test_types_that_were_met_are_forgotten_with_the_last_reference_to_them(self):
        gc.collect()
        before = len(_kinds.KINDS.by_type.known)
        for _ in range(100):
            kind_of(type("Fleeting", (), {})())
        gc.collect()
        assert len(_kinds.KINDS.by_type.known) == before


@pytest.mark.long
@pytest.mark.parametrize("asked", [ds.move_to_outer, ds.why_alive], ids=["walked", "searched"])
def test_a_class_of_the_program_lives_no_longer_than_without_this_package(asked: Callable[[object], object]) -> None:
    cls = dataclasses.make_dataclass("Box", ["content"])
    with ds.dispose_scope():
        asked(cls(ds.ones(1)))
    reference = weakref.ref(cls)
    del cls
    gc.collect()
    assert reference() is None
