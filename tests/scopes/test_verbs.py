"""Promises of the verbs as functions, and of a life of many steps compared with a model."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import disposescope as ds
from tests.scopes.toys import Bundle, Disposable, Pair, Toy, Unknown, counts, fails, tables_are_sound


class TestOnTheCurrentScope:
    @pytest.mark.parametrize("verb", [ds.move_to_outer, ds.attach, ds.keep])
    def test_without_one_they_are_refused_by_name(self, verb):
        toy = Toy(1)
        with pytest.raises(ds.ScopeNestingError, match=verb.__name__):
            verb(toy)
        assert toy.value == 1

    @pytest.mark.parametrize("verb", [ds.move_to_outer, ds.attach, ds.keep, ds.dispose])
    def test_each_names_itself_where_it_does_not_understand_a_tree(self, verb):
        with ds.dispose_scope():
            hidden = Unknown(Toy(1))
            with pytest.raises(ds.UnknownKindError, match=f"given to {verb.__name__}\\(\\)"):
                verb([hidden])

    @pytest.mark.parametrize("verb", [ds.is_disposed, ds.owner_of, ds.check_alive])
    @pytest.mark.parametrize("stranger", [object(), 3, "text", [1], Unknown])
    def test_each_names_itself_where_it_is_given_no_resource(self, verb, stranger):
        with pytest.raises(ds.UnknownKindError, match=f"^{verb.__name__}: .*{type(stranger).__qualname__};"):
            verb(stranger)

    @pytest.mark.parametrize("verb", [ds.move_to_outer, ds.keep])
    def test_each_names_itself_where_a_strict_scope_does_not_own(self, verb):
        toy = Toy(1)
        with ds.dispose_scope(strict=True), pytest.raises(ds.NotOwnedError, match=f"^{verb.__name__}: "):
            verb(toy)

    def test_each_acts_on_the_innermost(self):
        with ds.dispose_scope() as outer, ds.dispose_scope() as inner:
            toy = Toy(1)
            assert ds.move_to_outer([toy])[0] in outer
            assert ds.detach([toy]) == [toy]
            assert toy in outer
            assert ds.attach({"x": toy})["x"] in inner
            assert ds.detach(toy) is toy
            assert ds.owner_of(toy) is None

    def test_keep_takes_out_of_every_scope_and_detach_is_the_same(self):
        assert ds.keep is ds.detach
        assert ds.DisposeScope.keep is ds.DisposeScope.detach
        with ds.dispose_scope(), ds.dispose_scope() as inner:
            kept = inner.keep([Toy(1)])[0]
            assert ds.owner_of(kept) is None
        assert kept.value == 1
        for verb in (inner.keep, inner.detach):
            with pytest.raises(ds.ScopeClosedError, match=r"^keep: "):
                verb(kept)

    def test_keep_leaves_what_is_disposed_unless_strict(self):
        toy = Toy(1)
        ds.dispose(toy)
        with ds.dispose_scope() as scope:
            assert scope.keep(toy) is toy
        with ds.dispose_scope(strict=True) as scope, pytest.raises(ds.NotOwnedError):
            scope.keep(toy)

    def test_check_alive_raises_where_a_resource_has_been_disposed(self):
        with ds.dispose_scope() as scope:
            disposable = scope.attach(Disposable())
            ds.check_alive(disposable)
        with pytest.raises(ds.DisposedError, match="Disposable has been disposed"):
            ds.check_alive(disposable)

    def test_each_task_and_thread_acts_on_its_own(self):
        async def work():
            with ds.dispose_scope() as scope:
                toy = ds.move_to_outer(Toy(1))
                await asyncio.sleep(0)
                return toy, scope.outer

        async def main():
            with ds.dispose_scope() as scope:
                for toy, outer in await asyncio.gather(*(work() for _ in range(5))):
                    assert outer is scope
                    assert toy in scope

        asyncio.run(main())
        results = []
        with ds.dispose_scope():

            def elsewhere():
                with pytest.raises(ds.ScopeNestingError):
                    ds.attach(1)
                results.append(True)

            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
        assert results == [True]


class TestDispose:
    def test_works_on_whatever_owner_and_on_none(self):
        unowned = Toy(0)
        with ds.dispose_scope() as outer, ds.dispose_scope() as inner:
            a, b = outer.attach(Toy(1)), Toy(2)
            ds.dispose([a, (b,), unowned, None, "text", 3])
            assert len(outer) == len(inner) == 0
        assert [toy.releases for toy in (unowned, a, b)] == [1, 1, 1]

    def test_what_hides_any_resource_is_refused_and_nothing_released(self):
        toy, other = Toy(1), Toy(2)
        with pytest.raises(ds.UnknownKindError):
            ds.dispose([other, Unknown(toy)])
        assert (toy.value, other.value) == (1, 2)

    def test_a_refusal_in_the_middle_leaves_everything_as_it_was(self):
        thing, mismatched = Disposable(), Pair(Toy(1), Toy(2, device="cuda:0"))
        before = counts()
        with pytest.raises(ds.DeviceMismatchError):
            ds.dispose([thing, mismatched])
        assert counts() == before
        assert thing.disposals == 0
        assert not ds.is_disposed(thing)

    def test_a_users_object_that_nobody_attached(self):
        thing = Disposable()
        ds.dispose(thing)
        ds.dispose(thing)
        assert thing.disposals == 1
        assert ds.is_disposed(thing)

    def test_a_composite_that_nobody_attached_takes_its_members_along(self):
        pair, bundle = Pair(a := Toy(1)), Bundle((b := Toy(2),))
        ds.dispose([pair, bundle])
        ds.dispose([pair, bundle])
        assert (a.releases, b.releases) == (1, 1)
        assert ds.is_disposed(pair)
        assert ds.is_disposed(bundle)

    def test_failures_are_raised_together_after_all_were_released(self):
        a, b, c = fails(ValueError("a")), Toy(1), fails(ValueError("c"))
        with pytest.raises(ExceptionGroup) as caught:
            ds.dispose([a, b, c])
        assert len(caught.value.exceptions) == 2
        assert b.value is None
        with pytest.raises(ExceptionGroup):
            ds.dispose([a, b, c])
        assert (a.releases, b.releases, c.releases) == (2, 1, 2)

    def test_a_deep_nesting(self):
        tree: object = Toy(1)
        toy = tree
        for _ in range(5_000):
            tree = [tree]
        ds.dispose(tree)
        assert toy.value is None


class TestAsking:
    def test_is_disposed(self):
        toy = Toy(1)
        assert ds.is_disposed(toy) is False
        ds.dispose(toy)
        assert ds.is_disposed(toy) is True
        assert ds.is_disposed(Disposable()) is False

    @pytest.mark.parametrize("ask", [ds.is_disposed, ds.owner_of])
    def test_of_what_is_no_resource_is_refused_and_the_type_named(self, ask):
        for thing in (None, 3, [Toy(1)], object()):
            with pytest.raises(ds.UnknownKindError, match=type(thing).__name__) as caught:
                ask(thing)
            assert type(thing).__name__ in caught.value.type_name

    def test_owner_of(self):
        toy = Toy(1)
        assert ds.owner_of(toy) is None
        with ds.dispose_scope() as scope:
            scope.attach(toy)
            assert ds.owner_of(toy) is scope
        assert ds.owner_of(toy) is None
        assert ds.owner_of(Disposable()) is None


class Life(RuleBasedStateMachine):
    """Scopes are opened, misnested and closed, and resources live and die, as a model says.

    Resources are born, moved, detached, disposed and dropped.
    """

    @initialize()
    def start(self):
        self.context = contextvars.Context()
        self.context.run(ds.reset_statistics)
        gc.collect()
        ds.reset_statistics()
        self.base = ds.statistics().live
        self.scopes: list[ds.DisposeScope] = []
        self.left: list[ds.DisposeScope] = []
        self.toys: dict[int, Toy] = {}
        self.owner: dict[int, ds.DisposeScope | None] = {}
        self.disposed: set[int] = set()
        self.count = dict.fromkeys(
            (
                "created_in_scope",
                "created_unscoped",
                "disposed_in_scope",
                "disposed_unscoped",
                "attached",
                "detached",
                "moved",
            ),
            0,
        )
        self.next = 0

    def outer_of(self, scope):
        index = self.scopes.index(scope)
        return self.scopes[index - 1] if index else None

    def end(self, number):
        self.count["disposed_unscoped" if self.owner[number] is None else "disposed_in_scope"] += 1
        self.owner[number] = None

    def give(self, number, target):
        source = self.owner[number]
        if source is target:
            return
        self.owner[number] = target
        name = "moved" if source and target else "attached" if target else "detached"
        self.count[name] += 1

    @precondition(lambda self: len(self.scopes) < 6)
    @rule(name=st.none() | st.text(max_size=3))
    def open(self, name):
        scope = ds.dispose_scope(name)
        self.context.run(scope.__enter__)
        self.scopes.append(scope)

    @precondition(lambda self: self.scopes)
    @rule(data=st.data(), how=st.sampled_from(["exit", "close", "elsewhere"]))
    def shut(self, data, how):
        scope = data.draw(st.sampled_from(self.scopes[-1:] * 3 + self.scopes))
        if how == "exit":
            self.context.run(scope.__exit__, None, None, None)
        elif how == "close":
            self.context.run(scope.close)
        else:
            contextvars.Context().run(scope.close)
        self.scopes.remove(scope)
        self.left.append(scope)
        for number, owner in list(self.owner.items()):
            if owner is scope:
                self.end(number)
                self.disposed.add(number)

    @rule()
    def make(self):
        self.toys[self.next] = self.context.run(Toy, self.next)
        self.owner[self.next] = owner = self.scopes[-1] if self.scopes else None
        self.count["created_unscoped" if owner is None else "created_in_scope"] += 1
        self.next += 1

    def draw(self, data):
        numbers = data.draw(st.lists(st.sampled_from(sorted(self.toys)), max_size=4))
        shape = data.draw(
            st.sampled_from([list, tuple, lambda toys: {"a": list(toys)}, lambda toys: [[toy] for toy in toys]])
        )
        return list(dict.fromkeys(numbers)), shape([self.toys[number] for number in numbers])

    @precondition(lambda self: self.scopes and self.toys)
    @rule(data=st.data(), verb=st.sampled_from(["move_to_outer", "detach", "move_to", "attach"]))
    def hand_over(self, data, verb):
        numbers, tree = self.draw(data)
        scope = data.draw(st.sampled_from(self.scopes))
        if verb == "attach":
            if self.disposed & set(numbers):
                with pytest.raises(ds.DisposedError):
                    scope.attach(tree)
                return
            scope.attach(tree)
            for number in numbers:
                self.give(number, scope)
            return
        target = self.outer_of(scope) if verb == "move_to_outer" else None
        if verb == "move_to":
            target = data.draw(st.sampled_from(self.scopes))
            assert scope.move_to(target, tree) is tree
        else:
            assert getattr(scope, verb)(tree) is tree
        for number in numbers:
            if self.owner[number] is scope:
                self.give(number, target)

    @precondition(lambda self: self.toys)
    @rule(data=st.data())
    def dispose(self, data):
        numbers, tree = self.draw(data)
        ds.dispose(tree)
        del tree
        for number in numbers:
            if number not in self.disposed:
                self.end(number)
                self.disposed.add(number)

    @precondition(lambda self: self.scopes and self.toys)
    @rule(data=st.data())
    def dispose_everything_but(self, data):
        numbers, tree = self.draw(data)
        scope = data.draw(st.sampled_from(self.scopes))
        scope.dispose_everything_but(tree)
        for number, owner in list(self.owner.items()):
            if owner is scope and number not in numbers:
                self.end(number)
                self.disposed.add(number)

    @precondition(lambda self: self.toys)
    @rule(data=st.data())
    def drop(self, data):
        number = data.draw(st.sampled_from(sorted(self.toys)))
        del self.toys[number]
        if number not in self.disposed:
            self.end(number)
        self.disposed.discard(number)
        del self.owner[number]

    @precondition(lambda self: self.left and self.toys)
    @rule(data=st.data())
    def misuse_a_closed_scope(self, data):
        _, tree = self.draw(data)
        closed = data.draw(st.sampled_from(self.left))
        for verb in (closed.attach, closed.detach, closed.move_to_outer, closed.dispose_everything_but):
            with pytest.raises(ds.ScopeClosedError):
                verb(tree)
        for scope in self.scopes:
            with pytest.raises(ds.ScopeClosedError):
                scope.move_to(closed, tree)

    @invariant()
    def agrees_with_the_model(self):
        if not hasattr(self, "toys"):
            return
        now = ds.statistics()
        assert {name: getattr(now, name) for name in self.count} == self.count
        alive = {number for number in self.toys if number not in self.disposed}
        assert now.live - self.base == len(alive)
        for scope in self.scopes:
            mine = [self.toys[number] for number in alive if self.owner[number] is scope]
            assert sorted(map(id, scope.live)) == sorted(map(id, mine))
            assert len(scope) == len(mine)
            assert scope.nbytes == 8 * len(mine)
            assert scope.outer is self.outer_of(scope)
        for number, toy in self.toys.items():
            assert ds.owner_of(toy) is self.owner[number]
            assert ds.is_disposed(toy) is (number in self.disposed)
            assert toy.releases == (number in self.disposed)
        assert self.context.run(ds.current_scope) is (self.scopes[-1] if self.scopes else None)

    def teardown(self):
        for scope in getattr(self, "scopes", []):
            scope.close()
        assert tables_are_sound()


Life.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLife = Life.TestCase
