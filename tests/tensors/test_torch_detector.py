"""A leak detector sees PyTorch's memory for as long as it is there.

It sees it on every thread, inside of scopes and outside.
"""

import copy
import gc
import io
import os
import pickle
import queue
import subprocess
import sys
import threading
import warnings
import weakref
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import disposescope as ds
from disposescope.leaks import LeakDetector
from disposescope.leaks.births.log import LOG, RecordedMemory
from tests.leaks.births import line_of, op_of, place_of, row_of


def memory_of(detector: LeakDetector) -> list[RecordedMemory]:
    return [seen for seen in detector.memory() if seen.kind == "torch.Tensor"]


def line_above() -> int:
    return sys._getframe(1).f_lineno - 1


def test_births_outside_of_every_scope_are_seen_and_stay_unowned():
    with LeakDetector() as detector:
        kept = torch.zeros(1000)
        line = line_above()
    [seen] = memory_of(detector)
    assert (seen.nbytes, seen.device, op_of(seen), row_of(seen).scope) == (4000, "cpu:0", "zeros", None)
    assert line_of(seen) == line
    assert place_of(seen)[0].co_filename == __file__
    assert ds.owner_of(kept) is None
    assert ds.statistics().live == 0 or kept.shape == (1000,)


def test_births_in_a_scope_are_the_scopes_and_are_seen_once():
    with LeakDetector() as detector:
        with ds.dispose_scope("step") as step:
            kept = step.move_to_outer(torch.ones(10) * 2)
        [record] = [record for record in detector.take_snapshot() if record.kind == "torch.Tensor"]
    assert (record.shape, record.dtype, record.scope, record.op, record.nbytes) == ((10,), "float32", "step", "mul", 40)
    assert float(kept[0]) == 2


def test_memory_of_a_temporary_is_that_of_the_parameter_made_of_it():
    with LeakDetector() as detector:
        kept = [torch.nn.Parameter(torch.zeros(1000)) for _ in range(3)]
        line = line_above()
        # Nothing is made between the last one and the question.
        found = memory_of(detector)
    assert [(seen.nbytes, op_of(seen), line_of(seen)) for seen in found] == [(4000, "zeros", line)] * 3
    kept.clear()


def test_temporaries_leave_nothing():
    with LeakDetector() as detector:
        total = float((torch.ones(100) * 2 + 1).sum())
    assert total == 300
    assert memory_of(detector) == []


def test_memory_that_only_a_graph_holds_is_seen():
    weight = torch.ones(1000, requires_grad=True)
    with LeakDetector() as detector:
        hidden = torch.relu(weight * 2)
        loss = hidden.sum() * hidden.sum()
        handle = weakref.ref(hidden)
        del hidden
        assert handle() is None
        seen = {op_of(one): one for one in memory_of(detector)}
        assert "relu" in seen
        assert seen["relu"].nbytes == 4000
        assert seen["relu"]() is not None
        del loss
        assert seen["relu"]() is None
        assert memory_of(detector) == []


def test_a_function_written_in_python_is_seen_by_its_result():
    with LeakDetector() as detector:
        kept = torch.nn.functional.layer_norm(torch.ones(4, 8), (8,))
        line = line_above()
    [seen] = memory_of(detector)
    assert (op_of(seen), line_of(seen)) == ("layer_norm", line)
    assert kept.shape == (4, 8)


class Doubled(torch.nn.Module):
    def forward(self, x):
        return x.sin() * 2


def test_the_line_of_what_code_written_by_fx_makes_is_its_callers():
    module = torch.fx.symbolic_trace(Doubled())
    with LeakDetector() as detector:
        kept = module(torch.ones(3))
        line = line_above()
    [seen] = memory_of(detector)
    assert (place_of(seen)[0].co_filename, line_of(seen)) == (__file__, line)
    assert kept.shape == (3,)


def test_code_of_the_program_that_stands_in_no_file_is_not_taken_for_pytorchs():
    space = {"torch": torch, "__name__": "__main__"}
    exec(compile("def flatten_parameters():\n    return torch.ones(3)", "<stdin>", "exec"), space)
    with LeakDetector() as detector:
        kept = space["flatten_parameters"]()
    [seen] = memory_of(detector)
    assert (place_of(seen)[0].co_filename, line_of(seen)) == ("<stdin>", 2)
    assert kept.shape == (3,)


def test_memory_that_numpy_or_a_view_holds_is_seen_until_they_go():
    with LeakDetector() as detector:
        tensor = torch.ones(1000)
        view = tensor[:10]
        array = tensor.numpy()
        del tensor
        assert len(memory_of(detector)) == 1
        del view
        assert len(memory_of(detector)) == 1
        del array
        assert memory_of(detector) == []


def test_memory_from_before_is_not_born_by_a_view_of_it():
    before = torch.ones(1, 1000)
    with LeakDetector() as detector:
        views = [before.view(10, 100), before.detach(), before.data, before.mT, before[:, 1:], *before.chunk(2, dim=1)]
        views += [torch.reshape(before, (100, 10)), torch.broadcast_to(before, (2, 1, 1000)), before.contiguous()]
        views += [torch.as_strided(input=before, size=(2, 2), stride=(1, 1)), before.add_(1), before.requires_grad_()]
    assert memory_of(detector) == []
    assert len(views) == 13


def test_what_belongs_to_a_model_is_not_reported():
    with LeakDetector() as detector:
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
        model.to(torch.float64)
        twin = copy.deepcopy(model)
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(4, 8, dtype=torch.float64)).sum().backward()
        optimizer.step()
        for parameter in twin.parameters():
            parameter.grad = torch.zeros_like(parameter)
    assert memory_of(detector) == []


def test_results_in_containers_are_seen():
    with LeakDetector() as detector:
        largest = torch.max(torch.arange(12.0).reshape(3, 4), dim=1)
        parts = torch.split(torch.arange(10), 5)
    assert sorted(op_of(one) or "" for one in memory_of(detector)) == ["arange", "max", "max"]
    assert len(largest) + len(parts) == 4


def test_threads_that_start_while_a_detector_is_open_are_watched():
    kept = []
    with LeakDetector() as detector:
        thread = threading.Thread(target=lambda: kept.append(torch.ones(7)), name="loader")
        thread.start()
        thread.join()
        [seen] = memory_of(detector)
    assert (seen.nbytes, len(kept)) == (28, 1)


def test_threads_that_ran_before_are_watched_from_the_scope_that_they_enter():
    work, done, kept = queue.SimpleQueue(), queue.SimpleQueue(), []

    def run() -> None:
        for job in iter(work.get, None):
            job()
            done.put(None)

    def job() -> None:
        with ds.dispose_scope():
            pass
        kept.extend([torch.ones(7), np.ones(5)])

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    work.put(lambda: None)
    done.get(timeout=500)
    for _ in range(2):
        with LeakDetector() as detector:
            work.put(job)
            done.get(timeout=500)
            assert {(seen.kind, seen.nbytes) for seen in detector.memory()} >= {
                ("torch.Tensor", 28),
                ("numpy.ndarray", 40),
            }
            kept.clear()
    work.put(None)
    thread.join()


def test_what_torch_load_and_unpickling_make_is_seen():
    file = io.BytesIO()
    torch.save({"weight": torch.ones(100)}, file)
    file.seek(0)
    pickled = pickle.dumps(torch.ones(7))
    storage = torch.ones(5).untyped_storage()
    with LeakDetector() as detector:
        state = torch.load(file, weights_only=True)
        line = line_above()
        tensor = pickle.loads(pickled)
        handed = torch.multiprocessing.reductions.rebuild_tensor(
            torch.Tensor,
            torch.storage.TypedStorage(wrap_storage=storage, dtype=torch.float32, _internal=True),
            (0, (5,), (1,), False),
        )
        older = torch.nn.Parameter(torch.empty(0))
        older.requires_grad = False
        seen = memory_of(detector)
    assert [(one.nbytes, op_of(one)) for one in seen] == [
        (400, "load"),
        (28, "loads"),
        (20, "rebuild_tensor"),
    ]
    assert line_of(seen[0]) == line
    assert [float(one.sum()) for one in (state["weight"], tensor, handed)] == [100, 7, 5]


def test_parameters_that_are_unpickled_are_the_model_s():
    pickled = pickle.dumps(torch.nn.Linear(3, 4))
    with LeakDetector() as detector:
        model = pickle.loads(pickled)
        assert memory_of(detector) == []
    assert model.weight.shape == (4, 3)


def test_nothing_is_hooked_while_a_detector_is_open_and_after_it():
    depth = torch._C._len_torch_function_stack()
    bootstrap = threading.Thread._bootstrap_inner
    operators = torch._ops.OpOverload.__call__, torch._ops.OpOverloadPacket.__call__, torch.optim.Optimizer.zero_grad
    with LeakDetector(), LeakDetector():
        assert torch._C._len_torch_function_stack() == depth
        with ds.dispose_scope():
            assert torch._C._len_torch_function_stack() == depth
    assert torch._C._len_torch_function_stack() == depth
    assert operators == (
        torch._ops.OpOverload.__call__,
        torch._ops.OpOverloadPacket.__call__,
        torch.optim.Optimizer.zero_grad,
    )
    assert threading.Thread._bootstrap_inner is bootstrap


def test_a_detector_may_be_opened_and_closed_inside_of_a_scope_and_across_one():
    with ds.dispose_scope() as scope:
        with LeakDetector() as detector:
            kept = scope.move_to_outer(torch.ones(3))
        born = torch.ones(4)
        assert born in scope
    assert len(memory_of(detector)) == 1
    detector = LeakDetector().__enter__()
    with ds.dispose_scope() as scope:
        detector.__exit__(None, None, None)
        born = torch.ones(2)
        assert born in scope
    assert kept.shape == (3,)


def test_a_default_device_and_the_users_modes_work_as_without():
    seen_by_user = []

    class Spy(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen_by_user.append(func)
            return func(*args, **(kwargs or {}))

    with Spy(), LeakDetector() as detector:
        with torch.device("meta"):
            assert torch.ones(3).is_meta
        kept = torch.ones(3)
    assert torch.ones in seen_by_user
    assert len(memory_of(detector)) == 1
    assert not kept.is_meta


def test_in_place_memory_of_another_size_is_reported_with_its_present_bytes():
    with LeakDetector() as detector:
        tensor = torch.ones(10)
        tensor.resize_(1000)
        [seen] = memory_of(detector)
    assert seen.nbytes == 4000


def test_a_disposed_tensor_is_reported_with_its_birth():
    kept = []
    with LeakDetector() as detector:
        with ds.dispose_scope("step"):
            kept.append(torch.ones(5))
            line = line_above()
        [record] = [record for record in detector.take_snapshot() if record.kind == "torch.Tensor"]
        with pytest.raises(ds.DisposedError, match=f"born at .*:{line}"):
            kept[0] + 1
    assert record.site is not None
    assert (record.state, record.site.line, record.nbytes, record.shape) == ("disposed", line, 0, (5,))


def test_sampling_estimates_the_bytes():
    with LeakDetector(sample_nbytes=100_000) as detector:
        kept = [torch.ones(250) for _ in range(4000)]
    found = memory_of(detector)
    assert 5 < len(found) < 120
    estimate = sum(row_of(one).weight * one.nbytes for one in found)
    assert 0.3 < estimate / (len(kept) * 1000) < 1.9, "some 40 samples: one standard deviation is 16 %"


def test_gradient_transforms_and_batched_functions_are_seen_by_their_results():
    with LeakDetector() as detector:
        kept = torch.vmap(torch.sin)(torch.ones(3, 4))
        gradient = torch.func.grad(lambda x: (x * x).sum())(torch.ones(5))
    assert sorted(one.nbytes for one in memory_of(detector)) == [20, 48]
    assert kept.shape[0] + gradient.shape[0] == 8


def test_a_forked_child_watches_on_and_knows_nothing_of_its_parents_memory():
    if not hasattr(os, "fork"):
        pytest.skip("no fork here")
    with LeakDetector() as detector:
        kept = torch.ones(3)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            own = torch.ones(4)
            told = [one.nbytes for one in memory_of(detector)]
            os.write(writing, repr(told).encode() + b"." * len(own.shape))
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(reading, 100) == b"[16]."
        assert [one.nbytes for one in memory_of(detector)] == [12]
    assert kept.shape == (3,)


@pytest.mark.long
def test_the_import_of_torch_after_the_detector_was_opened_is_noticed():
    program = (
        "import disposescope as ds\n"
        "with ds.LeakDetector() as detector:\n"
        "    import torch\n"
        "    kept = torch.ones(250)\n"
        "    print([(seen.kind, seen.nbytes) for seen in detector.memory() if seen.kind == 'torch.Tensor'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[('torch.Tensor', 1000)]\n"


def test_watching_leaves_no_garbage_and_keeps_nothing_alive():
    def work() -> None:
        with LeakDetector() as detector:
            kept = torch.ones(3)
            watch.append(weakref.ref(kept))
            assert len(memory_of(detector)) == 1

    watch: list[weakref.ref[object]] = []
    work()
    gc.collect()
    gc.disable()
    try:
        work()
        assert gc.collect() == 0
    finally:
        gc.enable()
    assert [one() for one in watch] == [None, None]


def test_a_storage_in_a_cycle_is_seen_until_that_is_collected():
    class Holder:
        pass

    with LeakDetector() as detector:
        holder = Holder()
        tensor = torch.ones(10)
        holder.storage = tensor.untyped_storage()
        holder.itself = holder
        assert len(memory_of(detector)) == 1
        del tensor
        assert len(memory_of(detector)) == 1
        del holder
        gc.collect()
        assert memory_of(detector) == []


HANDED_ON = {
    "data": lambda held: setattr(held, "data", torch.ones(1000)),
    "set_": lambda held: held.set_(torch.ones(1000)),
    "storage": lambda held: torch.ones(1000).untyped_storage(),
    "typed storage": lambda held: torch.ones(1000).storage(),
    "array": lambda held: torch.ones(1000).numpy(),
}


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("hand_on", HANDED_ON.values(), ids=HANDED_ON)
def test_memory_is_seen_whose_tensor_handed_it_on_and_died(hand_on: Any) -> None:
    held = [torch.zeros(1) for _ in range(3)]
    with LeakDetector() as detector:
        kept = [hand_on(each) for each in held]
        records = [record for record in detector.take_snapshot() if record.kind == "torch.Tensor"]
    assert sum(record.nbytes for record in records) == 12_000
    assert len(kept) == 3


def test_what_the_parent_made_last_is_no_birth_of_a_forked_child() -> None:
    read, write = os.pipe()
    with LeakDetector():
        kept = torch.ones(300)
        child = os.fork()
        if child == 0:
            os.write(write, str([record.nbytes for record in ds.live_tensors()]).encode())
            os._exit(0)
        os.waitpid(child, 0)
    assert os.read(read, 100) == b"[]"
    os.close(read)
    os.close(write)
    assert len(kept) == 300


def test_what_a_trace_keeps_for_itself_is_no_leak() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with ds.assert_no_leaks():
            torch.jit.trace(lambda tensor: tensor * 2, torch.ones(17))


def test_a_look_that_fails_is_no_error_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    from disposescope.tensors.torch import framework

    class Own(torch.Tensor):
        pass

    def refuses(tensor: Any) -> bool:
        raise ds.DisposedError("another thread was faster")

    monkeypatch.setattr(framework, "_has_memory", refuses)
    with LeakDetector() as detector, ds.dispose_scope():
        own = torch.ones(3).as_subclass(Own)
        plain = torch.ones(4)
        assert {record.kind for record in detector.take_snapshot()} == {"torch.Tensor"}
        assert (own.sum(), plain.sum()) == (3, 4)


def test_looking_at_what_a_graph_saved_makes_no_births() -> None:
    cell = torch.nn.LSTMCell(8, 16)
    with ds.LeakDetector() as detector:
        state = cell(torch.ones(1, 8))
        kept = [cell(torch.ones(1, 8), state)[0].sum()]
        # Only C++ has the gates that the graph saved, until somebody looks at them.
        reports = [detector.report() for _ in range(2)]
    lines = [sorted((leak.site, leak.count) for leak in report.leaks if leak.site) for report in reports]
    assert lines[0] == lines[1]
    assert kept


READS_A_GRADIENT = """
import sys
import threading
import torch
from disposescope.leaks import LeakDetector

sys.setswitchinterval(1e-6)
weight = torch.nn.Parameter(torch.ones(4, 4))
is_over = threading.Event()

def read():
    while not is_over.is_set():
        weight.grad

with LeakDetector():
    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(20_000):
        weight.grad = torch.ones(4, 4)
        weight.grad = None
    is_over.set()
    reader.join()
"""


@pytest.mark.long
def test_a_gradient_may_be_read_while_another_thread_sets_it_to_none():
    """PyTorch from 2.10 on lets go of a gradient before it takes it out.

    Reports read gradients on threads of their own.
    """
    done = subprocess.run([sys.executable, "-c", READS_A_GRADIENT], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_gradient_of_a_tensor_that_is_no_leaf_is_assigned_without_a_warning():
    with LeakDetector():
        result = torch.ones(2, requires_grad=True) * 2
        result.grad = torch.ones(2)
        result.grad = None
        kept = torch.ones(2, requires_grad=True) * 2
        kept.retain_grad()
        kept.grad = torch.full((2,), 3.0)
        assert kept.grad.tolist() == [3.0, 3.0]


def test_a_subclass_hears_once_of_a_gradient_that_is_assigned():
    heard: list[str] = []

    class Listening(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            heard.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    tensor = torch.ones(2).as_subclass(Listening)
    with LeakDetector():
        heard.clear()
        tensor.grad = torch.ones(2)
        assert heard == ["__set__"]


def test_what_has_gone_before_anybody_looks_counts_as_a_birth() -> None:
    rows = torch.ones(8, 8)
    with LeakDetector() as detector:
        before = LOG.counts()[0]
        for _ in range(10):
            rows.mean()
        detector.take_snapshot()
        assert LOG.counts()[0] - before == 10
    with LeakDetector(sample_nbytes=1 << 30) as detector:
        # Of a sample the others are not counted either.
        before = LOG.counts()[0]
        for _ in range(10):
            rows.mean()
        detector.take_snapshot()
        assert LOG.counts()[0] == before


def test_states_of_generators_are_seen() -> None:
    with LeakDetector() as detector:
        kept = [torch.get_rng_state(), torch.random.get_rng_state(), torch.default_generator.get_state()]
        assert [record.nbytes for record in detector.take_snapshot()] == [state.nbytes for state in kept]
