"""What is known of a type goes with it, whatever happens meanwhile."""

import gc
import sys
from typing import Any

from disposescope.scopes.base.type_cache import TypeCache


def test_an_entry_goes_with_its_type() -> None:
    cache: TypeCache[str] = TypeCache()
    cls = type("Own", (), {})
    cache.remember(cls, "first")
    cache.remember(cls, "second")
    assert cache.known == {id(cls): "second"}
    del cls
    gc.collect()
    assert cache.known == {}


def test_no_code_in_python_runs_when_a_type_goes() -> None:
    # A signal handler runs before the first frame, and may raise in its place.
    cache: TypeCache[int] = TypeCache()
    cls = type("Own", (), {})
    cache.remember(cls, 1)
    calls: list[str] = []

    def note(frame: Any, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.endswith("type_cache.py"):
            calls.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        del cls
        gc.collect()
    finally:
        sys.setprofile(None)
    assert (cache.known, calls) == ({}, [])


def test_types_that_come_and_go_leave_next_to_nothing() -> None:
    cache: TypeCache[int] = TypeCache()
    for number in range(1000):
        cache.remember(type(f"Own{number}", (), {}), number)
        if number % 100 == 0:
            gc.collect()
    gc.collect()
    cache.remember(int, 1)
    assert cache.known == {id(int): 1}
    assert len(cache._types) < 500
