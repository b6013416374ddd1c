"""A Tensor's block belongs to the scopes of the Tensors that show it; only plain arrays escape."""

from __future__ import annotations

import contextvars
import pickle
import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import disposescope as ds
from disposescope.tensors.arena.extension import ARENA


def test_a_strict_scope_takes_no_tensor_from_before_it_for_an_escaped_array() -> None:
    base = ds.zeros((4,))
    view = base[:]
    with ds.dispose_scope(strict=True) as scope:
        scope.attach(view)
        assert scope.nbytes == 32
    assert ds.is_disposed(view)
    assert base.tolist() == [0, 0, 0, 0]


def test_a_scope_that_owns_nothing_has_no_bytes_whatever_inner_scopes_have_attached() -> None:
    base = ds.zeros((4,))
    view = base[:]
    with ds.dispose_scope() as outer:
        with ds.dispose_scope() as inner:
            inner.attach(view)
        assert outer.nbytes == 0
        assert outer.arena is not None
        assert outer.arena.live_nbytes == 0
        assert inner.arena is not None
        assert inner.arena.escapes == 0
    assert not base.disposed


def test_an_empty_tensor_has_no_bytes() -> None:
    with ds.dispose_scope(strict=True) as scope:
        before = ds.statistics().live_nbytes
        tensors = [ds.zeros((2, 0, 5)), ds.empty(0, dtype="u1"), ds.zeros((3, 0)).T]
        assert (scope.nbytes, ds.statistics().live_nbytes - before) == (0, 0)
        tensors.append(ds.full(1, 3, dtype="u1"))
        assert (scope.nbytes, ds.statistics().live_nbytes - before) == (1, 1)
        # An empty view of memory pins all of it.
        tensors.append(ds.zeros(10)[:0])
        assert (scope.nbytes, ds.statistics().live_nbytes - before) == (81, 81)
        del tensors
        assert scope.nbytes == 0


def test_a_view_that_outlives_its_base_without_an_owner_keeps_the_memory_from_escaping() -> None:
    with ds.dispose_scope("outer") as outer:
        with ds.dispose_scope("scope", strict=True) as scope:
            base = ds.ones(5)
            view = scope.detach(base[:2])
            assert scope.nbytes == 40
        assert base.disposed
        assert outer.nbytes == 0
        assert ds.owner_of(view) is None
    assert view.tolist() == [1, 1]


def test_a_view_that_a_thread_without_a_scope_makes_keeps_the_memory_from_escaping() -> None:
    made: list[ds.Tensor] = []
    with ds.dispose_scope(strict=True):
        base = ds.ones(5)
        thread = threading.Thread(target=lambda: made.append(base[:2]))
        thread.start()
        thread.join()
    assert base.disposed
    assert made[0].tolist() == [1, 1]


def test_memory_that_tensors_of_several_scopes_show_counts_in_each_of_them_once() -> None:
    with ds.dispose_scope() as outer:
        with ds.dispose_scope(strict=True) as middle:
            base = ds.zeros(10)
            with ds.dispose_scope(strict=True) as inner:
                first, second = base[1:], base[2:]
                assert [scope.nbytes for scope in (outer, middle, inner)] == [0, 80, 80]
                middle.attach(first)
                outer.attach(second)
                assert [scope.nbytes for scope in (outer, middle, inner)] == [80, 80, 0]
                base.dispose()
                first.dispose()
                assert [scope.nbytes for scope in (outer, middle, inner)] == [80, 0, 0]
        assert outer.nbytes == 80
    assert second.disposed


def test_a_tensor_of_an_array_leaves_the_array_where_it_is() -> None:
    outside = ds.asarray(np.zeros(3))
    with ds.dispose_scope() as outer:
        array = np.zeros(4)
        unowned = outer.detach(ds.asarray(array))
        with ds.dispose_scope(strict=True) as inner:
            inner.attach([unowned, outside])
            tensor = ds.asarray(array)
            assert inner.nbytes == 32 + 24
            assert tensor in inner
        assert unowned.disposed
        assert array in outer
        assert outer.nbytes == 32
        with ds.dispose_scope(strict=True) as other:
            other.attach(ds.asarray(array))
        assert outer.nbytes == 32


def test_an_array_does_not_escape_while_a_tensor_shows_it_and_does_afterwards() -> None:
    with pytest.raises(ds.EscapedError, match="1 array with 32 bytes") as caught:
        with ds.dispose_scope(strict=True) as outer:
            with ds.dispose_scope(strict=True) as inner:
                array = np.zeros(4)
                tensor = inner.move_to_outer(ds.asarray(array))
            assert ds.owner_of(array) is outer
            assert outer.nbytes == 32
    assert tensor.disposed
    assert "test_memory_of_tensors.py" in caught.value.sites[0]
    del caught


def test_an_exported_alias_escapes_with_the_last_tensor() -> None:
    with pytest.raises(ds.EscapedError, match="1 array with 40 bytes"):
        with ds.dispose_scope(strict=True):
            alias = ds.ones(5).numpy()
    with pytest.raises(ds.EscapedError, match="1 array with 40 bytes"):
        with ds.dispose_scope(strict=True) as outer:
            with ds.dispose_scope(strict=True) as inner:
                tensor = ds.ones(5)
                alias = tensor.numpy()
                inner.move_to_outer(tensor)
            assert ds.owner_of(alias) is outer
    assert alias.tolist() == [1] * 5


def test_a_budget_counts_no_memory_of_others() -> None:
    base = ds.zeros(1000)
    with ds.dispose_scope(budget=10_000) as scope:
        with ds.dispose_scope() as inner:
            inner.attach(base[:])
        assert scope.arena is not None
        assert scope.arena.charged_nbytes == 0
        ds.zeros(1200)
        for _ in range(5):
            # What is moved out, and what only others hold, is counted no more.
            ds.move_to_outer(ds.zeros((60, 10)).reshape(600))
        with ds.dispose_scope(strict=True):
            base += 1
        ds.zeros(1200)


def test_a_compact_copy_that_an_inner_scope_was_current_for_belongs_to_the_tensor() -> None:
    with ds.dispose_scope() as outer:
        with ds.dispose_scope() as scope:
            row = ds.arange(1000)[:3]
            with ds.dispose_scope(strict=True):
                scope.move_to_outer(row, compact=True)
        assert outer.nbytes == 24
    assert row.disposed


def test_pickled_and_packed_tensors_are_counted_by_who_owns_them() -> None:
    with ds.dispose_scope() as outer:
        with ds.dispose_scope(strict=True) as inner:
            loaded: ds.Tensor = pickle.loads(pickle.dumps(ds.arange(10)))
            packed = ds.pack_sequence([ds.zeros(3), ds.zeros(2)], enforce_sorted=False)
            nbytes = inner.nbytes - 80
            inner.move_to_outer([loaded, packed])
            assert inner.nbytes == 0
            assert outer.nbytes == 80 + nbytes
            data = packed.data[:2]
            outer.detach(packed)
            assert outer.nbytes == 80
        assert data.disposed
        assert outer.nbytes == 80
        with ds.dispose_scope(strict=True) as inner:
            inner.attach(packed)
            assert inner.nbytes == nbytes
        assert ds.is_disposed(packed)
        assert outer.nbytes == 80


class Block:
    """What the model knows of memory: its bytes, the scope charged, whether the arena serves it."""

    def __init__(self, nbytes: int, home: ds.DisposeScope | None, served: bool = True) -> None:
        self.nbytes = nbytes
        self.home = home
        self.served = served


class Memory(RuleBasedStateMachine):
    """Tensors, views and arrays live and die as a model says.

    They are born, moved, attached, detached, exported, disposed and dropped.

    Memory goes with a Tensor that alone refers to it. What others refer to as well stays in the
    scope it was in until that is closed; then it goes to the oldest live Tensor that shows it, and
    if none does it escapes outwards.
    """

    def __init__(self) -> None:
        super().__init__()
        self.context = contextvars.Context()
        self.scopes: list[ds.DisposeScope] = []
        self.tensors: dict[int, ds.Tensor] = {}
        self.arrays: dict[int, Any] = {}
        self.block: dict[int, Block] = {}
        self.owner: dict[int, ds.DisposeScope | None] = {}
        self.is_export: dict[int, bool] = {}
        self.next = 0

    # ------------------------------------------------------------ the model

    def current(self) -> ds.DisposeScope | None:
        return self.scopes[-1] if self.scopes else None

    def outer_of(self, scope: ds.DisposeScope) -> ds.DisposeScope | None:
        index = self.scopes.index(scope)
        return self.scopes[index - 1] if index else None

    def showing(self, block: Block) -> list[int]:
        return [number for number in self.tensors if self.block[number] is block]

    def holding(self, block: Block) -> list[int]:
        return [number for number in self.arrays if self.block[number] is block]

    def blocks(self) -> set[Block]:
        return {self.block[number] for number in (*self.tensors, *self.arrays)}

    def add_tensor(self, tensor: ds.Tensor, block: Block) -> None:
        self.next += 1
        self.tensors[self.next], self.block[self.next], self.owner[self.next] = tensor, block, self.current()

    def add_array(self, array: Any, block: Block) -> None:
        self.next += 1
        self.arrays[self.next], self.block[self.next] = array, block

    def follow(self, number: int, source: ds.DisposeScope | None, target: ds.DisposeScope | None) -> None:
        block = self.block[number]
        if block.served and block.home is source and self.showing(block) == [number] and not self.holding(block):
            block.home = target

    # ------------------------------------------------------------ scopes

    @precondition(lambda self: len(self.scopes) < 4)
    @rule(strict=st.booleans(), arena=st.sampled_from([True, True, False]), limited=st.booleans())
    def enter(self, strict: bool, arena: bool, limited: bool) -> None:
        budget = "1 GiB" if arena and limited else None
        scope = ds.dispose_scope(strict=strict, arena=arena, budget=budget)
        self.context.run(scope.__enter__)
        self.scopes.append(scope)

    @precondition(lambda self: self.scopes)
    @rule()
    def leave(self) -> None:
        scope, outer = self.scopes[-1], self.outer_of(self.scopes[-1])
        left = [number for number in self.tensors if self.owner[number] is scope]
        disposed = [self.tensors.pop(number) for number in left]
        escaped = []
        for block in self.blocks():
            if block.home is scope and block.served:
                showing = self.showing(block)
                block.home = self.owner[showing[0]] if showing else outer
                if not showing:
                    escaped.append(max(block.nbytes, 1))
        told = None
        try:
            self.context.run(scope.__exit__, None, None, None)
        except ds.EscapedError as error:
            told = error.count, error.nbytes
        self.scopes.pop()
        assert told == ((len(escaped), sum(escaped)) if escaped and scope.strict else None)
        assert all(tensor.disposed for tensor in disposed)
        if scope.arena is not None:
            assert (scope.arena.escapes, scope.arena.escaped_nbytes) == (len(escaped), sum(escaped))

    # ------------------------------------------------------------ births

    @rule(size=st.sampled_from([0, 1, 3, 70, 5000]))
    def make_tensor(self, size: int) -> None:
        self.add_tensor(self.context.run(ds.zeros, size, dtype="u1"), Block(size, self.current()))

    @rule(size=st.sampled_from([0, 1, 3, 70, 5000]))
    def make_array(self, size: int) -> None:
        scope = self.current()
        served = scope is not None and scope.arena is not None
        self.add_array(self.context.run(np.zeros, size, "u1"), Block(size, scope if served else None, served))

    @precondition(lambda self: self.tensors)
    @rule(data=st.data(), start=st.integers(0, 3))
    def view(self, data: st.DataObject, start: int) -> None:
        number = data.draw(st.sampled_from(list(self.tensors)))
        self.add_tensor(self.context.run(self.tensors[number].__getitem__, slice(start, None)), self.block[number])

    @precondition(lambda self: any(not self.is_export.get(number) for number in self.arrays))
    @rule(data=st.data(), start=st.integers(0, 3))
    def tensor_of_array(self, data: st.DataObject, start: int) -> None:
        number = data.draw(st.sampled_from([n for n in self.arrays if not self.is_export.get(n)]))
        self.add_tensor(self.context.run(ds.asarray, self.arrays[number][start:]), self.block[number])

    @precondition(lambda self: any(tensor.size for tensor in self.tensors.values()))
    @rule(data=st.data())
    def export(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from([n for n, tensor in self.tensors.items() if tensor.size]))
        self.add_array(self.context.run(self.tensors[number].numpy), self.block[number])
        self.is_export[self.next] = True

    @precondition(lambda self: self.tensors)
    @rule(data=st.data())
    def unpickle(self, data: st.DataObject) -> None:
        tensor = self.tensors[data.draw(st.sampled_from(list(self.tensors)))]
        loaded = self.context.run(pickle.loads, self.context.run(pickle.dumps, tensor))
        # NumPy leaves the elements in the bytes of the pickle where these are aligned.
        served: bool = ARENA.is_served(loaded.numpy())
        self.add_tensor(loaded, Block(tensor.nbytes, self.current() if served else None, served))

    # ------------------------------------------------------------ ends

    @precondition(lambda self: self.tensors)
    @rule(data=st.data(), disposes=st.booleans())
    def end_tensor(self, data: st.DataObject, disposes: bool) -> None:
        tensor = self.tensors.pop(data.draw(st.sampled_from(list(self.tensors))))
        if disposes:
            self.context.run(tensor.dispose)

    @precondition(lambda self: self.arrays)
    @rule(data=st.data())
    def drop_array(self, data: st.DataObject) -> None:
        del self.arrays[data.draw(st.sampled_from(list(self.arrays)))]

    # ------------------------------------------------------------ verbs

    @precondition(lambda self: self.tensors and self.scopes)
    @rule(data=st.data(), verb=st.sampled_from(["outer", "compact", "to", "detach", "attach"]))
    def move_tensor(self, data: st.DataObject, verb: str) -> None:
        number = data.draw(st.sampled_from(list(self.tensors)))
        tensor, source = self.tensors[number], self.owner[number]
        target: ds.DisposeScope | None
        if verb == "attach":
            target = data.draw(st.sampled_from(self.scopes))
            self.context.run(target.attach, tensor)
            if source is target:
                return
        elif source is None:
            return
        elif verb == "detach":
            target = None
            self.context.run(source.detach, tensor)
        elif verb == "to":
            target = data.draw(st.sampled_from(self.scopes))
            self.context.run(source.move_to, target, tensor)
            if source is target:
                return
        else:
            target = self.outer_of(source)
            self.context.run(lambda: source.move_to_outer(tensor, compact=verb == "compact"))
            if verb == "compact" and tensor.nbytes < self.block[number].nbytes:
                self.block[number] = Block(tensor.nbytes, self.current())
        self.owner[number] = target
        self.follow(number, source, target)

    @precondition(lambda self: self.arrays and self.scopes)
    @rule(data=st.data(), verb=st.sampled_from(["outer", "detach", "attach"]))
    def move_array(self, data: st.DataObject, verb: str) -> None:
        number = data.draw(st.sampled_from(list(self.arrays)))
        block = self.block[number]
        target = data.draw(st.sampled_from(self.scopes))
        if not block.served:
            return
        if verb == "attach":
            self.context.run(target.attach, self.arrays[number])
            block.home = target
        elif block.home is not None:
            source = block.home
            self.context.run(source.detach if verb == "detach" else source.move_to_outer, self.arrays[number])
            block.home = None if verb == "detach" else self.outer_of(source)

    # ------------------------------------------------------------ what must hold

    @invariant()
    def bytes_are_those_of_what_is_owned(self) -> None:
        charged: Counter[ds.DisposeScope | None] = Counter()
        plain: Counter[ds.DisposeScope | None] = Counter()
        for block in self.blocks():
            if block.served:
                charged[block.home] += max(block.nbytes, 1)
                if not self.showing(block):
                    plain[block.home] += max(block.nbytes, 1)
        for depth, scope in enumerate(self.scopes):
            owned = {self.block[number] for number in self.tensors if self.owner[number] is scope}
            assert scope.nbytes == sum(block.nbytes for block in owned) + plain[scope]
            if scope.arena is not None:
                assert scope.arena.live_nbytes == charged[scope]
                if scope.budget is not None:
                    assert scope.arena.charged_nbytes == sum(charged[inner] for inner in self.scopes[depth:])

    @invariant()
    def everything_has_the_owner_that_it_should_have(self) -> None:
        for number, tensor in self.tensors.items():
            assert not tensor.disposed
            assert ds.owner_of(tensor) is self.owner[number]
        for number, array in self.arrays.items():
            assert ds.owner_of(array) is self.block[number].home

    def teardown(self) -> None:
        while self.scopes:
            self.leave()
        self.tensors.clear()
        self.arrays.clear()


TestMemory = Memory.TestCase
TestMemory.settings = settings(max_examples=100, stateful_step_count=40)
