from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import disposescope as ds


def batches(count: int = 3) -> Iterator[ds.Tensor]:
    for number in range(count):
        yield ds.full((2,), number)


def test_a_batch_and_what_the_body_made_go_when_the_next_is_asked_for() -> None:
    seen: list[Any] = []
    for batch in ds.scoped_batches(batches()):
        assert all(map(ds.is_disposed, seen))
        scope = ds.current_scope()
        assert scope is not None
        assert batch in scope
        made = batch + 1
        assert made in scope
        assert scope.name == "batch"
        seen += [batch, made]
    assert len(seen) == 6
    assert all(map(ds.is_disposed, seen))
    assert ds.current_scope() is None


def test_the_previous_batch_is_gone_before_the_next_is_fetched() -> None:
    alive: list[int] = []

    def fetching() -> Iterator[ds.Tensor]:
        for _ in range(3):
            alive.append(ds.statistics().live)
            yield ds.zeros(2)

    for _ in ds.scoped_batches(fetching()):
        pass
    assert alive == [0, 0, 0]


def test_what_is_moved_out_goes_to_the_scope_around_the_loop() -> None:
    with ds.dispose_scope() as outer:
        kept = [ds.move_to_outer(batch * 2) for batch in ds.scoped_batches(batches())]
        assert outer.live == tuple(kept)
        assert [int(batch[0]) for batch in kept] == [0, 2, 4]
    unowned = [ds.move_to_outer(batch) for batch in ds.scoped_batches(batches())]
    assert [ds.owner_of(batch) for batch in unowned] == [None] * 3
    ds.dispose(unowned)


def test_batches_are_trees() -> None:
    def trees() -> Iterator[dict[str, Any]]:
        for _ in range(2):
            yield {"packed": ds.pack_sequence([ds.arange(2)]), "rest": [ds.zeros(1), {ds.ones(1)}], "id": "a"}

    seen = []
    for batch in ds.scoped_batches(trees()):
        scope = ds.current_scope()
        assert scope is not None
        # The arguments of pack_sequence died by reference count.
        assert len(scope) == 3
        seen.append(batch)
    for batch in seen:
        assert ds.is_disposed(batch["packed"])
        assert all(map(ds.is_disposed, [batch["rest"][0], *batch["rest"][1]]))


def test_a_list_of_batches_made_before_is_disposed_batch_by_batch_whoever_owned_them() -> None:
    with ds.dispose_scope() as outer:
        made = list(batches())
        left = []
        for batch in ds.scoped_batches(made):
            assert batch not in outer
            left.append(len(outer))
        assert left == [2, 1, 0]
    unowned = list(batches())
    for _ in ds.scoped_batches(unowned):
        pass
    assert all(map(ds.is_disposed, unowned))


def test_a_batch_that_is_handed_over_twice_raises() -> None:
    batch = ds.zeros(2)
    seen = 0
    with pytest.raises(ds.DisposedError):
        for _ in ds.scoped_batches([batch, batch]):
            seen += 1
    assert seen == 1


def test_a_batch_that_hides_a_tensor_is_refused_and_nothing_stays_open() -> None:
    class Opaque:
        def __init__(self) -> None:
            self.tensor = ds.zeros(2)

    opaque = Opaque()
    with pytest.raises(ds.UnknownKindError, match="Opaque"):
        next(iter(ds.scoped_batches([opaque])))
    assert ds.current_scope() is None
    assert not ds.is_disposed(opaque.tensor)


def test_break_disposes_the_batch_at_once() -> None:
    for batch in ds.scoped_batches(batches()):
        held = batch
        break
    assert ds.current_scope() is None
    assert ds.is_disposed(held)


def test_an_exception_in_the_body_disposes_the_batch_while_the_traceback_lives() -> None:
    seen = []
    with pytest.raises(KeyError) as caught:
        for batch in ds.scoped_batches(batches()):
            made = batch + 1
            seen += [batch, made]
            raise KeyError("body")
    assert caught.value.__traceback__ is not None
    assert ds.current_scope() is None
    assert all(map(ds.is_disposed, seen))


def test_return_from_the_middle_of_a_loop_disposes_the_batch_and_keeps_what_was_moved() -> None:
    seen = []

    def first_two() -> ds.Tensor:
        for batch in ds.scoped_batches(batches()):
            seen.append(batch)
            if batch[0] == 1:
                return ds.move_to_outer(batch + 5)
        raise AssertionError

    result = first_two()
    assert ds.current_scope() is None
    assert result.tolist() == [6, 6]
    assert all(map(ds.is_disposed, seen))


def test_an_exception_of_the_loader_passes_through() -> None:
    def failing() -> Iterator[ds.Tensor]:
        yield ds.zeros(1)
        raise LookupError("loader")

    seen = []
    with pytest.raises(LookupError, match="loader"):
        for batch in ds.scoped_batches(failing()):
            seen.append(batch)
    assert ds.is_disposed(seen[0])
    assert ds.current_scope() is None


def test_close_disposes_the_batch_and_ends_the_pass() -> None:
    iterator = iter(ds.scoped_batches(batches()))
    batch = next(iterator)
    assert ds.current_scope() is not None
    iterator.close()
    iterator.close()
    assert ds.is_disposed(batch)
    assert ds.current_scope() is None
    assert list(iterator) == []
    with iter(ds.scoped_batches(batches())) as opened:
        batch = next(opened)
    assert ds.is_disposed(batch)


def test_an_exhausted_iterator_stays_exhausted() -> None:
    iterator = iter(ds.scoped_batches(batches(1)))
    next(iterator)
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(iterator)


def test_a_generator_can_be_gone_on_with_after_a_break() -> None:
    source = batches()
    for _ in ds.scoped_batches(source):
        break
    assert [int(batch[0]) for batch in ds.scoped_batches(source)] == [1, 2]


def test_the_with_form_closes_what_is_open_and_raises_what_a_release_raised() -> None:
    class Stubborn:
        def dispose(self) -> None:
            raise OSError("stubborn")

    with ds.scoped_batches(batches()) as opened:
        iterator = iter(opened)
        batch = next(iterator)
    assert ds.is_disposed(batch)
    with pytest.raises(ExceptionGroup) as caught:
        with ds.scoped_batches([Stubborn()]) as stubborn:
            held = iter(stubborn)
            next(held)
    assert caught.group_contains(OSError)
    with pytest.raises(KeyError) as in_flight:
        with ds.scoped_batches([Stubborn()]) as stubborn:
            held = iter(stubborn)
            next(held)
            raise KeyError("body")
    assert isinstance(in_flight.value.__context__, ExceptionGroup)
    # Within the loop it is raised where the next batch is asked for, and after a break it cannot
    # be.
    with pytest.raises(ExceptionGroup):
        for _ in ds.scoped_batches([Stubborn()]):
            pass


def test_what_a_release_raises_after_a_break_is_reported_as_unraisable(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stubborn:
        def dispose(self) -> None:
            raise OSError("stubborn")

    reported: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: reported.append(args.exc_value))
    for _ in ds.scoped_batches([Stubborn()]):
        break
    assert ds.current_scope() is None
    assert isinstance(reported[0], ExceptionGroup)


def test_length_and_passes_are_those_of_the_loader() -> None:
    scoped = ds.scoped_batches([1, 2, 3])
    assert len(scoped) == 3
    assert list(scoped) == list(scoped) == [1, 2, 3]
    empty = ds.scoped_batches([])
    assert bool(empty)
    assert list(empty) == []
    with pytest.raises(TypeError, match="has no len"):
        len(ds.scoped_batches(batches()))
    assert len(list(ds.scoped_batches(batches()))) == 3
    assert repr(ds.scoped_batches([1])) == "scoped_batches([1])"


def test_what_cannot_be_iterated_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="iterable"):
        ds.scoped_batches(3)
    with pytest.raises(TypeError, match="name"):
        ds.scoped_batches([], name=3)


def test_the_scope_has_the_name_that_was_given() -> None:
    for _ in ds.scoped_batches([1], name="step"):
        assert ds.current_scope().name == "step"


def test_nothing_holds_a_batch_but_the_loop() -> None:
    gc.disable()
    try:
        for batch in ds.scoped_batches(batches()):
            alive = weakref.ref(batch)
            del batch
            assert alive() is None
    finally:
        gc.enable()


# ---------------------------------------------------------------------- what is current


def test_nested_loops_nest_their_scopes() -> None:
    with ds.dispose_scope("outermost") as outermost:
        kept = []
        for outer_batch in ds.scoped_batches(batches(2), name="outer"):
            outer = ds.current_scope()
            for inner_batch in ds.scoped_batches(batches(2), name="inner"):
                inner = ds.current_scope()
                assert inner is not None
                assert inner.name == "inner"
                assert inner.outer is outer
                assert inner_batch in inner
                kept.append(ds.move_to_outer(inner_batch))
            assert ds.current_scope() is outer
            assert outer is not None
            assert outer_batch in outer
            assert kept[-1] in outer
            assert outer.outer is outermost
        assert all(map(ds.is_disposed, kept))
        assert ds.current_scope() is outermost


def test_a_scope_in_the_body_is_inside_the_batch() -> None:
    for _ in ds.scoped_batches(batches()):
        outer = ds.current_scope()
        with ds.dispose_scope() as step:
            assert step.outer is outer
            loss = step.move_to_outer(ds.ones(1))
        assert loss in outer


def test_zipped_loops_each_dispose_their_own_and_the_one_advanced_last_is_current() -> None:
    seen: list[Any] = []
    with ds.dispose_scope() as around:
        for number, (left, right) in enumerate(
            zip(ds.scoped_batches(batches(4), name="left"), ds.scoped_batches(batches(3), name="right"), strict=False)
        ):
            assert all(map(ds.is_disposed, seen))
            current = ds.current_scope()
            assert current is not None
            assert current.name == "right"
            assert right in current
            assert left not in current
            owner = ds.owner_of(left)
            assert owner is not None
            assert owner.name == "left"
            assert current.outer is owner
            assert owner.outer is around
            seen += [left, right, ds.ones(1)]
            assert number < 3
        assert ds.current_scope() is around
        assert all(map(ds.is_disposed, seen))
        assert len(around) == 0
    now = ds.statistics()
    assert now.created_in_scope + now.created_unscoped == now.disposed_in_scope + now.disposed_unscoped


def test_zipped_loops_hold_no_chain_of_closed_scopes() -> None:
    scopes: list[weakref.ref[Any]] = []
    gc.disable()
    try:
        for _ in zip(ds.scoped_batches(range(50)), ds.scoped_batches(range(50)), strict=True):
            scope = ds.current_scope()
            scopes.append(weakref.ref(scope))
            del scope
        assert sum(scope() is not None for scope in scopes) <= 2
    finally:
        gc.enable()


def test_an_inner_iterator_that_outlives_the_outer_loop_is_defined() -> None:
    with ds.dispose_scope() as around:
        held = None
        for _ in ds.scoped_batches(batches(2)):
            if held is None:
                held = iter(ds.scoped_batches(batches(2)))
                inner_batch = next(held)
        assert not ds.is_disposed(inner_batch)
        assert ds.owner_of(inner_batch).outer is around
        held.close()
        assert ds.is_disposed(inner_batch)
        assert ds.current_scope() is around


def test_what_the_loader_carries_from_batch_to_batch_lives_on() -> None:
    def shuffled() -> Iterator[ds.Tensor]:
        buffer = [ds.full((1,), number) for number in range(3)]
        while buffer:
            yield buffer.pop()

    assert [int(batch[0]) for batch in ds.scoped_batches(shuffled())] == [2, 1, 0]
    with ds.dispose_scope() as outer:
        for _ in ds.scoped_batches(shuffled()):
            pass
        assert len(outer) == 0


def test_a_loader_with_a_scope_of_its_own_keeps_it() -> None:
    seen: list[Any] = []

    def loader() -> Iterator[ds.Tensor]:
        with ds.dispose_scope("loader") as own:
            scratch = ds.zeros(4)
            for number in range(3):
                assert ds.current_scope() is own
                assert scratch in own
                yield own.move_to_outer(ds.full((1,), number)) if number % 2 else ds.full((1,), number)
            seen.append(scratch)

    with ds.dispose_scope() as around:
        for batch in ds.scoped_batches(loader()):
            current = ds.current_scope()
            assert current is not None
            assert current.name == "batch"
            assert batch in current
            assert ds.ones(1) not in around
            seen.append(batch)
        assert len(seen) == 4
        assert all(map(ds.is_disposed, seen))
        for _ in ds.scoped_batches(loader()):
            break
        assert ds.current_scope() is around
        assert len(around) == 0


def test_a_decorated_loader_hands_over_its_batches() -> None:
    @ds.dispose_scope()
    def loader() -> Iterator[ds.Tensor]:
        for number in range(3):
            yield ds.full((1,), number) + ds.zeros(1)

    assert [int(batch[0]) for batch in ds.scoped_batches(loader())] == [0, 1, 2]


def test_a_loop_in_a_generator_does_not_capture_what_the_consumer_makes() -> None:
    def totals() -> Iterator[int]:
        for batch in ds.scoped_batches(batches()):
            assert batch in ds.current_scope()
            yield int(batch.sum())
            assert ds.current_scope().name == "batch"

    with ds.dispose_scope() as consumer:
        made = []
        for _ in totals():
            assert ds.current_scope() is consumer
            made.append(ds.ones(1))
            assert made[-1] in consumer
        assert not any(map(ds.is_disposed, made))
        suspended = totals()
        next(suspended)
        made.append(ds.ones(1))
        suspended.close()
        if (3, 12, 2) <= sys.version_info < (3, 12, 4):
            # A generator that is closed goes on holding what it held there: python/cpython#118272.
            del suspended
            gc.collect()
        assert not ds.is_disposed(made[-1])
        assert len(consumer) == 4


def test_a_chain_of_scoped_loops_in_generators() -> None:
    def doubled(source: Any) -> Iterator[ds.Tensor]:
        for batch in ds.scoped_batches(source, name="doubling"):
            yield ds.move_to_outer(batch * 2)

    with ds.dispose_scope() as around:
        results = []
        for batch in ds.scoped_batches(doubled(doubled(batches())), name="last"):
            assert ds.current_scope().name == "last"
            assert batch in ds.current_scope()
            results.append(int(batch[0]))
        assert results == [0, 4, 8]
        assert len(around) == 0


def test_a_loop_in_a_decorated_generator() -> None:
    @ds.dispose_scope()
    def doubled() -> Iterator[ds.Tensor]:
        for batch in ds.scoped_batches(batches()):
            yield ds.move_to_outer(batch * 2)

    with ds.dispose_scope() as consumer:
        results = list(doubled())
        assert [int(result[0]) for result in results] == [0, 2, 4]
        assert len(consumer) == 3
        assert ds.current_scope() is consumer


def test_asyncio_tasks_each_have_their_own_batch() -> None:
    async def consume(start: int) -> list[int]:
        results = []
        for batch in ds.scoped_batches(ds.full((2,), start + number) for number in range(4)):
            made = batch + 1
            await asyncio.sleep(0)
            assert made in ds.current_scope()
            results.append(int(made[0]))
        return results

    async def main() -> None:
        assert await asyncio.gather(consume(0), consume(10)) == [[1, 2, 3, 4], [11, 12, 13, 14]]

        async def producing() -> AsyncIterator[int]:
            for batch in ds.scoped_batches(batches()):
                yield int(batch[0])

        with ds.dispose_scope() as consumer:
            async for _ in producing():
                assert ds.current_scope() is consumer
                assert ds.ones(1) is not None
            stopped = producing()
            await anext(stopped)
            await stopped.aclose()
            assert ds.current_scope() is consumer

    asyncio.run(main())


def test_threads_each_have_their_own_batch() -> None:
    failures: list[BaseException] = []

    def consume() -> None:
        try:
            for batch in ds.scoped_batches(batches(50)):
                assert (batch + 1) is not None
                assert len(ds.current_scope()) == 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_an_iterator_follows_the_context_it_is_advanced_in() -> None:
    iterator = iter(ds.scoped_batches(batches()))

    def advance() -> tuple[ds.Tensor, Any]:
        return next(iterator), ds.current_scope()

    here, there = contextvars.copy_context(), contextvars.copy_context()
    first, opened = here.run(advance)
    assert here.run(ds.current_scope) is opened
    second, _ = there.run(advance)
    assert ds.is_disposed(first)
    assert here.run(ds.current_scope) is None
    assert second in there.run(ds.current_scope)
    iterator.close()
    assert ds.is_disposed(second)
    assert there.run(ds.current_scope) is None


def test_five_thousand_batches_leave_nothing() -> None:
    gc.disable()
    try:
        for _ in ds.scoped_batches(ds.zeros(1) for _ in range(5000)):
            pass
        assert ds.statistics().live == 0
        assert gc.collect() < 50
    finally:
        gc.enable()
