"""What to do about a holder is said for its kind: a hook, a cache, a default argument."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import gc
import itertools
import logging
import logging.handlers
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import disposescope as ds

PASSES = 20
KEPT: list[Any] = []
Hold = Callable[[Any], object]


@pytest.fixture(autouse=True)
def _let_go() -> Iterator[None]:
    yield
    for each in KEPT:
        if isinstance(each, asyncio.AbstractEventLoop):
            each.close()
    KEPT.clear()


class Key:
    """A key of a dictionary with weak keys."""


def by_weak_keys() -> Hold:
    values: weakref.WeakKeyDictionary[Key, Any] = weakref.WeakKeyDictionary()
    KEPT.append(values)
    keys: list[Key] = []

    def hold(array: Any) -> None:
        keys.append(Key())
        values[keys[-1]] = array

    KEPT.append(hold)
    return hold


def by_a_cache() -> Hold:
    turns = iter(range(1000))
    arrays: list[Any] = []

    @functools.lru_cache(maxsize=None)  # noqa: UP033 (as programs have it)
    def cached(turn: int) -> Any:
        return arrays.pop()

    KEPT.append(cached)

    def hold(array: Any) -> None:
        arrays.append(array)
        cached(next(turns))

    return hold


def by_a_cache_of_several_arguments() -> Hold:
    turns = iter(range(1000))
    arrays: list[Any] = []

    @functools.lru_cache(maxsize=None)  # noqa: UP033 (as programs have it)
    def cached(turn: int, scale: float) -> Any:
        return arrays.pop()

    KEPT.append(cached)

    def hold(array: Any) -> None:
        arrays.append(array)
        cached(next(turns), 0.5)

    return hold


def by_keys_of_a_cache() -> Hold:
    class Batch:
        def __init__(self, array: Any) -> None:
            self.array = array

    @functools.cache
    def size_of(batch: Batch, unit: str) -> int:
        return len(batch.array)

    KEPT.append(size_of)
    return lambda array: size_of(Batch(array), "items")


def by_a_default() -> Hold:
    def added(array: Any, kept: list[Any] = []) -> None:  # noqa: B006 (the leak)
        kept.append(array)

    KEPT.append(added)
    return added


def by_a_finalizer() -> Hold:
    def hold(array: Any) -> None:
        key = Key()
        KEPT.append(weakref.ref(key))
        weakref.finalize(key, print, key, array).atexit = False

    return hold


def by_a_context_variable() -> Hold:
    variable: contextvars.ContextVar[Any] = contextvars.ContextVar("steps", default=())
    variable.set([])
    return lambda array: variable.get().append(array)


def by_records_of_a_log() -> Hold:
    handler = logging.handlers.MemoryHandler(1000)
    KEPT.append(handler)
    return lambda array: handler.emit(logging.LogRecord("step", 10, "train.py", 1, "loss %s", (array,), None))


def by_exceptions_of_a_log() -> Hold:
    handler = logging.handlers.MemoryHandler(1000, flushLevel=logging.CRITICAL)
    KEPT.append(handler)

    def read(array: Any) -> None:
        raise ValueError(f"{array.size} numbers")

    def hold(array: Any) -> None:
        try:
            read(array)
        except ValueError as error:
            given = type(error), error, error.__traceback__
            handler.emit(logging.LogRecord("step", logging.ERROR, "train.py", 1, "skipped", (), given))

    return hold


def by_a_queue() -> Hold:
    waiting: queue.Queue[Any] = queue.Queue()
    KEPT.append(waiting)
    return waiting.put


def by_futures() -> Hold:
    def hold(array: Any) -> None:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        future.set_result(array)
        KEPT.append(future)

    return hold


def by_a_thread_local() -> Hold:
    local = threading.local()
    local.kept = []
    KEPT.append(local)
    return lambda array: local.kept.append(array)


def by_timers() -> Hold:
    return lambda array: KEPT.append(threading.Timer(3600.0, print, (array,)))


def by_threads() -> Hold:
    return lambda array: KEPT.append(threading.Thread(target=print, args=(array,)))


def by_calls_of_a_loop() -> Hold:
    loop = asyncio.new_event_loop()
    KEPT.append(loop)
    return lambda array: loop.call_later(3600.0, print, array)


def by_a_cycle_of_items() -> Hold:
    given: list[Any] = []
    endless = itertools.cycle(given.pop() for _ in range(1000))
    KEPT.append(endless)

    def hold(array: Any) -> None:
        given.append(array)
        next(endless)

    return hold


def by_an_iterator_that_lags_behind() -> Hold:
    given: list[Any] = []
    ahead, behind = itertools.tee(given.pop() for _ in range(1000))
    KEPT.append(behind)

    def hold(array: Any) -> None:
        given.append(array)
        next(ahead)

    return hold


@pytest.mark.parametrize(
    ("holder", "remedy"),
    [
        (by_weak_keys, "let the keys go"),
        (by_a_cache, "give lru_cache a smaller maxsize"),
        (by_a_cache_of_several_arguments, "give lru_cache a smaller maxsize"),
        (by_keys_of_a_cache, "give lru_cache a smaller maxsize"),
        (by_a_default, "let the default be None"),
        (by_a_finalizer, "give the finalizer nothing that leads to the object"),
        (by_a_context_variable, "empty what the context variable"),
        (by_records_of_a_log, "log numbers and text"),
        (by_exceptions_of_a_log, "have the handler keep self.format(record)"),
        (by_a_queue, "give the queue a maxsize"),
        (by_futures, "drop the futures"),
        (by_a_thread_local, "delete it from the thread's local storage"),
        (by_timers, "cancel() timers"),
        (by_threads, "let the thread end"),
        (by_calls_of_a_loop, "cancel() the handle"),
        (by_a_cycle_of_items, "make a new iterator for each round"),
        (by_an_iterator_that_lags_behind, "read the iterators of itertools.tee in step"),
    ],
)
def test_the_remedy_is_that_of_the_kind_of_holder(holder: Callable[[], Hold], remedy: str) -> None:
    gc.collect()
    with ds.LeakDetector() as detector:
        hold = holder()
        for _ in range(PASSES):
            hold(np.zeros(5000))
            detector.mark("step")
        [leak] = [leak for leak in detector.report().leaks if leak.nbytes >= PASSES * 40_000]
    assert (leak.kind, leak.count) == ("exception" if holder is by_exceptions_of_a_log else "growth", PASSES)
    assert leak.remedy.startswith(remedy), leak.holders
    assert leak.explanation.endswith(f": {leak.remedy}.")


def test_what_two_kinds_of_holders_have_gets_the_general_remedy() -> None:
    hold = by_a_queue()
    with ds.LeakDetector() as detector:
        for _ in range(PASSES):
            array = np.zeros(5000)
            hold(array)
            KEPT.append(array)
            del array
            detector.mark("step")
        [leak] = [leak for leak in detector.report().leaks if leak.nbytes >= PASSES * 40_000]
    assert leak.remedy.startswith("clear the holder")


def hook(_kept: Any, *_given: Any) -> None:
    """A forward hook that keeps something."""


def test_a_hook_is_removed_by_its_handle() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 2)
    KEPT.append(model)
    with ds.LeakDetector() as detector:
        for _ in range(PASSES):
            model.register_forward_hook(functools.partial(hook, torch.zeros(5000)))
            detector.mark("step")
        [leak] = [leak for leak in detector.report().leaks if leak.nbytes >= PASSES * 20_000]
    assert leak.remedy.startswith("keep the handle"), leak.holders


def test_models_that_their_optimizers_keep_go_with_these() -> None:
    torch = pytest.importorskip("torch")
    with ds.LeakDetector() as detector:
        for _ in range(PASSES):
            model = torch.nn.Linear(100, 100)
            KEPT.append(torch.optim.SGD(model.parameters()))
            del model
            detector.mark("step")
        leaks = [leak for leak in detector.report().leaks if leak.nbytes >= PASSES * 40_000]
    assert leaks
    assert {leak.remedy.partition(":")[0] for leak in leaks} == {
        "let optimizers go that are no longer used, also from their schedulers, and make a new one where parameters "
        "are replaced"
    }


def keeps_its_own_exception() -> None:
    batch = np.zeros(50_000)
    try:
        raise ValueError(len(batch))
    except ValueError as raised:
        KEPT[:] = [raised.args]
        error = raised
    assert error.__traceback__ is not None


@pytest.mark.long
def test_a_frame_that_keeps_its_own_exception_lets_it_go_at_the_end_of_the_handler() -> None:
    gc.disable()
    try:
        with ds.LeakDetector() as detector:
            for _ in range(3):
                keeps_its_own_exception()
            [leak] = [leak for leak in detector.report().leaks if leak.kind == "cycle"]
    finally:
        gc.enable()
    assert leak.remedy.startswith("delete the variable that has the exception")
    [holder] = leak.holders
    # The frame is named once each time.
    assert holder.count("frame ") == holder.count("keeps_its_own_exception()")
    assert "  " not in holder


def test_an_exception_that_has_an_array_itself_is_not_told_to_lose_its_traceback() -> None:
    class BadFrameError(Exception):
        pass

    with ds.LeakDetector() as detector:
        for _ in range(PASSES):
            KEPT.append(BadFrameError(np.zeros(5000)))
            detector.mark("step")
        [leak] = detector.report().leaks
    assert (leak.kind, leak.remedy) == ("exception", "keep its text")
    assert leak.explanation.startswith("A kept exception keeps what it was made with")


async def wait_for(event: asyncio.Event, _array: Any) -> None:
    await event.wait()


def test_tasks_that_were_cancelled_are_to_leave_their_collection() -> None:
    async def serve() -> None:
        event = asyncio.Event()
        for _ in range(PASSES):
            KEPT.append(asyncio.create_task(wait_for(event, np.zeros(5000))))
            await asyncio.sleep(0)

    with ds.LeakDetector() as detector:
        asyncio.run(serve())
        [leak] = [leak for leak in detector.report(of_program=True).leaks if leak.nbytes >= PASSES * 40_000]
    assert leak.kind == "exception"
    assert leak.remedy.startswith("take a task out of its collection"), leak.holders


def test_tasks_that_are_done_are_to_leave_their_collection_with_their_results() -> None:
    async def render() -> Any:
        return np.zeros(5000)

    async def serve(detector: ds.LeakDetector) -> None:
        for _ in range(PASSES):
            KEPT.append(asyncio.create_task(render()))
            await asyncio.sleep(0)
            detector.mark("step")

    with ds.LeakDetector() as detector:
        asyncio.run(serve(detector))
        [leak] = [leak for leak in detector.report().leaks if leak.nbytes >= PASSES * 40_000]
    assert leak.holder.endswith("[0].result()")
    assert leak.remedy.startswith("take a task out of its collection")


def test_tasks_that_are_done_are_to_leave_their_collection_with_their_contexts() -> None:
    request: contextvars.ContextVar[Any] = contextvars.ContextVar("request")

    async def handle() -> float:
        request.set(np.zeros(5000))
        return float(request.get().mean())

    async def serve(detector: ds.LeakDetector) -> None:
        for _ in range(PASSES):
            KEPT.append(asyncio.create_task(handle()))
            await asyncio.sleep(0)
            detector.mark("step")

    with ds.LeakDetector() as detector:
        asyncio.run(serve(detector))
        [leak] = [leak for leak in detector.report().leaks if leak.nbytes >= PASSES * 40_000]
    assert "<Context>[" in leak.holder
    assert leak.remedy.startswith("take a task out of its collection")


def test_tasks_that_wait_are_to_be_ended_and_bounded() -> None:
    async def serve(detector: ds.LeakDetector) -> ds.Report:
        event = asyncio.Event()
        for _ in range(PASSES):
            KEPT.append(weakref.ref(asyncio.create_task(wait_for(event, np.zeros(5000)))))
            await asyncio.sleep(0)
            detector.mark("step")
        return detector.report()

    with ds.LeakDetector() as detector:
        [leak] = [leak for leak in asyncio.run(serve(detector)).leaks if leak.nbytes >= PASSES * 40_000]
    assert leak.remedy.startswith("end the tasks that are no longer needed"), leak.holders
