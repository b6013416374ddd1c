"""Steps of optimizers are passes, and a graph that reaches over many of them is a leak."""

from collections import deque
from importlib import import_module
from typing import Any

import pytest

from disposescope.leaks import LeakDetector
from disposescope.leaks.births.log import LOG

torch: Any = pytest.importorskip("torch")
SHOWS_SAVED: bool = import_module("disposescope.tensors.torch.graphs.walk").SHOWS_SAVED

KEPT: dict[str, Any] = {}


def train(steps: int, after_step: Any) -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).mean()
        loss.backward()
        optimizer.step()
        after_step(loss)


def add_up(loss: Any) -> None:
    KEPT["total"] = KEPT.get("total", 0.0) + loss


def report_after(after_step: Any) -> Any:
    with LeakDetector() as detector:
        try:
            train(20, after_step)
            return detector.report(of_program=True)
        finally:
            KEPT.clear()


def leaks_of(after_step: Any) -> list[tuple[str, tuple[str, ...]]]:
    return [(leak.kind, leak.holders) for leak in report_after(after_step).leaks]


def test_a_sum_of_losses_carries_the_graphs_of_all_steps() -> None:
    [leak] = report_after(add_up).leaks
    assert (leak.kind, leak.holders) == ("graph", (f"module {__name__}.KEPT['total']",))
    # The last sum was made behind the last step.
    assert leak.explanation.startswith("Its graph reaches over 20 steps")


def test_the_last_loss_has_the_graph_of_one_step() -> None:
    assert leaks_of(lambda loss: KEPT.update(loss=loss)) == []


def test_a_sum_of_numbers_is_no_leak() -> None:
    assert leaks_of(lambda loss: KEPT.update(total=KEPT.get("total", 0.0) + loss.detach())) == []


def test_what_grows_from_step_to_step_is_growth() -> None:
    def keep(loss: Any) -> None:
        KEPT.setdefault("all", []).append(torch.ones(1000))

    assert leaks_of(keep) == [("growth", (f"module {__name__}.KEPT['all'][0]",))]


def test_a_deep_graph_can_be_released_after_the_search() -> None:
    def go_on(loss: Any) -> None:
        for _ in range(1000):
            KEPT["deep"] = KEPT.get("deep", loss) + 1.0

    assert [kind for kind, _ in leaks_of(go_on)] == ["graph"]


def test_no_step_is_counted_once_the_detector_is_closed() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with LeakDetector():
        before = LOG.counts()[1]
        optimizer.step()
        assert LOG.counts()[1] == before + 1
    optimizer.step()
    assert LOG.counts()[1] == before + 1


def test_a_detector_that_opens_leaves_the_hooks_of_steps_alone() -> None:
    """Another thread may be going through them."""
    with LeakDetector():
        """PyTorch has been met now."""
    hooks = import_module("torch.optim.optimizer")._global_optimizer_post_hooks
    before = list(hooks)
    with LeakDetector():
        assert list(hooks) == before
    assert list(hooks) == before


def two_layers() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))


def trim(losses: Any) -> None:
    if len(losses) > 4:
        losses.pop(0)


def kinds_with_kept_losses(
    epochs: int, losses: Any, *, is_stepped: bool = True, bound: Any = lambda _: None
) -> list[str]:
    """Return the kinds of leak where each epoch keeps a loss with its graph, steps in between."""
    stepped = two_layers()
    model = stepped if is_stepped else two_layers()
    optimizer = torch.optim.SGD(stepped.parameters(), lr=0.01)
    KEPT["losses"] = losses
    with LeakDetector() as detector:
        try:
            for _ in range(epochs):
                for _ in range(3):
                    optimizer.zero_grad()
                    stepped(torch.ones(4, 8)).mean().backward()
                    optimizer.step()
                loss = model(torch.randn(4000, 8)).square().mean()
                losses.append(loss)
                bound(losses)
            report = detector.report(of_program=True)
        finally:
            KEPT.clear()
    return sorted({leak.kind for leak in report.leaks})


@pytest.mark.skipif(not SHOWS_SAVED, reason="PyTorch before 2.10 does not show what a graph saved")
def test_graphs_of_a_few_epochs_whose_parameters_a_step_has_changed_are_a_leak() -> None:
    assert kinds_with_kept_losses(5, []) == ["graph"]


@pytest.mark.parametrize("maxlen", [3, 8])
def test_what_a_bounded_deque_has_of_graphs_is_none(maxlen: int) -> None:
    assert kinds_with_kept_losses(7, deque(maxlen=maxlen)) == []


def test_graphs_in_a_list_that_is_trimmed_are_none() -> None:
    assert kinds_with_kept_losses(40, [], bound=trim) == []


def test_graphs_of_parameters_that_no_step_has_changed_wait_for_their_backward() -> None:
    """As those of a policy do while the critic learns with each step of an episode."""
    assert kinds_with_kept_losses(5, [], is_stepped=False) == []


def test_the_graph_of_one_step_or_two_is_no_leak() -> None:
    assert kinds_with_kept_losses(2, []) == []


@pytest.mark.parametrize("steps", [20, 40])
def test_a_policy_whose_critic_steps_meanwhile_has_no_graph_over_many_steps(steps: int) -> None:
    policy, critic = two_layers(), two_layers()
    of_policy = torch.optim.SGD(policy.parameters(), lr=0.01)
    of_critic = torch.optim.SGD(critic.parameters(), lr=0.01)
    with LeakDetector() as detector:
        try:
            chosen = []
            for _ in range(steps):
                chosen.append(policy(torch.ones(4, 8)).sum())
                critic(torch.ones(4, 8)).mean().backward()
                of_critic.step()
            KEPT["loss"] = loss = torch.stack(chosen).mean()
            waiting = detector.report(of_program=True)
            loss.backward()
            of_policy.step()
            report = detector.report(of_program=True)
        finally:
            KEPT.clear()
    assert [leak.kind for leak in (*waiting.leaks, *report.leaks) if leak.kind == "graph"] == []


@pytest.mark.skipif(not SHOWS_SAVED, reason="PyTorch before 2.10 does not show what a graph saved")
def test_graphs_of_validation_are_found_where_training_runs_the_same_lines() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = two_layers()

        def forward(self, x: Any) -> Any:
            return torch.relu(self.layers(x))

    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    KEPT["losses"] = losses = []
    with LeakDetector() as detector:
        try:
            for _ in range(5):
                for _ in range(10):
                    optimizer.zero_grad()
                    net(torch.ones(4, 8)).mean().backward()
                    optimizer.step()
                losses.append(net(torch.randn(4000, 8)).square().mean())
            report = detector.report(of_program=True)
        finally:
            KEPT.clear()
    assert {leak.kind for leak in report.leaks} == {"graph"}


def test_an_optimizer_that_cannot_be_hashed_steps_as_ever() -> None:
    class Equal(torch.optim.SGD):
        def __eq__(self, other: object) -> bool:
            return self is other

    weight = torch.nn.Parameter(torch.ones(2))
    optimizer: Any = Equal([weight], lr=0.5)
    with LeakDetector():
        weight.sum().backward()
        optimizer.step()
    assert weight.tolist() == [0.5, 0.5]
