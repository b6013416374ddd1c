"""Parameters, buffers, gradients and the state of optimizers belong to the model.

They do so where a scope saw them come, too.
"""

from __future__ import annotations

import copy
import io
import pickle
import warnings

import pytest

torch = pytest.importorskip("torch")

import disposescope as ds

nn = torch.nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("scale", torch.full((8,), 2.0))
        self.last = nn.utils.parametrizations.weight_norm(nn.Linear(8, 1))

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x)) * self.scale))


OPTIMIZERS = [
    ("SGD", {"momentum": 0.9, "lr": 0.1}),
    ("SGD", {"momentum": 0.9, "lr": 0.1, "foreach": True}),
    ("ASGD", {}),
    ("Adadelta", {}),
    ("Adafactor", {}),
    ("Adagrad", {}),
    ("Adam", {"amsgrad": True}),
    ("Adam", {"foreach": False}),
    ("Adam", {"fused": True}),
    ("AdamW", {}),
    ("Adamax", {}),
    ("LBFGS", {}),
    ("NAdam", {}),
    ("RAdam", {}),
    ("RMSprop", {"momentum": 0.5, "centered": True}),
    ("Rprop", {}),
]


def scope_if(scoped):
    return ds.dispose_scope() if scoped else torch.enable_grad()


def train(scoped, make_optimizer, make_scheduler=None, *, build_inside=False, accumulate=1, clip=False, scaler=None):
    torch.manual_seed(0)
    with scope_if(scoped and build_inside):
        model = Net()
        optimizer = make_optimizer(model)
        scheduler = None if make_scheduler is None else make_scheduler(optimizer)
    losses = []
    for _ in range(3):
        for _ in range(accumulate):
            with scope_if(scoped):
                inputs, targets = torch.rand(5, 4), torch.rand(5, 1)

                def closure(inputs=inputs, targets=targets):
                    optimizer.zero_grad()
                    loss = nn.functional.mse_loss(model(inputs), targets)
                    loss.backward()
                    return loss

                if isinstance(optimizer, torch.optim.LBFGS):
                    losses.append(float(optimizer.step(closure).detach()))
                    continue
                loss = nn.functional.mse_loss(model(inputs), targets)
                (loss if scaler is None else scaler.scale(loss)).backward()
                losses.append(float(loss.detach()))
        if not isinstance(optimizer, torch.optim.LBFGS):
            with scope_if(scoped):
                if scaler is not None:
                    scaler.unscale_(optimizer)
                if clip:
                    losses.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.1)))
                if scaler is None:
                    optimizer.step()
                else:
                    scaler.step(optimizer)
                    scaler.update()
                    losses.append(scaler.get_scale())
                optimizer.zero_grad()
        if scheduler is not None:
            with scope_if(scoped), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                scheduler.step(
                    *([losses[-1]] if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) else [])
                )
    return (
        losses,
        {name: value.clone() for name, value in model.state_dict().items()},
        copy.deepcopy(optimizer.state_dict()),
    )


def assert_same(first, second):
    if isinstance(first, torch.Tensor):
        assert torch.equal(first, second)
    elif isinstance(first, dict):
        assert first.keys() == second.keys()
        for key in first:
            assert_same(first[key], second[key])
    elif isinstance(first, (list, tuple)):
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            assert_same(one, other)
    else:
        assert first == second


@pytest.mark.long
@pytest.mark.parametrize("build_inside", [False, True], ids=["model outside", "model inside"])
@pytest.mark.parametrize(("name", "options"), OPTIMIZERS)
def test_training_in_scopes_is_training_bit_for_bit(name, options, build_inside):
    def make(model):
        return getattr(torch.optim, name)(model.parameters(), **copy.deepcopy(options))

    assert_same(train(False, make), train(True, make, build_inside=build_inside))


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_sparse_adam_in_scopes():
    def run(scoped):
        torch.manual_seed(0)
        embedding = nn.Embedding(10, 3, sparse=True)
        optimizer = torch.optim.SparseAdam(embedding.parameters())
        for _ in range(3):
            with scope_if(scoped):
                embedding(torch.tensor([1, 2, 3])).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        return embedding.weight.detach().clone()

    assert torch.equal(run(False), run(True))


def test_muon_in_scopes():
    def run(scoped):
        torch.manual_seed(0)
        layer = nn.Linear(4, 4, bias=False)
        optimizer = torch.optim.Muon(layer.parameters())
        for _ in range(3):
            with scope_if(scoped):
                layer(torch.rand(2, 4)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        return layer.weight.detach().clone()

    if hasattr(torch.optim, "Muon"):
        assert torch.equal(run(False), run(True))


schedulers = torch.optim.lr_scheduler
SCHEDULERS = {
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda epoch: 0.9**epoch),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda epoch: 0.9),
    "StepLR": lambda o: schedulers.StepLR(o, 1),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [1, 2]),
    "ConstantLR": lambda o: schedulers.ConstantLR(o),
    "LinearLR": lambda o: schedulers.LinearLR(o),
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 3),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 2),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 0.01, 0.1, cycle_momentum=False),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=10, cycle_momentum=False),
    "ReduceLROnPlateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=0),
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o, [schedulers.ConstantLR(o), schedulers.ExponentialLR(o, 0.9)], milestones=[1]
    ),
    "ChainedScheduler": lambda o: schedulers.ChainedScheduler(
        [schedulers.ConstantLR(o), schedulers.ExponentialLR(o, 0.9)]
    ),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.05, anneal_epochs=2),
}


@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize("tensor_lr", [False, True], ids=["number", "tensor"])
@pytest.mark.parametrize("make_scheduler", SCHEDULERS.values(), ids=SCHEDULERS)
def test_schedulers_in_scopes(make_scheduler, tensor_lr):
    def make(model):
        lr = torch.tensor(0.1) if tensor_lr else 0.1
        return torch.optim.Adam(model.parameters(), lr=lr, foreach=False)

    plain = train(False, make, make_scheduler)
    assert_same(plain, train(True, make, make_scheduler))
    assert_same(plain, train(True, make, make_scheduler, build_inside=True))


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


@pytest.mark.parametrize("options", [{"accumulate": 3}, {"clip": True}, {"accumulate": 2, "clip": True}])
def test_accumulation_over_scopes_and_clipping(options):
    assert_same(train(False, adam, **options), train(True, adam, **options))


def test_grad_scaler_in_scopes():
    def run(scoped):
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=1)
        return train(scoped, adam, scaler=scaler, clip=True)

    assert_same(run(False), run(True))


def test_autocast_in_scopes():
    def run(scoped):
        torch.manual_seed(0)
        model = Net()
        optimizer = adam(model)
        losses = []
        for _ in range(3):
            with scope_if(scoped), torch.autocast("cpu", torch.bfloat16):
                loss = model(torch.rand(5, 4)).float().sum()
            losses.append(None if scoped else float(loss.detach()))
            if scoped:
                continue
            loss.backward()
            optimizer.step()
        return losses

    assert run(True) == [None] * 3


def test_averaged_models_in_scopes():
    def run(scoped):
        torch.manual_seed(0)
        model = Net.__new__(Net)
        nn.Module.__init__(model)
        model.first, model.norm = nn.Linear(4, 8), nn.BatchNorm1d(8)
        model.register_buffer("scale", torch.full((8,), 2.0))
        model.last = nn.Linear(8, 1)
        optimizer = adam(model)
        with scope_if(scoped):
            averaged = torch.optim.swa_utils.AveragedModel(
                model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True
            )
        for _ in range(3):
            with scope_if(scoped):
                model(torch.rand(5, 4)).sum().backward()
                optimizer.step()
                averaged.update_parameters(model)
        with scope_if(scoped):
            torch.optim.swa_utils.update_bn([torch.rand(5, 4) for _ in range(2)], averaged)
        return {name: value.clone() for name, value in averaged.state_dict().items()}

    assert_same(run(False), run(True))


def test_lazy_modules_that_are_materialised_in_a_scope():
    with ds.dispose_scope():
        model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.LazyLinear(2))
        model(torch.rand(3, 5))
    assert model(torch.rand(3, 5)).shape == (3, 2)
    assert model[1].running_mean.shape == (4,)


def test_a_module_that_is_built_copied_and_converted_in_a_scope():
    with ds.dispose_scope():
        model = Net().double()
        model.to(torch.float32)
        bare = nn.BatchNorm1d(3)
        twin = copy.deepcopy(bare)
        several = copy.deepcopy({"model": bare})
        bare.running_mean = torch.ones(3)
        rotary = nn.Module()
        rotary.cos = nn.Buffer(torch.ones(3))
    assert model(torch.rand(3, 4)).shape == (3, 1)
    for module in (bare, twin, several["model"]):
        assert module(torch.rand(2, 3)).shape == (2, 3)
    assert rotary.cos.tolist() == [1, 1, 1]


def test_state_dicts_that_are_loaded_in_a_scope():
    model = nn.BatchNorm1d(3)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.rand(2, 3)).sum().backward()
    optimizer.step()
    saved = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    with ds.dispose_scope():
        model.load_state_dict(saved[0])
        model.load_state_dict({name: value.clone() for name, value in saved[0].items()}, assign=True)
        optimizer = torch.optim.Adam(model.parameters())
        optimizer.load_state_dict(saved[1])
    model(torch.rand(2, 3)).sum().backward()
    optimizer.step()


def saved(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return file


@pytest.mark.parametrize(
    ("name", "way"),
    # An LBFGS that was copied or unpickled does not work anywhere.
    [("LBFGS", "load"), *((name, way) for name in ("Adam", "SGD") for way in ("load", "pickle", "deepcopy"))],
)
def test_an_optimizer_that_is_restored_in_a_scope_goes_on_after_it(name, way):
    def run(scoped):
        torch.manual_seed(0)
        model = nn.Linear(3, 3)
        options = {"momentum": 0.9} if name == "SGD" else {}
        optimizer = getattr(torch.optim, name)(model.parameters(), **options)

        def closure():
            optimizer.zero_grad()
            loss = model(torch.ones(2, 3)).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        file = saved(optimizer.state_dict())
        with scope_if(scoped):
            if way == "load":
                optimizer.load_state_dict(torch.load(file, weights_only=True))
            else:
                both = model, optimizer
                model, optimizer = pickle.loads(pickle.dumps(both)) if way == "pickle" else copy.deepcopy(both)
        optimizer.step(closure)
        optimizer.step(closure)
        return dict(model.state_dict()), copy.deepcopy(optimizer.state_dict())

    assert_same(run(False), run(True))


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.SGD])
def test_a_learning_rate_that_was_made_in_a_scope_is_the_optimizers(make):
    weight = nn.Parameter(torch.ones(3))
    with ds.dispose_scope():
        optimizer = make([{"params": [weight], "lr": torch.tensor(0.5)}], foreach=False)
    with ds.dispose_scope():
        weight.sum().backward()
        optimizer.step()
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_every_optimizer_and_scheduler_of_pytorch_is_in_these_tests():
    def names(module, base):
        found = {name: thing for name, thing in vars(module).items() if isinstance(thing, type)}
        return {name for name, thing in found.items() if issubclass(thing, base) and thing.__name__ == name} - {
            base.__name__
        }

    # Muon came with PyTorch 2.9.
    assert names(torch.optim, torch.optim.Optimizer) - {name for name, _ in OPTIMIZERS} - {"Muon"} == {"SparseAdam"}
    assert names(schedulers, schedulers.LRScheduler) - {"_LRScheduler"} <= SCHEDULERS.keys()
    assert names(torch.optim.swa_utils, schedulers.LRScheduler) <= SCHEDULERS.keys()


def test_an_optimizer_of_the_users_keeps_what_its_step_makes():
    class Momentum(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    state = self.state[p]
                    state["m"] = state["m"] * 0.9 + p.grad if "m" in state else torch.zeros_like(p) + p.grad
                    p.data -= state["m"]

    weight = nn.Parameter(torch.rand(3))
    optimizer = Momentum([weight])
    for _ in range(3):
        with ds.dispose_scope():
            (weight * 2).sum().backward()
            optimizer.step()
    assert optimizer.state[weight]["m"].shape == (3,)


@pytest.mark.filterwarnings("ignore")
def test_what_pytorch_makes_once_for_the_process_is_no_scopes(monkeypatch):
    from torch.nested._internal import nested_tensor

    def use():
        return torch.nested.nested_tensor_from_jagged(torch.ones(5, 3), torch.tensor([0, 2, 5]))

    monkeypatch.setattr(nested_tensor, "_dummy_instance", None)
    with ds.dispose_scope():
        use()
        assert ds.owner_of(nested_tensor._dummy_instance) is None
    assert use().values().sum() == 15


def test_a_step_that_raises_does_not_stop_births():
    weight = nn.Parameter(torch.rand(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def closure():
        raise KeyError

    with ds.dispose_scope() as scope:
        with pytest.raises(KeyError):
            optimizer.step(closure)
        tensor = torch.rand(3)
        assert tensor in scope


def test_a_step_that_raised_and_whose_traceback_is_kept_stops_births_no_longer_than_its_scope():
    weight = nn.Parameter(torch.rand(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    kept = []

    def closure():
        with ds.dispose_scope() as inside:
            assert torch.rand(3) not in inside
        raise KeyError

    with ds.dispose_scope() as scope:
        try:
            optimizer.step(closure)
        except KeyError as error:
            kept.append(error)
        with ds.dispose_scope() as inner:
            tensor = torch.rand(3)
            assert tensor in inner
    try:
        with ds.dispose_scope():
            optimizer.step(closure)
    except KeyError as error:
        kept.append(error)
    with ds.dispose_scope() as scope:
        tensor = torch.rand(3)
        assert tensor in scope
        try:
            optimizer.step(closure)
        except KeyError as error:
            kept.append(error)
        optimizer.step()
        tensor = torch.rand(3)
        assert tensor in scope


def test_ten_steps_leave_nothing_behind():
    torch.manual_seed(0)
    model = Net()
    optimizer = adam(model)
    counts = []
    for _ in range(10):
        with ds.dispose_scope():
            model(torch.rand(5, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        counts.append(ds.statistics().live)
    assert len(set(counts)) == 1


@pytest.mark.parametrize("graph", ["keep", "detach", "error"])
def test_a_buffer_with_a_graph_is_the_models_with_its_graph(graph):
    weight = torch.ones(3, requires_grad=True)
    model = torch.nn.Module()
    with ds.dispose_scope(graph=graph, strict=True):
        model.register_buffer("scaled", weight * 2)
    assert not ds.is_disposed(model.scaled)
    model.scaled.sum().backward()
    assert weight.grad.tolist() == [2.0] * 3
