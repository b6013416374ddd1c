"""Plain PyTorch loops that keep something on purpose: unchanged where scopes keep what is held."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="these programs are PyTorch's")
from torch import Tensor, nn

import disposescope as ds
from tests.frameworks.rounds import KEEP, SCOPE, Round, assert_same_as_plain


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))


def batches(count: int = 6) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.randn(4, 6, generator=generator), torch.randint(0, 3, (4,), generator=generator)


def running_count(step: Round) -> object:
    model = small_model()
    correct: Any = 0
    total = torch.zeros(())
    for x, y in batches():
        with step():
            out = model(x)
            correct += (out.argmax(1) == y).sum()
            total = total + nn.functional.cross_entropy(out, y).detach()
    return correct, total


def exponential_average(step: Round) -> object:
    model = small_model()
    average = None
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for x, y in batches():
        with step():
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average = loss.detach() if average is None else 0.9 * average + 0.1 * loss.detach()
            weights = {name: 0.9 * weights[name] + 0.1 * value.detach() for name, value in model.named_parameters()}
    return average, weights


def predictions_in_a_list(step: Round) -> object:
    model = small_model().eval()
    predictions: list[Tensor] = []
    labels: list[Tensor] = []
    recent: deque[Tensor] = deque(maxlen=2)
    with torch.no_grad():
        for x, y in batches():
            with step():
                logits = model(x)
                predictions.append(logits.softmax(1))
                labels.append(y)
                recent.append(logits.max())
    return torch.cat(predictions), torch.cat(labels), list(recent)


def best_weights(step: Round) -> object:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    best_loss, best = float("inf"), None
    for x, y in batches():
        with step():
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if loss.item() < best_loss:
                best_loss, best = loss.item(), copy.deepcopy(model.state_dict())
    assert best is not None
    model.load_state_dict(best)
    return best_loss, model.state_dict()


def best_loss_as_a_tensor(step: Round) -> object:
    model = small_model()
    best, worst = torch.tensor(float("inf")), torch.tensor(0.0)
    history: dict[int, Tensor] = {}
    for index, (x, y) in enumerate(batches()):
        with step():
            loss = nn.functional.cross_entropy(model(x), y).detach()
            best, worst = torch.minimum(best, loss), max(worst, loss)
            history[index] = loss
    return best, worst, history


def accumulated_loss_with_its_graphs(step: Round) -> object:
    model = small_model()
    loss: Any = 0
    for x, y in batches(3):
        with step():
            loss = loss + nn.functional.cross_entropy(model(x), y)
    loss.backward()
    return [parameter.grad for parameter in model.parameters()]


def hidden_state_of_a_recurrent_net(step: Round) -> object:
    torch.manual_seed(0)
    net = nn.LSTM(6, 8, batch_first=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    state = None
    for x, _ in batches():
        with step():
            out, state = net(x[:, None], state)
            optimizer.zero_grad()
            out.square().mean().backward()
            optimizer.step()
            state = tuple(part.detach() for part in state)
    return state, net.state_dict()


def features_of_a_hook(step: Round) -> object:
    model = small_model()
    features: dict[str, Tensor] = {}
    handle = model.register_forward_hook(lambda module, given, result: features.update(last=result.detach()))
    for x, _ in batches():
        with step():
            model(x)
    handle.remove()
    return features


def replay_buffer(step: Round) -> object:
    class Buffer:
        def __init__(self) -> None:
            self.items: list[tuple[Tensor, Tensor]] = []

        def add(self, *item: Tensor) -> None:
            self.items.append(item)  # type: ignore[arg-type]  # two of them

    model, buffer = small_model().eval(), Buffer()
    for x, _ in batches():
        with step():
            buffer.add(x.mul(2), model(x).argmax(1))
    return buffer.items


PROGRAMS: tuple[Callable[[Round], object], ...] = (
    running_count,
    exponential_average,
    predictions_in_a_list,
    best_weights,
    best_loss_as_a_tensor,
    accumulated_loss_with_its_graphs,
    hidden_state_of_a_recurrent_net,
    features_of_a_hook,
    replay_buffer,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_loop_that_keeps_something_runs_unchanged(program: Callable[[Round], object]) -> None:
    assert_same_as_plain(program, KEEP)


# A hook is the module's, and what its closure refers to.
@pytest.mark.parametrize(
    "program", [one for one in PROGRAMS if one is not features_of_a_hook], ids=lambda program: program.__name__
)
def test_default_scopes_tell_that_it_keeps_something(program: Callable[[Round], object]) -> None:
    with pytest.raises(ds.DisposedError):
        assert_same_as_plain(program, SCOPE)
