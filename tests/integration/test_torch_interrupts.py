"""What `tests/scopes/test_interrupts.py` promises, with PyTorch.

It holds for tensors, the state of a thread and packed sequences.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

import disposescope as ds

torch = pytest.importorskip("torch")

from disposescope.scopes.context import OPEN
from disposescope.tensors.arena.budgets import BUDGETS
from disposescope.tensors.torch.births import depth
from disposescope.tensors.torch.compiled import thread_state
from disposescope.tensors.torch.disposal import PENDING
from tests.interrupts import interrupt_everywhere
from tests.scopes.test_interrupts import recursion_limit

Born = list[Any]


@pytest.fixture(autouse=True)
def _forget_charges():
    """What an interrupt in the callback of a charge leaves behind is not the next test's.

    No lock stays taken.
    """
    yield
    assert not PENDING._lock.locked()
    BUDGETS.forget([key for key, charge in list(BUDGETS.charges.items()) if charge() is None])


def of_thread() -> object:
    here = thread_state()
    return [scope for scope in here.scopes if scope._state == OPEN], here.modes, depth(), here.stepping, here.compiled


def nested(born: Born) -> None:
    with ds.dispose_scope("outer"):
        born.append(torch.ones(4))
        with ds.dispose_scope():
            born.append(born[0] + 1)
            born.append(ds.ones(3))
        born.append(torch.arange(3))


def with_gradients(born: Born) -> None:
    weight = torch.ones(3, requires_grad=True)
    with ds.dispose_scope("step"):
        born.append((weight * 2).sum())
        born[0].backward()


def with_packed_sequences(born: Born) -> None:
    with ds.dispose_scope("outer") as scope:
        packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
        born += packed.data, ds.pack_sequence([ds.ones(2), ds.ones(1)])
        scope.attach(packed)


def with_budget(born: Born) -> None:
    try:
        with ds.dispose_scope("outer", budget=1000), ds.dispose_scope("inner"):
            born.append(torch.ones(10) + 1)
            torch.ones(1000)
    except MemoryError:
        pass


def decorated(born: Born) -> None:
    @ds.dispose_scope("function")
    def function() -> torch.Tensor:
        born.append(torch.ones(3))
        return born[0] + 1

    @ds.dispose_scope("generator")
    def generator() -> Iterator[torch.Tensor]:
        for _ in range(2):
            born.append(torch.ones(3))
            yield born[-1] * 2

    with ds.dispose_scope("outer"):
        born.append(function())
        for tensor in generator():
            born.append(tensor)


def in_a_loop(born: Born) -> None:
    with ds.dispose_scope("outer"):
        for batch in ds.scoped_batches([torch.ones(2), torch.ones(3)]):
            born += batch, batch + 1


def in_a_task(born: Born) -> None:
    @ds.dispose_scope("coroutine")
    async def coroutine() -> torch.Tensor:
        born.append(torch.ones(3))
        await asyncio.sleep(0)
        return born[0] + 1

    @ds.dispose_scope("generator")
    async def generator() -> AsyncIterator[torch.Tensor]:
        for _ in range(2):
            born.append(torch.ones(3))
            yield born[-1] * 2

    async def main() -> None:
        with ds.dispose_scope("outer"):
            born.append(await coroutine())
            async for tensor in generator():
                born.append(tensor)

    work = main()
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(work)
    finally:
        # What was interrupted before its first line has not been awaited.
        work.close()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


PROGRAMS = [nested, with_gradients, with_packed_sequences, with_budget, decorated, in_a_loop, in_a_task]


@pytest.mark.long
@pytest.mark.unmeasured
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("watched", [False, True], ids=["", "detector"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_an_interrupt_anywhere_leaves_no_scope_open_and_no_tensor_alive(program: Callable[[Born], None], watched: bool):
    uneven = program in (with_packed_sequences, in_a_loop)
    with ds.LeakDetector() if watched else nullcontext():
        interrupt_everywhere(program, lines=not watched, only_gone=uneven, state=of_thread)


@pytest.mark.long
@pytest.mark.unmeasured
@pytest.mark.parametrize("options", [{}, {"strict": True}, {"budget": "10MiB"}], ids=["plain", "strict", "budget"])
@pytest.mark.parametrize("watched", [False, True], ids=["", "detector"])
def test_scopes_that_the_limit_of_recursion_leaves_release_their_tensors(options: dict[str, Any], watched: bool):
    born: Born = []

    def nest(frames: int) -> None:
        if frames:
            nest(frames - 1)
        with ds.dispose_scope(**options):
            born.append(torch.ones(3))
            nest(0)

    with ds.LeakDetector() if watched else nullcontext():
        before = of_thread()
        for frames in range(12):
            with recursion_limit(150), pytest.raises(RecursionError):
                nest(frames)
            assert ds.current_scope() is None
            assert born
            assert all(map(ds.is_disposed, born))
            assert of_thread() == before
            born.clear()
    assert sys.getrecursionlimit() > 500
