"""``dispose_scope(graph="none")`` and ``"refuse"``: what a block may record for ``backward()``."""

from __future__ import annotations

import asyncio
import contextvars
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="these are graphs of PyTorch")

import disposescope as ds
from tests.interrupts import interrupt_everywhere

WEIGHT = torch.ones(3, requires_grad=True)


def records() -> bool:
    return bool((WEIGHT * 2).requires_grad)


@pytest.fixture(autouse=True)
def grad_mode() -> Iterator[None]:
    assert torch.is_grad_enabled()
    yield
    was_restored = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    assert was_restored
    assert torch._C._len_torch_function_stack() == 0


# ---------------------------------------------------------------------- none


def test_none_records_nothing_in_the_block_and_everything_after_it() -> None:
    with ds.dispose_scope(graph="none"):
        assert not records()
    assert records()


def test_what_none_makes_is_used_in_training_later() -> None:
    with ds.dispose_scope(graph="none") as scope:
        features = scope.move_to_outer(torch.arange(3.0) * 2)
    loss = (features * WEIGHT).sum()
    (gradient,) = torch.autograd.grad(loss, WEIGHT)
    assert gradient.tolist() == [0.0, 2.0, 4.0]
    features.add_(1).requires_grad_()
    assert features.tolist() == [1.0, 3.0, 5.0]


def test_none_is_put_back_when_the_block_raises() -> None:
    with pytest.raises(KeyboardInterrupt), ds.dispose_scope(graph="none"):
        raise KeyboardInterrupt
    assert records()


def test_none_inside_no_grad_leaves_it_off() -> None:
    with torch.no_grad():
        with ds.dispose_scope(graph="none"):
            assert not records()
        assert not records()


def test_enable_grad_inside_none_records() -> None:
    with ds.dispose_scope(graph="none"):
        with torch.enable_grad():
            assert records()
        assert not records()


def test_an_inner_scope_of_any_other_option_records_no_more_than_the_outer_one() -> None:
    with ds.dispose_scope(graph="none"):
        for option in ("keep", "detach", "error", "none", "refuse"):
            with ds.dispose_scope(graph=option):
                assert not records()
            assert not records()


def test_none_leaves_arrays_and_tensors_of_the_library_as_they_are() -> None:
    with ds.dispose_scope(graph="none") as scope:
        total = scope.move_to_outer((ds.arange(4) * 2).sum())
    assert int(total) == 12


def test_close_in_the_block_ends_what_none_says() -> None:
    with ds.dispose_scope(graph="none") as scope:
        scope.close()
        assert records()
    assert records()


@pytest.mark.parametrize("around", [torch.no_grad, torch.enable_grad])
def test_close_inside_of_another_block_of_grad_mode_is_put_right_when_the_scope_is_left(around: Any) -> None:
    with ds.dispose_scope(graph="none") as scope, around():
        scope.close()
    assert records()


def test_a_scope_closed_on_another_thread_is_put_right_when_its_block_is_left() -> None:
    with ds.dispose_scope(graph="none") as scope:
        worker = threading.Thread(target=scope.close)
        worker.start()
        worker.join()
        assert scope.closed
        assert not records()
    assert records()


def test_a_scope_that_was_entered_by_hand_is_put_right_by_close() -> None:
    scope = ds.dispose_scope(graph="none")
    scope.__enter__()
    assert not records()
    scope.close()
    assert records()


def test_an_outer_scope_that_is_closed_first_leaves_the_rest_to_the_inner_one() -> None:
    with ds.dispose_scope(graph="none") as outer:
        with ds.dispose_scope(graph="none"):
            outer.close()
            assert not records()
        assert records()
    assert records()


def test_other_threads_record_as_ever_and_work_with_this_context_does_not() -> None:
    seen: dict[str, bool] = {}

    def work(name: str) -> None:
        seen[name] = records()

    with ds.dispose_scope(graph="none"), ds.dispose_scope():
        context = contextvars.copy_context()
        threads = [
            threading.Thread(target=work, args=("plain",), context=contextvars.Context())
            if sys.version_info >= (3, 14)
            else threading.Thread(target=work, args=("plain",)),
            threading.Thread(target=context.run, args=(work, "context")),
        ]
        for thread in threads:
            thread.start()
            thread.join()
        asyncio.run(asyncio.to_thread(work, "to_thread"))
    assert seen == {"plain": True, "context": False, "to_thread": False}


def test_a_worker_thread_records_again_after_work_with_this_context() -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        with ds.dispose_scope(graph="none"):
            assert not pool.submit(contextvars.copy_context().run, records).result()
            assert pool.submit(records).result()


def test_a_decorated_function_of_each_sort_records_nothing_and_its_caller_does() -> None:
    @ds.dispose_scope(graph="none")
    def function() -> bool:
        return records()

    @ds.dispose_scope(graph="none")
    def generator() -> Iterator[bool]:
        while True:
            yield records()

    @ds.dispose_scope(graph="none")
    async def coroutine() -> list[bool]:
        before = records()
        await asyncio.sleep(0)
        return [before, records()]

    @ds.dispose_scope(graph="none")
    async def stream() -> AsyncIterator[bool]:
        for _ in range(3):
            await asyncio.sleep(0)
            yield records()

    async def trains() -> bool:
        seen: list[bool] = []
        for _ in range(8):
            seen.append(records())
            await asyncio.sleep(0)
        return all(seen)

    async def both() -> None:
        found, recorded = await asyncio.gather(coroutine(), trains())
        assert recorded
        assert found == [False, False]
        other = asyncio.create_task(trains())
        async for recorded in stream():
            assert not recorded
            assert records()
        assert await other

    assert not function()
    steps = generator()
    for _ in range(3):
        assert not next(steps)
        assert records()
    steps.close()
    asyncio.run(both())


def test_a_decorated_coroutine_passes_on_results_exceptions_and_cancellation() -> None:
    @ds.dispose_scope(graph="none")
    async def fetch(future: asyncio.Future[int]) -> int:
        try:
            return await future
        finally:
            assert not records()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for how in ("result", "error", "cancel"):
            future: asyncio.Future[int] = loop.create_future()
            task = asyncio.ensure_future(fetch(future))
            await asyncio.sleep(0)
            assert records()
            if how == "result":
                future.set_result(3)
                assert await task == 3
            elif how == "error":
                future.set_exception(KeyError("gone"))
                with pytest.raises(KeyError):
                    await task
            else:
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert records()

    asyncio.run(main())


def test_blocks_of_two_tasks_that_interleave_put_grad_mode_back_with_the_last() -> None:
    async def one(entered: asyncio.Event, leave: asyncio.Event) -> None:
        with ds.dispose_scope(graph="none"):
            entered.set()
            await leave.wait()
            assert not records()

    async def main() -> None:
        first_in, first_out, second_in, second_out = (asyncio.Event() for _ in range(4))
        first = asyncio.create_task(one(first_in, first_out))
        await first_in.wait()
        second = asyncio.create_task(one(second_in, second_out))
        await second_in.wait()
        first_out.set()
        await first
        # Grad mode is the thread's, as for torch.no_grad().
        assert not records()
        second_out.set()
        await second
        assert records()

    asyncio.run(main())


def test_a_generator_that_is_abandoned_in_its_block_puts_grad_mode_back() -> None:
    def generator() -> Iterator[int]:
        with ds.dispose_scope(graph="none"):
            yield 1

    steps = generator()
    next(steps)
    assert not records()
    del steps
    assert records()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_begins_outside_of_the_block() -> None:
    with ds.dispose_scope(graph="none"), ds.dispose_scope(graph="refuse"):
        pid = os.fork()
        if not pid:
            os._exit(0 if torch.is_grad_enabled() and records() else 1)
        assert os.waitpid(pid, 0)[1] == 0


IMPORTED_INSIDE = """
import disposescope as ds
with ds.dispose_scope(graph="none"):
    import torch
    weight = ds.detach(torch.ones(3, requires_grad=True))
    inside = (weight * 2).requires_grad
print(inside, (weight * 2).requires_grad)
with ds.dispose_scope(graph="refuse"):
    try:
        weight * 2
    except ds.GraphRetainedError as error:
        print(error.leaf)
"""


def test_pytorch_may_be_imported_in_the_block() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED_INSIDE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "weight"]


def test_a_tensor_with_a_graph_from_elsewhere_leaves_with_it_and_is_counted() -> None:
    ds.reset_statistics()
    outside = WEIGHT * 2
    with ds.dispose_scope() as outer:
        with ds.dispose_scope(graph="none") as scope:
            scope.move_to_outer(scope.attach(outside))
        assert outside.grad_fn is not None
        assert outside in outer
    assert ds.statistics().graphs_kept == 1


def test_the_option_is_what_it_was_when_the_block_began() -> None:
    scope = ds.dispose_scope()
    scope.graph = "none"
    with scope:
        assert not records()
        scope.graph = "keep"
        assert not records()
    assert records()
    with ds.dispose_scope() as scope:
        scope.graph = "none"
        assert records()
    assert records()


def limited(born: list[Any]) -> None:
    check_thread()
    with ds.dispose_scope(graph="none"), ds.dispose_scope(graph="refuse"):
        born.append(torch.ones(3))
        with ds.dispose_scope(graph="none") as inner:
            born.append(torch.ones(3) * 2)
            inner.close()


def limited_by_decorators(born: list[Any]) -> None:
    check_thread()

    @ds.dispose_scope(graph="none")
    def generator() -> Iterator[Any]:
        born.append(torch.ones(3))
        yield 1
        born.append(torch.ones(3))

    @ds.dispose_scope(graph="none")
    async def coroutine() -> None:
        born.append(torch.ones(3))
        await asyncio.sleep(0)
        born.append(torch.ones(3))

    for _ in generator():
        pass
    steps = coroutine()
    try:
        for _ in range(2):
            try:
                steps.send(None)
            except StopIteration:
                break
    finally:
        steps.close()


def check_thread() -> None:
    assert torch.is_grad_enabled()
    assert torch._C._len_torch_function_stack() == 0


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("program", [limited, limited_by_decorators])
def test_an_interrupt_anywhere_puts_grad_mode_back(program: Callable[[list[Any]], None]) -> None:
    assert interrupt_everywhere(program, lines=False) > 25
    check_thread()


# ---------------------------------------------------------------------- refuse


def refused(call: Callable[[], object], **options: Any) -> ds.GraphRetainedError:
    with ds.dispose_scope("test", graph="refuse", **options):
        with pytest.raises(ds.GraphRetainedError) as caught:
            call()
    return caught.value


class Block(torch.nn.Module):
    """A block of a frozen model, in which something is wrong."""

    def __init__(self, norm: torch.nn.Module) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(4, 4)
        self.norm = norm

    def forward(self, x: Any) -> Any:
        return self.norm(torch.relu(self.dense(x)))


class Model(torch.nn.Module):
    def __init__(self, norm: torch.nn.Module) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4), Block(norm)])
        self.head = torch.nn.Linear(4, 2)
        self.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class LearnedStatistics(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.running_mean = torch.nn.Parameter(torch.zeros(4))
        self.running_var = torch.nn.Parameter(torch.ones(4))

    def forward(self, x: Any) -> Any:
        centred = x - self.running_mean  # FAULT
        return centred / self.running_var.sqrt()


class Positions(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.zeros(4)

    def forward(self, x: Any) -> Any:
        return x + self.table  # FAULT


class Buffered(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: Any) -> Any:
        return x * self.scale  # FAULT


class LayerScale(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gamma = torch.nn.Parameter(torch.full((4,), 0.1))

    def forward(self, x: Any) -> Any:
        return torch.mul(x, self.gamma)  # FAULT


class LowRank(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = torch.nn.Linear(4, 4)
        self.down = torch.nn.Linear(4, 2, bias=False)
        self.up = torch.nn.Linear(2, 4, bias=False)

    def forward(self, x: Any) -> Any:
        y = self.base(x)
        return y + self.up(self.down(x))  # FAULT


class Averaging(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.momentum = torch.nn.Parameter(torch.tensor(0.9))
        self.register_buffer("average", torch.zeros(4))

    def forward(self, x: Any) -> Any:
        self.average.mul_(0.5).addcmul_(x.mean(0), self.momentum)  # FAULT
        return x - self.average


class Embedded(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.codes = torch.nn.Embedding(3, 4)

    def forward(self, x: Any) -> Any:
        return x + self.codes(torch.tensor([1]))  # FAULT


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        return x * weight

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient, gradient


class Custom(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = torch.nn.Parameter(torch.ones(4))

    def forward(self, x: Any) -> Any:
        y = Doubled.apply(x, self.gain)
        return y + 1  # FAULT


def _learned(model: Any) -> None:
    model.layers[1].norm.requires_grad_()


def _table(model: Any) -> None:
    model.layers[1].norm.table.requires_grad_()


def _buffer(model: Any) -> None:
    model.layers[1].norm.scale.requires_grad_()


def _adapters(model: Any) -> None:
    for part in (model.layers[1].norm.down, model.layers[1].norm.up):
        part.requires_grad_()


def _head(model: Any) -> None:
    model.head.requires_grad_()


def _weight_norm(model: Any) -> None:
    torch.nn.utils.parametrizations.weight_norm(model.layers[1].dense).requires_grad_()


def _nothing(model: Any) -> None:
    pass


FAULTS: dict[str, tuple[Callable[[], torch.nn.Module], Callable[[Any], None], str, str, str]] = {
    "statistics as parameters": (
        LearnedStatistics,
        _learned,
        "layers.1.norm",
        "layers.1.norm.running_mean",
        "x - self.running_mean",
    ),
    "a buffer": (Buffered, _buffer, "layers.1.norm", "layers.1.norm.scale", "x * self.scale"),
    "a positional table": (Positions, _table, "layers.1.norm", "layers.1.norm.table", "x + self.table"),
    "a layer scale": (LayerScale, _learned, "layers.1.norm", "layers.1.norm.gamma", "torch.mul(x, self.gamma)"),
    "low-rank weights": (
        LowRank,
        _adapters,
        "layers.1.norm.down",
        "layers.1.norm.down.weight",
        "self.up(self.down(x))",
    ),
    "weight norm": (
        torch.nn.Identity,
        _weight_norm,
        "layers.1.dense.parametrizations.weight.0",
        "layers.1.dense.parametrizations.weight.original0",
        "torch.relu(self.dense(x))",
    ),
    "an embedding": (Embedded, _learned, "layers.1.norm.codes", "layers.1.norm.codes.weight", "self.codes("),
    "an average in place": (Averaging, _learned, "layers.1.norm", "layers.1.norm.momentum", "addcmul_"),
    "a batch norm of PyTorch's": (
        lambda: torch.nn.BatchNorm1d(4),
        _learned,
        "layers.1.norm",
        "layers.1.norm.weight",
        "self.norm(torch.relu",
    ),
    "a head that is not frozen": (torch.nn.Identity, _head, "head", "head.weight", "self.head(x)"),
    "a custom function": (Custom, _learned, "layers.1.norm", "layers.1.norm.gain", "y + 1"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_refuse_names_line_module_and_leaf(fault: str) -> None:
    norm, put_in, module, leaf, line = FAULTS[fault]
    model = Model(norm())
    put_in(model)
    model.eval()
    error = refused(lambda: model(torch.ones(2, 4)))
    assert (error.module, error.leaf) == (module, leaf)
    file, number = error.site.split(" ")[0].rsplit(":", 1)
    with open(file, encoding="utf-8") as source:
        assert line in source.read().splitlines()[int(number) - 1]
    for told in (error.site, module, leaf, "scope 'test'", 'graph="none"', "audit"):
        assert told in str(error)


def test_refuse_names_an_input_that_requires_gradients_by_its_variable() -> None:
    model = Model(torch.nn.Identity())
    images = torch.ones(2, 4, requires_grad=True)
    error = refused(lambda: model(images))
    assert (error.module, error.leaf) == ("layers.0", "images")
    assert "test_refuse_names_an_input" in str(error)


def test_refuse_names_what_is_behind_an_input_with_a_graph() -> None:
    hidden = torch.ones(2, 4) * torch.ones(4, requires_grad=True)
    error = refused(lambda: Model(torch.nn.Identity())(hidden))
    assert error.leaf == "torch.Tensor (4,) torch.float32"


def test_a_frozen_model_runs_under_refuse_as_without() -> None:
    model = Model(torch.nn.BatchNorm1d(4)).eval()
    x = torch.ones(2, 4)
    expected = model(x)
    with ds.dispose_scope(graph="refuse") as scope:
        assert torch.equal(model(x), expected)
        with torch.no_grad():
            WEIGHT * 2
        with ds.dispose_scope(graph="none"):
            WEIGHT * 2
        assert WEIGHT.detach().tolist() == [1.0] * 3
        assert WEIGHT.argmax() == 0
        scope.move_to_outer(x)


def test_what_records_nothing_is_let_through() -> None:
    outside = WEIGHT * 2
    given = torch.ones(3)
    with ds.dispose_scope(graph="refuse"):
        Doubled.apply(given, given) + 1
        outside.detach()
        (outside > 1).any()
        assert outside.grad_fn is not None
        torch.func.grad(lambda x: (x * x).sum())(given)
        given.clone().requires_grad_()
    outside.sum().backward()
    WEIGHT.grad = None


def test_backward_of_a_graph_from_before_is_let_through() -> None:
    loss = (WEIGHT * 2).sum()
    with ds.dispose_scope(graph="refuse"):
        loss.backward()
    assert WEIGHT.grad.tolist() == [2.0] * 3
    WEIGHT.grad = None


def test_each_way_to_record_is_refused() -> None:
    def assigned() -> None:
        torch.zeros(3)[0:1] = WEIGHT.view(3)[1:2]

    def written() -> None:
        torch.zeros(3).add_(WEIGHT)

    def given_out() -> None:
        torch.add(WEIGHT, 1)

    def in_a_list() -> None:
        torch.stack([torch.zeros(3), WEIGHT])

    def several() -> None:
        torch.split(WEIGHT, 1)

    def enabled() -> None:
        with torch.no_grad(), torch.enable_grad():
            WEIGHT * 2

    def twice() -> None:
        x = torch.ones(2, requires_grad=True)
        torch.autograd.grad((x**3).sum(), x, create_graph=True)

    for way in (assigned, written, given_out, in_a_list, several, enabled, twice):
        error = refused(way)
        assert error.leaf in ("WEIGHT", "x"), way
        assert error.site.endswith(f"in {test_each_way_to_record_is_refused.__name__}.<locals>.{way.__name__}()")
        assert error.module == ""


def test_what_a_custom_function_recorded_is_refused_where_it_is_moved_out_at_the_latest() -> None:
    with ds.dispose_scope("last", graph="refuse") as scope:
        recorded = Doubled.apply(WEIGHT, WEIGHT)
        with pytest.raises(ds.GraphRetainedError, match="leaving scope 'last' with graph=\"refuse\""):
            scope.move_to_outer(recorded)


def test_refuse_ends_with_its_block_whatever_happens() -> None:
    with ds.dispose_scope(graph="refuse") as outer:
        with ds.dispose_scope(graph="refuse"):
            outer.close()
            with pytest.raises(ds.GraphRetainedError):
                WEIGHT * 2
        assert records()
    with pytest.raises(ZeroDivisionError), ds.dispose_scope(graph="refuse"):
        raise ZeroDivisionError
    assert records()
    with ds.dispose_scope(graph="refuse") as scope:
        worker = threading.Thread(target=scope.close)
        worker.start()
        worker.join()
        assert records()
    assert records()


def test_refuse_reaches_inner_scopes_and_work_with_its_context() -> None:
    with ds.dispose_scope(graph="refuse"), ds.dispose_scope(graph="keep"):
        with pytest.raises(ds.GraphRetainedError):
            WEIGHT * 2
        with pytest.raises(ds.GraphRetainedError):
            asyncio.run(asyncio.to_thread(records))
        plain: list[bool] = []
        worker = threading.Thread(target=lambda: plain.append(records()))
        if sys.version_info >= (3, 14):
            worker._context = contextvars.Context()
        worker.start()
        worker.join()
        assert plain == [True]


def test_refuse_is_about_its_own_context_also_while_generators_and_tasks_are_suspended() -> None:
    def generator() -> Iterator[None]:
        with ds.dispose_scope(graph="refuse"):
            yield
            with pytest.raises(ds.GraphRetainedError):
                records()

    steps = generator()
    next(steps)
    made = WEIGHT * 2
    next(steps, None)
    assert made.requires_grad

    async def refusing(entered: asyncio.Event, leave: asyncio.Event) -> None:
        with ds.dispose_scope(graph="refuse"):
            entered.set()
            await leave.wait()
            with pytest.raises(ds.GraphRetainedError):
                records()

    async def main() -> None:
        entered, leave = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(refusing(entered, leave))
        await entered.wait()
        assert records()
        leave.set()
        await task

    asyncio.run(main())


def test_the_error_keeps_no_graph_and_survives_pickling() -> None:
    freed: list[str] = []

    class Sentinel:
        def __del__(self) -> None:
            freed.append("freed")

    def call() -> None:
        node = Sentinel()
        y = torch.ones(3)
        y.sentinel = node
        del node
        torch.stack([y, WEIGHT])

    error = refused(call)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.module, copy.leaf, copy.site) == (str(error), error.module, error.leaf, error.site)
    assert error.last_op == "StackBackward0"
    assert error.nodes == 2
    error.__traceback__ = None
    assert freed


def test_both_options_are_shown_in_the_repr() -> None:
    assert repr(ds.dispose_scope("a", graph="none")) == "<DisposeScope 'a' unopened, graph='none'>"
    assert repr(ds.dispose_scope("a", graph="refuse")) == "<DisposeScope 'a' unopened, graph='refuse'>"


# ---------------------------------------------------------------------- audit


def faults_of(model: Any) -> list[tuple[str, str]]:
    return [(recorder.fault, recorder.name) for recorder in ds.audit(model).recorders]


def test_a_frozen_model_has_nothing_to_audit() -> None:
    audit = ds.audit(Model(torch.nn.BatchNorm1d(4)).eval())
    assert not audit
    assert str(audit) == "nothing makes this model record a graph in eval mode"


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "weight norm"])
def test_the_audit_lists_what_refuse_names(fault: str) -> None:
    norm, put_in, _, leaf, _ = FAULTS[fault]
    model = Model(norm())
    put_in(model)
    model.eval()
    names = [name for _, name in faults_of(model)]
    assert leaf in names
    assert names[-1] == ""
    assert leaf in str(ds.audit(model))


def test_the_audit_tells_what_is_wrong_whatever_the_grad_mode_is() -> None:
    model = Model(LearnedStatistics())
    model.layers[1].norm.requires_grad_()
    model.head.requires_grad_()
    model.layers[1].norm.register_buffer("scale", WEIGHT * 2)
    model.layers[1].caches = [torch.ones(1, requires_grad=True)]
    wrong = [
        ("statistic", "layers.1.norm.running_mean"),
        ("statistic", "layers.1.norm.running_var"),
        ("buffer", "layers.1.norm.scale"),
        ("attribute", "layers.1.caches[0]"),
    ]
    trained = [("parameter", "head.weight"), ("parameter", "head.bias")]
    assert faults_of(model) == wrong + trained  # it is in training mode
    model.eval()
    assert faults_of(model) == [*wrong, *trained, ("grad mode", "")]
    with torch.no_grad():
        assert faults_of(model) == wrong
    with ds.dispose_scope(graph="none"):
        assert faults_of(model) == wrong
    assert ds.audit(model).recorders[2].has_graph
    assert "carries a graph from earlier steps" in str(ds.audit(model))


def test_only_modules_are_audited() -> None:
    with pytest.raises(TypeError, match=r"audit: a torch\.nn\.Module is wanted, and a builtins\.int was given"):
        ds.audit(3)


# ---------------------------------------------------------------------- leak reports


class Tracking(torch.nn.Module):
    """Keeps what it has seen, with its graph."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(64, 64)
        self.shift = torch.nn.Parameter(torch.zeros(64))
        self.running_mean = torch.zeros(64)

    def forward(self, x: Any) -> Any:
        y = self.dense(x)
        self.running_mean = 0.9 * self.running_mean + 0.1 * (y.exp() * self.shift).mean(0)
        return y - self.running_mean


def graph_leaks(model: Any, keep: Callable[[Any], Any] = lambda y: None) -> list[Any]:
    kept: list[Any] = []
    with ds.LeakDetector() as detector:
        for _ in range(20):
            detector.mark("step")
            kept.append(keep(model(torch.ones(32, 64))))
        report = detector.report(object_limit=10**8)
    return [leak for leak in report.leaks if leak.kind == "graph"]


def advises(leaks: list[Any]) -> set[bool]:
    assert leaks
    for leak in leaks:
        for told in ('graph="none"', "audit(model)", "eval mode"):
            assert (told in leak.explanation) == ('graph="none"' in leak.explanation)
    return {'graph="none"' in leak.explanation for leak in leaks}


def test_a_graph_kept_by_a_model_in_eval_mode_is_reported_with_what_to_write() -> None:
    assert advises(graph_leaks(Tracking().eval())) == {True}
    assert advises(graph_leaks(Tracking().train())) == {False}
    with torch.no_grad():
        assert not graph_leaks(Tracking().eval())


def test_a_graph_of_kept_results_of_a_model_in_eval_mode_is_reported_with_what_to_write() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8))
    assert advises(graph_leaks(model.eval(), keep=lambda y: y)) == {True}
    assert advises(graph_leaks(model.train(), keep=lambda y: y)) == {False}
    # Frozen statistics in a model that is trained.
    model[0].eval()
    assert advises(graph_leaks(model, keep=lambda y: y)) == {False}
