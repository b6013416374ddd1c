"""Modules, optimizers, metrics and other objects of PyTorch's own are trees.

Verbs act on what a scope owns in them.
"""

import collections
import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import disposescope as ds
from tests.scopes.toys import Unknown


class Cached(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.ModuleList([torch.nn.Linear(2, 2)])
        self.register_buffer("count", torch.zeros(1))

    def __getattr__(self, name):
        assert name in ("inner", "count"), f"asked for {name}"
        return super().__getattr__(name)

    @property
    def running(self):
        raise AssertionError("ran a property")

    def keep(self, *tensors):
        self.last = tensors[0]
        self.inner[0].history = [{"step": (tensors[1],)}, collections.deque(tensors[2:])]
        return self


class Metric(torch.nn.Module):
    """As torchmetrics' are: states are attributes, tensors or lists, with defaults and a cache."""

    def __init__(self):
        super().__init__()
        self._defaults = {"total": torch.zeros(()), "values": []}
        self.total = torch.zeros(())
        self.values = []
        self._cache = None
        self.update = self._wrapped(self.update)

    def _wrapped(self, update):
        def wrapped(*args):
            self._cache = {"total": self.total}
            return update(*args)

        return wrapped

    def update(self, x):
        self.total = self.total + x.sum()
        self.values.append(x * 1)


def verbs(scope, outer):
    return {
        "move_to_outer": scope.move_to_outer,
        "move_to": lambda tree: scope.move_to(outer, tree),
        "compact": lambda tree: scope.move_to_outer(tree, compact=True),
    }


class TestModules:
    @pytest.mark.parametrize("verb", ["move_to_outer", "move_to", "compact"])
    def test_what_a_scope_owns_in_one_moves_and_the_rest_is_left(self, verb):
        with ds.dispose_scope() as outer:
            foreign = torch.ones(1)
            with ds.dispose_scope() as scope:
                model = Cached()
                tensors = [torch.full((1,), float(i)) for i in range(4)]
                temporary = torch.ones(1)
                model.keep(*tensors, foreign)
                for tree in (model, [model], {"model": (model, model)}):
                    assert verbs(scope, outer)[verb](tree) is tree
            assert {id(tensor) for tensor in outer.live} == {id(tensor) for tensor in [*tensors, foreign]}
            assert ds.is_disposed(temporary)
            assert ds.owner_of(model.inner[0].weight) is None
            assert ds.owner_of(model.count) is None
        assert model.inner[0].weight.sum() is not None

    def test_dispose_releases_what_a_scope_owns_in_one_and_never_what_is_the_models(self):
        model = Cached().keep(torch.ones(1), torch.ones(2), torch.ones(3))
        with ds.dispose_scope() as scope:
            own = model.keep(torch.ones(1), model.count, torch.ones(3)).last
            ds.dispose([model])
            assert ds.is_disposed(own)
            assert len(scope) == 0
        assert float(model.count) == 0.0
        assert torch.isfinite(model.inner[0](torch.ones(2))).all()
        # What is named is meant.
        ds.dispose([model, model.count])
        assert ds.is_disposed(model.count)

    def test_attach_takes_what_other_scopes_own_in_one(self):
        with ds.dispose_scope() as outer:
            model = Cached().keep(torch.ones(1), torch.ones(1))
            with ds.dispose_scope() as scope:
                scope.attach(model)
                assert model.last in scope
                assert len(outer) == 0
                assert ds.owner_of(model.count) is None
        # What the model has when the block ends is the model's.
        assert float(model.last) == 1.0
        assert float(model.count) == 0.0

    def test_detach_and_dispose_everything_but(self):
        with ds.dispose_scope() as scope:
            model = Cached().keep(torch.ones(1), torch.ones(1))
            other = torch.ones(1)
            assert scope.dispose_everything_but(model) is model
            assert ds.is_disposed(other)
            scope.detach({"model": model})
            assert len(scope) == 0
        assert float(model.last) == 1.0

    def test_a_strict_scope_does_not_ask_for_parameters(self):
        with ds.dispose_scope() as outer, ds.dispose_scope(strict=True) as scope:
            model = Cached().keep(torch.ones(1), torch.ones(1))
            scope.move_to_outer(model)
            assert model.last in outer
            with pytest.raises(ds.NotOwnedError):
                scope.move_to_outer(model)

    def test_a_dataclass_of_a_module_is_a_module(self):
        @dataclasses.dataclass(eq=False)
        class Fields(torch.nn.Module):
            size: int

            def __post_init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(self.size, 1)

        with ds.dispose_scope() as scope:
            model = Fields(2)
            scope.attach(model)
            assert len(scope) == 0
        assert torch.isfinite(model.layer.weight).all()

    def test_objects_of_any_type_in_one_are_walked_through_their_attributes(self):
        with ds.dispose_scope() as outer, ds.dispose_scope() as scope:
            model = torch.nn.Identity()
            model.cache = Unknown(Unknown(torch.ones(1)))
            scope.move_to_outer(model)
            assert len(outer) == 1
            assert len(scope) == 0

    def test_what_a_hook_holds_is_not_guessed(self):
        with ds.dispose_scope() as scope:
            seen = {}
            model = torch.nn.Linear(2, 2)
            model.register_forward_hook(lambda _module, _args, out: seen.update(out=out))
            model(torch.ones(2))
            with pytest.raises(ds.UnknownKindError, match=r"\._forward_hooks\[\d+\] is a builtins.function"):
                scope.move_to_outer(model)
            assert seen["out"] in scope
            # Named as well, it is not lost.
            scope.detach([model, seen])
            assert ds.owner_of(seen["out"]) is None

    def test_plain_arrays_in_one_move(self):
        with ds.dispose_scope() as outer, ds.dispose_scope(strict=True) as scope:
            model = torch.nn.Identity()
            model.counts, model.older = [np.zeros(1000)], np.empty(0)
            before = scope.nbytes
            scope.move_to_outer({"model": model})
            assert before >= 8000
            assert (scope.nbytes, outer.nbytes) == (0, before)
            scope.attach(model)
            assert ds.owner_of(model.counts[0]) is scope
            scope.detach(model)
            # Nobody's, it is the model's.
            scope.attach(model)
            assert ds.owner_of(model.counts[0]) is None

    def test_arrays_of_jax_in_one_move(self):
        jnp = pytest.importorskip("jax.numpy")
        model = torch.nn.Identity()
        model.older = jnp.ones(3)
        with ds.dispose_scope() as outer:
            with ds.dispose_scope() as scope:
                model.state = {"a": jnp.ones(3) * 2}
                scope.move_to_outer(model)
                assert model.state["a"] in outer
            ds.dispose(model)
        assert model.state["a"].is_deleted()
        assert not model.older.is_deleted()

    def test_a_large_one_is_walked_to_its_end(self):
        with ds.dispose_scope() as outer, ds.dispose_scope() as scope:
            model = torch.nn.Sequential(*[torch.nn.Identity() for _ in range(3_000)])
            model[-1].last = torch.ones(1)
            scope.move_to_outer(model)
            assert model[-1].last in outer

    def test_of_what_a_decorated_function_returns(self):
        @ds.dispose_scope()
        def build():
            model = Cached()
            torch.ones(2).sum()
            return model.keep(torch.ones(1), torch.ones(1))

        with ds.dispose_scope() as scope:
            model = build()
            assert len(scope) == 2
            assert model.last in scope


class TestMetrics:
    def test_states_move_out(self):
        with ds.dispose_scope() as outer:
            metric = Metric()
            outer.detach(metric)
            for step in range(3):
                with ds.dispose_scope() as scope:
                    metric.update(torch.full((2,), float(step)))
                    scope.move_to_outer(metric)
            assert float(metric.total) == 6.0
            assert [value.tolist() for value in metric.values] == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]


class TestOptimizers:
    @pytest.mark.parametrize("name", ["SGD", "Adam", "LBFGS"])
    def test_one_that_has_made_steps_is_walked(self, name):
        with ds.dispose_scope() as outer:
            with ds.dispose_scope() as scope:
                model = torch.nn.Linear(2, 1)
                optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1)
                scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
                scaler = torch.amp.GradScaler("cpu", enabled=False)

                def closure():
                    optimizer.zero_grad()
                    loss = model(torch.ones(2)).sum()
                    loss.backward()
                    return loss

                optimizer.step(closure)
                optimizer.mine = torch.ones(1)
                tree = [optimizer, scheduler, scaler]
                assert scope.move_to_outer(tree) is tree
                assert optimizer.mine in outer
            ds.dispose(tree)
            assert ds.is_disposed(optimizer.mine)
        assert torch.isfinite(model.weight).all()
        optimizer.step(closure)


class TestDistributions:
    def test_their_parameters_move_with_them(self):
        with ds.dispose_scope() as outer, ds.dispose_scope() as scope:
            normal = torch.distributions.Normal(torch.zeros(2), torch.ones(2))
            scope.move_to_outer({"prior": normal})
            assert normal.loc in outer
            assert normal.scale in outer


class KeptCount:
    def __init__(self):
        self.total = torch.zeros(())


class KeptOutput(dict):
    """A container whose class is named too, as all classes of a package may be."""


class TestWhatIsNamedByKeeps:
    def test_is_walked_as_a_model(self):
        ds.keeps(KeptCount)
        count = KeptCount()
        with ds.dispose_scope() as outer:
            with ds.dispose_scope() as scope:
                count.total = count.total + 1
                scope.move_to_outer([count])
                assert count.total in outer
            outer.detach(count)
        ds.dispose(count)
        assert float(count.total) == 1.0

    def test_or_as_the_container_that_it_is(self):
        ds.keeps(KeptOutput)
        output = KeptOutput(x=torch.ones(1))
        with ds.dispose_scope() as scope:
            scope.attach(output)
            assert output["x"] in scope
            ds.dispose(output)
            assert ds.is_disposed(output["x"])
