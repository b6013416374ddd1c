"""What is known of a chain of holders is not read out of its text."""

import asyncio
import copy
import json
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import disposescope as ds
from disposescope.leaks.holders.holders import Holders
from disposescope.leaks.holders.origins import Chain, Holder, Origin, chain_of, reworded
from disposescope.leaks.holders.paths import holder_of
from disposescope.leaks.holders.roots import user_roots
from disposescope.scopes.identity import entry_of

BOX: dict[str, Any] = {}


def holder_of_tensor_in(place: Callable[[ds.Tensor], object]) -> Holder:
    """The holder of a tensor that only a place holds."""
    tensor = ds.zeros(3)
    entry = entry_of(tensor)
    assert entry is not None
    place(tensor)
    del tensor
    with Holders([[entry]], object_limit=10_000_000) as holders:
        [holder] = holders.chains_of([entry])
    BOX.clear()
    assert isinstance(holder, Holder)
    return holder


def known_of(holder: str) -> Chain:
    chain = chain_of(holder)
    assert chain is not None
    return chain


class Key:
    pass


@pytest.mark.parametrize("name", ["[0]", " (of a thread)", " (as long as this key lives)", "e.__traceback__"])
def test_a_key_that_reads_like_a_fact_is_none(name: str) -> None:
    chain = known_of(holder_of_tensor_in(lambda tensor: BOX.setdefault(name, tensor)))
    assert chain == Chain(Origin(f"module {__name__}.BOX", "module", __name__, "BOX"), has_items=True)


def test_a_chain_knows_of_thread_locals_and_weak_keys() -> None:
    def in_thread_local(tensor: ds.Tensor) -> None:
        BOX["local"] = threading.local()
        BOX["local"].tensor = tensor

    key = Key()
    threads = known_of(holder_of_tensor_in(in_thread_local))
    keys = known_of(
        holder_of_tensor_in(lambda tensor: BOX.setdefault("weak", weakref.WeakKeyDictionary({key: tensor})))
    )
    assert (threads.is_of_a_thread, threads.is_of_a_key) == (True, False)
    assert (keys.is_of_a_thread, keys.is_of_a_key) == (False, True)


def test_a_chain_knows_its_function_and_an_object_that_is_being_made() -> None:
    found: list[Holder] = []

    class Made:
        def __init__(self) -> None:
            kept: list[ds.Tensor] = []
            found.append(holder_of_tensor_in(kept.append))

    Made()
    [holder] = found
    origin = known_of(holder).origin
    assert (origin.kind, origin.variable, origin.is_of_coroutine) == ("frame", "kept", False)
    assert origin.owner.endswith(".<locals>.Made.__init__")
    assert not known_of(holder).ends_at_self_of_init


def test_an_object_that_is_being_made_is_known_as_such() -> None:
    class Made:
        def __init__(self) -> None:
            roots = [root for group in user_roots() for root in group]
            self.chains = [
                known_of(holder_of(origin, [self], step))
                for origin, thing in roots
                if thing is self
                for step in ("", ".x")
            ]

    assert [chain.ends_at_self_of_init for chain in Made().chains] == [True, False]


def test_a_task_whose_name_reads_like_a_key_has_no_items() -> None:
    async def wait(event: asyncio.Event, kept: ds.Tensor) -> None:
        await event.wait()
        del kept

    async def main() -> list[Origin]:
        event = asyncio.Event()
        task = asyncio.create_task(wait(event, ds.zeros(3)), name="work[0]")
        await asyncio.sleep(0)
        found = [origin for group in user_roots() for origin, _ in group if origin.kind == "task"]
        event.set()
        await task
        return found

    origins = asyncio.run(main())
    assert {(origin.variable, origin.text.partition(",")[0]) for origin in origins} >= {
        ("", "task 'work[0]'"),
        ("kept", "task 'work[0]'"),
    }


def test_a_chain_goes_on_from_another_one_wherever_the_function_is() -> None:
    def holder(line: int, code: str, variable: str = "rows") -> Holder:
        text = f"frame train.py:{line} main(): local {variable!r}"
        return Holder(text + code, Chain(Origin(text, "frame", "main", variable)))

    row = holder(5, "['loss'][0]")
    assert row.goes_on_from(holder(12, "['loss']"))
    assert row.goes_on_from(reworded(holder(5, ""), holder(5, "") + "[...] (3 keys)"))
    assert not row.goes_on_from(holder(5, "['rate']"))
    assert not row.goes_on_from(holder(5, "", "row"))
    assert not row.goes_on_from("several holders together")


def test_a_holder_is_its_text_wherever_it_is_written_or_sent() -> None:
    holder = holder_of_tensor_in(lambda tensor: BOX.setdefault("a", tensor))
    text = f"module {__name__}.BOX['a']"
    assert holder == text
    assert hash(holder) == hash(text)
    assert f"{holder}" == text
    assert json.dumps([holder]) == json.dumps([text])
    for same in (pickle.loads(pickle.dumps(holder)), copy.deepcopy(holder)):
        assert same == text
        assert chain_of(same) == chain_of(holder)
    assert chain_of(text) is None
