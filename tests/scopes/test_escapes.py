"""What is held when a block ends: ``escapes="keep"`` and ``"raise"``, and what keepers have."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import gc
import sys
import types
import weakref

import pytest

import disposescope as ds
from disposescope.leaks.detector.watching import is_watching
from disposescope.scopes import keeping as keeping_module
from disposescope.scopes.tree_walk import CLASSES, add_keepers
from tests.scopes.toys import TOY, Toy


@pytest.fixture(autouse=True)
def keepers(monkeypatch):
    """What a test declares is forgotten after it."""
    yield
    for key, known in list(CLASSES._known.items()):
        name = known.named if isinstance(known.named, str) else known.named.__module__
        if name.startswith((__name__, "keeping_module")):
            del CLASSES._known[key]
    add_keepers()


def keeping(name=None, **options):
    return ds.dispose_scope(name, escapes="keep", **options)


class Holder:
    pass


@pytest.mark.parametrize("option", ["forget", None, 1, True])
def test_another_option_is_refused(option):
    with pytest.raises((ValueError, TypeError), match="escapes"):
        ds.dispose_scope(escapes=option)
    with pytest.raises((ValueError, TypeError), match="escapes"):
        ds.scoped_batches([], escapes=option)
    with pytest.raises((ValueError, TypeError), match=r"^ScopedCollate: escapes"):
        ds.ScopedCollate(list, escapes=option)


def test_what_only_the_variables_of_the_block_refer_to_is_disposed():
    with keeping() as scope:
        a = ds.ones(2)
        b = a + 1
        c = (b * 2).sum()
    assert all(map(ds.is_disposed, (a, b, c)))
    assert scope.escaped == ()
    assert ds.statistics().escaped == 0


def test_a_count_that_was_bound_before_the_block_is_kept():
    count, average = 0, None
    for _ in range(4):
        with keeping():
            x = ds.ones(3)
            count += x.sum()
            average = x * 2 if average is None else 0.5 * average + 0.5 * x
        assert ds.is_disposed(x)
    assert float(count) == 12
    assert average.tolist() == [1.125] * 3


def test_an_average_that_was_not_bound_is_the_block_s_own_the_first_time():
    with keeping() as scope:
        average = ds.ones(3)
    assert ds.is_disposed(average)
    assert scope.escaped == ()


def test_a_variable_that_is_bound_to_something_disposed_is_the_block_s_own():
    for _ in range(3):
        with keeping() as scope:
            loss = ds.ones(3)
        assert ds.is_disposed(loss)
        assert scope.escaped == ()


HOLD = {
    "list": lambda kept, x: kept.append(x),
    "dict in list": lambda kept, x: kept.append({"x": x}),
    "tuple": lambda kept, x: kept.append((x, 1)),
    "deque": lambda kept, x: kept.append(collections.deque([x])),
    "attribute": lambda kept, x: (kept.append(Holder()), setattr(kept[-1], "x", x)),
    "closure": lambda kept, x: kept.append(lambda: x),
    "partial": lambda kept, x: kept.append(functools.partial(str, x)),
    "default": lambda kept, x: kept.append(lambda y=x: y),
    "exception": lambda kept, x: kept.append(ValueError(x)),
    "set": lambda kept, x: kept.append({x}),
}


@pytest.mark.parametrize("how", HOLD)
def test_what_a_container_holds_is_handed_to_the_outer_scope(how):
    kept = []
    ds.reset_statistics()
    with ds.dispose_scope("outer") as outer:
        with keeping() as scope:
            x = ds.ones(3)
            y = x + 1
            HOLD[how](kept, x)
        assert not ds.is_disposed(x)
        assert ds.is_disposed(y)
        assert ds.owner_of(x) is outer
        assert len(scope.escaped) == 1
        assert scope.escaped[0] is x
        assert x.tolist() == [1, 1, 1]
    assert ds.is_disposed(x)
    assert scope.escaped == ()
    assert ds.statistics().escaped == 1


def test_what_escaped_is_shown_with_its_lines_while_a_detector_is_open():
    kept = []
    with ds.LeakDetector():
        with keeping() as scope:
            kept.append(ds.ones(3))
        assert "test_what_escaped_is_shown_with_its_lines" in repr(scope.escaped)
    assert repr(scope.escaped).startswith("<1 escaped:\n  Tensor shape=(3,) dtype=float64")
    kept.clear()
    assert repr(scope.escaped) == "<0 escaped>"


def test_without_an_outer_scope_what_is_held_is_nobody_s():
    kept = []
    with keeping():
        kept.append(ds.ones(3))
    assert ds.owner_of(kept[0]) is None
    assert kept[0].tolist() == [1, 1, 1]


def test_a_container_that_only_a_variable_of_the_block_refers_to_holds():
    with ds.dispose_scope():
        with keeping() as scope:
            batch = {"x": ds.ones(2)}
        assert scope.escaped == (batch["x"],)


def test_nested_scopes_hand_on_until_one_disposes():
    kept = []
    with ds.dispose_scope():
        with keeping() as outer:
            with keeping() as inner:
                kept.append(ds.ones(2))
            assert len(inner.escaped) == 1
        assert len(outer.escaped) == 1
        assert not ds.is_disposed(kept[0])
    assert ds.is_disposed(kept[0])


def test_what_the_frames_of_an_exception_refer_to_is_the_block_s_own():
    made = []

    def fail(x):
        made.append(weakref.ref(x))
        local = x + 1
        made.append(weakref.ref(local))
        raise ValueError("no")

    def around(x):
        try:
            fail(x)
        except ValueError as error:
            raise RuntimeError("still no") from error

    with pytest.raises(RuntimeError) as caught, keeping() as scope:
        x = ds.ones(3)
        around(x)
    assert all(ds.is_disposed(reference()) for reference in made if reference() is not None)
    assert ds.is_disposed(x)
    assert scope.escaped == ()
    assert caught.value is not None


class FalseError(ValueError):
    """An exception with a length, and that 0."""

    def __len__(self):
        return 0


def fail_with(error):
    """Raise it beside a tensor, and return it."""
    try:
        x = ds.ones(3)
        assert x.shape == (3,)
        raise error
    except ValueError as caught:
        return caught
    finally:
        # The traceback of the error has this frame.
        del error


@pytest.mark.parametrize("error", [ValueError("no"), FalseError()])
def test_frames_that_an_exception_has_left_hold_nothing_where_exit_is_called_by_hand(error):
    scope = keeping().__enter__()
    raised = fail_with(error)
    # Nothing is handled here: the exception is known by what is given alone.
    assert sys.exception() is None
    scope.__exit__(type(raised), raised, raised.__traceback__)
    assert scope.escaped == ()


def test_frames_that_a_handled_exception_has_left_hold_nothing_where_the_scope_is_closed():
    def fail():
        x = ds.ones(3)
        raise ValueError(f"no {x.shape}")

    scope = keeping().__enter__()
    try:
        fail()
    except ValueError:
        scope.close()
    assert scope.escaped == ()


def test_the_end_of_a_scope_that_fails_has_no_part_in_a_cycle(monkeypatch):
    def fails(entries, types, note, passing):
        del passing
        raise RuntimeError("inside")

    scope = keeping().__enter__()
    raised = fail_with(FalseError())
    monkeypatch.setattr(keeping_module, "held_entries", fails)
    scope.__exit__(type(raised), raised, raised.__traceback__)
    monkeypatch.undo()
    gone = weakref.ref(raised)
    gc.disable()
    try:
        del raised
        assert gone() is None
    finally:
        gc.enable()
    scope.close()


def test_a_list_survives_an_exception():
    kept = []
    with pytest.raises(ValueError, match="no"), keeping():
        kept.append(ds.ones(3))
        raise ValueError("no")
    assert kept[0].tolist() == [1, 1, 1]


def test_what_a_block_returns_is_held_by_the_return():
    def make():
        with keeping():
            x = ds.ones(3)
            x * 2
            return x

    assert make().tolist() == [1, 1, 1]


def test_variables_of_a_suspended_generator_hold():
    def numbers():
        mine = ds.ones(3)
        yield 1
        yield mine.sum()

    with keeping() as scope:
        generator = numbers()
        next(generator)
    assert len(scope.escaped) == 1
    assert float(next(generator)) == 3


def test_variables_of_a_suspended_generator_hold_though_a_traceback_passes_through_it():
    def numbers():
        mine = ds.ones(3)
        try:
            raise ValueError("told later")
        except ValueError as error:
            yield error
        yield mine.sum()

    generator = numbers()
    with pytest.raises(ValueError, match="told later"), keeping():
        raise next(generator)
    assert float(next(generator)) == 3


def test_variables_of_a_generator_that_ended_do_not():
    def numbers():
        mine = ds.ones(3)
        made.append(weakref.ref(mine))
        yield mine

    made = []
    with keeping() as scope:
        for x in numbers():
            assert not ds.is_disposed(x)
    assert ds.is_disposed(x)
    assert scope.escaped == ()


def test_a_cell_of_the_block_s_own_is_a_variable():
    with keeping():
        x = ds.ones(3)
        doubled = [x * factor for factor in (1, 2)]
        total = sum(x.sum() for _ in doubled)
    assert ds.is_disposed(x)
    assert ds.is_disposed(total)


def test_a_function_that_refers_to_a_variable_holds():
    with keeping() as scope:
        x = ds.ones(3)

        def use():
            return x.sum()

    assert len(scope.escaped) == 1
    assert float(use()) == 3


def test_at_module_level_variables_are_names():
    source = """
import disposescope as ds
total = 0
history = []
for i in range(3):
    with ds.dispose_scope(escapes="keep") as scope:
        x = ds.ones(3)
        total += x.sum()
        history.append(x + i)
    assert ds.is_disposed(x)
assert float(total) == 9, total
assert [float(h.sum()) for h in history] == [3, 6, 9]
"""
    exec(compile(source, "script", "exec"), {"__name__": "script"})


def test_in_a_class_body():
    class Body:
        with keeping() as scope:
            x = ds.ones(3)

    assert ds.is_disposed(Body.x)


def test_as_a_decorator_what_was_returned_is_moved_and_what_is_held_is_kept():
    kept = []

    @ds.dispose_scope(escapes="keep")
    def step(x):
        kept.append(x + 1)
        y = x * 2
        gone.append(weakref.ref(y))
        return y.sum()

    gone = []
    with ds.dispose_scope() as outer:
        total = step(ds.ones(3))
        assert gone[0]() is None
        assert kept[0] in outer
        assert float(total) == 6
    assert ds.is_disposed(kept[0])


def test_decorated_generators_and_coroutines():
    kept = []

    @ds.dispose_scope(escapes="keep")
    def generate():
        for i in range(3):
            kept.append(ds.ones(2) + i)
            yield i

    @ds.dispose_scope(escapes="keep")
    async def compute():
        kept.append(ds.ones(2))
        await asyncio.sleep(0)
        return 1

    assert list(generate()) == [0, 1, 2]
    assert asyncio.run(compute()) == 1
    assert [x.tolist() for x in kept] == [[1, 1], [2, 2], [3, 3], [1, 1]]


def test_scoped_batches_keep_what_the_loop_body_holds():
    total, history = 0, []
    for batch in ds.scoped_batches((ds.ones(2) * i for i in range(4)), escapes="keep"):
        y = batch + 1
        total += batch.sum()
        history.append(y.sum())
    assert ds.is_disposed(batch)
    assert ds.is_disposed(y)
    assert float(total) == 12
    assert [float(one) for one in history] == [2, 4, 6, 8]


def test_a_collate_function_keeps_its_cache():
    cache = []

    def collate(samples):
        if not cache:
            cache.append(ds.ones(2))
        return ds.tensor(samples) + cache[0]

    keep = ds.ScopedCollate(collate, escapes="keep")
    assert keep([1, 2]).tolist() == [2, 3]
    assert keep([1, 2]).tolist() == [2, 3]
    cache.clear()
    drop = ds.ScopedCollate(collate)
    drop([1, 2])
    with pytest.raises(ds.DisposedError):
        drop([1, 2])


def test_in_an_exit_stack():
    kept = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(keeping())
        x = ds.ones(3)
        kept.append(x + 1)
    assert kept[0].tolist() == [2, 2, 2]
    assert ds.is_disposed(x)


def test_closing_a_scope_keeps_too():
    kept = []
    with keeping() as scope:
        x = ds.ones(3)
        kept.append(x * 2)
        scope.close()
        assert ds.is_disposed(x)
    assert kept[0].tolist() == [2, 2, 2]


def test_a_packed_sequence_of_the_block_s_own_is_disposed_whole():
    with keeping() as scope:
        packed = ds.pack_sequence([ds.ones(3), ds.ones(2)])
    assert ds.is_disposed(packed)
    assert ds.is_disposed(packed.data)
    assert scope.escaped == ()


def test_a_packed_sequence_of_which_a_member_is_held_is_kept_whole():
    kept = []
    with ds.dispose_scope() as outer:
        with keeping():
            packed = ds.pack_sequence([ds.ones(3), ds.ones(2)])
            kept.append(packed.data)
        assert packed in outer
        assert kept[0].tolist() == [1] * 5


def test_objects_of_own_kinds_are_kept_where_they_are_held():
    class Handle:
        released = False

        def dispose(self):
            self.released = True

    kept = []
    with keeping() as scope:
        held = scope.attach(Handle())
        own = scope.attach(Handle())
        kept.append(held)
    assert own.released
    assert not held.released


def test_a_graph_that_holds_nothing_of_python_s_does_not_count():
    torch = pytest.importorskip("torch")
    w = torch.ones(3, requires_grad=True)
    kept = []
    with keeping() as scope:
        x = torch.full((3,), 2.0)
        y = x * w
        loss = (y * y).sum()
        view = y[:2]
        kept.append(loss)
    assert ds.is_disposed(x)
    assert ds.is_disposed(y)
    assert ds.is_disposed(view)
    assert scope.escaped == (loss,)
    loss.backward()
    assert w.grad.tolist() == [8, 8, 8]


def test_what_a_graph_alone_holds_does_not_count():
    torch = pytest.importorskip("torch")
    w, losses = torch.ones(3, requires_grad=True), []

    def step(x):
        losses.append((x * w).square().sum())

    with keeping() as scope:
        step(torch.full((3,), 2.0))
    assert scope.escaped == (losses[0],)
    losses[0].backward()
    assert w.grad.tolist() == [8, 8, 8]
    with pytest.raises(ds.EscapedError, match="1 of the resources"), ds.dispose_scope(escapes="raise"):
        step(torch.full((3,), 2.0))


def test_packed_sequences_of_pytorch():
    torch = pytest.importorskip("torch")
    rnn = torch.nn.utils.rnn
    kept = []
    with keeping() as scope:
        packed = rnn.pack_sequence([torch.ones(3), torch.ones(2)])
        other = rnn.pack_sequence([torch.ones(4), torch.ones(2)])
        kept.append(other)
    assert ds.is_disposed(packed.data)
    assert rnn.pad_packed_sequence(kept[0])[0].sum() == 6
    assert all(not ds.is_disposed(one) for one in scope.escaped)


def test_jax_arrays():
    jnp = pytest.importorskip("jax.numpy")
    kept = []
    with ds.dispose_scope():
        with keeping():
            x = jnp.ones(3)
            y = x + 1
            kept.append(y * 2)
        assert ds.is_disposed(x)
        assert ds.is_disposed(y)
        assert kept[0].tolist() == [4, 4, 4]


def test_a_tensor_that_a_held_wrapper_refers_to_is_held():
    kept = []
    with keeping():
        x = ds.ones(3)
        x_holder = Holder()
        x_holder.x = x
        kept.append(x_holder)
        del x_holder
    assert not ds.is_disposed(x)


# "raise"


def test_raise_tells_what_is_held_and_disposes_all():
    kept = []
    with pytest.raises(ds.EscapedError) as caught, ds.dispose_scope("step", escapes="raise"):
        x = ds.ones(3)
        kept.append(x + 1)
        y = x * 2
    assert ds.is_disposed(x)
    assert ds.is_disposed(y)
    assert ds.is_disposed(kept[0])
    assert caught.value.count == 1
    assert caught.value.nbytes == 24
    assert "Tensor shape=(3,)" in str(caught.value)
    assert "step" in str(caught.value)


def test_raise_tells_the_line_and_the_holder():
    kept = {"means": []}
    with pytest.raises(ds.EscapedError) as caught, ds.dispose_scope(escapes="raise"):
        x = ds.ones(3)
        kept["means"].append(x.mean())
    assert "test_raise_tells_the_line_and_the_holder" in caught.value.sites[0]
    assert "held by" in str(caught.value)
    assert "'kept'['means'][0]" in str(caught.value)
    assert not is_watching()


def test_what_could_not_be_entered_leaves_no_detector_open():
    scope = ds.dispose_scope(escapes="raise")
    scope.close()
    with pytest.raises(ds.ScopeNestingError):
        scope.__enter__()
    assert not is_watching()


def test_raise_is_silent_where_nothing_is_held():
    with ds.dispose_scope(escapes="raise"):
        x = ds.ones(3)
        x + 1
    assert ds.is_disposed(x)


def test_raise_adds_a_note_to_an_exception_on_its_way():
    kept = []
    with pytest.raises(ValueError, match="no") as caught, ds.dispose_scope(escapes="raise"):
        kept.append(ds.ones(3))
        raise ValueError("no")
    assert "held by more" in caught.value.__notes__[0]
    assert ds.is_disposed(kept[0])


def test_raise_passes_over_what_dies_while_it_is_described(monkeypatch):
    kept = []

    def drop_the_rest(toy):
        # As another thread may do at any moment.
        del kept[1:]
        return f"Toy({toy.value!r})"

    monkeypatch.setattr(TOY, "describe", drop_the_rest, raising=True)
    with pytest.raises(ds.EscapedError, match=r"2 of the resources(.|\n)*Toy\(0\)") as caught:
        with ds.dispose_scope(escapes="raise"):
            kept.extend(Toy(number) for number in range(2))
    assert caught.value.count == 2
    assert "Toy(1)" not in str(caught.value)


# Keepers


class Average:
    def __init__(self):
        self.total = None
        self.steps = []

    def update(self, x):
        self.total = x if self.total is None else self.total + x
        self.steps.append((x * 2,))


@pytest.mark.parametrize("name", [Average, f"{__name__}.Average", __name__])
@pytest.mark.parametrize("escapes", ["dispose", "keep", "raise"])
def test_what_a_declared_class_has_is_no_scope_s(name, escapes):
    ds.keeps(name)
    average = Average()
    with ds.dispose_scope() as outer:
        for _ in range(3):
            with ds.dispose_scope(escapes=escapes) as scope:
                x = ds.ones(2)
                average.update(x + 1)
            assert ds.is_disposed(x)
            assert scope.escaped == ()
        assert len(outer) == 0
    assert average.total.tolist() == [6, 6]
    assert [step[0].tolist() for step in average.steps] == [[4, 4]] * 3


def test_a_class_derived_from_a_declared_one_keeps():
    ds.keeps(Average)
    average = type("Special", (Average,), {})()
    with ds.dispose_scope():
        average.update(ds.ones(2))
    assert average.total.tolist() == [1, 1]


def test_others_do_not_keep():
    average = Average()
    with ds.dispose_scope():
        average.update(ds.ones(2))
    assert ds.is_disposed(average.total)


def test_a_keeper_is_found_through_objects_containers_and_callers():
    ds.keeps(Average)

    class Trainer:
        def __init__(self):
            self.state = {"metrics": [Average()]}

        def run(self):
            self.step()

        def step(self):
            inner()

    def inner():
        with ds.dispose_scope():
            trainer.state["metrics"][0].update(ds.ones(2))

    trainer = Trainer()
    trainer.run()
    assert trainer.state["metrics"][0].total.tolist() == [1, 1]


GLOBAL = None


def test_a_keeper_is_found_among_the_variables_of_the_module():
    global GLOBAL
    ds.keeps(Average)
    GLOBAL = Average()
    try:
        with ds.dispose_scope():
            GLOBAL.update(ds.ones(2))
        assert GLOBAL.total.tolist() == [1, 1]
    finally:
        GLOBAL = None


CALLED_CODE = {
    "the module of a function": (
        "average = Average()\ndef update(x): average.update(x)",
        "from keeping_module_a import update",
    ),
    "a module that is a variable of another": (
        "average = Average()",
        "import keeping_module_a\ndef update(x): keeping_module_a.average.update(x)",
    ),
    "the module of a class": (
        "average = Average()\nclass Service:\n    def run(self, x): average.update(x)",
        "from keeping_module_a import Service\nupdate = Service().run",
    ),
    "the module of a base class": (
        "average = Average()\nclass Base:\n    def run(self, x): average.update(x)",
        "from keeping_module_a import Base\nclass Service(Base): pass\nupdate = Service().run",
    ),
    "an attribute of a class": (
        "class Registry: averages = {'first': Average()}",
        "from keeping_module_a import Registry\ndef update(x): Registry.averages['first'].update(x)",
    ),
    "a function with a cache": (
        "import functools\n@functools.cache\ndef made(): return Average()\ndef update(x): made().update(x)",
        "from keeping_module_a import update",
    ),
}


NOTED = weakref.WeakSet()


class Noted(Average):
    """A keeper that a test finds again without referring to it."""

    def __init__(self):
        super().__init__()
        NOTED.add(self)


@pytest.fixture
def updates(monkeypatch, request):
    """Return the function of a program in two modules, the first of which has a keeper.

    The function updates the keeper, which a class or a function of the module may have.
    """
    NOTED.clear()
    for name, source in zip(("keeping_module_a", "keeping_module_b"), CALLED_CODE[request.param], strict=True):
        module = types.ModuleType(name)
        module.Average = Noted
        monkeypatch.setitem(sys.modules, name, module)
        exec(source, module.__dict__)
    return module.update


@pytest.mark.parametrize("updates", CALLED_CODE, indirect=True)
@pytest.mark.parametrize("how", ["a block", "a decorator"])
def test_a_keeper_is_found_in_the_code_that_the_block_can_call(updates, how):
    ds.keeps(Average)
    if how == "a block":
        with ds.dispose_scope():
            updates(ds.ones(2))
    else:
        ds.dispose_scope()(lambda: updates(ds.ones(2)))()
    (average,) = NOTED
    assert average.total.tolist() == [1, 1]


def test_a_keeper_of_an_installed_library_is_looked_for_in_its_objects_alone(monkeypatch):
    ds.keeps(Average)
    module = types.ModuleType("keeping_module")
    module.__file__ = "/usr/lib/python3/site-packages/keeping_module.py"
    monkeypatch.setitem(sys.modules, "keeping_module", module)
    module.average = average = Average()
    exec("def update(x): average.update(x)", module.__dict__)
    update, seen = module.update, [average.steps]
    del module, average
    with ds.dispose_scope():
        update(ds.ones(2))
    assert ds.is_disposed(seen[0][0][0])


def test_the_variables_of_a_declared_module_keep(monkeypatch):
    module = types.ModuleType("keeping_module")
    module.cache = {}
    monkeypatch.setitem(sys.modules, "keeping_module", module)
    ds.keeps("keeping_module")
    with ds.dispose_scope():
        module.cache["x"] = ds.ones(2)
    assert module.cache["x"].tolist() == [1, 1]


def test_what_the_class_of_a_keeper_holds_is_the_keeper_s():
    ds.keeps(Average)

    class Table(Average):
        @functools.cache  # noqa: B019  # programs do it
        def row(self, number):
            return ds.ones(2) * number

    class Special(Table):
        pass

    Table.rows = {}
    outer, inner = Average(), Special()
    outer.steps.append(inner)
    with ds.dispose_scope():
        inner.rows["first"] = (ds.ones(2) * 3,)
        inner.row(2)
    assert inner.rows["first"][0].tolist() == [3, 3]
    assert inner.row(2).tolist() == [2, 2]


def test_what_a_keeper_shares_with_a_list_is_the_keeper_s():
    ds.keeps(Average)
    average = Average()
    steps = average.steps
    with ds.dispose_scope():
        average.steps.append(ds.ones(2))
    assert steps[0].tolist() == [1, 1]


def test_the_end_of_a_long_list_is_looked_at():
    ds.keeps(Average)
    average = Average()
    average.steps.extend(object() for _ in range(100_000))
    with ds.dispose_scope():
        average.steps.append(ds.ones(2))
    assert average.steps[-1].tolist() == [1, 1]


def test_a_scope_that_refuses_graphs_leaves_a_keeper_its_own():
    torch = pytest.importorskip("torch")
    ds.keeps(Average)
    average = Average()
    with ds.dispose_scope(graph="error"):
        average.update(torch.ones(2, requires_grad=True) * 2)
    assert average.total.requires_grad


def test_what_a_keeper_drops_meanwhile_is_passed_over(monkeypatch):
    ds.keeps(Average)
    average = Average()

    def drop_the_rest(toy):
        assert isinstance(toy, Toy)
        # As another thread may do at any moment.
        del average.steps[1:]
        return ()

    monkeypatch.setattr(TOY, "inner", drop_the_rest, raising=True)
    with ds.dispose_scope() as scope:
        average.steps.extend(Toy(number) for number in range(2))
    assert len(scope) == 0
    assert [toy.value for toy in average.steps] == [0]


@pytest.mark.parametrize("name", [1, None, b"x"])
def test_what_is_no_name_is_refused(name):
    with pytest.raises(TypeError, match="keeps"):
        ds.keeps(name)


@pytest.mark.parametrize("name", ["", "a b", "a..b", ".a"])
def test_what_is_no_dotted_name_is_refused(name):
    with pytest.raises(ValueError, match="keeps"):
        ds.keeps(name)


def test_the_state_of_a_module_is_the_module_s():
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))
            self.history = []
            self.cache = {}
            self.queue = collections.deque(maxlen=2)

        def forward(self, x):
            self.last = x * 2
            self.history.append(x + 1)
            self.cache.setdefault("rope", (x * 3,))
            self.queue.append(x)
            return x * self.weight

    model = torch.nn.Sequential(Model())
    for _ in range(3):
        with ds.dispose_scope():
            x = torch.ones(2)
            y = model(x + 0)
        assert ds.is_disposed(x)
        assert ds.is_disposed(y)
    inner = model[0]
    assert inner.last.tolist() == [2, 2]
    assert [one.tolist() for one in inner.history] == [[2, 2]] * 3
    assert inner.cache["rope"][0].tolist() == [3, 3]
    assert [one.tolist() for one in inner.queue] == [[1, 1]] * 2


def test_a_packed_sequence_on_a_module_is_the_module_s():
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 2)
    with ds.dispose_scope():
        model.batch = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    assert torch.nn.utils.rnn.pad_packed_sequence(model.batch)[0].sum() == 5


def test_a_detector_reports_nothing_of_what_a_module_has():
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 2)
    model.history = []
    with ds.LeakDetector() as detector:
        for _ in range(20):
            with ds.dispose_scope():
                model.history.append(torch.ones(100))
    assert not [leak for leak in detector.report().leaks if leak.kind == "escaped"]


def test_a_list_that_is_kept_is_reported_as_growth():
    history = []
    with ds.LeakDetector() as detector:
        for _ in range(40):
            with keeping("step"):
                x = ds.ones(1000)
                history.append(x * 2)
    (leak,) = detector.report().leaks
    assert leak.kind == "growth"
    assert "'history'" in leak.holder


def test_what_is_kept_and_does_not_grow_is_listed_with_its_holder():
    best = {}
    with ds.LeakDetector() as detector:
        for _ in range(40):
            with keeping("step"):
                best["x"] = ds.ones(1000)
    report = detector.report(of_program=True)
    assert report.leaks == ()
    assert "kept by" in str(report)
    assert "'best'['x']" in str(report)


def test_looking_runs_no_code_of_the_objects_it_meets():
    ds.keeps(Average)

    class Loud:
        def __getattr__(self, name):
            raise AssertionError(name)

        @property
        def value(self):
            raise AssertionError

        def __eq__(self, other):
            raise AssertionError

        __hash__ = object.__hash__

    loud = Loud()
    loud.list = []
    with ds.dispose_scope():
        loud.list.append(ds.ones(2))
    assert ds.is_disposed(loud.list[0])


def test_nothing_is_kept_alive_by_the_search():
    class Temporary:
        pass

    holder = Temporary()
    kept = [holder]
    references = [weakref.ref(holder), weakref.ref(Temporary)]
    ds.keeps(Average)
    with ds.dispose_scope():
        holder.x = ds.ones(2)
    del holder, kept, Temporary
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_classes_whose_metaclass_compares_are_looked_into():
    class Comparing(type):
        def __eq__(cls, other):
            raise AssertionError

    class Unhashable(metaclass=Comparing):
        pass

    ds.keeps(Average)
    holder = Unhashable()
    holder.average = Average()
    with keeping():
        holder.x = ds.ones(2)
        holder.average.update(ds.ones(2))
    assert holder.x.tolist() == holder.average.total.tolist() == [1, 1]


def test_where_nobody_can_tell_what_is_held_all_is_kept(monkeypatch):
    def fail(*arguments):
        raise RuntimeError("no answer")

    monkeypatch.setattr(keeping_module, "held_entries", fail)
    kept = []
    with ds.dispose_scope() as outer:
        with pytest.raises(ExceptionGroup, match="failed"), keeping():
            kept.append(ds.ones(2))
        assert ds.owner_of(kept[0]) is outer
    assert ds.is_disposed(kept[0])
