"""What is attached of a user's own kind is held and released.

What is no resource is refused with advice that helps.
"""

from __future__ import annotations

import functools
import gc
import weakref
from pathlib import Path

import pytest

import disposescope as ds
from tests.scopes.toys import Disposable, Pair, Toy, counts, fails, no_cyclic_garbage, tables_are_sound

CLOSED: list[object] = []


@pytest.fixture(autouse=True)
def _nothing_closed():
    CLOSED.clear()


@ds.register_kind(release=lambda handle: CLOSED.append(handle.number))
class Handle:
    def __init__(self, number: object) -> None:
        self.number = number


@ds.register_kind
class Session:
    def dispose(self) -> None:
        CLOSED.append("session")


@ds.register_kind(release=lambda freeing: CLOSED.append("freed"), weak=True)
class Freeing:
    pass


class Closable:
    def close(self) -> None:
        CLOSED.append("closable")


class Plain:
    pass


def test_the_decorator_returns_the_class():
    assert isinstance(Handle, type)
    assert Handle(3).number == 3
    assert isinstance(Session, type)
    with pytest.raises(ValueError, match="registered already"):
        ds.register_kind(Session)
    with pytest.raises(TypeError, match="nothing says how to release"):

        @ds.register_kind
        class Nothing:
            pass


@pytest.mark.parametrize("make", [lambda: Handle(1), Session, Disposable])
def test_what_is_attached_without_a_variable_is_released_at_the_end(make):
    with no_cyclic_garbage(), ds.dispose_scope() as scope:
        resource = weakref.ref(scope.attach(make()))
        gc.collect()
        assert resource() is not None
        assert len(scope) == 1
        assert scope.live == (resource(),)
    assert resource() is None
    assert counts() == {"attached": 1, "disposed_in_scope": 1}


def test_releases_come_newest_first_and_once():
    with ds.dispose_scope() as scope:
        for number in range(3):
            scope.attach(Handle(number))
    assert CLOSED == [2, 1, 0]


def test_what_is_kept_is_held_no_more():
    with ds.dispose_scope() as scope:
        handle = scope.keep(scope.attach(Handle(1)))
        gone = weakref.ref(handle)
        assert ds.owner_of(handle) is None
        assert not ds.is_disposed(handle)
        del handle
        assert gone() is None
    assert CLOSED == []
    assert tables_are_sound()


def test_what_is_kept_and_attached_again_is_held_again():
    with ds.dispose_scope() as scope:
        scope.attach(scope.keep(scope.attach(Handle(1))))
        gc.collect()
        assert CLOSED == []
    assert CLOSED == [1]


def test_what_is_moved_is_held_by_the_scope_that_owns_it():
    with ds.dispose_scope():
        with ds.dispose_scope() as inner:
            inner.move_to_outer(inner.attach(Handle(1)))
        assert CLOSED == []
    assert CLOSED == [1]
    with ds.dispose_scope() as alone:
        gone = weakref.ref(alone.move_to_outer(alone.attach(Handle(2))))
        assert gone() is None


def test_a_weak_kind_is_not_held():
    with ds.dispose_scope() as scope:
        gone = weakref.ref(scope.attach(Freeing()))
        assert gone() is None
        kept = scope.attach(Freeing())
    assert CLOSED == ["freed"]
    assert ds.is_disposed(kept)


def test_it_is_disposed_and_told_so_while_it_is_referenced():
    with ds.dispose_scope("step") as scope:
        handle = scope.attach(Handle(1))
    assert ds.is_disposed(handle)
    with pytest.raises(ds.DisposedError, match="by scope 'step'"):
        ds.check_alive(handle)
    with ds.dispose_scope() as scope, pytest.raises(ds.DisposedError):
        scope.attach(handle)
    gone = weakref.ref(handle)
    del handle
    assert gone() is None
    assert tables_are_sound()


def test_dispose_releases_it_and_holds_it_no_more():
    with ds.dispose_scope() as scope:
        handle = scope.attach(Handle(1))
        gone = weakref.ref(handle)
        ds.dispose(handle)
        del handle
        assert gone() is None
        assert len(scope) == 0
    ds.dispose(Handle(2))
    assert CLOSED == [1, 2]


def test_a_release_that_fails_leaves_it_alive_and_unowned():
    def fail(_resource):
        raise OSError("busy")

    @ds.register_kind(release=fail)
    class Busy:
        pass

    with pytest.raises(ExceptionGroup), ds.dispose_scope() as scope:
        busy = scope.attach(Busy())
    assert not ds.is_disposed(busy)
    assert ds.owner_of(busy) is None
    gone = weakref.ref(busy)
    del busy
    gc.collect()
    assert gone() is None


def test_a_member_that_is_the_user_s_own_is_released_with_the_scope_of_its_composite():
    with ds.dispose_scope() as scope:
        scope.attach(Pair(Handle(1), Toy()))
        gc.collect()
    assert CLOSED == [1]
    assert tables_are_sound()


def test_escapes_keep_releases_what_only_the_scope_holds():
    held = []
    with ds.dispose_scope(), ds.dispose_scope(escapes="keep") as scope:
        scope.attach(Handle(1))
        own = scope.attach(Handle(2))
        held.append(scope.attach(Handle(3)))
    assert CLOSED == [2, 1, 3]
    assert ds.is_disposed(own)


@pytest.mark.parametrize("nothing", [None, [], {}, (), set(), [None], {"a": (None, [])}])
def test_attach_takes_nothing_for_nothing(nothing):
    with ds.dispose_scope() as scope:
        assert scope.attach(nothing) is nothing


NO_RESOURCES = [3, 1.5, "text", b"text", len, lambda: 1, functools.partial(int), Plain, functools, object()]


@pytest.mark.parametrize("thing", NO_RESOURCES)
def test_attach_refuses_what_no_registration_makes_a_resource(thing):
    with ds.dispose_scope() as scope:
        with pytest.raises(
            ds.UnknownKindError, match=f"^attach: .*{type(thing).__qualname__} is no resource;"
        ) as raised:
            scope.attach(thing)
        assert "register_kind" not in str(raised.value)
        assert raised.value.type_name == f"{type(thing).__module__}.{type(thing).__qualname__}"
        with pytest.raises(ds.UnknownKindError, match=r"no resource in the list: its \[1\] is"):
            scope.attach([None, thing])
        assert len(scope) == 0


def test_attach_says_how_to_close_a_file_and_what_has_only_close(tmp_path: Path):
    with ds.dispose_scope() as scope, (tmp_path / "file").open("w") as file:
        for thing in (file, Closable()):
            name = type(thing).__qualname__
            with pytest.raises(ds.UnknownKindError) as raised:
                scope.attach(thing)
            assert "contextlib.closing()" in str(raised.value)
            assert f"disposescope.register_kind({name}, release={name}.close)" in str(raised.value)


def test_attach_says_how_to_teach_a_class_of_the_user_s_own():
    with (
        ds.dispose_scope() as scope,
        pytest.raises(ds.UnknownKindError, match=r"register_kind\(Plain, release=\.\.\.\)"),
    ):
        scope.attach(Plain())


def test_attach_passes_over_what_is_beside_a_resource():
    with ds.dispose_scope() as scope:
        toy = Toy(1)
        scope.attach({"toy": toy, "label": 3, "path": Path(), "plain": Plain()})
        assert toy in scope


def test_a_function_that_hides_a_resource_is_not_to_be_registered():
    with ds.dispose_scope() as scope:
        toy = Toy(1)
        with pytest.raises(ds.UnknownKindError) as raised:
            scope.move_to_outer(lambda: toy)
        assert "register_kind" not in str(raised.value)
        assert "Pass the tensors themselves" in str(raised.value)


def test_batches_need_no_resource():
    assert list(ds.scoped_batches([1, "text", [2.0]])) == [1, "text", [2.0]]


def test_a_failing_toy_of_a_framework_is_not_held():
    with ds.dispose_scope():
        gone = weakref.ref(fails(ValueError()))
        assert gone() is None
