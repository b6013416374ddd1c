"""Tests of the list of all objects."""

import gc
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

from disposescope.scopes.compiled import referents, tracked_objects


class _Thing:
    pass


def test_what_the_collector_tracks_is_listed_but_for_tuples() -> None:
    thing = _Thing()
    inside = _Thing()
    array = np.zeros(3)
    pair = (inside, array, 12345678)
    assert gc.is_tracked(pair)
    found = tracked_objects()
    assert [sum(each is wanted for each in found) for wanted in (thing, inside, array, pair, found)] == [1, 1, 1, 0, 0]
    assert not any(type(each) is tuple for each in found)


def test_the_instances_of_classes_are_listed_by_their_real_types() -> None:
    class Pretender:
        @property
        def __class__(self) -> type:
            raise AssertionError("asked")

    thing, array, pretender = _Thing(), np.zeros(3), Pretender()
    pair = (array, thing)
    found = tracked_objects(_Thing, np.ndarray)
    assert [sum(each is wanted for each in found) for wanted in (thing, array, pretender, pair)] == [1, 1, 0, 0]
    with pytest.raises(TypeError, match=r"tracked_objects\(\) takes classes, not int"):
        tracked_objects(3)  # type: ignore[arg-type]


def test_the_list_keeps_nothing_once_it_is_dropped() -> None:
    thing = _Thing()
    gone = weakref.ref(thing)
    gc.disable()
    try:
        tracked_objects()
        del thing
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.long
def test_tuples_that_other_threads_are_making_stay_theirs() -> None:
    failures: list[BaseException] = []
    stop = threading.Event()

    def make() -> None:
        try:
            while not stop.is_set():
                tuple(number for number in range(50))
        except BaseException as failure:  # SystemError
            failures.append(failure)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=make) for _ in range(4)]
    try:
        for thread in threads:
            thread.start()
        for _ in range(100):
            for thing in tracked_objects():
                type(thing)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert failures == []


def test_what_an_object_refers_to_is_listed_without_strings_and_numbers() -> None:
    inner: list[object] = []
    array = np.ones(3)
    found = referents(["text", 1, 2.5, 1j, None, True, b"bytes", inner, array])
    assert sorted(map(id, found)) == sorted([id(inner), id(array)])
    assert [id(thing) for thing in referents({"key": inner, 3: "text"})] == [id(inner)]
    assert referents("text") == referents(array) == []
    assert type(_Thing()) in referents(_Thing())


FREE_LIST = """
import asyncio, gc, resource, sys
from disposescope.scopes.compiled import referents

resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))

async def wait():
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_result, None)
    await future

gc.disable()
asyncio.run(wait())
module = sys.modules["_asyncio"]
print(len({len(referents(module)) for _ in range(3)}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of a process")
def test_what_lies_in_the_free_list_of_a_module_is_no_referent() -> None:
    done = subprocess.run([sys.executable, "-c", FREE_LIST], capture_output=True, text=True, check=False, timeout=500)
    assert (done.stdout, done.returncode) == ("1\n", 0), done.stderr
