"""Promises of a scope when Ctrl-C or the limit of recursion comes up in the library's own code."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import numpy as np
import pytest

import disposescope as ds
from disposescope.scopes import scope as _closing
from disposescope.scopes.context import CURRENT, HOOKS
from tests.interrupts import interrupt_everywhere
from tests.scopes.toys import Faulty, Pair, Recorder, Toy, counts, fails, no_cyclic_garbage, tables_are_sound

INTERRUPTS = [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError, RecursionError]

Born = list[Any]


# ------------------------------------------------------------------ at every place


class Owned:
    """A user's object, which a scope that it is attached to holds."""

    __slots__ = ("disposals",)

    def __init__(self) -> None:
        self.disposals = 0

    def dispose(self) -> None:
        self.disposals += 1


def nested(born: Born) -> None:
    with ds.dispose_scope("outer"):
        born.append(ds.ones(100))
        with ds.dispose_scope():
            born.append(born[0] + 1)
            _plain = np.ones(50)
        born.append(ds.zeros(5))


def raising(born: Born) -> None:
    try:
        with ds.dispose_scope("outer"):
            born.append(ds.ones(100))
            with ds.dispose_scope("inner", keep_pages=True):
                born.append(born[0] + 1)
                raise ValueError("body")
    except ValueError:
        pass


def with_composites(born: Born) -> None:
    with ds.dispose_scope("outer") as outer:
        outer.attach(Owned())
        first, second = ds.ones(3), ds.ones(4)
        born += first, second
        outer.attach(Pair(first, second))
        part = outer.attach(Pair(ds.ones(2), Owned())).members[0]
        born.append(part)
    assert ds.is_disposed(part)


def with_verbs(born: Born) -> None:
    with ds.dispose_scope("outer") as outer:
        born.append(first := ds.ones(3))
        with ds.dispose_scope("inner", strict=True) as inner:
            born.append(kept := inner.move_to_outer(ds.ones(3)))
            born.append(also := ds.ones(3))
            inner.dispose_everything_but(also)
            inner.dispose_everything()
            born.append(ds.ones(3))
        ds.dispose([first, kept])
        born.append(ds.ones(3))
        outer.close()


def with_budget(born: Born) -> None:
    with ds.dispose_scope("outer", budget=100_000):
        born.append(ds.ones(100))
        with ds.dispose_scope("inner", arena=False):
            born.append(born[0] + 1)
        _plain = np.ones(100)


def over_budget(born: Born) -> None:
    try:
        with ds.dispose_scope("outer", budget=1000), ds.dispose_scope("inner"):
            born.append(ds.ones(10))
            ds.ones(1000)
    except MemoryError:
        pass


def in_generators(born: Born) -> None:
    def generator() -> Iterator[Any]:
        with ds.dispose_scope("in generator"):
            for _ in range(2):
                born.append(ds.ones(3))
                yield born[-1]

    with ds.dispose_scope("outer"):
        for tensor in generator():
            with ds.dispose_scope("body"):
                born.append(tensor + 1)


def decorated(born: Born) -> None:
    @ds.dispose_scope("function")
    def function() -> Any:
        born.append(ds.ones(3))
        return born[0] + 1

    @ds.dispose_scope("generator")
    def generator() -> Iterator[Any]:
        with ds.dispose_scope("inside"):
            for _ in range(2):
                born.append(ds.ones(3))
                yield born[-1] * 2

    with ds.dispose_scope("outer"):
        born.append(function())
        born.append(ds.tidy(lambda: ds.ones(4) + 1))
        for tensor in generator():
            born.append(tensor)


def in_a_loop(born: Born) -> None:
    with ds.dispose_scope("outer"):
        for batch in ds.scoped_batches([ds.ones(size) for size in (1, 2)]):
            born += batch, batch + 1


def in_a_loop_that_breaks(born: Born) -> None:
    with ds.dispose_scope("outer"):
        for batch in ds.scoped_batches([ds.ones(size) for size in (1, 2)]):
            born += batch, batch + 1
            break


def in_a_loop_with_a_block(born: Born) -> None:
    with ds.scoped_batches([ds.ones(size) for size in (1, 2)]) as batches:
        for batch in batches:
            born += batch, batch + 1
            break


PROGRAMS = [
    nested,
    raising,
    with_composites,
    with_verbs,
    with_budget,
    over_budget,
    in_generators,
    decorated,
    in_a_loop,
    in_a_loop_that_breaks,
    in_a_loop_with_a_block,
]


@pytest.mark.long
@pytest.mark.unmeasured
@pytest.mark.parametrize("lines", [True, False], ids=["before each line", "where Python looks for signals"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_an_interrupt_anywhere_leaves_no_scope_open_and_nothing_alive(program: Callable[[Born], None], lines: bool):
    assert interrupt_everywhere(program, lines=lines, only_gone=program is with_composites) > 25


@pytest.mark.long
@pytest.mark.unmeasured
@pytest.mark.parametrize("program", PROGRAMS)
def test_an_interrupt_anywhere_leaves_nothing_while_a_detector_is_open(program: Callable[[Born], None]):
    with ds.LeakDetector():
        interrupt_everywhere(program, lines=False, only_gone=program is with_composites)


@pytest.mark.long
@pytest.mark.unmeasured
def test_an_error_of_recursion_anywhere_leaves_nothing_either():
    for program in (nested, raising, decorated):
        interrupt_everywhere(program, RecursionError)


# ------------------------------------------------------------------ on the way in


def by_itself() -> None:
    with ds.dispose_scope("refused"):
        raise AssertionError


def in_a_generator() -> None:
    def generator() -> Iterator[None]:
        with ds.dispose_scope("refused"):
            yield

    next(generator())


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, RecursionError])
@pytest.mark.parametrize("enter", [by_itself, in_a_generator])
@pytest.mark.parametrize("who", ["listener", "hook"])
def test_a_scope_that_could_not_be_entered_is_closed_and_what_was_born_meanwhile_released(
    error: type[BaseException], enter: Callable[[], None], who: str
):
    class Refusing(Recorder):
        def opened(self, scope: ds.DisposeScope) -> None:
            super().opened(scope)
            refuse(scope)

    def refuse(scope: ds.DisposeScope) -> None:
        scopes.append(scope)
        toys.append(Toy())
        assert toys[0] in scope
        raise error

    scopes: list[ds.DisposeScope] = []
    toys: list[Toy] = []
    left: list[ds.DisposeScope] = []
    told = Refusing()
    with ds.dispose_scope("outer") as outer:
        hooks, hook = (HOOKS.listeners, told) if who == "listener" else (HOOKS.entered, refuse)
        hooks.append(hook)  # type: ignore[arg-type]
        HOOKS.left.append(left.append)
        try:
            with pytest.raises(error):
                enter()
            assert ds.current_scope() is outer
        finally:
            HOOKS.left.remove(left.append)
            hooks.remove(hook)  # type: ignore[arg-type]
        (scope,) = scopes
        assert scope.closed
        assert left == [scope]
        assert ("closed", scope) in told.events or who == "hook"
        assert toys[0].value is None
        assert CURRENT.get() is outer
    assert counts() == {"created_in_scope": 1, "disposed_in_scope": 1}


def test_where_memory_is_not_served_the_scope_is_not_entered(monkeypatch: pytest.MonkeyPatch):

    def refuse(scope: ds.DisposeScope) -> None:
        raise MemoryError

    monkeypatch.setattr(HOOKS.memory, "entered", refuse)
    for enter in (by_itself, in_a_generator):
        with pytest.raises(MemoryError):
            enter()
        assert CURRENT.get() is None


# ------------------------------------------------------------------ on the way out


@contextmanager
def left_by(hook: Callable[[ds.DisposeScope], object]) -> Iterator[None]:
    HOOKS.left.append(hook)
    try:
        yield
    finally:
        HOOKS.left.remove(hook)


@pytest.mark.parametrize("body", [None, ValueError])
def test_what_a_hook_raises_when_a_scope_is_left_comes_after_everything_is_released(body: type[Exception] | None):
    def interrupted(scope: ds.DisposeScope) -> None:
        raise KeyboardInterrupt

    told: list[ds.DisposeScope] = []
    toy = None
    with left_by(interrupted), left_by(told.append), pytest.raises(KeyboardInterrupt) as caught:
        with ds.dispose_scope("outer"):
            with ds.dispose_scope("inner") as inner:
                toy = Toy(1)
                if body is not None:
                    raise body
    assert inner.closed
    assert toy.value is None
    assert told.count(inner) >= 1
    assert CURRENT.get() is None
    if body is not None:
        assert any(type(error) is body for error in contexts_of(caught.value))


def test_a_scope_whose_end_is_interrupted_again_and_again_is_closed_all_the_same(monkeypatch: pytest.MonkeyPatch):
    """What it owned is nobody's then, and lives by reference count."""

    def interrupted(scope: ds.DisposeScope, failures: list[BaseException], in_flight: None, /) -> None:
        raise KeyboardInterrupt

    with ds.dispose_scope() as scope:
        toy, owned = Toy(1), scope.attach(Owned())
        monkeypatch.setattr(_closing.end, "__code__", interrupted.__code__)
        with pytest.raises(KeyboardInterrupt):
            scope.__exit__(None, None, None)
        monkeypatch.undo()
    assert scope.closed
    assert len(scope) == 0
    assert CURRENT.get() is None
    assert (toy.value, owned.disposals) == (1, 0)
    assert ds.owner_of(toy) is None
    ds.dispose(toy)
    assert toy.value is None
    assert tables_are_sound()


def test_a_listener_that_is_interrupted_prevents_no_release():
    class Interrupted(Recorder):
        def disposed(self, entry: Any, owner: ds.DisposeScope | None) -> None:
            raise KeyboardInterrupt

    listener = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        with ds.dispose_scope():
            toys = [Toy(1), Toy(2)]
            HOOKS.listeners.append(listener)
    HOOKS.listeners.remove(listener)
    assert [toy.value for toy in toys] == [None, None]


# ------------------------------------------------------------------ interrupts stay what they are


def leave(resources: list[Faulty]) -> None:
    with ds.dispose_scope() as scope:
        scope.attach(resources)


def close(resources: list[Faulty]) -> None:
    with ds.dispose_scope() as scope:
        scope.attach(resources)
        scope.close()


def dispose_everything(resources: list[Faulty]) -> None:
    with ds.dispose_scope() as scope:
        scope.attach(resources)
        scope.dispose_everything()


def dispose_everything_but(resources: list[Faulty]) -> None:
    with ds.dispose_scope() as scope:
        scope.attach(resources)
        scope.dispose_everything_but(None)


def dispose(resources: list[Faulty]) -> None:
    ds.dispose(resources)


def composite(resources: list[Faulty]) -> None:
    with ds.dispose_scope() as scope:
        scope.attach(Pair(*resources))


def function(resources: list[Faulty]) -> None:
    ds.tidy(lambda: (ds.attach(resources), None)[1])


def generator(resources: list[Faulty]) -> None:
    @ds.dispose_scope()
    def decorated() -> Iterator[None]:
        ds.attach(resources)
        yield

    list(decorated())


def coroutine(resources: list[Faulty]) -> None:
    @ds.dispose_scope()
    async def decorated() -> None:
        ds.attach(resources)

    # No event loop: some of these stop one.
    with pytest.raises(StopIteration) if not resources else nullcontext():
        decorated().send(None)


def batches(resources: list[Faulty]) -> None:
    for _ in ds.scoped_batches([resources]):
        pass


def batches_in_a_block(resources: list[Faulty]) -> None:
    with ds.scoped_batches([resources]) as scoped:
        held = iter(scoped)
        next(held)


WAYS = [
    leave,
    close,
    dispose_everything,
    dispose_everything_but,
    dispose,
    composite,
    function,
    generator,
    coroutine,
    batches,
    batches_in_a_block,
]


@pytest.mark.parametrize("error", INTERRUPTS)
@pytest.mark.parametrize("way", WAYS)
def test_what_interrupts_a_release_is_raised_as_itself_when_all_others_are_done(
    way: Callable[[list[Faulty]], None], error: type[BaseException]
):
    failure = ValueError("release")
    done: list[int] = []
    interrupt = error("stop")
    resources = [Faulty(lambda: done.append(1)), fails(failure), fails(interrupt), Faulty(lambda: done.append(2))]
    with pytest.raises(error) as caught:
        way(resources)
    assert caught.value is interrupt
    assert sorted(done) == [1, 2]
    assert [resource.releases for resource in resources] == [1] * 4
    assert ds.current_scope() is None
    groups = [context for context in contexts_of(interrupt) if isinstance(context, ExceptionGroup)]
    assert [group.exceptions for group in groups] == [(failure,)]
    assert any("1 releases failed as well" in note for note in interrupt.__notes__)


def contexts_of(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    context = error.__context__
    while context is not None:
        assert context not in found
        found.append(context)
        context = context.__context__
    return found


def test_of_several_interrupts_the_first_is_raised():
    with pytest.raises(KeyboardInterrupt) as caught:
        with ds.dispose_scope():
            errors = SystemExit("third"), RecursionError("second"), KeyboardInterrupt("first")
            _resources = [fails(error) for error in errors]
    assert str(caught.value) == "first"
    (group,) = (context for context in contexts_of(caught.value) if isinstance(context, BaseExceptionGroup))
    assert [str(error) for error in group.exceptions] == ["second", "third"]


@pytest.mark.parametrize("error", INTERRUPTS)
def test_an_interrupt_is_raised_instead_of_the_exception_on_its_way_which_is_its_context(error: type[BaseException]):
    failure = OSError("release")
    with pytest.raises(error) as caught:
        with ds.dispose_scope():
            _resources = [fails(failure), fails(error("stop"))]
            raise ValueError("body")
    body, group = contexts_of(caught.value)
    assert str(body) == "body"
    assert isinstance(group, ExceptionGroup)
    assert group.exceptions == (failure,)


def test_a_release_that_fails_while_an_interrupt_is_on_its_way_does_not_replace_it():
    with pytest.raises(KeyboardInterrupt) as caught:
        with ds.dispose_scope():
            _resource = fails(OSError("release"))
            raise KeyboardInterrupt
    (group,) = contexts_of(caught.value)
    assert isinstance(group, ExceptionGroup)


def test_an_interrupt_that_is_raised_while_another_exception_is_handled_keeps_its_failures():
    with pytest.raises(KeyboardInterrupt) as caught:
        with ds.dispose_scope() as scope:
            _resources = [fails(OSError("release")), fails(KeyboardInterrupt())]
            try:
                raise KeyError("handled")
            except KeyError:
                scope.close()
    assert [type(error) for error in contexts_of(caught.value)] == [KeyError, ExceptionGroup]


def test_an_interrupt_leaves_no_cycle_behind():
    def interrupted(in_flight: bool) -> None:
        with ds.dispose_scope():
            _a, _b, _c = Faulty(lambda: int("a")), Faulty(press), Faulty(lambda: int("c"))
            if in_flight:
                raise KeyError("d")

    def press() -> None:
        raise KeyboardInterrupt

    with no_cyclic_garbage():
        for in_flight in (False, True):
            with suppress(KeyboardInterrupt):
                interrupted(in_flight)


def test_a_cancelled_task_is_cancelled_though_it_is_told_so_by_a_release():
    async def main() -> None:
        async def work() -> None:
            with ds.dispose_scope():
                _resources = [fails(asyncio.CancelledError()), toy]
                await asyncio.sleep(0)

        task = asyncio.create_task(work())
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    toy = Toy(1)
    asyncio.run(main())


def test_an_interrupt_while_memory_is_allocated_comes_up_a_moment_later():
    """NumPy asks for memory while a generator with a scope is suspended.

    The arena then asks which scope is current.
    """
    from disposescope.scopes.context import resolve, suspended

    def interrupt(frame: Any, event: str, argument: object) -> None:
        if frame.f_code in (resolve.__code__, suspended.__code__):
            sys.settrace(None)
            raise KeyboardInterrupt

    def generator() -> Iterator[None]:
        with ds.dispose_scope("suspended"):
            yield

    before = sys.gettrace()
    suspends = generator()
    next(suspends)
    try:
        with pytest.raises(KeyboardInterrupt):
            sys.settrace(interrupt)
            _array = np.ones(100)
            str(1)
            raise AssertionError
    finally:
        sys.settrace(before)
        suspends.close()


# ------------------------------------------------------------------ the limit of recursion


@contextmanager
def recursion_limit(frames: int) -> Iterator[None]:
    depth, frame = 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back  # type: ignore[assignment]
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + frames)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.long
@pytest.mark.unmeasured
@pytest.mark.parametrize("options", [{}, {"strict": True}, {"budget": "10MiB"}], ids=["plain", "strict", "budget"])
@pytest.mark.parametrize("watched", [False, True], ids=["", "detector"])
def test_scopes_that_the_limit_of_recursion_leaves_are_closed_and_what_they_own_released(
    options: dict[str, Any], watched: bool
):
    born: Born = []

    def nest() -> None:
        with ds.dispose_scope(**options):
            born.append(ds.ones(3))
            nest()

    @ds.dispose_scope(**options)
    def decorate() -> None:
        born.append(ds.ones(3))
        decorate()

    def loop() -> None:
        for _ in ds.scoped_batches([1, 2]):
            born.append(ds.ones(3))
            loop()

    def deeper(frames: int, then: Callable[[], None]) -> None:
        if frames:
            deeper(frames - 1, then)
        else:
            then()

    with ds.LeakDetector() if watched else nullcontext():
        for frames in range(12):
            for program in (nest, decorate, loop):
                with recursion_limit(120), pytest.raises(RecursionError):
                    deeper(frames, program)
                assert CURRENT.get() is None
                assert born
                assert all(map(ds.is_disposed, born))
                born.clear()
        refused = 0
        for frames in range(20, 60):
            # One scope, so near to the limit that it cannot be entered, or that its block has no
            # room, or its end.
            def block() -> None:
                with ds.dispose_scope(**options):
                    born.append(ds.ones(3))

            try:
                with recursion_limit(60):
                    deeper(frames, block)
            except RecursionError:
                refused += 1
            assert CURRENT.get() is None
            assert all(map(ds.is_disposed, born))
        assert 0 < refused < 40
