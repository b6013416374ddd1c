"""The pool against a model.

Bytes and owners are right whatever is born, resized, moved and freed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

import disposescope as ds

SIZES = st.one_of(
    st.integers(0, 700),
    st.sampled_from([1023, 1024, 1025, 4096, 65_536, 131_071, 131_072, 131_073, 140_000, 262_144, 4 << 20, 5_000_000]),
)


class Born:
    """An array, what is in it, and the index of the scope that owns it; -1 for nobody."""

    def __init__(self, array: Any, fill: int, owner: int) -> None:
        self.array, self.fill, self.owner = array, fill, owner


class Pool(RuleBasedStateMachine):
    arrays = Bundle("arrays")

    def __init__(self) -> None:
        super().__init__()
        self.before = ds.arena_statistics().live_nbytes
        self.scopes: list[ds.DisposeScope] = []
        self.alive: list[Born] = []
        self.fill = 0

    @rule()
    def open_scope(self) -> None:
        scope = ds.dispose_scope(str(len(self.scopes)))
        scope.__enter__()
        self.scopes.append(scope)

    @rule()
    def close_scope(self) -> None:
        if self.scopes:
            index = len(self.scopes) - 1
            self.scopes.pop().__exit__(None, None, None)
            for born in self.alive:
                if born.owner == index:
                    born.owner = index - 1

    @rule(target=arrays, size=SIZES, zeroed=st.booleans())
    def make(self, size: int, zeroed: bool) -> Born:
        if not self.scopes:
            self.open_scope()
        array = np.zeros(size, "u1") if zeroed else np.empty(size, "u1")
        assert not zeroed or not array.any()
        assert array.__array_interface__["data"][0] % 64 == 0
        self.fill = self.fill % 250 + 1
        array[:] = self.fill
        born = Born(array, self.fill, len(self.scopes) - 1)
        self.alive.append(born)
        return born

    @rule(born=consumes(arrays))
    def free(self, born: Born) -> None:
        self.alive.remove(born)
        assert (born.array == born.fill).all()
        del born.array

    @rule(born=arrays, size=SIZES)
    def resize(self, born: Born, size: int) -> None:
        before = born.array.size
        born.array.resize(size, refcheck=False)
        assert (born.array[:before] == born.fill).all()
        assert not born.array[before:].any()
        born.array[:] = born.fill

    @rule(born=arrays)
    def move_to_outer(self, born: Born) -> None:
        if self.scopes:
            ds.move_to_outer(born.array[:1])
            if born.owner == len(self.scopes) - 1:
                born.owner -= 1

    @rule(born=arrays)
    def attach(self, born: Born) -> None:
        if self.scopes:
            ds.attach(born.array)
            born.owner = len(self.scopes) - 1

    @rule()
    def empty_cache(self) -> None:
        ds.empty_cache()

    @invariant()
    def bytes_and_owners_are_those_of_the_model(self) -> None:
        owned = [0] * (len(self.scopes) + 1)
        for born in self.alive:
            # NumPy asks for one byte where an array has none.
            owned[born.owner] += max(born.array.nbytes, 1)
            assert ds.owner_of(born.array) is (self.scopes[born.owner] if born.owner >= 0 else None)
        assert [scope.nbytes for scope in self.scopes] == owned[: len(self.scopes)]
        assert ds.arena_statistics().live_nbytes - self.before == sum(owned)

    def teardown(self) -> None:
        for born in self.alive:
            assert (born.array == born.fill).all()
            # The bundle goes on holding what was born.
            del born.array
        self.alive.clear()
        while self.scopes:
            self.scopes.pop().__exit__(None, None, None)


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
