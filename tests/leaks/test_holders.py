"""One chain for each way of holding, printed as code.

Dead proxies, properties and heaps of any size do no harm.
"""

import argparse
import asyncio
import atexit
import contextvars
import functools
import gc
import itertools
import logging
import sys
import threading
import types
import weakref
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

import disposescope as ds
from disposescope.leaks import LeakDetector
from disposescope.leaks.holders.holders import Holders
from disposescope.leaks.holders.references import awaited_by, references_to
from disposescope.scopes.compiled import variables_of
from tests.leaks.births import arrays_are_seen

HERE = f"module {__name__}"
BOX: dict[str, Any] = {}


class Slotted:
    __slots__ = ("batch",)

    def __init__(self, batch: object) -> None:
        self.batch = batch


class Plain:
    def __init__(self, batch: object) -> None:
        self.batch = batch


@dataclass
class Pair:
    left: object
    right: object


Row = namedtuple("Row", "name batch")


class WithCache:
    CACHE: ClassVar[dict[str, Any]] = {}


class Holding:
    def method(self) -> None: ...


def holder_of(make: Callable[[], object]) -> str:
    with LeakDetector() as detector:
        make()
        [group] = [leak for leak in detector.report().leaks if leak.tensor_kind == "Tensor"]
    return group.holder


@pytest.fixture(autouse=True)
def _empty_box() -> Iterator[None]:
    yield
    BOX.clear()
    WithCache.CACHE.clear()


def tensor() -> ds.Tensor:
    return ds.zeros(3)


@pytest.mark.parametrize(
    ("wrap", "text"),
    [
        (lambda t: t, ""),
        (lambda t: [None, t], "[1]"),
        (lambda t: (None, [t]), "[1][0]"),
        (lambda t: {("a", 1): t}, "[('a', 1)]"),
        (lambda t: {Plain: t}, "[<type>]"),
        (lambda t: {"k" * 60: t}, "['" + "k" * 38 + "…]"),
        (lambda t: OrderedDict(last=t), "['last']"),
        (lambda t: defaultdict(list, {3: [t]}), "[3][0]"),
        (lambda t: deque([None, t]), "[1]"),
        (lambda t: Row("r", t), ".batch"),
        (lambda t: Plain(t), ".batch"),
        (lambda t: Slotted(t), ".batch"),
        (lambda t: Pair(None, [t]), ".right[0]"),
        (lambda t: SimpleNamespace(batch=t), ".batch"),
        (lambda t: functools.partial(print, t), ".args[0]"),
        (lambda t: functools.partial(print, end=t), ".keywords['end']"),
        (lambda t: Plain(t).__init__, ".__self__.batch"),
        (lambda t: [t].append, ".__self__[0]"),
        (lambda t: {t}, ".<element>"),
        (lambda t: frozenset([t]), ".<element>"),
        (lambda t: MappingProxyType({"a": t}), ".<dict>['a']"),
        (lambda t: np.array([t, None], dtype=object), "[0]"),
        (lambda t: iter([t]), ".<list>[0]"),
        (lambda t: memoryview(t.numpy()), None),
    ],
)
def test_containers_and_objects_are_spelled_as_code(wrap: Callable[[Any], object], text: str | None) -> None:
    def make() -> None:
        BOX["it"] = wrap(tensor())

    if text is None:
        with LeakDetector() as detector:
            make()
        told = [(leak.tensor_kind, leak.holder) for leak in detector.report().leaks]
        # An alias holds the memory, not the Tensor.
        assert told == [("numpy.ndarray", f"{HERE}.BOX['it'].obj")]
        return
    assert holder_of(make) == f"{HERE}.BOX['it']{text}"


def test_a_closure_is_reported_with_its_maker_its_line_and_its_cell() -> None:
    def make_hook() -> Callable[[], object]:
        batch = tensor()

        def hook() -> object:
            return batch

        return hook

    def make() -> None:
        BOX["hooks"] = [make_hook()]

    line = make_hook.__code__.co_firstlineno + 3
    assert holder_of(make) == (
        f"{HERE}.BOX['hooks'][0], closure of {make_hook.__qualname__}() at {shown(__file__)}:{line}, cell 'batch'"
    )


def test_defaults_of_a_function_hold() -> None:
    def make() -> None:
        def hook(batch: object = tensor(), *, other: object = None) -> None: ...

        BOX["hook"] = hook

    assert holder_of(make) == f"{HERE}.BOX['hook'].__defaults__[0]"


def test_variables_of_a_module_that_is_not_in_sys_modules_hold() -> None:
    def make() -> None:
        space: dict[str, Any] = {"__name__": "plugin", "CACHE": [tensor()]}
        exec("def handle(): return CACHE", space)
        BOX["handle"] = space["handle"]

    assert holder_of(make) == f"{HERE}.BOX['handle'].__globals__['CACHE'][0]"


def test_attributes_of_a_class_hold() -> None:
    def make() -> None:
        WithCache.CACHE["last"] = tensor()

    assert holder_of(make) == f"{HERE}.WithCache.CACHE['last']"


def test_a_functools_cache_holds() -> None:
    def make() -> None:
        @functools.lru_cache(maxsize=4)
        def compute(size: int) -> ds.Tensor:
            return ds.zeros(size)

        BOX["compute"] = compute
        compute(3)

    told = "(a functools cache: compute.cache_clear() empties it)"
    assert holder_of(make) == f"{HERE}.BOX['compute'].<cached> {told}"


@functools.lru_cache
def by_name(size: int) -> ds.Tensor:
    return ds.zeros(size)


def _uncached(size: int) -> ds.Tensor:
    return ds.zeros(size)


BY_ANOTHER_NAME = functools.lru_cache(_uncached)


def wrapped(function: Callable[[int], ds.Tensor], *, around_cache: bool) -> Callable[[int], ds.Tensor]:
    cached = functools.lru_cache(function)

    @functools.wraps(cached if around_cache else function)
    def wrapper(size: int) -> ds.Tensor:
        return cached(size)

    return wrapper


def made_in_a_function() -> Callable[[int], ds.Tensor]:
    @functools.partial(wrapped, around_cache=True)
    def local(size: int) -> ds.Tensor:
        return ds.zeros(size)

    return local


class WithMethods:
    @staticmethod
    @functools.partial(wrapped, around_cache=True)
    def reached(size: int) -> ds.Tensor:
        return ds.zeros(size)

    @staticmethod
    @functools.partial(wrapped, around_cache=False)
    def hidden(size: int) -> ds.Tensor:
        return ds.zeros(size)

    @functools.lru_cache  # noqa: B019
    def method(self, size: int) -> ds.Tensor:
        return ds.zeros(size)


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (by_name, "by_name"),
        (BY_ANOTHER_NAME, None),
        (functools.lru_cache(functools.partial(_uncached)), None),
        (functools.partial(WithMethods.method, None), "WithMethods.method"),
        (WithMethods.reached, "WithMethods.reached.__wrapped__"),
        (WithMethods.hidden, None),
        (made_in_a_function(), "local.__wrapped__"),
    ],
)
def test_a_functools_cache_is_emptied_by_code_that_runs(make: Callable[[int], ds.Tensor], code: str | None) -> None:
    chain = holder_of(lambda: make(3))
    if code is None:
        assert chain.endswith(
            "(a functools cache: keep a reference to the cached function, whose cache_clear() empties it)"
        )
    else:
        assert chain.endswith(f"(a functools cache: {code}.cache_clear() empties it)")
        eval(f"{code}.cache_clear()", globals() | {"local": make})


def test_a_kept_exception_is_reported_with_the_frame_and_its_line() -> None:
    def fail() -> None:
        batch = tensor()
        raise ValueError(len(batch))

    def make() -> None:
        try:
            fail()
        except ValueError as error:
            BOX["error"] = error

    line = fail.__code__.co_firstlineno + 2
    assert holder_of(make) == (
        f"{HERE}.BOX['error'].__traceback__ frame {shown(__file__)}:{line} {fail.__qualname__}(): local 'batch'"
    )


def test_the_context_of_a_kept_exception_is_searched() -> None:
    def fail() -> None:
        try:
            batch = tensor()
            raise KeyError(len(batch))
        except KeyError:
            raise ValueError from None

    def make() -> None:
        try:
            fail()
        except ValueError as error:
            error.__traceback__ = None
            BOX["error"] = error

    assert holder_of(make).startswith(f"{HERE}.BOX['error'].__context__.__traceback__ frame ")


def test_the_exception_in_flight_and_the_last_one_are_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        batch = tensor()
        raise ValueError(len(batch))

    with LeakDetector() as detector:
        try:
            fail()
        except ValueError:
            [group] = detector.report().leaks
    assert group.holder.startswith("exception in flight.__traceback__ frame ")

    def make() -> None:
        try:
            fail()
        except ValueError as error:
            monkeypatch.setattr(sys, "last_value", error, raising=False)

    assert holder_of(make).startswith("sys.last_value.__traceback__ frame ")
    monkeypatch.delattr(sys, "last_value")


def test_a_local_variable_of_a_running_function_is_reported_with_its_line() -> None:
    with LeakDetector() as detector:
        batch = tensor()
        [group] = detector.report().leaks
        line = sys._getframe().f_lineno - 1
    name = "test_a_local_variable_of_a_running_function_is_reported_with_its_line"
    assert group.holder == f"frame {shown(__file__)}:{line} {name}(): local 'batch'"
    assert len(batch) == 3


def test_locals_of_other_threads_are_roots() -> None:
    ready, done = threading.Event(), threading.Event()

    def work() -> None:
        batch = tensor()
        ready.set()
        done.wait()
        assert len(batch) == 3

    with LeakDetector() as detector:
        thread = threading.Thread(target=work, name="loader")
        thread.start()
        ready.wait()
        [group] = detector.report().leaks
        done.set()
        thread.join()
    assert group.holder.endswith(f" {work.__qualname__}() on thread 'loader': local 'batch'")


def test_a_local_of_the_main_thread_is_called_so_whichever_thread_looks() -> None:
    found: list[str] = []
    with LeakDetector() as detector:
        batch = tensor()
        thread = threading.Thread(target=lambda: found.extend(leak.holder for leak in detector.report().leaks))
        thread.start()
        thread.join()
    assert len(batch) == 3
    [holder] = found
    assert holder.endswith("_whichever_thread_looks(): local 'batch'")


def test_looking_at_locals_does_not_lengthen_their_lives() -> None:
    with LeakDetector() as detector:
        batch = tensor()
        watch = weakref.ref(batch)
        detector.report()
        del batch
        assert watch() is None


def test_locals_that_the_program_asked_for_are_left_to_it() -> None:
    with LeakDetector() as detector:
        batch = tensor()
        mine = locals()
        detector.report()
        assert mine["batch"] is batch


def test_a_suspended_generator_is_reported_with_its_line() -> None:
    def batches() -> Iterator[ds.Tensor]:
        batch = tensor()
        yield batch

    def make() -> None:
        BOX["batches"] = generator = batches()
        next(generator)

    line = batches.__code__.co_firstlineno + 2
    assert holder_of(make) == (
        f"{HERE}.BOX['batches'], suspended frame {shown(__file__)}:{line} {batches.__qualname__}(): local 'batch'"
    )


def test_what_a_suspended_generator_has_of_the_function_around_it_is_named() -> None:
    def make() -> None:
        batch = tensor()

        def sizes() -> Iterator[int]:
            yield len(batch)
            yield batch.nbytes

        BOX["sizes"] = generator = sizes()
        next(generator)

    assert holder_of(make).endswith("sizes(): local 'batch'")


def test_a_waiting_task_holds() -> None:
    async def worker(ready: asyncio.Event) -> None:
        batch = tensor()
        ready.set()
        await asyncio.sleep(60)
        assert len(batch) == 3

    async def main() -> str:
        ready = asyncio.Event()
        with LeakDetector() as detector:
            task = asyncio.create_task(worker(ready))
            await ready.wait()
            [group] = detector.report().leaks
        task.cancel()
        return group.holder

    assert f"{worker.__qualname__}(): local 'batch'" in asyncio.run(main())


class Asks:
    """Is called by instructions that Python cannot specialize: their counters change always."""

    def __call__(self, running: object) -> int:
        return awaited_by(running) is not None


def test_what_runs_is_never_asked_what_it_awaits() -> None:
    """Python 3.11 and 3.12 answered with whatever the stack had: a wrong object, or a crash."""
    asks, found = Asks(), 0
    running: list[Any] = []

    async def coroutine() -> int:
        return sum(asks(running[0]) for _ in range(5_000)) + (await plain())

    async def plain() -> int:
        found = 0
        for _ in range(20_000):
            found += asks(running[0]) + asks(running[1])
        return found

    async def asynchronous() -> AsyncIterator[int]:
        found = 0
        for _ in range(20_000):
            found += asks(running[0])
        yield found

    def generator() -> Iterator[int]:
        found = 0
        for _ in range(20_000):
            found += asks(running[0])
        yield found

    first = coroutine()
    running[:] = [first, first]
    with pytest.raises(StopIteration) as stopped:
        first.send(None)
    found += stopped.value.value
    running[0] = asynchronous()
    with pytest.raises(StopIteration) as stopped:
        anext(running[0]).send(None)
    found += stopped.value.value
    running[0] = generator()
    found += next(running[0])
    assert found == 0


def test_what_is_suspended_while_an_exception_is_thrown_into_it_is_not_asked() -> None:
    """Python 3.11 takes what is awaited off the stack before its finalizer runs."""
    running: list[Any] = []
    found: list[object] = []

    class Waits:
        def __await__(self) -> Any:
            return self

        def __next__(self) -> None:
            return None

        def __iter__(self) -> Any:
            return self

        @staticmethod
        def throw(*error: object) -> None:
            raise RuntimeError

        def __del__(self) -> None:
            found.append(awaited_by(running[0]))

    async def coroutine() -> int:
        try:
            await Waits()
        except RuntimeError:
            return 5
        return 0

    running.append(coroutine())
    running[0].send(None)
    assert type(awaited_by(running[0])) is Waits
    with pytest.raises(StopIteration) as stopped:
        running[0].throw(ValueError())
    assert stopped.value.value == 5
    assert len(found) == 1
    assert type(found[0]) is not Waits
    running.clear()


def test_a_report_changes_nothing_in_what_locals_has_returned() -> None:
    with LeakDetector() as detector:

        def function(width: int) -> list[object]:
            given = locals()
            kept = tensor()
            detector.report()
            names = [sorted(given)]
            for _name in locals():
                detector.report()
            exec("width = 2\ndetector.report()\nnames.append(width)", {"detector": detector, "names": names}, given)
            assert kept.shape
            return [*names, given["width"]]

        assert function(3) == [["detector", "width"], 2, 2]


def test_variables_are_read_by_name() -> None:
    outer = "of the outer function"

    def function(parameter: int, *rest: object, **named: object) -> dict[str, object]:
        inner = [outer, parameter]
        unbound: int

        def reads() -> object:
            return inner

        assert reads() is inner
        if not parameter:
            unbound = 1
            assert unbound
        return variables_of(sys._getframe())

    found = {name: value for name, value in function(1, 2, a=3).items() if "@" not in name}
    reads = found.pop("reads")
    assert callable(reads)
    assert found == {
        "parameter": 1,
        "rest": (2,),
        "named": {"a": 3},
        "inner": [outer, 1],
        "outer": outer,
    }
    assert variables_of(sys._getframe())["found"] is found

    class Body:
        x = 1
        found = variables_of(sys._getframe())

    assert Body.found["x"] == 1
    with pytest.raises(TypeError, match="expected a frame"):
        variables_of(None)  # type: ignore[arg-type]


def test_what_is_suspended_is_asked_what_it_awaits() -> None:
    @types.coroutine
    def waits() -> Iterator[None]:
        yield

    async def coroutine(awaited: Any) -> None:
        await awaited

    async def asynchronous(awaited: Any) -> AsyncIterator[None]:
        await awaited
        yield

    def generator() -> Iterator[None]:
        yield from inner

    innermost = waits()
    outer = coroutine(innermost)
    assert awaited_by(outer) is None  # not begun
    outer.send(None)
    assert awaited_by(outer) is innermost
    outer.close()
    assert awaited_by(outer) is None

    innermost, several = waits(), []
    several.append(asynchronous(innermost))
    step = anext(several[0])
    assert awaited_by(several[0]) is None
    step.send(None)
    assert awaited_by(several[0]) is innermost
    with pytest.raises(StopIteration):
        step.send(None)
    assert awaited_by(several[0]) is None  # at a yield
    with pytest.raises(StopIteration):
        several[0].aclose().send(None)
    assert awaited_by(several[0]) is None

    def yields() -> Iterator[None]:
        yield

    inner = yields()
    delegating = generator()
    next(delegating)
    assert awaited_by(delegating) is inner
    assert awaited_by(inner) is None
    assert awaited_by("a text") is None
    delegating.close()


def test_a_kept_task_is_reported_with_its_result() -> None:
    async def audit() -> ds.Tensor:
        return tensor()

    async def main() -> str:
        tasks = {asyncio.create_task(audit())}
        await asyncio.sleep(0)
        BOX["tasks"] = tasks
        with LeakDetector() as detector:
            tasks.add(asyncio.create_task(audit()))
            await asyncio.sleep(0)
            [leak] = [leak for leak in detector.report().leaks if leak.tensor_kind == "Tensor"]
        return leak.holder

    assert asyncio.run(main()).endswith(".<element>.result()")


def test_a_kept_context_is_reported_with_its_variable() -> None:
    variable = contextvars.ContextVar[Any]("request")
    BOX["late"] = [contextvars.copy_context()]

    def serve() -> None:
        BOX["late"][0].run(variable.set, Plain(tensor()))

    assert holder_of(serve) == f"{HERE}.BOX['late'][0][<ContextVar 'request'>].batch"


def test_a_class_that_computes_its_module_is_not_asked_for_it() -> None:
    asked = []

    class Meta(type):
        @property
        def __module__(cls) -> str:
            asked.append(cls)
            return "_asyncio"

    class Hidden(itertools.chain[Any], metaclass=Meta):
        """It holds what it iterates over, and no code shows how."""

    def make() -> None:
        asked.clear()
        BOX["iterator"] = Hidden([tensor()])

    assert holder_of(make).startswith(f"{HERE}.BOX['iterator'].")
    assert asked == []


def test_a_variable_that_passes_by_is_no_answer_where_a_container_holds() -> None:
    with LeakDetector() as detector:
        for _ in range(1):
            batch = tensor()
            BOX.setdefault("history", []).append(batch)
        [group] = detector.report().leaks
    assert group.holder == f"{HERE}.BOX['history'][0]"
    assert len(batch) == 3


def test_a_cycle_is_reported_by_types_and_attributes_and_not_collected() -> None:
    class Node:
        def __init__(self) -> None:
            self.me = self
            self.batch = tensor()

    name = Node.__qualname__
    assert (
        holder_of(lambda: Node() and None) == f"cycle: {name}.me -> {name}, holds .batch, until the next gc.collect()"
    )


def test_a_cycle_of_two_is_reported_with_what_hangs_on_it() -> None:
    class Parent:
        def __init__(self) -> None:
            self.child = Child(self)

    class Child:
        def __init__(self, parent: Parent) -> None:
            self.parent = parent
            self.batches = [tensor()]

    child, parent = Child.__qualname__, Parent.__qualname__
    assert holder_of(lambda: Parent() and None) == (
        f"cycle: {child}.parent -> {parent}.child -> {child}, holds .batches[0], until the next gc.collect()"
    )


def test_a_cycle_of_many_is_told_by_its_first_and_last_members() -> None:
    class Node:
        def __init__(self, batch: ds.Tensor | None = None) -> None:
            self.batch, self.next = batch, self

    def make() -> None:
        first = node = Node(tensor())
        for _ in range(30):
            node.next = Node()
            node = node.next
        node.next = first

    name = Node.__qualname__
    step = f"{name}.next -> "
    told = holder_of(make)
    assert told == f"cycle: {step * 4}… 24 more … -> {step * 3}{name}, holds .batch, until the next gc.collect()"


def test_a_cycle_that_a_variable_leads_to_is_reported_by_the_variable() -> None:
    class Node:
        def __init__(self) -> None:
            self.me = self
            self.batch = tensor()

    def make() -> None:
        BOX["node"] = Node()

    assert holder_of(make) == f"{HERE}.BOX['node'].batch"


@pytest.mark.long
def test_what_no_search_finds_is_said_so() -> None:
    with LeakDetector() as detector:
        # An iterator on the stack of a running expression: in no variable, in no container, in no
        # cycle.
        for _ in iter([tensor()]):
            del _
            [group] = detector.report(object_limit=100_000_000).leaks
    assert group.holder == "not found: code of an extension, or an expression that is being evaluated"


def test_no_code_of_the_program_is_run() -> None:
    class Trap:
        def __init__(self) -> None:
            self.__dict__["batch"] = tensor()

        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"__getattr__({name})")

        @property
        def prop(self) -> object:
            raise AssertionError("property")

        def __eq__(self, other: object) -> bool:
            raise AssertionError("__eq__")

        def __hash__(self) -> int:
            return 1

        def __iter__(self) -> Iterator[object]:
            raise AssertionError("__iter__")

        def __repr__(self) -> str:
            raise AssertionError("__repr__")

        @property
        def __class__(self) -> Any:
            raise AssertionError("__class__")

    class TrapList(list[Any]):
        def __iter__(self) -> Iterator[object]:
            raise AssertionError("__iter__")

        def __len__(self) -> int:
            raise AssertionError("__len__")

        def __getitem__(self, index: Any) -> Any:
            raise AssertionError("__getitem__")

    def make() -> None:
        dead = weakref.proxy(Holding())
        BOX["trap"] = TrapList([dead, Trap()])

    assert holder_of(make) == f"{HERE}.BOX['trap'][1].batch"


def test_the_library_never_shows_as_a_holder() -> None:
    with ds.dispose_scope("mine") as mine:
        with LeakDetector() as detector:
            BOX["scope"] = mine
            BOX["detector"] = detector
            BOX["snapshot"] = detector.take_snapshot()
            BOX["batch"] = tensor()
            [group] = detector.report().leaks
    assert group.holder == f"{HERE}.BOX['batch']"


@pytest.mark.long
def test_what_cannot_be_weakly_referenced_is_held_by_its_scope() -> None:
    class Handle:
        __slots__ = ()

        def dispose(self) -> None: ...

    with LeakDetector() as detector, ds.dispose_scope() as scope:
        scope.attach(Handle())
        [group] = detector.report().leaks
    assert group.holder == "its scope, because it cannot be weakly referenced"


def test_a_search_ends_at_its_limits() -> None:
    BOX["wide"] = [[object() for _ in range(100)] for _ in range(1000)]
    BOX["deep"] = chain = []
    for _ in range(20_000):
        inner: list[Any] = []
        chain.append(inner)
        chain = inner
    with LeakDetector() as detector:
        chain.append(tensor())
        del chain, inner
        limited = detector.take_snapshot().report(object_limit=5_000)
        unasked = detector.take_snapshot().report(object_limit=0)
        found = detector.take_snapshot().report()
    assert limited.leaks[0].holder == "not found within 5,000 objects"
    assert unasked.leaks[0].holder == "not found: not searched for"
    assert found.leaks[0].holder == f"{HERE}.BOX['deep']{'[0]' * 13} … {'[0]' * 14}"


def wrapped(inner: Callable[[], object]) -> Callable[[], object]:
    return lambda: inner()


def test_a_long_way_through_closures_is_cut_between_two_of_its_steps() -> None:
    with LeakDetector() as detector:
        tensor = ds.zeros(3)
        BOX["calls"] = lambda: tensor
        for _ in range(40):
            BOX["calls"] = wrapped(BOX["calls"])
        found = detector.report(of_program=True)
    [holder] = {text for leak in (*found.leaks, *found.kept) for text in leak.holders if "BOX['calls']" in text}
    beginning, dots, end = holder.partition(" … ")
    assert beginning.startswith(f"{HERE}.BOX['calls'], closure of wrapped() at ")
    assert dots
    assert end.startswith("closure of wrapped() at ")
    assert end.endswith("cell 'tensor'")


def test_references_are_counted_without_our_own() -> None:
    from disposescope.scopes.identity import entry_of

    one = tensor()
    entry = entry_of(one)
    assert entry is not None
    assert references_to(entry) == 1
    two = [one, one]
    assert references_to(entry) == 3
    with Holders([[entry]], object_limit=10**6) as holders:
        assert holders.chains_of([entry])[0].endswith(": local 'two'[0]")
    del one, two
    assert references_to(entry) == 0
    gc.collect()


def shown(file: str) -> str:
    from disposescope.scopes.base.sites import shown

    return shown(file)


class Trainer:
    """What only code of an extension leads to: what is called when the interpreter exits."""

    def __init__(self) -> None:
        self._cache: dict[str, Any] = {}

    def close(self) -> None: ...


@pytest.fixture
def trainer() -> Iterator[Callable[[], Trainer]]:
    made: list[weakref.ref[Trainer]] = []

    def make() -> Trainer:
        trainer = Trainer()
        atexit.register(trainer.close)
        made.append(weakref.ref(trainer))
        return trainer

    yield make
    for reference in made:
        trainer = reference()
        assert trainer is not None
        atexit.unregister(trainer.close)


@pytest.mark.long
def test_what_nothing_leads_to_is_found_at_an_object_by_its_type(trainer: Callable[[], Trainer]) -> None:
    def make() -> None:
        trainer()._cache["last"] = [tensor()]

    assert holder_of(make) == "<Trainer>._cache['last'][0]"


@pytest.mark.long
def test_a_function_that_is_registered_with_atexit_is_found_by_its_name() -> None:
    def register() -> weakref.ref[Any]:
        batch = tensor()

        def close() -> None:
            assert len(batch) == 3

        atexit.register(close)
        return weakref.ref(close)

    with LeakDetector() as detector:
        function = register()
        [group] = detector.report(object_limit=10**8).leaks
        atexit.unregister(function())
    assert group.holder.startswith("<function close>, closure of ")
    assert group.holder.endswith(", cell 'batch'")


@pytest.mark.long
@arrays_are_seen
def test_memory_that_nothing_leads_to_is_found_at_an_object_by_its_type(trainer: Callable[[], Trainer]) -> None:
    with LeakDetector() as detector:
        trainer()._cache["last"] = {"mean": np.ones(1000)}
        [leak] = detector.report(object_limit=10**8).leaks
    assert leak.holder == "<Trainer>._cache['last']['mean']"


@pytest.mark.long
def test_objects_of_the_classes_of_libraries_are_found_where_no_other_leads_there() -> None:
    reference: weakref.ref[argparse.Namespace] | None = None

    def make() -> None:
        nonlocal reference
        options = argparse.Namespace(batch=tensor())
        atexit.register(options.__repr__)
        reference = weakref.ref(options)

    try:
        assert holder_of(make) == "<Namespace>.batch"
    finally:
        options = reference and reference()
        assert options is not None
        atexit.unregister(options.__repr__)


@pytest.mark.long
def test_a_graph_is_found_at_an_object_by_its_type(trainer: Callable[[], Trainer]) -> None:
    torch: Any = pytest.importorskip("torch")
    with LeakDetector() as detector:
        weight = torch.ones(1000, requires_grad=True)
        trainer()._cache["last"] = (torch.relu(weight * 2) ** 2).sum()
        leaks = detector.report(object_limit=10**8).leaks
    assert any(holder.startswith("<Trainer>._cache['last'].grad_fn") for leak in leaks for holder in leak.holders)


@pytest.mark.long
def test_what_the_program_has_is_named_before_what_a_running_function_of_a_library_has() -> None:
    class Keeper(logging.Handler):
        pass

    reports: list[ds.Report] = []
    record = logging.makeLogRecord({})
    BOX["keepers"] = [Keeper()]
    with LeakDetector() as detector:
        BOX["keepers"][0].kept = np.ones(50_000)
        # The function of logging that calls it has the handler in a variable.
        BOX["keepers"][0].emit = lambda _record: reports.append(detector.report(of_program=True))
        logging.Handler.handle(BOX["keepers"][0], record)
    [kept] = [leak for leak in reports[0].kept if leak.nbytes == 400_000]
    assert kept.holder == f"{HERE}.BOX['keepers'][0].kept"
