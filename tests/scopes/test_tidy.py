"""Promises of ``tidy``: one call in a scope of its own."""

from __future__ import annotations

import asyncio

import pytest

import disposescope as ds
from tests.scopes.toys import Toy, owned_by


def test_returns_what_the_function_returned_and_disposes_the_rest():
    made = []

    def work(a, *, b):
        made.append(Toy("temporary"))
        return [Toy(a), {"b": Toy(b)}]

    with ds.dispose_scope() as scope:
        result = ds.tidy(work, 1, b=2)
        assert owned_by(scope, result[0], result[1]["b"])
    assert made[0].value is None
    first, _ = ds.tidy(work, 3, b=4)
    assert first.value == 3
    assert ds.owner_of(first) is None


def test_nested_calls_give_out_level_by_level():
    def inner():
        Toy("temporary")
        return Toy("inner")

    def outer():
        kept, lost = ds.tidy(inner), ds.tidy(inner)
        lost_ones.append(lost)
        return kept

    lost_ones = []
    with ds.dispose_scope() as scope:
        kept = ds.tidy(outer)
        assert owned_by(scope, kept)
    assert lost_ones[0].value is None


def test_inputs_and_what_lived_before_are_left_alone():
    with ds.dispose_scope() as scope:
        toy = Toy(1)
        assert ds.tidy(lambda x: x, toy) is toy
        assert owned_by(scope, toy)


def test_what_is_detached_inside_survives():
    toy = ds.tidy(lambda: [ds.detach(Toy(1))][0])
    assert toy.value == 1
    kept = []
    ds.tidy(lambda: kept.append(ds.detach(Toy(2))))
    assert kept[0].value == 2


def test_exceptions_pass_and_everything_is_disposed():
    made = []

    def failing():
        made.append(Toy(1))
        raise KeyError("x")

    with pytest.raises(KeyError):
        ds.tidy(failing)
    assert made[0].value is None
    assert ds.current_scope() is None


def test_a_coroutine_function_gives_a_coroutine():
    async def work(n):
        await asyncio.sleep(0)
        return Toy(n)

    assert asyncio.run(ds.tidy(work, 3)).value == 3


def test_a_generator_function_gives_a_generator():
    def work():
        yield from (Toy(index) for index in range(3))

    assert [toy.value for toy in ds.tidy(work)] == [0, 1, 2]


def test_what_cannot_be_called_is_refused():
    with pytest.raises(TypeError):
        ds.tidy(3)
