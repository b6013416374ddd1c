"""Programs that keep something on purpose run unchanged, bit for bit, under ``escapes="keep"``."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import contextlib
import contextvars
import copy
import dataclasses
import functools
import queue
import threading
import types
import weakref

import numpy as np
import pytest

import disposescope as ds

torch = pytest.importorskip("torch")
from torch import nn
from torch.nn import functional as F

STEPS = 6


def data(step, rows=8, width=4):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(rows, width, generator=generator)
    return x, (x.sum(1) > 0).long()


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 2))


def running_counts(scope):
    model, correct, seen, losses = small_model(), 0, 0, 0.0
    for step in range(STEPS):
        with scope():
            x, y = data(step)
            out = model(x)
            losses += F.cross_entropy(out, y).detach()
            correct += (out.argmax(1) == y).sum()
            seen += len(y)
    return [correct, losses, seen]


def exponential_average_of_a_model(scope):
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters())
    average = {name: value.clone() for name, value in model.state_dict().items()}
    for step in range(STEPS):
        with scope():
            x, y = data(step)
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            for name, value in model.state_dict().items():
                average[name] = 0.9 * average[name] + 0.1 * value if value.is_floating_point() else value.clone()
    return list(average.values())


def predictions_in_lists(scope):
    model, predictions, targets = small_model().eval(), [], []
    with torch.no_grad():
        for step in range(STEPS):
            with scope():
                x, y = data(step)
                out = model(x)
                predictions.append(out.softmax(1))
                targets += [y]
    return [torch.cat(predictions), torch.cat(targets)]


def best_weights(scope):
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    best, best_loss, best_copy = None, None, None
    for step in range(STEPS):
        with scope():
            x, y = data(step)
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if best_loss is None or loss < best_loss:
                best_loss = loss.detach()
                best = {name: value.clone() for name, value in model.state_dict().items()}
                best_copy = copy.deepcopy(model.state_dict())
    return [best_loss, *best.values(), *best_copy.values()]


def a_recurrent_state(scope):
    torch.manual_seed(0)
    rnn = nn.LSTM(4, 5)
    hidden = None
    outputs = []
    for step in range(STEPS):
        with scope():
            x, _ = data(step)
            out, hidden = rnn(x[:, None], hidden)
            hidden = tuple(part.detach() for part in hidden)
            outputs.append(out.mean().item())
    return [*hidden, *outputs]


def hooks_that_store(scope):
    model, seen = small_model(), {}

    def store(name):
        def hook(module, given, out):
            seen.setdefault(name, []).append(out.detach())

        return hook

    for name, module in model.named_children():
        module.register_forward_hook(store(name))
    for step in range(STEPS):
        with scope():
            model(data(step)[0])
    return [torch.stack(seen[name]) for name in sorted(seen)]


def a_replay_buffer(scope):
    buffer = collections.deque(maxlen=4)
    total = []
    for step in range(STEPS):
        with scope():
            x, y = data(step)
            buffer.append((x * 2, y, step))
            batch = torch.cat([old for old, _, _ in buffer])
            total.append(batch.mean().item())
    return [x for x, _, _ in buffer] + total


def a_memory_bank(scope):
    bank = torch.zeros(16, 4)
    place = 0
    for step in range(STEPS):
        with scope():
            x, _ = data(step)
            keys = F.normalize(x)
            bank = torch.cat([keys, bank])[:16]
            place = (place + len(x)) % 16
    return [bank, place]


def a_closure_with_nonlocal(scope):
    count, history = torch.zeros(2), []

    def add(y):
        nonlocal count
        count = count + torch.bincount(y, minlength=2)
        history.append(lambda: count.sum())

    for step in range(STEPS):
        with scope():
            add(data(step)[1])
    return [count, *[entry() for entry in history]]


def lbfgs(scope):
    torch.manual_seed(0)
    weight = torch.zeros(4, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight])
    for step in range(STEPS):
        with scope():
            x, y = data(step)

            def closure():
                optimizer.zero_grad()
                loss = F.binary_cross_entropy_with_logits(x @ weight, y.float())  # noqa: B023
                loss.backward()
                return loss

            optimizer.step(closure)
    return [weight.detach()]


@functools.cache
def positions(length, width):
    return torch.arange(length)[:, None] / torch.arange(1, width + 1)


def cached_positions(scope):
    positions.cache_clear()
    outs = []
    for step in range(STEPS):
        with scope():
            x, _ = data(step)
            outs.append((x + positions(8, 4)).sum().item())
    return [positions(8, 4), *outs]


@dataclasses.dataclass
class State:
    mean: torch.Tensor | None = None
    count: int = 0


def a_dataclass(scope):
    state = State()
    for step in range(STEPS):
        with scope():
            x, _ = data(step)
            mean = x.mean(0)
            state.count += 1
            state.mean = mean if state.mean is None else state.mean + (mean - state.mean) / state.count
    return [state.mean]


class Meter:
    total = 0.0
    extremes: tuple = ()

    def update(self, value):
        self.total = self.total + value
        self.extremes = (*self.extremes[-3:], value)


def own_metric(scope):
    meter = Meter()
    for step in range(STEPS):
        with scope():
            meter.update(data(step)[0].norm())
    return [meter.total, *meter.extremes]


def gradient_accumulation(scope):
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    losses = 0
    for step in range(STEPS):
        with scope():
            x, y = data(step)
            loss = F.cross_entropy(model(x), y) / 2
            loss.backward()
            losses = losses + loss.detach()
            if step % 2:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
    return [losses, *model.state_dict().values()]


def losses_added_up_with_their_graphs(scope):
    weight = torch.ones(4, requires_grad=True)
    total = 0
    for step in range(STEPS):
        with scope():
            x, _ = data(step)
            total = total + (x @ weight).pow(2).mean()
    total.backward()
    return [total.detach(), weight.grad]


def teacher_and_student(scope):
    teacher, student = small_model(), copy.deepcopy(small_model())
    optimizer = torch.optim.SGD(student.parameters(), 0.1)
    targets = {}
    for step in range(STEPS):
        with scope():
            x, _ = data(step % 3)
            if step % 3 not in targets:
                with torch.no_grad():
                    targets[step % 3] = teacher(x).softmax(1)
            loss = F.kl_div(student(x).log_softmax(1), targets[step % 3], reduction="batchmean")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return [*student.state_dict().values(), *targets.values()]


def beam_search(scope):
    beams = [(torch.zeros(1), [])]
    for step in range(STEPS):
        with scope():
            scores = data(step)[0][0].log_softmax(0)
            grown = [(total + scores[i], [*path, scores[i]]) for total, path in beams for i in range(4)]
            beams = sorted(grown, key=lambda beam: float(beam[0]), reverse=True)[:3]
    return [beams[0][0], *beams[0][1]]


def a_worker_thread(scope):
    given, results = queue.Queue(), []

    def work():
        while (x := given.get()) is not None:
            results.append(x.sum())

    thread = threading.Thread(target=work)
    thread.start()
    for step in range(STEPS):
        with scope():
            x, _ = data(step)
            given.put(x * 2)
    given.put(None)
    thread.join()
    return results


def a_generator_that_remembers(scope):
    def smoothed():
        mean = None
        while True:
            value = yield mean
            mean = value if mean is None else 0.5 * mean + 0.5 * value

    average = smoothed()
    next(average)
    last = None
    for step in range(STEPS):
        with scope():
            last = average.send(data(step)[0].mean(0))
    return [last]


LAST = None


def a_global(scope):
    global LAST
    LAST = None
    for step in range(STEPS):
        with scope():
            x = data(step)[0]
            LAST = x if LAST is None else torch.maximum(LAST, x)
    return [LAST]


def an_attribute_of_a_class(scope):
    class Registry:
        best = None

    for step in range(STEPS):
        with scope():
            x = data(step)[0].max()
            if Registry.best is None or x > Registry.best:
                Registry.best = x
    return [Registry.best]


def numpy_and_tensors(scope):
    rows, norms = [], np.zeros(4)
    for step in range(STEPS):
        with scope():
            x, _ = data(step)
            array = x.numpy() * 2
            norms = norms + np.abs(array).sum(0)
            rows.append(array[0])
    return [torch.from_numpy(norms), *map(torch.from_numpy, rows)]


def packed_batches(scope):
    torch.manual_seed(0)
    rnn = nn.GRU(3, 4)
    kept = []
    for step in range(STEPS):
        with scope():
            packed = nn.utils.rnn.pack_sequence([torch.ones(3, 3) * step, torch.ones(2, 3)])
            out, _ = rnn(packed)
            kept.append(out)
    return [*[packed.data for packed in kept], *[packed.batch_sizes for packed in kept]]


def an_exception_that_is_kept(scope):
    errors = []
    for step in range(STEPS):
        with contextlib.suppress(ValueError), scope():
            x, _ = data(step)
            try:
                raise ValueError(x.sum())
            except ValueError as error:
                errors.append(error)
                raise
    return [error.args[0] for error in errors]


def sorted_by_key_in_place(scope):
    best = []
    for step in range(STEPS):
        with scope():
            x, _ = data(step)
            best.append((x.norm(), step))
            best.sort(key=lambda pair: float(pair[0]))
            del best[3:]
    return [score for score, _ in best]


def tasks_that_hand_on(scope):
    totals, kept = [], {}

    async def produce(given):
        for step in range(STEPS):
            with scope():
                await given.put(data(step)[0].mean(0))
                await asyncio.sleep(0)
        await given.put(None)

    async def consume(given):
        total = torch.zeros(4)
        while (x := await given.get()) is not None:
            with scope():
                total = total + x
                totals.append(total)
                kept["last"] = x * 2
                await asyncio.sleep(0)
        return total

    async def run():
        given = asyncio.Queue(2)
        return (await asyncio.gather(produce(given), consume(given)))[1]

    return [asyncio.run(run()), *totals, kept["last"]]


def futures_of_a_pool(scope):
    futures = []
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for step in range(STEPS):
            with scope():
                x, y = data(step)
                futures.append(pool.submit(torch.mul, x, len(y)))
    return [future.result() for future in futures]


VARIABLE = contextvars.ContextVar("VARIABLE")


def holders_of_many_sorts(scope):
    contexts, finalized, suspended, coroutines, others = [], [], [], [], []

    class Owner:
        pass

    def generate(x):
        doubled = x * 2
        yield 0
        yield doubled + x

    async def add_one(x):
        return x + 1

    for step in range(STEPS):
        with scope():
            x = data(step)[0].sum(0)
            VARIABLE.set(x + 1)
            contexts.append(contextvars.copy_context())
            weakref.finalize(Owner(), finalized.append, x + 2)
            suspended.append(generate(x + 3))
            next(suspended[-1])
            coroutines.append(add_one(x + 4))
            others.append(types.MethodType(torch.neg, x + 5))
            others.append(functools.partial(torch.abs, x + 6))
            others.append(types.CellType(x + 7).__getattribute__)
            others.append(types.MappingProxyType({"cell_contents": x + 8}).__getitem__)
            others.append((x + 9).sum)
    results = [context[VARIABLE] for context in contexts]
    for coroutine in coroutines:
        with pytest.raises(StopIteration) as returned:
            coroutine.send(None)
        results.append(returned.value.value)
    for index, call in enumerate(others):
        results.append(call("cell_contents") if index % 5 in (2, 3) else call())
    return [*results, *finalized, *[next(generator) for generator in suspended]]


class Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, least):
        ctx.save_for_backward(x)
        ctx.mask = x > least
        ctx.others = [x * 2]
        return x.clamp(min=least)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ctx.mask * ctx.others[0] + x, None


def backward_passes_after_the_loop(scope):
    weight = data(0)[0].mean(0).requires_grad_()
    losses, norms, seen = [], [], {}
    for step in range(STEPS):
        with scope():
            out = Clamp.apply(weight * (step + 1), 0.1)
            out.register_hook(lambda grad: norms.append(grad.norm()))
            out.retain_grad()
            seen[step] = out
            losses.append(out.square().sum())
    torch.stack(losses).sum().backward()
    return [weight.grad, *losses, *norms, *[out.grad for out in seen.values()]]


def steps_that_are_differentiated(scope):
    weight = data(0)[0].mean(0).requires_grad_()
    fast, losses = weight, []
    for step in range(STEPS):
        with scope():
            loss = (data(step)[0] @ fast).tanh().square().mean()
            (grad,) = torch.autograd.grad(loss, fast, create_graph=True)
            fast = fast - 0.1 * grad
            losses.append(loss)
    (fast.sum() + torch.stack(losses).sum()).backward()
    return [weight.grad, fast, *losses]


def patterns_and_walruses(scope):
    best, found, last = None, [], {}
    for step in range(STEPS):
        with scope():
            x, y = data(step)
            match ("pair", x) if step % 2 else {"x": x * 2, "y": y}:
                case ("pair", given) if (norm := given.norm()) > 0:
                    found.append(given)
                    last["norm"] = norm
                case {"x": given, **rest}:
                    best = given if best is None else torch.maximum(best, given)
                    last |= rest
    return [best, *found, *last.values()]


PROGRAMS = [
    running_counts,
    exponential_average_of_a_model,
    predictions_in_lists,
    best_weights,
    a_recurrent_state,
    hooks_that_store,
    a_replay_buffer,
    a_memory_bank,
    a_closure_with_nonlocal,
    lbfgs,
    cached_positions,
    a_dataclass,
    own_metric,
    gradient_accumulation,
    losses_added_up_with_their_graphs,
    teacher_and_student,
    beam_search,
    a_worker_thread,
    a_generator_that_remembers,
    a_global,
    an_attribute_of_a_class,
    numpy_and_tensors,
    packed_batches,
    an_exception_that_is_kept,
    sorted_by_key_in_place,
    tasks_that_hand_on,
    futures_of_a_pool,
    holders_of_many_sorts,
    backward_passes_after_the_loop,
    steps_that_are_differentiated,
    patterns_and_walruses,
]


def equal(a, b):
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return a == b


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_program_runs_unchanged(program):
    plain = program(contextlib.nullcontext)
    kept = program(functools.partial(ds.dispose_scope, escapes="keep"))
    assert len(plain) == len(kept)
    assert all(map(equal, plain, kept))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_what_nothing_holds_is_disposed(program):
    ds.reset_statistics()
    program(functools.partial(ds.dispose_scope, escapes="keep"))
    assert ds.statistics().disposed_in_scope > 0
