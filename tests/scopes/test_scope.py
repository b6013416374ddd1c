"""Promises of `DisposeScope`: opening, closing, the verbs, failures, misnesting, threads."""

from __future__ import annotations

import contextvars
import copy
import gc
import pickle
import threading
import traceback
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest

import disposescope as ds
from tests.scopes.toys import (
    RELEASED,
    Bundle,
    Disposable,
    Faulty,
    Packed,
    Pair,
    Toy,
    Unknown,
    counts,
    fails,
    no_cyclic_garbage,
    owned_by,
)


class TestLeaving:
    def test_disposes_what_was_born_in_it_whoever_still_holds_it(self):
        with ds.dispose_scope() as scope:
            toy = Toy(1)
            assert owned_by(scope, toy)
        assert toy.value is None
        assert toy.releases == 1
        assert ds.is_disposed(toy)

    def test_releases_the_newest_first(self):
        RELEASED.clear()
        with ds.dispose_scope():
            _kept = [Toy(value) for value in range(5)]
        assert RELEASED == [4, 3, 2, 1, 0]

    def test_a_temporary_dies_by_reference_count_inside(self):
        with ds.dispose_scope() as scope:
            gone = weakref.ref(Toy())
            assert gone() is None
            assert len(scope) == 0

    def test_what_was_born_outside_is_left_alone(self):
        before = Toy(1)
        with ds.dispose_scope() as scope:
            assert before not in scope
            assert ds.owner_of(before) is None
        assert before.value == 1

    def test_nested_scopes_each_dispose_their_own(self):
        with ds.dispose_scope() as outer:
            first = Toy(1)
            with ds.dispose_scope() as inner:
                second = Toy(2)
                assert inner.outer is outer
                assert owned_by(inner, second)
            third = Toy(3)
            assert (first.value, second.value, third.value) == (1, None, 3)
            assert owned_by(outer, first, third)
        assert (first.value, third.value) == (None, None)

    def test_a_body_exception_passes_and_everything_is_disposed_while_its_traceback_holds_frames(self):
        toys_made = []
        error = ValueError("mine")
        with pytest.raises(ValueError, match="mine") as caught:
            with ds.dispose_scope():
                local = Toy(1)
                toys_made.append(local)
                raise error
        assert caught.value is error
        assert error.__traceback__ is not None
        assert error.__context__ is None
        assert not getattr(error, "__notes__", [])
        assert local.value is None

    def test_return_break_and_continue_leave_it(self):
        def returns():
            with ds.dispose_scope():
                return Toy(1)

        assert returns().value is None
        made = []
        for index in range(3):
            with ds.dispose_scope():
                made.append(Toy(index))
                if index == 1:
                    break
                continue
        assert [toy.value for toy in made] == [None, None]
        assert ds.current_scope() is None

    def test_base_exceptions_pass_too(self):
        for error in (KeyboardInterrupt, SystemExit, GeneratorExit):
            with pytest.raises(error):
                with ds.dispose_scope():
                    toy = Toy(1)
                    raise error
            assert toy.value is None
        assert ds.current_scope() is None

    @pytest.mark.long
    def test_five_thousand_nested_scopes(self):
        with ExitStack() as stack:
            scopes = []
            kept = []
            for index in range(5_000):
                scopes.append(stack.enter_context(ds.dispose_scope()))
                kept.append(Toy(index))
            assert all(len(scope) == 1 for scope in scopes)
            assert ds.current_scope() is scopes[-1]
            assert scopes[-1].move_to_outer(kept[-1]) in scopes[-2]
        assert {toy.value for toy in kept} == {None}
        assert all(scope.closed for scope in scopes)
        assert ds.current_scope() is None

    def test_outer_of_the_innermost_of_five_thousand_skips_all_that_are_closed(self):
        with ExitStack() as stack:
            scopes = [stack.enter_context(ds.dispose_scope()) for _ in range(5_000)]
            for scope in scopes[1:-1]:
                scope.close()
            assert scopes[-1].outer is scopes[0]

    def test_leaves_no_cyclic_garbage(self):
        with no_cyclic_garbage():
            with ds.dispose_scope("outer"):
                with ds.dispose_scope("inner") as inner:
                    toy = Toy(1)
                    inner.move_to_outer({"a": [toy, Toy(2)]})
                    pair = inner.attach(Pair(Toy(3), Toy(4)))
                    inner.detach(pair)
            try:
                with ds.dispose_scope():
                    Toy(1)
                    raise ValueError
            except ValueError:
                pass
            for verb in ("move_to_outer", "attach", "detach", "dispose_everything_but"):
                with ds.dispose_scope("s", strict=True) as scope:
                    with suppress(ds.UnknownKindError):
                        getattr(scope, verb)(Unknown(Toy(5), inner))
            del toy, pair, scope, inner


class TestFailures:
    def test_all_others_are_released_and_the_scope_leaves_the_stack(self):
        first, second = ValueError("first"), OSError("second")
        with pytest.raises(ExceptionGroup) as caught:
            with ds.dispose_scope("loading") as scope:
                a = Toy(1)
                b = fails(first)
                c = Toy(2)
                d = fails(second)
                e = Toy(3)
        assert list(caught.value.exceptions) == [second, first]
        assert "loading" in str(caught.value)
        assert (a.value, c.value, e.value) == (None, None, None)
        assert (b.releases, d.releases) == (1, 1)
        assert scope.closed
        assert len(scope) == 0
        assert ds.current_scope() is None
        assert counts() == {"created_in_scope": 5, "disposed_in_scope": 3, "detached": 2, "live": 2}

    def test_they_join_the_context_of_the_exception_in_flight(self):
        error, failure = ValueError("body"), OSError("release")
        with pytest.raises(ValueError, match="body") as caught:
            with ds.dispose_scope():
                _faulty = fails(failure)
                raise error
        assert caught.value is error
        group = error.__context__
        assert isinstance(group, ExceptionGroup)
        assert list(group.exceptions) == [failure]
        shown = "".join(traceback.format_exception(error))
        assert "body" in shown
        assert "release" in shown

    def test_they_join_the_end_of_a_chain_that_is_there(self):
        with pytest.raises(ValueError, match="second") as caught:
            with ds.dispose_scope():
                _faulty = fails(OSError("release"))
                try:
                    raise KeyError("first")
                except KeyError:
                    raise ValueError("second")  # noqa: B904  # the context is what is tested
        assert isinstance(caught.value.__context__, KeyError)
        assert isinstance(caught.value.__context__.__context__, ExceptionGroup)

    def test_a_keyboard_interrupt_in_a_release_lets_the_others_be_released(self):
        with pytest.raises(KeyboardInterrupt):
            with ds.dispose_scope():
                a = Toy(1)
                _b = fails(KeyboardInterrupt())
                c = Toy(2)
        assert (a.value, c.value) == (None, None)

    def test_nested_scopes_that_both_fail_lose_neither(self):
        with pytest.raises(ExceptionGroup) as caught:
            with ds.dispose_scope("outer"):
                _a = fails(ValueError("a"))
                with ds.dispose_scope("inner"):
                    _b = fails(ValueError("b"))
        assert "inner" in str(caught.value)
        context = caught.value.__context__
        assert isinstance(context, ExceptionGroup)
        assert "outer" in str(context)

    def test_a_second_close_does_not_raise_again(self):
        with ds.dispose_scope() as scope:
            faulty = fails(ValueError("x"))
            with pytest.raises(ExceptionGroup):
                scope.close()
            scope.close()
        assert faulty.releases == 1

    def test_they_leave_no_cycle_behind(self):
        def goes_wrong(in_flight):
            with ds.dispose_scope():
                _a, _b = Faulty(lambda: int("a")), Faulty(lambda: int("b"))
                if in_flight:
                    raise KeyError("c")

        with no_cyclic_garbage():
            for in_flight in (False, True):
                with suppress(KeyError, ExceptionGroup):
                    goes_wrong(in_flight)

    def test_in_dispose_everything_and_its_like_are_raised_after_all_were_released(self):
        for verb in (lambda s: s.dispose_everything(), lambda s: s.dispose_everything_but(None), lambda s: s.close()):
            with ds.dispose_scope() as scope:
                a, b, c = Toy(1), fails(ValueError("x")), Toy(2)
                with pytest.raises(ExceptionGroup):
                    verb(scope)
                assert (a.value, b.releases, c.value) == (None, 1, None)
                assert len(scope) == 0

    def test_of_a_member_reaches_the_group_and_the_other_members_are_released(self):
        with pytest.raises(ExceptionGroup) as caught:
            with ds.dispose_scope() as scope:
                a, b, c = Toy(1), fails(ValueError("b")), fails(ValueError("c"))
                _pair = scope.attach(Pair(a, b, c))
        assert caught.value.subgroup(lambda error: str(error) == "b") is not None
        assert caught.value.subgroup(lambda error: str(error) == "c") is not None
        assert a.value is None

    def test_a_release_may_dispose_and_create_others(self):
        made = []

        def on_release():
            ds.dispose(victim)
            made.append(Toy(9))

        with ds.dispose_scope() as outer:
            with ds.dispose_scope():
                victim = Toy(1)
                _faulty = Faulty(on_release)
            assert victim.releases == 1
            assert owned_by(outer, *made)

    def test_dispose_everything_ends_when_a_release_creates_another_of_its_kind(self):
        made = []

        def on_release():
            made.append(Faulty(on_release if len(made) < 50 else lambda: None))

        with ds.dispose_scope() as scope:
            made.append(Faulty(on_release))
            scope.dispose_everything()
            assert len(made) == 2
            assert owned_by(scope, made[1])

    def test_an_exception_in_flight_that_is_the_failure_itself_makes_no_endless_chain(self):
        error = ValueError("same")
        with pytest.raises(ValueError, match="same") as caught:
            with ds.dispose_scope():
                _faulty = fails(error)
                raise error
        assert "same" in "".join(traceback.format_exception(caught.value))


class TestUse:
    def test_entering_twice_is_refused_and_names_the_scope(self):
        scope = ds.dispose_scope("mine")
        with scope:
            with pytest.raises(ds.ScopeNestingError, match=r"'mine'.*still open"):
                scope.__enter__()
            toy = Toy(1)
            assert toy in scope
        with pytest.raises(ds.ScopeNestingError, match=r"'mine'.*closed"):
            scope.__enter__()
        assert ds.current_scope() is None

    def test_closing_before_entering_means_it_cannot_be_entered(self):
        scope = ds.dispose_scope()
        scope.close()
        assert scope.closed
        with pytest.raises(ds.ScopeNestingError):
            scope.__enter__()

    def test_leaving_what_was_never_entered_is_refused(self):
        with pytest.raises(ds.ScopeNestingError):
            ds.dispose_scope().__exit__(None, None, None)

    def test_close_is_idempotent_and_births_go_to_the_outer_scope_from_then_on(self):
        with ds.dispose_scope() as outer:
            with ds.dispose_scope() as inner:
                first = Toy(1)
                inner.close()
                inner.close()
                second = Toy(2)
                assert first.value is None
                assert owned_by(outer, second)
                assert ds.current_scope() is outer
            assert second.value == 2
        assert second.value is None

    def test_every_verb_on_a_closed_scope_is_refused_and_changes_nothing(self):
        with ds.dispose_scope("gone") as closed:
            pass
        with ds.dispose_scope() as scope:
            toy = Toy(1)
            before = counts()
            for verb in (
                lambda: closed.move_to_outer(toy),
                lambda: closed.move_to(scope, toy),
                lambda: scope.move_to(closed, toy),
                lambda: closed.attach(toy),
                lambda: closed.detach(toy),
                lambda: closed.dispose_everything(),
                lambda: closed.dispose_everything_but(toy),
                lambda: closed.live,
                lambda: closed.nbytes,
            ):
                with pytest.raises(ds.ScopeClosedError, match="'gone'") as caught:
                    verb()
                assert "gone" in caught.value.scope
            assert owned_by(scope, toy)
            assert counts() == before
        closed.close()
        assert closed.closed
        assert toy not in closed
        assert len(closed) == 0
        assert "closed" in repr(closed)
        assert closed.name == "gone"

    def test_every_verb_on_an_unopened_scope_is_refused(self):
        unopened = ds.dispose_scope("later")
        with ds.dispose_scope() as scope:
            toy = Toy(1)
            for verb in (
                lambda: unopened.move_to_outer(toy),
                lambda: unopened.attach(toy),
                lambda: unopened.detach(toy),
                lambda: scope.move_to(unopened, toy),
                lambda: unopened.dispose_everything(),
                lambda: unopened.dispose_everything_but(toy),
            ):
                with pytest.raises(ds.ScopeNestingError, match="later"):
                    verb()
            assert owned_by(scope, toy)
        assert unopened.outer is None
        assert not unopened.closed

    def test_repr_shows_state_name_count_and_bytes(self):
        scope = ds.dispose_scope("step")
        assert repr(scope) == "<DisposeScope 'step' unopened>"
        with scope:
            _toys = [Toy(nbytes=100), Toy(nbytes=20)]
            assert repr(scope) == "<DisposeScope 'step' open, owns 2, 120 bytes>"
        assert repr(scope) == "<DisposeScope 'step' closed>"
        assert repr(ds.dispose_scope()) == "<DisposeScope unopened>"

    def test_an_empty_scope_is_still_true(self):
        with ds.dispose_scope() as scope:
            assert scope

    def test_names_are_strings(self):
        class Name(str):
            __slots__ = ()

        assert ds.dispose_scope(Name("x")).name == "x"
        with pytest.raises(TypeError, match="name"):
            ds.dispose_scope(3)
        with pytest.raises(TypeError, match="parentheses"):

            @ds.dispose_scope
            def function() -> None: ...

    def test_can_not_be_pickled_or_copied_once_it_was_entered(self):
        with ds.dispose_scope() as scope:
            for how in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match="scope"):
                    how(scope)
        with pytest.raises(TypeError, match="scope"):
            copy.copy(scope)

    def test_one_that_was_not_entered_is_pickled_as_its_name_and_options(self):
        # So that what sends functions to other processes by value can send a decorated one.
        options = {"strict": True, "graph": "detach", "budget": "1 MiB", "escapes": "raise"}
        scope = ds.dispose_scope("task", **options)
        for how in (lambda scope: pickle.loads(pickle.dumps(scope)), copy.copy, copy.deepcopy):
            again = how(scope)
            assert again is not scope
            for name in ("name", *options):
                assert getattr(again, name) == getattr(scope, name)
            with again:
                x = ds.zeros(3)
            assert ds.is_disposed(x)
        with pytest.raises(ds.ScopeNestingError):
            len(scope.live)

    def test_a_scope_that_its_name_refers_to_can_be_collected(self):
        def alive() -> int:
            gc.collect()
            return sum(isinstance(known, ds.DisposeScope) for known in gc.get_objects())

        before = alive()
        scope = ds.dispose_scope()
        scope.name = (scope,)
        del scope
        assert alive() == before

    def test_can_be_weakly_referenced_and_dies_when_forgotten(self):
        scope = ds.dispose_scope()
        gone = weakref.ref(scope)
        with scope:
            pass
        del scope
        assert gone() is None

    def test_an_exit_stack_leaves_scopes_in_order(self):
        with ExitStack() as stack:
            outer = stack.enter_context(ds.dispose_scope("outer"))
            a = Toy(1)
            inner = stack.enter_context(ds.dispose_scope("inner"))
            b = Toy(2)
            assert inner.outer is outer
            taken = stack.pop_all()
        assert ds.current_scope() is inner
        taken.close()
        assert (a.value, b.value) == (None, None)
        assert ds.current_scope() is None


class TestMoveToOuter:
    def test_returns_its_argument_and_the_outer_scope_owns_it(self):
        with ds.dispose_scope() as outer:
            with ds.dispose_scope() as inner:
                toy, other = Toy(1), Toy(2)
                assert inner.move_to_outer(toy) is toy
                assert owned_by(inner, other)
                assert owned_by(outer, toy)
            assert (toy.value, other.value) == (1, None)
        assert toy.value is None

    def test_with_no_outer_scope_it_becomes_unowned(self):
        with ds.dispose_scope() as scope:
            toy = scope.move_to_outer(Toy(1))
            assert ds.owner_of(toy) is None
        assert toy.value == 1
        assert counts() == {"created_in_scope": 1, "detached": 1, "live": 1}

    def test_is_relative_to_the_scope_never_to_the_resources_owner(self):
        with ds.dispose_scope() as first, ds.dispose_scope() as second, ds.dispose_scope() as third:
            toy = third.move_to_outer(Toy(1))
            assert toy in second
            assert third.move_to_outer(toy) is toy
            assert toy in second
            assert first.move_to_outer(toy) is toy
            assert toy in second

    def test_step_by_step_through_every_level(self):
        with ExitStack() as stack:
            scopes = [stack.enter_context(ds.dispose_scope(str(level))) for level in range(10)]
            toy = Toy(1)
            for level in range(9, 0, -1):
                assert toy in scopes[level]
                scopes[level].move_to_outer(toy)
                assert toy in scopes[level - 1]
            assert counts() == {"created_in_scope": 1, "moved": 9, "live": 1}

    def test_the_same_resource_named_twice_moves_once(self):
        with ds.dispose_scope() as outer:
            with ds.dispose_scope() as inner:
                toy = Toy(1)
                inner.move_to_outer([toy, toy, {"x": toy}])
                assert counts()["moved"] == 1
            assert owned_by(outer, toy)

    def test_inputs_of_the_block_are_not_promoted(self):
        def identity(x):
            with ds.dispose_scope() as scope:
                return scope.move_to_outer(x)

        with ds.dispose_scope() as outer:
            with ds.dispose_scope() as caller:
                toy = Toy(1)
                assert identity(toy) is toy
                assert owned_by(caller, toy)
                assert len(outer) == 0

    def test_none_numbers_and_the_disposed_change_nothing(self):
        with ds.dispose_scope() as scope:
            toy = Toy(1)
            ds.dispose(toy)
            before = counts()
            for tree in (None, 3, "text", toy, [None, toy], ()):
                assert scope.move_to_outer(tree) is tree
            assert counts() == before

    def test_a_tree_that_is_refused_moves_nothing(self):
        with ds.dispose_scope() as outer, ds.dispose_scope() as inner:
            first, second, hidden = Toy(1), Toy(2), Toy(3)
            with pytest.raises(ds.UnknownKindError, match="Unknown") as caught:
                inner.move_to_outer({"a": first, "b": [Unknown(hidden)], "c": second})
            assert isinstance(caught.value, TypeError)
            assert "register_kind" in str(caught.value)
            assert caught.value.type_name.endswith("Unknown")
            assert "['b'][0]" in caught.value.path
            assert owned_by(inner, first, second, hidden)
            assert len(outer) == 0


class TestMoveTo:
    def test_any_open_scope_can_be_the_target(self):
        with ds.dispose_scope() as first, ds.dispose_scope(), ds.dispose_scope() as third:
            toy = Toy(1)
            assert third.move_to(first, toy) is toy
            assert owned_by(first, toy)
            assert first.move_to(third, toy) in third

    def test_itself_changes_nothing(self):
        with ds.dispose_scope() as scope:
            toy = Toy(1)
            assert scope.move_to(scope, toy) is toy
            assert owned_by(scope, toy)
            assert counts() == {"created_in_scope": 1, "live": 1}

    def test_what_is_no_scope_is_refused(self):
        with ds.dispose_scope() as scope:
            toy = Toy(1)
            with pytest.raises(TypeError, match="DisposeScope"):
                scope.move_to(toy, scope)
            with pytest.raises(TypeError, match="NoneType"):
                scope.move_to(None, toy)
            assert owned_by(scope, toy)


class TestAttachAndDetach:
    def test_detached_survives_and_attached_dies_with_the_scope(self):
        with ds.dispose_scope() as scope:
            toy = Toy(1)
            assert scope.detach(toy) is toy
            assert toy not in scope
            assert ds.owner_of(toy) is None
        assert toy.value == 1
        with ds.dispose_scope() as scope:
            assert scope.attach(toy) is toy
            assert owned_by(scope, toy)
        assert toy.value is None
        assert counts() == {"created_in_scope": 1, "detached": 1, "attached": 1, "disposed_in_scope": 1}

    def test_attaching_what_another_scope_owns_counts_as_moved(self):
        with ds.dispose_scope() as outer:
            toy = Toy(1)
            with ds.dispose_scope() as inner:
                inner.attach(toy)
                assert owned_by(inner, toy)
                assert len(outer) == 0
            assert toy.value is None
        assert counts() == {"created_in_scope": 1, "moved": 1, "disposed_in_scope": 1}

    def test_attaching_what_is_owned_already_changes_nothing(self):
        with ds.dispose_scope() as scope:
            toy = Toy(1)
            scope.attach([toy, toy])
            assert owned_by(scope, toy)
            assert counts() == {"created_in_scope": 1, "live": 1}

    def test_detach_leaves_foreign_and_unowned_things_alone(self):
        unowned = Toy(0)
        with ds.dispose_scope() as outer:
            toy = Toy(1)
            with ds.dispose_scope() as inner:
                inner.detach([toy, unowned])
                assert owned_by(outer, toy)
        assert "detached" not in counts()

    def test_attach_refuses_the_disposed_and_takes_nothing_else_of_the_tree(self):
        dead, alive = Toy(1), Toy(2)
        ds.dispose(dead)
        with ds.dispose_scope() as scope:
            with pytest.raises(ds.DisposedError, match="Toy"):
                scope.attach([alive, dead])
            assert len(scope) == 0
            assert ds.owner_of(alive) is None

    def test_a_users_object_with_dispose_is_a_resource(self):
        with ds.dispose_scope() as scope:
            thing = Disposable()
            assert thing not in scope
            scope.attach({"thing": thing})
            assert owned_by(scope, thing)
        assert thing.disposals == 1
        assert ds.is_disposed(thing)

    def test_move_a_tree_between_two_unrelated_scopes_and_back(self):
        first, second = ds.dispose_scope("first"), ds.dispose_scope("second")
        with first, second:
            tree = {"x": [Toy(1), (Toy(2),)]}
            second.move_to(first, tree)
            assert len(first) == 2
            first.move_to(second, tree)
            assert len(second) == 2


class TestDisposeEverything:
    def test_the_scope_stays_open(self):
        with ds.dispose_scope() as scope:
            first = Toy(1)
            scope.dispose_everything()
            assert first.value is None
            second = Toy(2)
            assert owned_by(scope, second)
        assert second.value is None

    def test_but_keeps_what_is_in_the_tree_and_owned_by_this_scope(self):
        unowned = Toy(0)
        with ds.dispose_scope() as outer:
            foreign = Toy(1)
            with ds.dispose_scope() as scope:
                kept, also, lost = Toy(2), Toy(3), Toy(4)
                tree = [kept, {"also": also}, foreign, unowned, None]
                assert scope.dispose_everything_but(tree) is tree
                assert owned_by(scope, kept, also)
                assert lost.value is None
                assert owned_by(outer, foreign)
                assert ds.owner_of(unowned) is None
                assert scope.dispose_everything_but(None) is None
                assert len(scope) == 0
            assert (foreign.value, unowned.value) == (1, 0)

    def test_but_a_tree_that_is_refused_disposes_nothing(self):
        with ds.dispose_scope() as scope:
            toy, hidden = Toy(1), Toy(2)
            with pytest.raises(ds.UnknownKindError):
                scope.dispose_everything_but([Unknown(hidden)])
            assert owned_by(scope, toy, hidden)

    def test_but_in_a_strict_scope_foreign_things_change_nothing_either(self):
        foreign = Toy(0)
        with ds.dispose_scope(strict=True) as scope:
            kept, lost = Toy(1), Toy(2)
            scope.dispose_everything_but([kept, foreign])
            assert owned_by(scope, kept)
            assert lost.value is None

    def test_in_the_middle_then_the_end_disposes_each_once(self):
        with ds.dispose_scope() as scope:
            toys_made = [Toy(index) for index in range(4)]
            ds.dispose(toys_made[1])
            scope.dispose_everything_but(toys_made[3])
        assert [toy.releases for toy in toys_made] == [1, 1, 1, 1]
        assert counts() == {"created_in_scope": 4, "disposed_in_scope": 4}


class TestStrict:
    def test_what_it_does_not_own_is_refused_with_the_owners_name(self):
        with ds.dispose_scope("outer") as outer:
            foreign = Toy(1)
            with ds.dispose_scope("inner", strict=True) as inner:
                own = Toy(2)
                for verb in (inner.move_to_outer, inner.detach, lambda tree: inner.move_to(outer, tree)):
                    with pytest.raises(ds.NotOwnedError, match="'outer'") as caught:
                        verb([own, foreign])
                    assert "Toy(1)" in caught.value.resource
                    assert "outer" in caught.value.owner
                    assert isinstance(caught.value, RuntimeError)
                assert owned_by(inner, own)
                assert owned_by(outer, foreign)

    def test_the_unowned_has_no_owner(self):
        unowned = Toy(1)
        with ds.dispose_scope(strict=True) as scope:
            with pytest.raises(ds.NotOwnedError, match="nobody"):
                scope.move_to_outer(unowned)

    def test_what_it_owns_and_leaves_pass(self):
        with ds.dispose_scope() as outer, ds.dispose_scope(strict=True) as inner:
            tree = {"a": Toy(1), "b": None, "c": "text"}
            assert inner.move_to_outer(tree) is tree
            assert tree["a"] in outer

    def test_a_member_is_refused_and_the_composite_named(self):
        with ds.dispose_scope(strict=True) as scope:
            member = Toy(1)
            pair = scope.attach(Pair(member))
            for verb in (scope.move_to_outer, scope.detach, scope.attach):
                with pytest.raises(ds.NotOwnedError, match="Pair"):
                    verb(member)
            assert owned_by(scope, pair)
            scope.move_to_outer(pair)
            assert ds.owner_of(member) is None


class TestInspection:
    def test_in_len_live_and_nbytes(self):
        with ds.dispose_scope() as scope:
            assert (len(scope), scope.live, scope.nbytes) == (0, (), 0)
            a, b = Toy(nbytes=10), Toy(nbytes=5)
            assert scope.live == (a, b)
            assert scope.nbytes == 15
            assert a in scope
            assert None not in scope
            assert 3 not in scope
            assert [] not in scope
            snapshot = scope.live
            del a
            assert len(scope) == 2
            del snapshot
            assert len(scope) == 1

    def test_in_asks_for_identity(self):
        class Equal:
            dispose = None

            def __eq__(self, other):
                raise AssertionError("compared")

            __hash__ = None

        with ds.dispose_scope() as scope:
            assert Equal() not in scope

    def test_attributes_are_read_only(self):
        with ds.dispose_scope() as scope:
            for name in ("closed", "outer", "live", "nbytes"):
                with pytest.raises(AttributeError):
                    setattr(scope, name, None)


class TestMisnesting:
    def test_outer_closed_before_inner_links_inner_to_outers_outer(self):
        with ds.dispose_scope("top") as top:
            outer, inner = ds.dispose_scope("outer"), ds.dispose_scope("inner")
            outer.__enter__()
            a = Toy(1)
            inner.__enter__()
            b = Toy(2)
            outer.__exit__(None, None, None)
            assert (a.value, b.value) == (None, 2)
            assert inner.outer is top
            assert ds.current_scope() is inner
            c = Toy(3)
            assert owned_by(inner, b, c)
            assert inner.move_to_outer(b) in top
            inner.__exit__(None, None, None)
            assert (b.value, c.value) == (2, None)
            assert ds.current_scope() is top
            outer.__exit__(None, None, None)
            assert ds.current_scope() is top
        assert [toy.releases for toy in (a, b, c)] == [1, 1, 1]

    def test_outer_closed_by_close_inside_inner(self):
        with ds.dispose_scope() as top:
            with ds.dispose_scope() as outer:
                a = Toy(1)
                with ds.dispose_scope() as inner:
                    b = Toy(2)
                    outer.close()
                    assert (a.value, b.value) == (None, 2)
                    assert inner.outer is top
                    assert ds.current_scope() is inner
                    inner.move_to_outer(b)
                d = Toy(4)
                assert owned_by(top, b, d)
            assert owned_by(top, b, d)

    def test_scopes_left_in_the_order_in_which_they_were_entered(self):
        scopes = [ds.dispose_scope(str(index)) for index in range(50)]
        made = []
        for scope in scopes:
            scope.__enter__()
            made.append(Toy(1))
        for index, scope in enumerate(scopes):
            scope.__exit__(None, None, None)
            assert made[index].value is None
            assert ds.current_scope() is (scopes[-1] if index < 49 else None)
        assert ds.current_scope() is None

    def test_left_in_another_thread(self):
        with ds.dispose_scope() as top:
            scope = ds.dispose_scope()
            scope.__enter__()
            toy = Toy(1)
            thread = threading.Thread(target=scope.__exit__, args=(None, None, None))
            thread.start()
            thread.join()
            assert toy.value is None
            assert ds.current_scope() is top
            assert Toy(2) not in scope
            with ds.dispose_scope() as inner:
                assert inner.outer is top
            assert ds.current_scope() is top
        assert ds.current_scope() is None
        contextvars_are_clean()

    def test_closed_by_another_thread_while_its_block_goes_on(self):
        with ds.dispose_scope() as outer:
            with ds.dispose_scope() as inner:
                a = Toy(1)
                thread = threading.Thread(target=inner.close)
                thread.start()
                thread.join()
                assert a.value is None
                b = Toy(2)
                assert owned_by(outer, b)
                with ds.dispose_scope() as third:
                    assert third.outer is outer
            assert ds.current_scope() is outer

    def test_entered_in_one_context_and_left_in_another(self):
        scope = ds.dispose_scope()
        context = contextvars.copy_context()
        context.run(scope.__enter__)
        assert ds.current_scope() is None
        toy = context.run(Toy, 1)
        assert toy in scope
        scope.__exit__(None, None, None)
        assert toy.value is None
        assert context.run(ds.current_scope) is None
        assert ds.owner_of(context.run(Toy, 2)) is None


def contextvars_are_clean():
    """Clear what a foreign exit left in the context variable: the next test has to start clean."""
    from disposescope.scopes.context import set_current

    set_current(None)


class TestThreads:
    def test_a_new_thread_starts_outside_every_scope(self):
        seen = []
        with ds.dispose_scope():
            thread = threading.Thread(target=lambda: seen.append((ds.current_scope(), ds.owner_of(Toy()))))
            thread.start()
            thread.join()
        assert seen == [(None, None)]

    def test_work_handed_over_with_copy_context_uses_the_same_scope(self):
        with ds.dispose_scope() as scope, ThreadPoolExecutor(4) as pool:
            jobs = [pool.submit(contextvars.copy_context().run, Toy, index) for index in range(100)]
            made = [job.result() for job in jobs]
            assert len(scope) == 100
        assert all(toy.releases == 1 for toy in made)


class TestComposites:
    def test_count_as_one_and_are_disposed_with_their_members(self):
        with ds.dispose_scope() as scope:
            a, b = Toy(1, nbytes=10), Toy(2, nbytes=20)
            packed = Packed(a, b)
            assert scope.live == (packed,)
            assert len(scope) == 1
            assert a in scope
            assert scope.nbytes == 30
            assert ds.owner_of(a) is scope
        assert (a.value, b.value) == (None, None)
        assert ds.is_disposed(packed)
        assert ds.is_disposed(a)
        assert [toy.releases for toy in (a, b)] == [1, 1]

    def test_move_as_one_also_when_a_member_is_named(self):
        with ds.dispose_scope() as outer, ds.dispose_scope() as inner:
            a, b = Toy(1), Toy(2)
            packed = inner.attach(Pair(a, b))
            assert inner.move_to_outer(a) is a
            assert owned_by(outer, packed)
            assert b in outer
            assert a in outer
            outer.detach(b)
            assert ds.owner_of(packed) is ds.owner_of(a) is None

    def test_disposing_a_member_disposes_the_composite(self):
        with ds.dispose_scope() as scope:
            a, b = Toy(1), Toy(2)
            packed = scope.attach(Pair(a, b))
            ds.dispose(a)
            assert (a.value, b.value) == (None, None)
            assert ds.is_disposed(packed)
            assert len(scope) == 0

    def test_dispose_everything_but_a_member_keeps_the_whole(self):
        with ds.dispose_scope() as scope:
            a, b, lost = Toy(1), Toy(2), Toy(3)
            packed = scope.attach(Pair(a, b))
            scope.dispose_everything_but(b)
            assert owned_by(scope, packed)
            assert (a.value, lost.value) == (1, None)

    def test_nested_composites_are_one_unit(self):
        with ds.dispose_scope() as outer, ds.dispose_scope() as inner:
            a, b, c = Toy(1, nbytes=1), Toy(2, nbytes=2), Toy(3, nbytes=4)
            nested = inner.attach(Pair(Pair(a, b), [c]))
            assert owned_by(inner, nested)
            assert inner.nbytes == 7
            inner.move_to_outer(a)
            assert owned_by(outer, nested)
            outer.dispose_everything()
            assert (a.value, b.value, c.value) == (None, None, None)

    def test_a_composite_of_composites_born_before_takes_them_over(self):
        with ds.dispose_scope() as scope:
            a, b = Toy(1), Toy(2)
            first, second = Packed(a), Packed(b)
            whole = Packed(first, second)
            assert owned_by(scope, whole)
        assert (a.value, b.value) == (None, None)
        assert ds.is_disposed(first)
        assert ds.is_disposed(second)

    def test_a_shared_member_stays_with_the_first(self):
        with ds.dispose_scope() as scope:
            shared, own = Toy(1), Toy(2)
            first = scope.attach(Pair(shared))
            second = scope.attach(Pair(shared, own))
            assert owned_by(scope, first, second)
            ds.dispose(second)
            assert (shared.value, own.value) == (1, None)
            ds.dispose(first)
            assert shared.releases == 1

    def test_members_on_two_devices_are_refused_and_nothing_changes(self):
        with ds.dispose_scope() as outer:
            a, b = Toy(1, device="cpu"), Toy(2, device="cuda:1")
            pair = Pair(a, b)
            with ds.dispose_scope() as inner:
                before = counts()
                with pytest.raises(ds.DeviceMismatchError, match=r"cpu:0.*cuda:1") as caught:
                    inner.attach([pair])
                assert caught.value.members == ("member0", "member1")
                assert caught.value.devices == ("cpu:0", "cuda:1")
                with pytest.raises(ds.DeviceMismatchError):
                    Packed(a, b)
                assert counts() == before
            assert owned_by(outer, a, b)
            assert ds.owner_of(pair) is None

    def test_two_spellings_of_one_device_are_no_mismatch(self):
        with ds.dispose_scope() as scope:
            scope.attach(Pair(Toy(1, device="cpu"), Toy(2, device="CPU:0")))

    def test_nested_composites_are_compared_by_the_devices_of_their_members(self):
        with ds.dispose_scope() as scope:
            inner, toy = Pair(Toy(1, device="cuda:1")), Toy(2, device="cuda:1")
            pair = scope.attach(Pair(inner, toy))
            assert owned_by(scope, pair)
            with pytest.raises(ds.DeviceMismatchError, match="cuda:1"):
                scope.attach(Pair(Pair(Toy(3, device="cuda:1")), Toy(4)))

    def test_a_composite_that_contains_itself_ends(self):
        with ds.dispose_scope() as scope:
            toy = Toy(1, device="cuda:0")
            pair = Pair()
            pair.members = (pair, [toy], pair)
            scope.attach(pair)
            assert owned_by(scope, pair)
            assert scope.nbytes == 8
        assert toy.releases == 1

    def test_thousands_of_composites_in_each_other(self):
        with ds.dispose_scope() as outer:
            with ds.dispose_scope() as scope:
                toy = Toy(1, device="cuda:0")
                pair = Pair(toy)
                for _ in range(5_000):
                    pair = Pair(pair)
                scope.attach(pair)
                assert len(scope) == 1
                assert scope.nbytes == 8
                assert ds.statistics().by_device["cuda:0"].live == 1
                scope.move_to_outer(toy)
            assert owned_by(outer, pair)
        assert toy.value is None

    def test_one_that_dies_leaves_its_surviving_member_to_its_owner(self):
        with ds.dispose_scope() as scope:
            a, b = Toy(1), Toy(2)
            packed = Packed(a, b)
            del packed, b
            assert owned_by(scope, a)
            assert a.value == 1
        assert a.value is None

    def test_a_nested_one_that_dies_leaves_its_members_with_the_outermost(self):
        with ds.dispose_scope() as scope:
            a = Toy(1)
            outermost = Pair(Pair(a), Toy(2))
            scope.attach(outermost)
            outermost.members = outermost.members[1:]
            assert a in scope
            assert len(scope) == 1
            ds.dispose(outermost)
            assert a.value is None
            assert a.releases == 1

    def test_a_whole_tree_that_dies_leaves_its_surviving_leaf_to_its_owner(self):
        with ds.dispose_scope() as scope:
            a = Toy(1)
            scope.attach(Pair(Pair(Pair(a)), Toy(2)))
            assert owned_by(scope, a)
        assert a.releases == 1

    def test_one_that_dies_while_its_scope_closes_loses_no_member(self):
        with ds.dispose_scope() as scope:
            a = Toy(1)
            holder = [scope.attach(Pair(a))]
            _faulty = Faulty(holder.clear)
        assert a.releases == 1
        assert ds.owner_of(a) is None

    def test_attach_takes_the_members_away_from_other_scopes(self):
        with ds.dispose_scope() as outer:
            a, b = Toy(1), Toy(2)
            with ds.dispose_scope() as inner:
                pair = inner.attach(Pair(a, b))
                assert owned_by(inner, pair)
                assert len(outer) == 0
            assert (a.value, b.value) == (None, None)

    def test_attach_of_a_composite_with_a_disposed_member_changes_nothing(self):
        with ds.dispose_scope() as outer:
            a, b = Toy(1), Toy(2)
            ds.dispose(b)
            with ds.dispose_scope() as inner:
                with pytest.raises(ds.DisposedError):
                    inner.attach(Pair(a, b))
                assert len(inner) == 0
            assert owned_by(outer, a)

    def test_one_that_cannot_be_weakly_referenced_is_held_until_it_is_disposed(self):
        with ds.dispose_scope() as scope:
            a, b = Toy(1), Toy(2)
            scope.attach(Bundle((a, b)))
            gc.collect()
            assert len(scope) == 1
            bundle = scope.live[0]
            assert a in scope
        assert (a.value, b.value) == (None, None)
        assert ds.is_disposed(bundle)
        ds.dispose(bundle)
        with ds.dispose_scope() as scope:
            with pytest.raises(ds.DisposedError):
                scope.attach(bundle)

    def test_one_that_cannot_be_weakly_referenced_can_be_detached_and_attached_again(self):
        with ds.dispose_scope() as scope:
            a, b = Toy(1), Toy(2)
            bundle = scope.attach(Bundle((a, b)))
            scope.detach(bundle)
            assert len(scope) == 0
            assert ds.owner_of(a) is None
        assert (a.value, b.value) == (1, 2)
        with ds.dispose_scope() as scope:
            scope.attach(bundle)
            assert len(scope) == 1
            assert a in scope
        assert (a.value, b.value) == (None, None)
        assert [toy.releases for toy in (a, b)] == [1, 1]

    def test_one_that_cannot_be_weakly_referenced_does_not_live_on_when_detached(self):
        with ds.dispose_scope() as scope:
            toy = Toy(1)
            gone = weakref.ref(toy)
            scope.detach(scope.attach(Bundle((toy,))))
            del toy
            assert gone() is None
