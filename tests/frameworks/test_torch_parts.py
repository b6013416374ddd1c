"""Parts of PyTorch that keep what they make between two steps: it is theirs, in every scope."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from functools import cache, partial
from typing import Any, ClassVar

import pytest

torch = pytest.importorskip("torch", reason="these programs are PyTorch's")
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.optim import swa_utils
from torch.utils import checkpoint

from tests.frameworks.rounds import LIBRARIES_WARN, Round, assert_same_as_plain

pytestmark = LIBRARIES_WARN


def train(model: nn.Module, step: Round, forward: Callable[[Tensor], Tensor] | None = None, steps: int = 4) -> object:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(1)
    losses: list[float] = []
    for _ in range(steps):
        x = torch.randn(4, 6, generator=generator)
        with step():
            loss = (forward or model)(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, model.state_dict()


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Dropout(0.2), nn.Linear(8, 2))


def checkpointed(step: Round) -> object:
    model = layers()
    return train(model, step, lambda x: checkpoint.checkpoint(model, x, use_reentrant=False))


def reentrant_checkpoints(step: Round) -> object:
    model = layers()
    return train(model, step, lambda x: checkpoint.checkpoint(model, x.requires_grad_(), use_reentrant=True))


def checkpointed_in_parts(step: Round) -> object:
    model = layers()
    return train(model, step, lambda x: checkpoint.checkpoint_sequential(model, 2, x, use_reentrant=False))


def selective_checkpoints(step: Round) -> object:
    model = layers()

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        saved = op is torch.ops.aten.addmm.default
        return checkpoint.CheckpointPolicy.MUST_SAVE if saved else checkpoint.CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(checkpoint.create_selective_checkpoint_contexts, policy)
    return train(model, step, lambda x: checkpoint.checkpoint(model, x, use_reentrant=False, context_fn=contexts))


def checkpoints_with_backward_after_the_block(step: Round) -> object:
    model = layers()
    contexts = partial(checkpoint.create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])
    loss: Any = None
    for index in range(3):
        with step():
            x = torch.full((4, 6), float(index))
            given = {} if index else {"context_fn": contexts}
            loss = step.out(checkpoint.checkpoint(model, x, use_reentrant=False, **given).sum())
        loss.backward()
    return [parameter.grad for parameter in model.parameters()]


def tensors_on_the_context_of_a_function(step: Round) -> object:
    class Gate(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.open, ctx.signs = x > 0, {"all": [x.sign()]}
            ctx.save_for_backward(x)
            return x * ctx.open

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return grad * ctx.open * ctx.signs["all"][0] * x

    weight = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
    loss: Any = None
    for index in range(3):
        with step():
            loss = step.out(Gate.apply(weight * (index + 1)).sum())
        loss.backward()
    return weight.grad


def weights_computed_once_for_a_loop(step: Round) -> object:
    model = layers().eval()
    parametrizations.weight_norm(model[0])
    sums: list[float] = []
    with torch.no_grad(), parametrize.cached():
        for index in range(3):
            with step():
                sums.append(model(torch.full((2, 6), float(index))).sum().item())
    return sums


def averaged_weights(step: Round) -> object:
    model = layers()
    averages = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for index in range(4):
        with step():
            model(torch.full((2, 6), float(index))).sum().backward()
            optimizer.step()
            averages.update_parameters(model)
    return averages.state_dict(), averages(torch.ones(1, 6))


def parametrized_weights(step: Round) -> object:
    model = layers()
    parametrizations.spectral_norm(model[0])
    parametrizations.weight_norm(model[2])
    parametrizations.orthogonal(model[4])

    def twice(x: Tensor) -> Tensor:
        with parametrize.cached():
            return model(x) + model(x)

    return train(model, step, twice)


def weights_normalised_by_hooks(step: Round) -> object:
    model = layers()
    nn.utils.weight_norm(model[0])
    nn.utils.spectral_norm(model[2])
    return train(model, step)


def pruned_weights(step: Round) -> object:
    from torch.nn.utils import prune

    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for index in range(3):
        with step():
            prune.l1_unstructured(model[0], "weight", amount=2)
            model(torch.full((2, 6), float(index))).sum().backward()
            optimizer.step()
    return model.state_dict(), model[0].weight


def quantization_aware(step: Round) -> object:
    from torch.ao import quantization

    model = layers()
    model.qconfig = quantization.get_default_qat_qconfig("fbgemm")  # type: ignore[assignment]
    model = quantization.prepare_qat(model.train())
    return train(model, step)


def observed_for_quantization(step: Round) -> object:
    from torch.ao import quantization

    model = nn.Sequential(quantization.QuantStub(), *layers(), quantization.DeQuantStub()).eval()
    model.qconfig = quantization.QConfig(  # type: ignore[assignment]
        activation=quantization.HistogramObserver.with_args(reduce_range=True),
        weight=quantization.default_weight_observer,
    )
    model = quantization.prepare(model)
    for index in range(4):
        with step():
            model(torch.linspace(-1.0, index, 24).view(4, 6))
    return model.state_dict()


def lazy_layers_made_in_the_first_step(step: Round) -> object:
    torch.manual_seed(0)
    model = nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(2))
    optimizer = None
    for index in range(3):
        with step():
            loss = model(torch.linspace(-1.0, index, 24).view(4, 6)).square().sum()
            optimizer = optimizer or torch.optim.Adam(model.parameters())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.state_dict()


def memory_in_attributes(step: Round) -> object:
    class Rotary(nn.Module):
        """A cache, a tuple of both and a list, as models keep them."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)
            self.cached: tuple[Tensor, Tensor] | None = None
            self.seen: list[Tensor] = []
            self.by_length: dict[int, dict[str, Tensor]] = {}

        def forward(self, x: Tensor) -> Tensor:
            if self.cached is None:
                angle = torch.arange(6.0)
                self.cached = angle.cos(), angle.sin()
            kept = self.by_length.setdefault(len(x), {})
            if "mask" not in kept:
                kept["mask"] = torch.ones(len(x), len(x)).tril()
            self.seen.append(x.detach().mean(0))
            return kept["mask"] @ self.layer(x) * self.cached[0] + self.cached[1] + self.seen[0]

    torch.manual_seed(0)
    model = Rotary()
    return train(model, step), model.seen, model.cached


def memory_on_the_class(step: Round) -> object:
    class Masked(nn.Module):
        tables: ClassVar[dict[int, Tensor]] = {}

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

        @cache  # noqa: B019  # programs do it
        def mask(self, length: int) -> Tensor:
            return torch.ones(length, length).tril()

        def forward(self, x: Tensor) -> Tensor:
            if len(x) not in self.tables:
                self.tables[len(x)] = torch.arange(6.0).cos()
            return self.mask(len(x)) @ self.layer(x) * self.tables[len(x)]

    torch.manual_seed(0)
    return train(nn.Sequential(Masked()), step)


SERVICE = """
import functools, torch

class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.scale, self.seen = torch.nn.Linear(6, 6), None, []

    def forward(self, x):
        if self.scale is None:
            self.scale = torch.arange(6.0).cos()
        self.seen.append(x.detach().mean(0))
        return self.layer(x) * self.scale + self.seen[0]

class Registry:
    encoders = {}

torch.manual_seed(0)
encoder = Registry.encoders["first"] = Encoder()

@functools.cache
def second():
    return Encoder()

def encode(x):
    return encoder(x) + Registry.encoders["first"](x) + second()(x)
"""


def model_of_another_module(step: Round) -> object:
    service = types.ModuleType("service_of_a_program")
    exec(SERVICE, service.__dict__)
    encode, models = service.encode, [weakref.ref(service.encoder), weakref.ref(service.second())]
    del service
    outs: list[float] = []
    for index in range(3):
        with step():
            outs.append(encode(torch.linspace(-1.0, index, 24).view(4, 6)).sum().item())
    return outs, [model().seen for model in models]


def optimizer_with_closures(step: Round) -> object:
    model = layers()[0]
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    for index in range(3):
        x = torch.linspace(-1.0, index, 24).view(4, 6)
        with step():

            def closure(x: Tensor = x) -> Tensor:
                optimizer.zero_grad()
                loss: Tensor = model(x).square().mean()
                loss.backward()
                return loss

            optimizer.step(closure)
    return model.state_dict()


def scaled_gradients(step: Round) -> object:
    model = layers()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    for index in range(4):
        with step():
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(torch.linspace(-1.0, index, 24).view(4, 6)).sum()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
    return model.state_dict(), scaler.state_dict(), schedule.get_last_lr()


PROGRAMS: tuple[Callable[[Round], object], ...] = (
    checkpointed,
    reentrant_checkpoints,
    checkpointed_in_parts,
    selective_checkpoints,
    checkpoints_with_backward_after_the_block,
    tensors_on_the_context_of_a_function,
    weights_computed_once_for_a_loop,
    averaged_weights,
    parametrized_weights,
    weights_normalised_by_hooks,
    pruned_weights,
    quantization_aware,
    observed_for_quantization,
    lazy_layers_made_in_the_first_step,
    memory_in_attributes,
    memory_on_the_class,
    model_of_another_module,
    optimizer_with_closures,
    scaled_gradients,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_program_runs_unchanged(program: Callable[[Round], object]) -> None:
    assert_same_as_plain(program)
