"""``@dispose_scope()``: what a function gives out goes to its caller, the rest is released."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import inspect
import threading
import types
import weakref
from contextlib import suppress

import pytest

import disposescope as ds
from tests.scopes.toys import Pair, Toy, Unknown, fails, no_cyclic_garbage, owned_by


class TestFunctions:
    def test_the_result_goes_to_the_caller_and_the_rest_is_disposed(self):
        temporaries = []

        @ds.dispose_scope()
        def work(a, *, b):
            temporaries.append(Toy(0))
            return {"sum": Toy(a + b)}

        with ds.dispose_scope() as scope:
            result = work(1, b=2)
            assert owned_by(scope, result["sum"])
        assert temporaries[0].value is None
        assert work(3, b=4)["sum"].value == 7

    def test_inputs_are_not_promoted(self):
        @ds.dispose_scope(strict=True)
        def identity(x):
            return x

        with ds.dispose_scope() as outer, ds.dispose_scope() as inner:
            toy = Toy(1)
            assert identity(toy) is toy
            assert owned_by(inner, toy)
            assert len(outer) == 0

    def test_exceptions_pass_and_everything_is_disposed(self):
        made = []

        @ds.dispose_scope("failing")
        def failing():
            made.append(Toy(1))
            raise KeyError("x")

        with pytest.raises(KeyError):
            failing()
        assert made[0].value is None
        assert ds.current_scope() is None

    def test_keeps_name_signature_and_attributes(self):
        @ds.dispose_scope()
        def work(a: int, b: str = "x") -> None:
            """Works."""

        assert work.__name__ == "work"
        assert work.__doc__ == "Works."
        assert list(inspect.signature(work).parameters) == ["a", "b"]

    def test_each_call_has_a_fresh_scope_with_the_name_and_options_given(self):
        @ds.dispose_scope("mine", strict=True)
        def work():
            return ds.current_scope()

        first, second = work(), work()
        assert first is not second
        assert first.name == second.name == "mine"
        assert first.strict

    def test_recursion(self):
        @ds.dispose_scope()
        def fall(n):
            Toy(n)
            return [Toy(n)] + (fall(n - 1) if n else [])

        with ds.dispose_scope() as scope:
            made = fall(50)
            assert len(scope) == 51
            assert [toy.value for toy in made] == list(range(50, -1, -1))

    def test_methods_class_methods_and_static_methods(self):
        class Worker:
            @ds.dispose_scope()
            def method(self):
                return self, Toy(1)

            @classmethod
            @ds.dispose_scope()
            def of_class(cls):
                return Toy(cls.__name__)

            @staticmethod
            @ds.dispose_scope()
            def static():
                return Toy(3)

        with ds.dispose_scope() as scope:
            worker = Worker()
            assert worker.method()[0] is worker
            toys = [worker.method()[1], Worker.of_class(), Worker.static()]
            assert owned_by(scope, *toys)

    def test_nested_decorators(self):
        @ds.dispose_scope("outer")
        @ds.dispose_scope("inner")
        def work():
            return Toy(ds.current_scope().name)

        with ds.dispose_scope() as scope:
            toy = work()
            assert toy.value == "inner"
            assert owned_by(scope, toy)

    def test_a_result_that_hides_a_resource_is_refused_and_nothing_leaks(self):
        made = []

        @ds.dispose_scope()
        def work():
            made.append(toy := Toy(1))
            return lambda: toy

        with pytest.raises(ds.UnknownKindError, match="return"):
            work()
        assert made[0].value is None

    def test_a_result_is_searched_through_its_attributes(self):
        class Slotted:
            __slots__ = ("held", "never_set")

            def __init__(self, held):
                self.held = held

            def __getattr__(self, name):
                raise AssertionError(f"asked for {name}")

        class Step:
            def __init__(self, toys):
                self.toys = toys
                self.outer = self

            @property
            def running(self):
                raise AssertionError("ran a property")

        @ds.dispose_scope()
        def work(make):
            temporary = Toy(0)
            return make(Toy(1)), temporary.value

        with ds.dispose_scope() as scope:
            for make in (
                Unknown,
                Slotted,
                lambda toy: types.SimpleNamespace(a=toy),
                lambda toy: [Step({"a": (Slotted(toy),)})],
                lambda toy: functools.partial(print, toy),
            ):
                result, _ = work(make)
                (toy,) = scope.live
                assert toy.value == 1
                # A verb is asked to name what it means.
                with pytest.raises(ds.UnknownKindError):
                    scope.detach(result)
                ds.dispose(toy)

    def test_an_object_in_a_result_that_hides_in_a_closure_is_refused_by_its_place(self):
        @ds.dispose_scope()
        def work(toy):
            made = Toy(toy.value)
            return Unknown([lambda: made])

        with ds.dispose_scope() as scope:
            toy = Toy(1)
            with pytest.raises(ds.UnknownKindError, match=r"yielded\.\w+.*\[0\] is a builtins.function"):
                work(toy)
            assert owned_by(scope, toy)

    def test_a_result_that_refers_to_its_own_methods_is_no_riddle(self):
        class Named:
            def __init__(self, toy):
                self.call = self.method
                self.toy = toy

            def method(self):
                return self.toy

        @ds.dispose_scope()
        def work():
            return Named(Toy(1))

        with ds.dispose_scope() as scope:
            assert work().call() in scope

    def test_a_member_brings_its_composite(self):
        @ds.dispose_scope(strict=True)
        def work():
            pair = ds.attach(Pair(Toy(1), Toy(2)))
            return pair.members[0], pair

        with ds.dispose_scope() as scope:
            _member, pair = work()
            assert owned_by(scope, pair)

    def test_failing_releases_are_raised(self):
        @ds.dispose_scope()
        def work():
            work.faulty = fails(ValueError("x"))

        with pytest.raises(ExceptionGroup):
            work()

    def test_what_is_no_function_is_refused(self):
        for wrong in (None, 3, Toy, "text"):
            with pytest.raises(TypeError, match="decorates"):
                ds.dispose_scope()(wrong)
        with ds.dispose_scope() as scope:
            with pytest.raises(TypeError, match="entered"):
                scope(lambda: None)

    def test_partials_and_callable_objects(self):
        class Callable:
            def __call__(self):
                return Toy(1)

        with ds.dispose_scope() as scope:
            a = ds.dispose_scope()(Callable())()
            b = ds.dispose_scope()(functools.partial(Toy, 2))()
            assert owned_by(scope, a, b)

    def test_in_threads(self):
        @ds.dispose_scope()
        def work():
            return Toy(1)

        results = []
        with ds.dispose_scope() as scope:
            thread = threading.Thread(target=contextvars.copy_context().run, args=(lambda: results.append(work()),))
            thread.start()
            thread.join()
            assert owned_by(scope, *results)


class TestCoroutines:
    def test_the_result_goes_to_the_awaiting_scope(self):
        @ds.dispose_scope()
        async def work(n):
            Toy(0)
            await asyncio.sleep(0)
            return Toy(n)

        assert inspect.iscoroutinefunction(work)

        async def main():
            with ds.dispose_scope() as scope:
                toys = await asyncio.gather(*(work(n) for n in range(5)))
                assert owned_by(scope, *toys)
                toys.append(await work(9))
                assert owned_by(scope, *toys)
                return toys

        assert {toy.value for toy in asyncio.run(main())} == {None}

    def test_a_cancelled_one_disposes(self):
        made = []

        @ds.dispose_scope()
        async def work():
            made.append(Toy(1))
            await asyncio.sleep(60)

        async def main():
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(work(), 0.001)

        asyncio.run(main())
        assert made[0].value is None


class TestGenerators:
    def test_what_is_yielded_goes_to_the_consumer_and_temporaries_live_on_inside(self):
        lasting = []

        @ds.dispose_scope("g")
        def generate(n):
            lasting.append(Toy("lasting"))
            for index in range(n):
                temporary = Toy("temporary")
                yield Toy(index)
                assert temporary.value == "temporary"
                assert lasting[0].value == "lasting"

        assert inspect.isgeneratorfunction(generate)
        with ds.dispose_scope() as scope:
            toys = []
            for toy in generate(4):
                toys.append(toy)
                assert owned_by(scope, *toys)
                assert ds.current_scope() is scope
            assert [toy.value for toy in toys] == [0, 1, 2, 3]
            assert lasting[0].value is None

    def test_it_goes_to_the_scope_that_is_current_at_each_step(self):
        @ds.dispose_scope()
        def generate():
            while True:
                yield Toy(1)

        generator = generate()
        with ds.dispose_scope() as first:
            a = next(generator)
            assert owned_by(first, a)
            with ds.dispose_scope() as second:
                b = next(generator)
                assert owned_by(second, b)
        with ds.dispose_scope() as third:
            c = next(generator)
            assert owned_by(third, c)
            generator.close()
            assert ds.current_scope() is third
        d = next(generate())
        assert ds.owner_of(d) is None
        assert ds.current_scope() is None

    def test_send_throw_close_and_return_work_as_without(self):
        log = []

        @ds.dispose_scope()
        def generate():
            try:
                got = yield 1
                log.append(got)
                try:
                    yield 2
                except KeyError as error:
                    log.append(repr(error))
                    yield 3
                return Toy("returned")
            finally:
                log.append("finally")

        def driver():
            result = yield from generate()
            log.append(result.value)
            return result

        generator = driver()
        with ds.dispose_scope() as scope:
            assert next(generator) == 1
            assert generator.send("sent") == 2
            assert generator.throw(KeyError("thrown")) == 3
            with pytest.raises(StopIteration) as stop:
                next(generator)
            assert owned_by(scope, stop.value.value)
        assert log == ["sent", "KeyError('thrown')", "finally", "returned"]

    def test_closing_runs_the_body_to_its_end_inside_its_scope(self):
        seen = []

        @ds.dispose_scope("g")
        def generate():
            toy = Toy(1)
            try:
                yield
            finally:
                seen.append((ds.current_scope().name, toy.value, toy in ds.current_scope()))
                seen.append(toy)

        generator = generate()
        next(generator)
        generator.close()
        assert seen[0] == ("g", 1, True)
        assert seen[1].value is None
        assert ds.current_scope() is None

    def test_an_exception_of_the_body_passes(self):
        made = []

        @ds.dispose_scope()
        def generate():
            made.append(Toy(1))
            yield
            raise KeyError("x")

        generator = generate()
        next(generator)
        with pytest.raises(KeyError):
            next(generator)
        assert made[0].value is None
        with pytest.raises(StopIteration):
            next(generator)
        generator = generate()
        next(generator)
        with pytest.raises(ValueError, match="thrown"):
            generator.throw(ValueError("thrown"))
        assert made[1].value is None
        assert ds.current_scope() is None

    def test_a_body_that_ignores_close_raises(self):
        @ds.dispose_scope()
        def generate():
            try:
                yield
            except GeneratorExit:
                yield

        generator = generate()
        next(generator)
        with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
            generator.close()
        assert ds.current_scope() is None

    def test_yielding_what_hides_a_resource_is_refused(self):
        made = []

        @ds.dispose_scope()
        def generate():
            made.append(toy := Toy(1))
            yield Unknown(lambda: toy)

        with pytest.raises(ds.UnknownKindError):
            next(generate())
        assert made[0].value is None
        assert ds.current_scope() is None

    def test_an_abandoned_one_disposes(self):
        made = []

        @ds.dispose_scope()
        def generate():
            made.append(Toy(1))
            yield

        next(generate())
        gc.collect()
        assert made[0].value is None

    def test_a_scope_that_its_body_opened_is_suspended_with_it(self):
        @ds.dispose_scope("outer")
        def generate():
            with ds.dispose_scope("inner") as inner:
                for index in range(3):
                    toy = Toy(index)
                    assert toy in inner
                    yield inner.move_to_outer(toy)
                    assert ds.current_scope() is inner

        with ds.dispose_scope() as scope:
            toys = []
            for toy in generate():
                toys.append(toy)
                assert ds.current_scope() is scope
                assert owned_by(scope, *toys)

    def test_two_interleaved(self):
        @ds.dispose_scope()
        def generate(name):
            for index in range(3):
                temporary = Toy("t")
                yield Toy((name, index))
                assert temporary.value == "t"

        with ds.dispose_scope() as scope:
            pairs = list(zip(generate("a"), generate("b"), strict=True))
            assert len(scope) == 6
            assert [toy.value for pair in pairs for toy in pair] == [(n, i) for i in range(3) for n in "ab"]

    def test_it_holds_neither_what_it_yielded_nor_what_was_sent(self):
        @ds.dispose_scope()
        def generate():
            yield Toy(1)
            got = yield None
            gone = weakref.ref(got)
            del got
            yield None
            yield gone() is None

        generator = generate()
        gone = weakref.ref(next(generator))
        next(generator)
        assert gone() is None
        generator.send(Toy(2))
        assert next(generator) is True

    def test_leaves_no_cyclic_garbage(self):
        @ds.dispose_scope()
        def generate():
            while True:
                with suppress(KeyError):
                    yield Toy(1)

        with no_cyclic_garbage():
            generator = generate()
            next(generator)
            generator.throw(KeyError("x"))
            with suppress(ValueError):
                generator.throw(ValueError("y"))
            del generator
            generator = generate()
            next(generator)
            generator.close()
            del generator


class TestAsyncGenerators:
    def test_what_is_yielded_goes_to_the_consumer(self):
        @ds.dispose_scope("g")
        async def generate(n):
            lasting = Toy("lasting")
            for index in range(n):
                await asyncio.sleep(0)
                assert ds.current_scope().name == "g"
                yield Toy(index)
                assert lasting.value == "lasting"

        assert inspect.isasyncgenfunction(generate)

        async def main():
            with ds.dispose_scope() as scope:
                toys = []
                async for toy in generate(4):
                    toys.append(toy)
                    assert ds.current_scope() is scope
                    await asyncio.sleep(0)
                    assert owned_by(scope, *toys)

        asyncio.run(main())

    def test_send_throw_and_close(self):
        log = []

        @ds.dispose_scope()
        async def generate():
            toy = Toy(1)
            log.append(toy)
            try:
                log.append((yield 1))
                try:
                    yield 2
                except KeyError:
                    log.append("caught")
                    yield 3
                yield 4
            finally:
                log.append(toy.value)

        async def main():
            generator = generate()
            assert await anext(generator) == 1
            assert await generator.asend("sent") == 2
            assert await generator.athrow(KeyError("x")) == 3
            await generator.aclose()
            assert ds.current_scope() is None

        asyncio.run(main())
        assert log[1:] == ["sent", "caught", 1]
        assert log[0].value is None

    def test_an_exception_of_the_body_passes(self):
        made = []

        @ds.dispose_scope()
        async def generate():
            made.append(Toy(1))
            yield
            raise KeyError("x")

        async def main():
            with pytest.raises(KeyError):
                async for _ in generate():
                    pass

        asyncio.run(main())
        assert made[0].value is None

    def test_each_step_in_a_task_of_its_own(self):
        @ds.dispose_scope()
        async def generate():
            for index in range(3):
                await asyncio.sleep(0)
                yield Toy(index)

        async def main():
            with ds.dispose_scope() as scope:
                generator = generate()
                toys = [await asyncio.wait_for(anext(generator), 10) for _ in range(3)]
                assert owned_by(scope, *toys)
                await generator.aclose()
                assert ds.current_scope() is scope

        asyncio.run(main())
