"""Errors: the built-in that a stranger would catch, message, culprit, and survival of pickling."""

from __future__ import annotations

import gc
import pickle
import weakref

import pytest

import disposescope as ds
from disposescope.scopes.base import errors as _errors
from tests.scopes.toys import Toy, Unknown

BASES = {
    ds.ScopeClosedError: RuntimeError,
    ds.ScopeNestingError: RuntimeError,
    ds.NotOwnedError: RuntimeError,
    ds.UnknownKindError: TypeError,
    ds.DisposedError: ReferenceError,
    ds.EscapedError: RuntimeError,
    ds.DeviceMismatchError: RuntimeError,
    ds.GraphRetainedError: RuntimeError,
    ds.LeakError: RuntimeError,
    ds.WorkspaceError: RuntimeError,
}


@pytest.mark.parametrize("error", BASES)
def test_each_is_ours_and_the_builtin(error):
    assert issubclass(error, ds.DisposeScopeError)
    assert issubclass(error, BASES[error])
    assert issubclass(error, Exception)


def test_none_is_forgotten_here():
    errors = {getattr(_errors, name) for name in _errors.__all__}
    assert errors == {*BASES, ds.DisposeScopeError, ds.LeakWarning}
    assert issubclass(ds.LeakWarning, ResourceWarning)


@pytest.mark.parametrize(
    "error",
    [
        ds.ScopeClosedError("m", scope="<s>"),
        ds.ScopeNestingError("m", scope="<s>"),
        ds.NotOwnedError("m", resource="r", owner="o"),
        ds.UnknownKindError("m", type_name="t", path="p"),
        ds.DisposedError("m", resource="r"),
        ds.DeviceMismatchError("m", members=("a", "b"), devices=("cpu:0", "cuda:0")),
        ds.LeakError("m", count=2, nbytes=3),
        ds.EscapedError("m"),
        ds.GraphRetainedError("m"),
        ds.DisposeScopeError("m"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_message_and_attributes_survive_pickling(error):
    error.add_note("a note")
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        copied = pickle.loads(pickle.dumps(error, protocol))
        assert type(copied) is type(error)
        assert str(copied) == str(error) == "m"
        assert vars(copied) == vars(error)


def raised_by(function):
    with pytest.raises(ds.DisposeScopeError) as caught:
        function()
    return caught.value


def test_what_is_raised_in_earnest_can_be_pickled_and_keeps_no_resource():
    toy = Toy("value")
    gone = weakref.ref(toy)
    with ds.dispose_scope("mine", strict=True) as scope:
        errors = [
            raised_by(lambda: scope.detach(toy)),
            raised_by(scope.__enter__),
            raised_by(lambda: ds.is_disposed(3)),
            raised_by(lambda: ds.dispose(Unknown(toy))),
        ]
        ds.dispose(toy)
        errors.append(raised_by(lambda: scope.attach(toy)))
    errors.append(raised_by(lambda: scope.detach(None)))
    for error in errors:
        copied = pickle.loads(pickle.dumps(error))
        assert str(copied) == str(error)
        assert vars(copied) == vars(error)
        error.__traceback__ = None
        assert all(isinstance(value, str) for value in vars(error).values())
    toy = error = copied = None
    gc.collect()
    assert gone() is None


def test_the_disposed_is_named_and_how_to_keep_it():
    toy = Toy("value")
    ds.dispose(toy)
    with ds.dispose_scope() as scope:
        error = raised_by(lambda: scope.attach(toy))
    assert "Toy(None)" in str(error)
    assert "not by a scope" in str(error)
    with ds.dispose_scope() as scope:
        toy = Toy("value")
    with ds.dispose_scope() as scope:
        error = raised_by(lambda: scope.attach(toy))
    assert "ds.move_to_outer(x)" in str(error)
    assert "ds.keep(x)" in str(error)
    assert error.resource == "Toy(None)"
