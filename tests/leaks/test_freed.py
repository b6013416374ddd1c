"""Why an object is alive, and the assertion that it was freed."""

from __future__ import annotations

import copy
import functools
import gc
import importlib
import logging
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import disposescope as ds

# What is long, all together.
pytestmark = pytest.mark.long

BOX: dict[str, Any] = {}
HERE = f"module {__name__}.BOX"


@pytest.fixture(autouse=True)
def _empty_box() -> Iterator[None]:
    yield
    BOX.clear()


class Thing:
    """An object that can be referred to weakly."""

    other: object = None

    @functools.lru_cache  # noqa: B019 (the leak)
    def table(self, size: int) -> list[int]:
        return [0] * size


def test_the_chains_of_any_object_begin_with_the_variables() -> None:
    thing = Thing()
    BOX["a"] = {"b": [thing]}
    chains = ds.why_alive(thing)
    assert "local 'thing'" in chains[0]
    assert f"{HERE}['a']['b'][0]" in chains
    assert str(chains).splitlines() == [f"held by {chain}" for chain in chains]
    assert repr(chains) == str(chains)


def test_an_object_without_weak_references_may_be_asked_about() -> None:
    BOX["list"] = [1]
    BOX["text"] = {"of": BOX["list"]}
    assert ds.why_alive(BOX["list"]) == (f"{HERE}['list']", f"{HERE}['text']['of']")


def test_what_only_a_library_holds_is_told_beside_what_the_program_holds() -> None:
    BOX["thing"] = Thing()
    vars(logging.getLogger(__name__))["thing"] = BOX["thing"]
    try:
        # The table of all loggers is reached by whichever library has a logger.
        first, second = ds.why_alive(BOX["thing"])
        assert first == f"{HERE}['thing']"
        assert second.endswith(f"loggerDict['{__name__}'].thing")
    finally:
        del vars(logging.getLogger(__name__))["thing"]


def test_chains_that_differ_by_an_index_are_one() -> None:
    BOX["things"] = [Thing()] * 5
    assert ds.why_alive(BOX["things"][0]) == (f"{HERE}['things'][0]",)


def test_what_refers_to_the_namespace_of_a_module_is_no_holder_of_its_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plugin = types.ModuleType("plugin")
    monkeypatch.setitem(sys.modules, "plugin", plugin)
    vars(plugin)["thing"] = Thing()
    BOX["guards"] = {"G": vars(plugin)}
    assert ds.why_alive(vars(plugin)["thing"]) == ("module plugin.thing",)


def test_what_nothing_holds_says_so() -> None:
    chains = ds.why_alive(Thing())
    assert chains == ()
    assert str(chains).startswith("held by nothing that was found")


def test_asking_keeps_nothing_alive() -> None:
    thing = Thing()
    gone = weakref.ref(thing)
    ds.why_alive(thing)
    freed = ds.assert_freed(thing)
    del thing
    assert gone() is None
    freed.check()


def test_a_block_that_frees_passes_and_one_that_does_not_raises() -> None:
    thing = Thing()
    with ds.assert_freed(thing):
        del thing
    BOX["kept"] = kept = Thing()
    with pytest.raises(ds.LeakError, match=r"Thing is alive\n.*BOX\['kept'\]") as caught, ds.assert_freed(kept):
        del kept
    assert caught.value.count == 1


def test_an_own_variable_that_was_not_dropped_is_named() -> None:
    thing = Thing()
    with pytest.raises(ds.LeakError, match=r"local 'thing'"), ds.assert_freed(thing):
        pass


def test_an_exception_in_the_block_passes_through() -> None:
    thing = Thing()
    with pytest.raises(KeyError), ds.assert_freed(thing):
        raise KeyError(1)


def test_a_cycle_is_freed_unless_references_alone_are_asked() -> None:
    def make() -> ds.AssertFreed:
        thing = Thing()
        thing.other = thing
        return ds.assert_freed(thing, collect=collect)

    collect = True
    make().check()
    collect = False
    gc.disable()
    try:
        with pytest.raises(ds.LeakError, match="cycle: Thing"):
            make().check()
    finally:
        gc.enable()


def test_several_objects_are_told_each() -> None:
    BOX["first"], BOX["second"] = Thing(), Thing()
    freed = ds.assert_freed(BOX["first"], BOX["second"], Thing())
    with pytest.raises(ds.LeakError) as caught:
        freed.check()
    assert caught.value.count == 2
    assert str(caught.value).count("Thing is alive") == 2


@pytest.mark.parametrize("things", [(), ([1],), (3,)])
def test_what_cannot_be_referred_to_weakly_is_refused(things: tuple[object, ...]) -> None:
    with pytest.raises(TypeError, match="assert_freed: "):
        ds.assert_freed(*things)


def test_a_check_that_never_happens_is_told() -> None:
    with pytest.warns(ds.LeakWarning, match="checked nothing"):
        ds.assert_freed(Thing())


def test_a_context_is_used_once() -> None:
    freed = ds.assert_freed(Thing())
    with freed:
        pass
    with pytest.raises(RuntimeError, match="one with statement"), freed:
        pass


def test_a_functools_cache_is_named_with_the_call_that_empties_it() -> None:
    thing = Thing()
    thing.table(3)
    freed = ds.assert_freed(thing)
    del thing
    with pytest.raises(ds.LeakError, match=r"a functools cache: Thing\.table\.cache_clear\(\) empties it"):
        freed.check()
    Thing.table.cache_clear()
    freed.check()


def test_a_cached_function_that_is_asked_about_itself_is_no_cache_on_the_way() -> None:
    assert all("functools cache" not in chain for chain in ds.why_alive(vars(Thing)["table"]))


# ------------------------------------------------------------------ models


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def freed_model(torch: Any, hold: Callable[[Any], object]) -> ds.AssertFreed:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    hold(model)
    return ds.assert_freed(model)


def test_a_model_that_nothing_holds_is_freed(torch: Any) -> None:
    freed_model(torch, lambda model: model(torch.ones(2, 8)).sum().backward()).check()


def test_the_optimizer_that_holds_the_parameters_is_a_holder_of_the_model(torch: Any) -> None:
    freed = freed_model(torch, lambda model: BOX.update(optimizer=torch.optim.Adam(model.parameters())))
    with pytest.raises(ds.LeakError) as caught:
        freed.check()
    text = str(caught.value)
    assert "Sequential is gone, and parts of it are there with 288 bytes: [0].weight, [0].bias\n" in text
    assert f"held by {HERE}['optimizer'].param_groups[0]['params'][0] (its [0].weight)" in text
    assert caught.value.nbytes == 288


def test_every_optimizer_that_holds_the_parameters_is_told(torch: Any) -> None:
    def hold(model: Any) -> None:
        BOX["optimizer"] = torch.optim.Adam(model.parameters())
        BOX["trainer"] = {"optimizer": torch.optim.SGD(model.parameters())}

    with pytest.raises(ds.LeakError) as caught:
        freed_model(torch, hold).check()
    for name in ("['optimizer']", "['trainer']['optimizer']"):
        assert f"{HERE}{name}.param_groups[0]['params'][0] (its [0].weight)" in str(caught.value)


def test_a_state_dict_that_shares_memory_is_a_holder_and_a_copy_is_none(torch: Any) -> None:
    freed_model(torch, lambda model: BOX.update(best=copy.deepcopy(model.state_dict()))).check()
    freed = freed_model(torch, lambda model: BOX.update(best=model.state_dict()))
    with pytest.raises(ds.LeakError, match=r"\['best'\]\['0.weight'\] \(its \[0\].weight\)"):
        freed.check()


def test_all_holders_of_a_model_are_told_and_none_that_leads_through_it(torch: Any) -> None:
    BOX["encoder"] = torch.nn.ModuleDict({"layers": torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))})

    def hold(model: Any) -> None:
        BOX["anchor"] = model
        BOX["optimizer"] = torch.optim.SGD(model.parameters())
        BOX["encoder"]["layers"][3].register_forward_hook(functools.partial(print, model))

    freed = freed_model(torch, hold)
    with pytest.raises(ds.LeakError) as caught:
        freed.check()
    assert str(caught.value).splitlines() == [
        "Sequential is alive with 288 bytes",
        f"  held by {HERE}['anchor']",
        f"  held by {HERE}['encoder'].layers[3], forward hook.args[0]",
        f"  held by {HERE}['optimizer'].param_groups[0]['params'][0] (its [0].weight)",
    ]


def test_a_layer_that_another_model_shares_holds_a_part(torch: Any) -> None:
    freed = freed_model(torch, lambda model: BOX.update(other=torch.nn.Sequential(torch.nn.ReLU(), model[0])))
    with pytest.raises(ds.LeakError, match=r"parts of it are there.*\n.*\['other'\]\[1\] \(its \[0\]\)"):
        freed.check()


def test_a_graph_that_is_kept_holds_the_parameters(torch: Any) -> None:
    freed = freed_model(torch, lambda model: BOX.update(loss=model(torch.ones(2, 8)).sum()))
    with pytest.raises(ds.LeakError, match=r"\['loss'\].grad_fn.*\(its \[0\]"):
        freed.check()


def test_the_memory_of_a_tensor_is_freed_with_the_tensor(torch: Any) -> None:
    tensor = torch.ones(10)
    BOX["view"] = tensor[2:3]
    freed = ds.assert_freed(tensor)
    del tensor
    with pytest.raises(ds.LeakError, match=r"Tensor is alive with 40 bytes\n.*\['view'\]\n"):
        freed.check()
    BOX.clear()
    freed.check()


def test_a_backend_that_torch_compile_keeps_is_named_with_the_call_that_empties_it(torch: Any) -> None:
    def graph_of(_model: object, graph: Any, _inputs: object) -> Any:
        return graph.forward

    def hold(model: Any) -> None:
        torch.compile(lambda x: x + 1, backend=functools.partial(graph_of, model))(torch.ones(3))

    freed = freed_model(torch, hold)
    with pytest.raises(ds.LeakError, match=r"a cache of torch.compile: torch._dynamo.reset\(\) empties it"):
        freed.check()
    torch._dynamo.reset()
    freed.check()


def test_a_class_that_torch_jit_keeps_is_named_with_the_call_that_empties_it(torch: Any) -> None:
    state = importlib.import_module("torch.jit._state")

    def hold(model: Any) -> None:
        class Scripted:
            kept = model

        state._name_to_pyclass["Scripted"] = Scripted

    freed = freed_model(torch, hold)
    gc.collect()
    with pytest.raises(ds.LeakError, match=r"a cache of torch.jit: torch.jit._state._clear_class_state\(\) empties"):
        freed.check()
    state._clear_class_state()
    freed.check()


def test_a_static_argument_that_jax_keeps_is_named_with_the_call_that_empties_it() -> None:
    jax = pytest.importorskip("jax")
    if hasattr(importlib.import_module("jax._src.pjit"), "_seen_attrs"):
        pytest.skip("this JAX keeps static arguments in a table besides that nothing empties")

    class Model:
        @functools.partial(jax.jit, static_argnums=0)
        def __call__(self, x: Any) -> Any:
            return x * 2

    def make() -> ds.AssertFreed:
        model = Model()
        model(jax.numpy.ones(3))
        return ds.assert_freed(model)

    freed = make()
    with pytest.raises(ds.LeakError, match=r"a cache of JAX: jax.clear_caches\(\) empties it"):
        freed.check()
    jax.clear_caches()
    freed.check()
