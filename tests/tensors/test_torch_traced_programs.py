"""Programs made of code by running it: what they keep of the run outlives the scope around it."""

from __future__ import annotations

import io
import sys
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from torch.fx.experimental.proxy_tensor import make_fx

import disposescope as ds
from disposescope.scopes.base.process import when_imported

pytestmark = pytest.mark.filterwarnings("ignore")


class Net(torch.nn.Module):
    def forward(self, x):
        return x * torch.tensor([2.0]) + torch.arange(3.0)


def export(module, *args):
    return torch.export.export(module, args, strict=False)


def test_an_exported_program_is_used_after_the_scope():
    x = torch.ones(2, 3)
    with ds.dispose_scope() as scope:
        program = export(Net(), x)
        assert len(scope) == 0
    expected = Net()(x)
    assert torch.equal(program.module()(x), expected)
    with ds.dispose_scope() as scope:
        module = program.module()
        lower = program.run_decompositions()
        assert len(scope) == 0
        made = module(x)
        assert scope.live == (made,)
    assert torch.equal(module(x), expected)
    assert torch.equal(lower.module()(x), expected)
    assert all(node.meta["val"].shape is not None for node in program.graph.nodes if node.op == "call_function")


def test_a_program_that_is_loaded_is_used_after_the_scope():
    x = torch.ones(2, 3)
    file = io.BytesIO()
    torch.export.save(export(Net(), x), file)
    file.seek(0)
    with ds.dispose_scope() as scope:
        program = torch.export.load(file)
        assert len(scope) == 0
    assert torch.equal(program.module()(x), Net()(x))


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_the_notes_in_a_traced_graph_outlive_the_scope(mode):
    x = torch.ones(2, 3)
    with ds.dispose_scope() as scope:
        traced = make_fx(lambda y: y.sin() @ torch.ones(3, 2), tracing_mode=mode)(x)
        assert len(scope) == 0
        made = torch.ones(3)
        assert made in scope
    assert torch.equal(traced(x), x.sin() @ torch.ones(3, 2))
    assert all(tuple(node.meta["val"].shape) for node in traced.graph.nodes if node.op == "call_function")


def test_a_trace_that_raises_stops_births_no_longer_than_it_runs():
    def refuse(y):
        raise KeyError

    with ds.dispose_scope() as scope:
        with pytest.raises(KeyError):
            make_fx(refuse)(torch.ones(3))
        made = torch.ones(3)
        assert made in scope


def test_a_trace_in_a_step_leaves_births_to_the_step():
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def closure():
        make_fx(torch.sin)(torch.ones(3))
        torch.ones(3)

    with ds.dispose_scope() as scope:
        optimizer.step(closure)
        assert len(scope) == 0
        made = torch.ones(3)
        assert scope.live == (made,)


def test_a_module_is_heard_of_when_it_is_imported_and_where_it_is_there(tmp_path, monkeypatch):
    heard = []
    (tmp_path / "heard_of_later.py").write_text("answer = 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    when_imported("heard_of_later", lambda module: heard.append(module.answer))
    assert heard == []
    import heard_of_later  # pyright: ignore[reportMissingImports]

    monkeypatch.delitem(sys.modules, "heard_of_later")
    assert heard == [42]
    there = ModuleType("heard_of_already")
    monkeypatch.setitem(sys.modules, "heard_of_already", there)
    when_imported("heard_of_already", heard.append)
    assert heard == [42, there]
    assert heard_of_later.answer == 42


@pytest.mark.long
def test_a_report_that_is_made_during_a_trace_is_no_part_of_the_traced_program():
    reports = []

    class Reported(torch.nn.Module):
        def __init__(self, detector):
            super().__init__()
            self.layer = torch.nn.Conv2d(3, 8, 3)
            self.detector = detector

        def forward(self, x):
            if self.detector is not None:
                reports.append(self.detector.report(of_program=True))
            return self.layer(x) + 1

    image = torch.rand(1, 3, 8, 8)
    plain = torch.jit.trace(Reported(None), image)
    with ds.LeakDetector() as detector:
        traced = torch.jit.trace(Reported(detector), image)
    assert reports
    kinds = [[node.kind() for node in program.inlined_graph.nodes()] for program in (plain, traced)]
    assert kinds[0] == kinds[1]
    assert {"Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))", "Reported"} & {row.tensor for row in reports[0].kept}
