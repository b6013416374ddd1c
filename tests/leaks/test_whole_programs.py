"""What is said of whole programs that keep something, and free it in the end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from disposescope.leaks.report.report import Report, headline_of
from disposescope.leaks.reporters.json_report import report_from_json
from disposescope.leaks.running.inventory import Growing

from .forked_programs import FORKED, processes_end  # noqa: F401

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="programs are run in forks"),
]


def report_on(folder: Path, source: str, *, is_measured: bool = True, has_timer: bool = True) -> Report:
    """Return the report on a program, which must end well.

    A long program need not be measured for coverage, which takes half as long again, if others
    reach the same code. Without a timer no report is written now and then: where one holds the
    memory that a program frees, the verdict may be "undecided".
    """
    program = folder / "program.py"
    program.write_text(source)
    library = next((name for name in ("torch", "jax") if f"import {name}" in source), "numpy")
    return report_from_json(
        FORKED.report_of(program, folder, library=library, is_measured=is_measured, has_timer=has_timer)
    )


CYCLES = """
import gc
import numpy as np

class Reader:
    def __init__(self):
        self.block = np.zeros(50_000)
        self.on_close = self.close
    def close(self):
        self.block = None

gc.collect()
for _ in range(8):
    Reader()
"""


def test_cycles_are_reported_although_the_collector_frees_them_after_the_look(tmp_path: Path) -> None:
    [leak] = report_on(tmp_path, CYCLES).leaks
    assert (leak.kind, leak.count, leak.freed) == ("cycle", 8, None)


# The collector, which may come by itself at any time, has just run.
CYCLE_OF_SEVERAL = """
import gc
import numpy as np

gc.collect()

class Adam:
    def __init__(self):
        self.rate = np.zeros(1)
        self.warp = np.zeros(50_000)
        self.average = np.zeros(60_000)
        self.smoothing = lambda: self.warp

def register():
    Adam()

for _ in range(2):
    register()
"""


def test_all_that_objects_in_cycles_have_is_reported(tmp_path: Path) -> None:
    """The dict of an object comes into being when its first chain is spelled."""
    report = report_on(tmp_path, CYCLE_OF_SEVERAL)
    assert sorted((leak.kind, leak.count, leak.nbytes) for leak in report.leaks) == [
        ("cycle", 2, 800_000),
        ("cycle", 2, 960_000),
    ]


SETUP = """
import numpy as np

def main():
    tables = [np.zeros(100) for _ in range(300)]
    cache = {}
    for request in range(100):
        cache[request] = np.zeros(10_000)
    return len(tables)

main()
"""


def test_what_main_filled_to_the_end_after_a_setup_is_undecided_and_said_to_be_freed(tmp_path: Path) -> None:
    report = report_on(tmp_path, SETUP)
    assert (report.verdict, report.leaks) == ("undecided", ())
    [row] = [row for row in report.kept if row.unjudged == "growth"]
    assert row.freed == "when main() returned"
    assert "local 'cache'" in row.holder
    assert row.count >= 80
    text = str(report)
    assert "held until freed: " in text.split("\n")[0]
    assert "\nundecided, held until freed:\n" in text


def test_what_main_let_go_before_its_end_is_not_undecided(tmp_path: Path) -> None:
    source = SETUP.replace(
        "    return len(tables)", "    cache.clear()\n    later = [np.zeros(100) for _ in range(400)]\n"
    )
    assert report_on(tmp_path, source).verdict == "clean"


BEFORE_A_LAST_PHASE = """
import numpy as np

def mean(batch):
    return float(np.stack(batch).mean())

def main():
    history = []
    for step in range(50):
        history.append(np.zeros(10_000) + step)
    total = 0.0
    for number in range(1_000):
        total += mean([np.zeros(1_000) + number for _ in range(10)])
    return total

main()
"""


def test_what_main_held_is_told_although_much_was_made_after_it(tmp_path: Path) -> None:
    report = report_on(tmp_path, BEFORE_A_LAST_PHASE)
    assert (report.verdict, report.leaks) == ("clean", ())
    [row] = [row for row in report.kept if row.freed is not None]
    assert (row.count, row.nbytes, row.freed, row.unjudged) == (50, 4_000_000, "when main() returned", None)
    assert row.explanation == "It was held until it was freed when main() returned."
    first, _, rest = str(report).partition("\n")
    assert first.startswith("no leaks; 4.0 MB held until freed: 50 × ")
    assert first.endswith("main(): local 'history', freed when main() returned")
    assert "\nno leak, held until freed:\n" in rest
    assert report.kept_nbytes == sum(row.nbytes for row in report.kept)


def test_what_main_let_go_before_a_last_phase_is_not_told(tmp_path: Path) -> None:
    source = BEFORE_A_LAST_PHASE.replace("    total = 0.0\n", "    history.clear()\n    total = 0.0\n")
    report = report_on(tmp_path, source)
    assert (report.verdict, report.leaks, [row for row in report.kept if row.freed is not None]) == ("clean", (), [])


OF_THREADS = """
import threading
from concurrent.futures import ThreadPoolExecutor
import numpy as np

local = threading.local()

def work(number):
    if not hasattr(local, "seen"):
        local.seen = []
    local.seen.append(np.full(5000, number))

def main():
    with ThreadPoolExecutor(2) as executor:
        for number in range(200):
            executor.submit(work, number).result()

main()
"""


def test_no_more_are_said_to_have_been_kept_than_were_made(tmp_path: Path) -> None:
    """NumPy makes a scalar on the way to each result, which is there at the highest point."""
    [leak] = report_on(tmp_path, OF_THREADS).leaks
    assert leak.trend is not None
    assert (leak.count, leak.trend.passes) == (200, 200)


EPOCHS = """
import torch

def main():
    net = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    kept = []
    for epoch in range(10):
        for step in range(8):
            optimizer.zero_grad()
            net(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
        kept.append(torch.randn(100, 100))
    return kept

{call}
"""


@pytest.mark.parametrize("call", ["main()", "kept = main()"])
def test_what_stays_with_each_of_a_few_epochs_is_undecided(tmp_path: Path, call: str) -> None:
    pytest.importorskip("torch")
    report = report_on(tmp_path, EPOCHS.format(call=call))
    assert (report.verdict, report.leaks) == ("undecided", ())
    assert [row.count >= 8 for row in report.kept if row.unjudged == "growth"] == [True]


DATA_SET = """
import torch

samples = []
for number in range(300):
    image = torch.randn(3, 32, 32)
    samples.append((image - image.mean()) / image.std())
model = torch.nn.Conv2d(3, 8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    for first in range(0, 300, 10):
        model(torch.stack(samples[first : first + 10])).square().mean().backward()
        optimizer.step()
"""


def test_a_data_set_to_which_no_step_adds_is_clean(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert report_on(tmp_path, DATA_SET, is_measured=False).verdict == "clean"


CACHE_OF_A_WORKER = """
import torch
from torch.utils.data import DataLoader, Dataset

class Images(Dataset):
    def __init__(self):
        self.cache = {}
    def __len__(self):
        return 128
    def __getitem__(self, number):
        if number not in self.cache:
            self.cache[number] = torch.rand(3, 64, 64)
        return self.cache[number]

if __name__ == "__main__":
    loader = DataLoader(Images(), batch_size=8, num_workers=1, persistent_workers=True)
    for epoch in range(6):
        for batch in loader:
            pass
"""


def test_a_cache_of_a_worker_that_is_full_is_clean(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert report_on(tmp_path, CACHE_OF_A_WORKER).verdict == "clean"


CLASSES = """
import numpy as np

def weighted(number):
    weights = np.ones(90_000) * number

    class Weighted:
        values = weights

    return Weighted

for number in range(20):
    weighted(number)
"""


def test_classes_that_were_made_and_dropped_are_not_said_to_be_held(tmp_path: Path) -> None:
    report = report_on(tmp_path, CLASSES)
    assert (report.leaks, [row.freed for row in report.kept if row.freed is not None]) == ((), [])


TWO_LISTS = """
import torch

def main():
    features = {"left": [], "right": []}
    model = torch.nn.Linear(64, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(60):
        for side in features:
            features[side].append(model(torch.randn(32, 64)).detach())
        model(torch.randn(32, 64)).square().mean().backward()
        optimizer.step()

main()
"""


def test_lists_of_several_keys_that_grew_are_told_as_what_retained(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    report = report_on(tmp_path, TWO_LISTS)
    [leak], [row] = report.leaks, report.retainers
    assert "local 'features'" in row.holder
    assert row.nbytes == leak.nbytes


FITTED = """
import numpy as np

class Fitted:
    pass

def fit(number):
    fitted = Fitted()
    fitted.mean, fitted.scale, fitted.count, fitted.data = [np.ones(size) for size in (8, 8, 8, 100_000)]
    return fitted

def main():
    results = []
    for number in range(60):
        results.append(fit(number))

main()
"""


def test_the_holder_that_is_named_is_that_of_the_large_ones(tmp_path: Path) -> None:
    [leak] = report_on(tmp_path, FITTED).leaks
    assert [holder.rpartition(".")[2] for holder in leak.holders] == ["data"]


JOINED = """
import numpy as np

class Recorder:
    def __init__(self):
        self.history = np.zeros((0, 256))

    def record(self, block):
        self.history = np.concatenate([self.history, block])

def main():
    recorder = Recorder()
    for turn in range(150):
        recorder.record(np.full((16, 256), turn))

main()
"""


def test_an_array_to_which_others_are_joined_counts_once(tmp_path: Path) -> None:
    # A report of the timer would hold the array that is replaced meanwhile.
    [leak] = report_on(tmp_path, JOINED, has_timer=False).leaks
    assert leak.count == 1
    assert leak.nbytes == pytest.approx(150 * 16 * 256 * 8, rel=0.05)


PARENT = """
import subprocess
import sys

child = '''
import numpy as np
kept = []
for number in range(100):
    kept.append(np.zeros(30_000))
'''
subprocess.run([sys.executable, "-c", child], check=True)
"""


def test_a_leak_of_a_program_that_was_started_is_said_to_be_one_of_a_child(tmp_path: Path) -> None:
    assert " in a child process: 100 × numpy.ndarray" in str(report_on(tmp_path, PARENT))


DETACHED = """
import torch

import disposescope as ds

bank = []
net = torch.nn.Linear(64, 1024)
for step in range(60):
    with ds.dispose_scope("step", escapes="keep"):
        features = net(torch.randn(64, 64))
        features.pow(2).mean().backward()
        bank.append(features.detach())
"""


def test_growth_of_what_a_graph_saved_too_has_its_bytes_per_pass(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    [leak] = report_on(tmp_path, DETACHED).leaks
    assert leak.trend is not None
    assert leak.trend.nbytes_per_pass == pytest.approx(64 * 1024 * 4, rel=0.1)


WIDER_MODELS = """
import torch

for width in range(256, 4096, 256):
    model = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(20):
        optimizer.zero_grad()
        model(torch.cat([torch.ones(4, 64)] * 128)).square().mean().backward()
        optimizer.step()
"""

STATE_THAT_FILLS = """
import torch

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=1, history_size=100)

def closure():
    optimizer.zero_grad()
    loss = model(torch.cat([torch.randn(1, 64)] * 512)).square().mean()
    loss.backward()
    return loss

for step in range(60):
    optimizer.step(closure)
"""


@pytest.mark.parametrize("source", [WIDER_MODELS, STATE_THAT_FILLS], ids=["wider models", "state that fills"])
def test_models_that_replace_each_other_and_state_do_not_grow(tmp_path: Path, source: str) -> None:
    pytest.importorskip("torch")
    assert report_on(tmp_path, source, is_measured=False).leaks == ()


MODELS_OF_FOLDS = """
import torch

def main():
    kept = []
    for fold in range(24):
        model = torch.nn.Linear(256, 256)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(3):
            model(torch.randn(4, 256)).square().mean().backward()
            optimizer.step()
        kept.append(model)

main()
"""


def test_models_that_main_kept_are_counted_to_its_end(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    [leak] = report_on(tmp_path, MODELS_OF_FOLDS).leaks
    assert (leak.kind, leak.count, leak.freed) == ("model", 24, "when main() returned")


def test_views_that_main_keeps_of_each_of_a_few_epochs_are_undecided(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    report = report_on(tmp_path, EPOCHS.format(call="main()").replace("(100, 100)", "(100, 1000)[0]"))
    assert (report.verdict, report.leaks) == ("undecided", ())
    assert [(row.kind, row.freed) for row in report.kept if row.unjudged == "growth"] == [
        ("view", "when main() returned")
    ]


FEW_OF_MANY_STEPS = """
import numpy as np
import torch

def main():
    net = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    kept = {kept}
    for step in range(600):
        optimizer.zero_grad()
        net(torch.randn(4, 8)).square().mean().backward()
        {steps}
        if step % {every} == {every} - 1:
            kept.append(np.random.randn(250_000))
    torch.randn(8)

main()
"""


@pytest.mark.parametrize("steps", ["optimizer.step()", "pass"])
def test_six_large_results_of_many_steps_are_undecided(tmp_path: Path, steps: str) -> None:
    pytest.importorskip("torch")
    report = report_on(tmp_path, FEW_OF_MANY_STEPS.format(kept="[]", steps=steps, every=100), is_measured=False)
    assert (report.verdict, report.leaks) == ("undecided", ())
    [row] = [row for row in report.kept if row.unjudged == "growth"]
    assert (row.count, row.nbytes, row.freed) == (6, 12_000_000, "when main() returned")


@pytest.mark.parametrize("steps", ["optimizer.step()", "pass"])
@pytest.mark.parametrize(
    ("kept", "every"), [("[]", 200), ("__import__('collections').deque(maxlen=6)", 100)], ids=["three", "bounded"]
)
def test_three_large_results_and_the_last_six_are_not(tmp_path: Path, kept: str, every: int, steps: str) -> None:
    pytest.importorskip("torch")
    report = report_on(tmp_path, FEW_OF_MANY_STEPS.format(kept=kept, steps=steps, every=every), is_measured=False)
    assert report.verdict == "clean", str(report)


EVALUATION = """
import numpy as np

def main():
    outputs, labels = [], []
    for batch in range(100):
        images = np.random.randn(64, 32)
        outputs.append(images @ np.ones((32, 100)))
        labels.append(np.random.randn(64))
    {end}
    return outputs, labels

{call}
"""


@pytest.mark.parametrize("call", ["main()", "kept = main()"])
def test_outputs_that_an_evaluation_puts_together_in_the_end_were_meant_to_stay(tmp_path: Path, call: str) -> None:
    together = "print(np.concatenate(outputs).mean(), np.stack(labels).mean())"
    report = report_on(tmp_path, EVALUATION.format(end=together, call=call))
    assert report.verdict == "clean", str(report)
    report = report_on(tmp_path, EVALUATION.format(end="print(np.concatenate(outputs[:50]).mean())", call=call))
    assert {(leak.kind, leak.count) for leak in report.leaks} >= {("growth", 100)}


CLEARED = """
import numpy as np

def main():
    kept = []
    for number in range(70):
        block = np.ones(20_000) * 2 + 1
        size = np.abs(block).sum()
        kept.append(np.tanh(block * 0.5) + size)
    {end}

main()
"""
GOES_ON = """kept.clear()
    for number in range(10):
        np.ones(20_000) * 2"""


@pytest.mark.parametrize(("end", "freed"), [("return", "when main() returned"), (GOES_ON, "before the program ended")])
def test_what_a_function_clears_itself_is_not_said_to_be_freed_by_its_return(
    tmp_path: Path, end: str, freed: str
) -> None:
    report = report_on(tmp_path, CLEARED.format(end=end))
    [row] = [row for row in (*report.leaks, *report.kept) if row.site is not None and row.site.line == 9]
    assert (row.count, row.nbytes, row.freed) == (70, 70 * 160_000, freed)


SEARCH = """
import torch

def train(steps):
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        loss = model(torch.randn(16, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model

def main():
    trials = []
    for trial in range(24):
        trials.append(train(3))
    final = train(12)

main()
"""


def test_all_models_of_a_search_are_counted_also_after_the_last_look(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    report = report_on(tmp_path, SEARCH, is_measured=False)
    [models] = [row for row in (*report.leaks, *report.kept) if "Sequential" in (row.tensor or "")]
    assert models.count in (24, 25)
    assert report.verdict != "clean"


IN_SCOPES = """
import numpy as np
import disposescope as ds

def main():
    kept = []
    {loop}
    print(len(kept))

main()
"""
EPOCHS_IN_SCOPES = """for epoch in range({epochs}):
        with ds.dispose_scope("epoch", escapes="keep"):
            for step in range(30):
                with ds.dispose_scope("step", escapes="keep"):
                    kept.append(np.ones(10_000))"""
FEW_PASSES = """for step in range(15):
        with ds.dispose_scope("step", escapes="keep"):
            kept.append(np.ones(100_000))"""
MOVED_OUT = """for step in range(12):
        with ds.dispose_scope("step"):
            kept.append(ds.move_to_outer(ds.ones(100_000)))"""
NAMED_APART = """for step in range(40):
        with ds.dispose_scope(f"step {step}", escapes="keep"):
            kept.append(np.ones(100_000))"""
ONE_SCOPE = """with ds.dispose_scope():
        for request in range(100):
            kept.append(np.ones(10_000))"""
ONE_LIST_AN_EPOCH = """for epoch in range(6):
        with ds.dispose_scope("epoch", escapes="keep"):
            outputs = [np.ones(10_000) * step for step in range(40)]
            kept = kept[:1] + [float(np.mean(outputs))]"""
DISPOSED = """for epoch in range(6):
        with ds.dispose_scope("epoch"):
            outputs = []
            for step in range(40):
                outputs.append(ds.ones(10_000))"""


@pytest.mark.parametrize(
    ("loop", "verdict"),
    [
        (EPOCHS_IN_SCOPES.format(epochs=4), "leaks"),
        (EPOCHS_IN_SCOPES.format(epochs=1), "leaks"),
        (FEW_PASSES, "undecided"),
        (MOVED_OUT, "undecided"),
        (NAMED_APART, "suspects"),
        # The arrays are not disposed: the list has them until main() returns.
        (ONE_SCOPE, "suspects"),
        (ONE_LIST_AN_EPOCH, "clean"),
        (DISPOSED, "clean"),
    ],
    ids=["nested", "one epoch", "few passes", "moved out", "names", "one scope", "lists", "disposed"],
)
def test_what_main_keeps_out_of_scopes_is_seen_and_what_scopes_give_back_is_not(
    tmp_path: Path, loop: str, verdict: str
) -> None:
    report = report_on(tmp_path, IN_SCOPES.format(loop=loop), is_measured=False)
    assert report.verdict == verdict, str(report)


PREDICTIONS = """
import torch

def main():
    weights = torch.randn(64, 256)
    outputs = []
    for batch in range(60):
        images = torch.randn(100, 64)
        outputs.append((images @ weights).relu())
    {end}

main()
"""


@pytest.mark.parametrize(
    ("end", "verdict"),
    [
        ("whole = torch.cat(outputs)", "clean"),
        ("print(torch.stack(outputs).shape)", "clean"),
        ("print(torch.cat(outputs[:30]).shape)", "suspects"),
    ],
)
def test_what_pytorch_puts_together_last_is_seen_though_no_tensor_follows(
    tmp_path: Path, end: str, verdict: str
) -> None:
    pytest.importorskip("torch")
    report = report_on(tmp_path, PREDICTIONS.format(end=end), is_measured=False)
    assert report.verdict == verdict, str(report)


FILES = """
import numpy as np
import pandas as pd
import scipy.sparse as sparse

def read_table(number):
    rng = np.random.default_rng(number)
    frame = pd.DataFrame({{"user": rng.integers(0, 20, 2000), "value": rng.random(2000)}})
    frame["square"] = frame["value"] ** 2
    return frame

def read_matrix(number):
    return sparse.random(200, 300, density=0.1, random_state=number, format="csr")

def main():
    parts, tables = [], []
    for number in range(100):
        parts.append(read_{kind}(number))
        {turn}
    print({end}.shape)

main()
"""


@pytest.mark.parametrize(
    ("kind", "end"), [("table", "pd.concat(parts)"), ("matrix", "sparse.vstack(parts)")], ids=["table", "matrix"]
)
def test_tables_and_matrices_that_are_joined_in_the_end_were_meant_to_stay(tmp_path: Path, kind: str, end: str) -> None:
    report = report_on(tmp_path, FILES.format(kind=kind, turn="pass", end=end))
    assert report.verdict == "clean", str(report)


def test_tables_that_each_turn_joins_to_those_before_are_kept_for_nothing(tmp_path: Path) -> None:
    turn = "tables = [pd.concat([*tables, parts[-1]])]"
    report = report_on(tmp_path, FILES.format(kind="table", turn=turn, end="tables[0]"))
    assert any("'parts'" in leak.holder for leak in report.leaks), str(report)


HELD_BY_A_CYCLE = """
import torch

class Trainer:
    def __init__(self):
        self.net = torch.nn.Linear(8, 8)
        self.outputs = []
        self.on_epoch = self.validate
    def validate(self):
        {start}
        for batch in range(4):
            self.outputs.append(torch.randn(100, 100))

def main():
    trainer = Trainer()
    optimizer = torch.optim.SGD(trainer.net.parameters(), lr=0.01)
    for epoch in range({epochs}):
        for step in range({steps}):
            optimizer.zero_grad()
            trainer.net(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
        trainer.on_epoch()

main()
"""


def test_a_trainer_in_a_cycle_that_main_is_done_with_is_no_leak_and_hides_none(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    report = report_on(
        tmp_path, HELD_BY_A_CYCLE.format(start="self.outputs.clear()", epochs=10, steps=8), is_measured=False
    )
    assert report.verdict == "clean", str(report)
    assert {row.kind for row in report.kept} == {"cycle"}
    for epochs, steps in ((10, 8), (6, 5)):
        report = report_on(
            tmp_path, HELD_BY_A_CYCLE.format(start="pass", epochs=epochs, steps=steps), is_measured=False
        )
        assert (report.verdict, report.leaks) == ("undecided", ())
        [row] = [row for row in report.kept if row.unjudged == "growth"]
        assert "'trainer'.outputs" in row.holder
        assert row.count >= 4 * (epochs - 1)


KEPT_BY_A_FUNCTION = """
import multiprocessing
import numpy as np

def main():
    history = []
    for step in range(100):
        history.append(np.ones(20_000) * step)
    {end}

if __name__ == "__main__":
    {call}
"""


@pytest.mark.parametrize("end", ["raise ValueError('a crash')", "raise KeyboardInterrupt"])
def test_what_grew_until_an_exception_ended_the_program_grew_all_the_same(tmp_path: Path, end: str) -> None:
    (tmp_path / "program.py").write_text(KEPT_BY_A_FUNCTION.format(end=end, call="main()"))
    command = [sys.executable, "-m", "disposescope", "run", "-q", "-o", "r.json", "program.py"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode != 0
    report = report_from_json((tmp_path / "r.json").read_text(encoding="utf-8"))
    [leak] = report.leaks
    assert (leak.kind, leak.count >= 90, leak.holder.endswith("main(): local 'history'[0]")) == ("growth", True, True)
    assert [row.kind for row in report.kept if row.site == leak.site] == []


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_what_the_function_of_a_child_process_keeps_until_it_returns_is_reported(tmp_path: Path, method: str) -> None:
    call = f"""child = multiprocessing.get_context({method!r}).Process(target=main)
    child.start()
    child.join()"""
    [leak] = report_on(tmp_path, KEPT_BY_A_FUNCTION.format(end="pass", call=call)).leaks
    assert (leak.kind, leak.count >= 90, leak.freed) == ("worker", True, "when main() returned")


def test_a_program_that_traces_what_it_makes_is_not_disturbed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = """
import torch, warnings
warnings.simplefilter("ignore")
for _ in range(30):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3)).eval()
    traced = torch.jit.trace(model, torch.rand(1, 3, 100, 100))
"""
    report = report_on(tmp_path, program, is_measured=False)
    assert (report.leaks, report.unwatched) == ((), ())


OF_OTHER_CALLS = """
import torch

{setup}

def main():
    kept = []
    for step in range(60):
        kept.append({made})

main()
"""


@pytest.mark.parametrize(
    ("setup", "made"),
    [
        ("double = torch.compile(lambda rows: rows * 2, backend='eager')", "double(torch.randn(8, 5000))"),
        ("", "torch.frombuffer(bytearray(160_000), dtype=torch.float32)"),
        ("import numpy as np", "np.frombuffer(bytes(160_000), np.uint8)"),
        ("import numpy as np", "np.asarray(memoryview(bytearray(160_000)))"),
    ],
    ids=["compile", "torch.frombuffer", "np.frombuffer", "np.asarray"],
)
def test_results_that_are_seen_by_way_of_a_wrapper_are_reported_where_a_function_keeps_them(
    tmp_path: Path, setup: str, made: str
) -> None:
    pytest.importorskip("torch")
    [leak] = report_on(tmp_path, OF_OTHER_CALLS.format(setup=setup, made=made)).leaks
    assert (leak.kind, leak.sure, leak.count >= 55, leak.freed) == ("growth", "possible", True, "when main() returned")
    assert leak.holder.endswith("main(): local 'kept'[0]")


OF_TRANSFORMS = """
import torch
from torch.func import grad, vmap

weights = torch.randn(50, 20)

def loss(weights, row):
    return (row @ weights).square().mean()

def main():
    kept = []
    for step in range(60):
        kept.append(vmap(grad(loss), in_dims=(None, 0))(weights, torch.randn(8, 50)))

main()
"""


def test_results_of_transforms_that_a_function_keeps_are_seen_to_grow(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    [leak] = report_on(tmp_path, OF_TRANSFORMS).leaks
    assert (leak.kind, leak.freed, leak.holder.endswith("main(): local 'kept'[0]")) == (
        "growth",
        "when main() returned",
        True,
    )


GRAPHS_OF_EPOCHS = """
import torch

def main():
    net = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    kept = []
    for epoch in range({epochs}):
        for step in range(8):
            optimizer.zero_grad()
            loss = net(torch.randn(4096, 8)).square().mean()
            loss.backward(retain_graph=True)
            optimizer.step()
        kept.append({kept})
    return kept

{call}
"""


@pytest.mark.parametrize("call", ["main()", "kept = main()"])
def test_graphs_that_stay_with_each_of_a_few_epochs_are_undecided_although_they_can_be_used(
    tmp_path: Path, call: str
) -> None:
    pytest.importorskip("torch")
    report = report_on(tmp_path, GRAPHS_OF_EPOCHS.format(epochs=5, kept="loss", call=call))
    assert (report.verdict, report.leaks) == ("undecided", ())
    assert {row.carriers != () for row in report.kept if row.unjudged == "growth"} == {True}


EPISODE = """
import torch

def main():
    policy = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    optimizer = torch.optim.Adam(policy.parameters())
    state, chosen = torch.randn(8), []
    for step in range(400):
        chosen.append(torch.log_softmax(policy(state), 0)[step % 4])
        state = torch.randn(8)
    loss = -torch.stack(chosen).sum()
    {ends}
    optimizer.step()
    chosen.clear()

main()
"""


@pytest.mark.parametrize(
    ("ends", "kinds"), [("loss.backward()", set()), ("loss.backward(retain_graph=True)", {"graph"})]
)
def test_what_a_backward_frees_before_the_last_step_is_no_leak(tmp_path: Path, ends: str, kinds: set[str]) -> None:
    pytest.importorskip("torch")
    report = report_on(tmp_path, EPISODE.format(ends=ends), has_timer=False)
    assert {leak.kind for leak in report.leaks} - {"growth"} == kinds
    assert {leak.sure for leak in report.leaks if leak.kind == "growth"} <= {"possible"}


def test_losses_of_a_few_epochs_without_their_graphs_are_clean(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    report = report_on(
        tmp_path, GRAPHS_OF_EPOCHS.format(epochs=12, kept="loss.detach()", call="kept = main()"), is_measured=False
    )
    assert report.verdict == "clean", str(report)


def test_a_data_set_that_is_cached_in_the_first_epoch_is_clean(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    source = EPOCHS.format(call="main()").replace(
        "kept.append(torch.randn(100, 100))",
        "for item in range(100 if epoch == 0 else 0):\n            kept.append(torch.randn(400))",
    )
    report = report_on(tmp_path, source)
    assert report.verdict == "clean", str(report)


WITH_TEMPORARIES = """
import numpy as np
import torch

net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
kept = {kept}
for epoch in range(3):
    for step in range(8):
        optimizer.zero_grad()
        net(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    for batch in range(12):
        kept.append(np.sqrt(np.full((64, 64), 1.5) + batch) * 2.0)
"""


def test_what_stays_of_a_line_that_makes_temporaries_too_is_undecided(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    report = report_on(tmp_path, WITH_TEMPORARIES.format(kept="[]"))
    assert (report.verdict, report.leaks) == ("undecided", ())
    [row] = [row for row in report.kept if row.unjudged == "growth"]
    assert (row.count, row.made, row.holder) == (36, 108, "module __main__.kept[0]")
    assert "36 of 108 × " in str(report)
    assert "none ever released" not in str(report)
    bounded = WITH_TEMPORARIES.format(kept="__import__('collections').deque(maxlen=20)")
    assert report_on(tmp_path, bounded).verdict == "clean"


COMPREHENSIONS = {
    "in a function": "def main():\n    rows = [np.random.default_rng(n).random(3000) for n in range(100)]\n"
    "    print(np.stack(rows).shape)\nmain()",
    "of calls, in a function": "def main():\n    rows = [embed(n) for n in range(100)]\n"
    "    print(np.stack(rows).shape)\nmain()",
    "in a module": "rows = [np.random.default_rng(n).random(3000) for n in range(100)]\nprint(np.stack(rows).shape)",
}


@pytest.mark.parametrize("place", COMPREHENSIONS)
def test_what_a_comprehension_makes_in_one_go_does_not_grow(tmp_path: Path, place: str) -> None:
    source = (
        "import numpy as np\ndef embed(n):\n    return np.random.default_rng(n).random(3000) * 2 + 1\n"
        f"{COMPREHENSIONS[place]}\n"
    )
    assert report_on(tmp_path, source).leaks == ()


BUFFER = """
import collections
import numpy as np

def main():
    buffers = [collections.deque(maxlen=1000)]
    for step in range(200):
        {new}
        buffers[-1].append(np.full((30, 30), step, dtype=float))

main()
"""


def test_a_deque_that_is_bounded_does_not_grow_before_it_is_full(tmp_path: Path) -> None:
    report = report_on(tmp_path, BUFFER.format(new="pass"))
    assert report.verdict == "clean", str(report)


def test_a_list_of_bounded_deques_grows(tmp_path: Path) -> None:
    [leak] = report_on(tmp_path, BUFFER.format(new="buffers.append(collections.deque(maxlen=8))")).leaks
    assert leak.kind == "growth"


def test_all_that_one_line_keeps_is_counted_where_two_calls_make_it(tmp_path: Path) -> None:
    report = report_on(
        tmp_path,
        "import numpy as np\ndef main():\n    caches = []\n    for n in range(80):\n"
        "        caches.append((np.zeros(2000), np.ones((50, 40))))\nmain()\n",
    )
    assert sum(leak.nbytes for leak in report.leaks) == pytest.approx(2 * 80 * 16_000, rel=0.05)
    assert len({leak.op for leak in report.leaks}) == len(report.leaks) == 2
    # What to do is said once.
    assert str(report).count("     do: mark the steps") == 1
    assert "     do: as for 1\n" in str(report)


OF_TWO = """
import numpy as np
import disposescope as ds

def main():
    few, many = [], {}
    for step in range(200):
        with ds.dispose_scope("step") as scope:
            made = scope.move_to_outer(np.zeros(1000))
            if step % 4:
                many[step] = made
            else:
                few.append(made)

main()
"""


def test_what_two_holders_keep_of_a_line_is_told_for_each_and_the_larger_comes_first(tmp_path: Path) -> None:
    report = report_on(tmp_path, OF_TWO)
    [leak] = report.leaks
    assert [holder.partition("local ")[2].partition("[")[0] for holder in leak.holders] == ["'many'", "'few'"]
    many, few = report.retainers
    assert ("'many'" in many.holder, "'few'" in few.holder) == (True, True)
    assert many.nbytes == pytest.approx(1_200_000, rel=0.02)
    assert few.nbytes == pytest.approx(400_000, rel=0.02)


CALLERS = """
import numpy as np

errors = []

def parse(text):
    try:
        return int(text)
    except ValueError as error:
        errors.append(error)

def handle(n):
    image = np.zeros((100, 100))
    parse("x")
    return image.mean()

for n in range(40):
    handle(n)
"""


def test_a_kept_exception_holds_the_frames_of_the_callers_of_its_handler(tmp_path: Path) -> None:
    report = report_on(tmp_path, CALLERS)
    [leak] = report.leaks
    assert (leak.kind, leak.sure, leak.count) == ("exception", "certain", 40)
    assert leak.holder.startswith("module __main__.errors[0].__traceback__ frame ")
    assert leak.holder.endswith(" parse().f_back frame program.py:15 handle(): local 'image'")


def test_kept_exceptions_that_main_had_are_reported(tmp_path: Path) -> None:
    source = (
        CALLERS.replace("errors = []\n", "").replace("(text)", "(text, errors)", 1).replace("(n)", "(n, errors)", 1)
    )
    source = source.replace('parse("x")', 'parse("x", errors)')
    source = source.replace("for n in range(40):\n    handle(n)", "")
    source += "def main():\n    errors = []\n    for n in range(40):\n        handle(n, errors)\nmain()\n"
    [leak] = [leak for leak in report_on(tmp_path, source).leaks if leak.kind != "cycle"]
    assert leak.kind == "exception"
    assert leak.freed is not None


# The program keeps its errors in an object that the errors' own frames refer to: a cycle.
ERRORS_OF_SOME_STEPS = """
import torch

FAILS = {step for step in range(100) if step % 7 < (1 if step < 20 else 5 if step < 45 else 2 if step < 75 else 4)}

class Trainer:
    def __init__(self):
        self.net = torch.nn.Linear(64, 64)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.errors = []

    def step(self, number):
        batch = torch.ones(32, 64)
        try:
            if number in FAILS:
                raise FloatingPointError("too large")
            self.optimizer.zero_grad()
            self.net(batch).mean().backward()
            self.optimizer.step()
        except FloatingPointError as error:
            self.errors.append(error)

def main():
    trainer = Trainer()
    for number in range(100):
        trainer.step(number)

main()
"""


def test_exceptions_that_come_at_random_and_that_main_had_are_undecided(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    report = report_on(tmp_path, ERRORS_OF_SOME_STEPS)
    [row] = [*report.leaks, *(row for row in report.kept if row.unjudged is not None)]
    assert report.verdict in ("leaks", "undecided")
    assert "main(): local 'trainer'.errors[0].__traceback__ frame " in row.holder


TASKS = """
import asyncio
import numpy as np

class Client:
    def __init__(self):
        self.tasks = []
    async def fetch(self, n):
        task = asyncio.create_task(self.request(n))
        self.tasks.append(task)
        return (await task).sum()
    async def request(self, n):
        await asyncio.sleep(0)
        return np.zeros((64, 512))

async def main():
    client = Client()
    for n in range(60):
        await client.fetch(n)

asyncio.run(main())
"""


def test_a_coroutine_that_had_run_is_not_said_to_have_freed_what_another_has(tmp_path: Path) -> None:
    [leak] = report_on(tmp_path, TASKS).leaks
    assert leak.kind == "growth"
    # The collector may have run since, or not.
    assert leak.freed in ("before the program ended", "before the program ended, but for a cycle")
    assert leak.holder.endswith(" main(): local 'client'.tasks[0].result()")


RECURRENT = """
import torch

def main():
    rnn = torch.nn.GRU(32, 32)
    hidden = torch.zeros(1, 16, 32)
    for step in range(60):
        out, hidden = rnn(torch.rand(5, 16, 32), hidden)

main()
"""


def test_what_a_graph_saved_in_one_call_of_a_library_is_told(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    report = report_on(tmp_path, RECURRENT)
    [leak] = [leak for leak in report.leaks if leak.graph_nbytes]
    assert leak.kind == "graph"
    assert leak.graph_nbytes > 3 * leak.nbytes
    assert f"{leak.count:,} × " in str(report)
    assert " and a graph of " in str(report)


def test_a_type_that_the_interpreter_has_not_readied_does_not_end_the_program(tmp_path: Path) -> None:
    # To ask an abstract class whether it is one of its subclasses crashes CPython 3.11.
    source = "import numpy as np\nkept = [np.zeros(10_000), (lambda: 0).__code__.co_positions()]\n"
    [row] = report_on(tmp_path, source).kept
    assert row.holder == "module __main__.kept[0]"


def test_the_variable_that_is_left_of_many_cycles_is_not_said_to_be_freed(tmp_path: Path) -> None:
    source = """
import gc, threading
import numpy as np

class Frame:
    def __init__(self):
        self.me, self.rows = self, np.ones((300, 100))

# Collections by themselves come at other places where the run is measured for coverage.
gc.set_threshold(1_000_000)
for number in range(50):
    last = Frame()
    if number == 37:
        gc.collect()
# As a collection that comes by chance.
threading._register_atexit(gc.collect)
"""
    report = report_on(tmp_path, source, has_timer=False)
    [row] = [row for row in report.kept if row.kind != "cycle"]
    assert (row.holder, row.freed) == ("module __main__.last.rows", None)


def test_what_is_in_cycles_is_not_said_to_be_held_by_the_holder_of_a_few(tmp_path: Path) -> None:
    source = """
import numpy as np

class Node:
    def __init__(self, state, parent=None):
        self.state, self.parent, self.children = state, parent, []

    def expand(self, random):
        for _ in range(4):
            self.children.append(Node(self.state + random.normal(size=self.state.shape), self))

def play():
    random = np.random.default_rng(0)
    root = Node(np.zeros((64, 64)))
    for move in range(100):
        root.expand(random)
        root = root.children[move % 4]
        root.parent = None

play()
"""
    report = report_on(tmp_path, source, has_timer=False)
    assert report.verdict == "clean"
    assert {row.kind for row in report.kept if row.count > 5} <= {"cycle"}


# A model is trained and validated in turn.
VALIDATION = """
import torch
from torch import nn

def train():
    model.train()
    for x, y in rows[:20]:
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()

def validate():
    model.eval()
    {body}

rows = [(torch.randn(64, 256), torch.randn(64, 10)) for _ in range(100)]
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.Adam(model.parameters())
loss_of = nn.MSELoss()
for epoch in range(3):
    train()
    mean = validate()
"""
SUM_OF_LOSSES = """total = 0
    for x, y in rows:
        total += loss_of(model(x), y)
    return {returned} / len(rows)
"""
TURNS = """hidden = torch.zeros(64, 256)
    gates = nn.Sequential(nn.Linear(256, 256), nn.Tanh()).eval()
    for turn in range({turns}):
        hidden = gates(hidden + rows[turn][0])
    {end}
"""
OF_VALIDATION = {
    "clean": {
        "with items": SUM_OF_LOSSES.format(returned="total").replace("y)", "y).item()"),
        "no_grad": "with torch.no_grad():\n        return sum(loss_of(model(x), y) for x, y in rows)",
        "losses one by one": "for x, y in rows:\n        loss_of(model(x), y)",
        "few turns of one evaluation": TURNS.format(turns=10, end="return hidden.sum().item()"),
    },
    "suspects": {
        "returned as a number": SUM_OF_LOSSES.format(returned="total.item()"),
        "returned with its graph": SUM_OF_LOSSES.format(returned="total"),
        "many turns of one evaluation": TURNS.format(turns=100, end="return hidden.sum().item()"),
    },
}


@pytest.mark.parametrize(
    ("verdict", "body"),
    [
        pytest.param(verdict, body, id=name)
        for verdict, programs in OF_VALIDATION.items()
        for name, body in programs.items()
    ],
)
def test_a_sum_of_losses_of_a_model_in_eval_mode_is_told_although_it_is_freed(
    tmp_path: Path, verdict: str, body: str
) -> None:
    pytest.importorskip("torch")
    report = report_on(tmp_path, VALIDATION.format(body=body), is_measured="return total /" in body, has_timer=False)
    assert report.verdict == verdict, str(report)
    for leak in report.leaks:
        assert (leak.kind, leak.sure) == ("graph", "possible")
        assert "torch.no_grad()" in leak.remedy
    assert all("validate()" in str(leak.site) for leak in report.leaks[:1])


def test_what_an_async_main_filled_to_its_end_is_undecided_too(tmp_path: Path) -> None:
    source = SETUP.replace("def main", "async def main").replace("\nmain()", "\nimport asyncio\nasyncio.run(main())")
    assert report_on(tmp_path, source).verdict == "undecided"


RIGHT = {
    "a data set that is read before the loop": """
import numpy as np
import disposescope as ds
def main():
    tables = [np.zeros(100) for _ in range(300)]
    data = {n: None for n in range(100)}
    for n in range(100):
        data[n] = np.zeros(3000)
    for step in range(60):
        with ds.dispose_scope("step"):
            np.zeros(3000) + data[step]
main()
""",
    "transitions in a deque that is not full, each state in two of them": """
import collections
import numpy as np
def main():
    memory = collections.deque(maxlen=10_000)
    state = np.zeros(300)
    for step in range(300):
        before, state = state, np.full(300, step, dtype=float)
        memory.append((before, 0.5, state))
main()
""",
    "what a scope gives back": """
import disposescope as ds
def main():
    with ds.dispose_scope():
        cache = {}
        for request in range(100):
            cache[request] = ds.zeros(10_000)
main()
""",
}


@pytest.mark.parametrize("program", RIGHT)
def test_a_right_program_is_clean(tmp_path: Path, program: str) -> None:
    report = report_on(tmp_path, RIGHT[program])
    assert report.verdict == "clean", str(report)


ITEM = """
import collections
import numpy as np
import disposescope as ds

class Worker:
    def __init__(self):
        self.cache = {}

workers = collections.deque([Worker()], maxlen=4)
for n in range(100):
    with ds.dispose_scope("request", escapes="keep"):
        workers[0].cache[n] = np.zeros(10_000)
"""


def test_what_an_item_of_a_bounded_deque_collects_is_not_bounded(tmp_path: Path) -> None:
    [leak] = report_on(tmp_path, ITEM).leaks
    # The scopes were told to keep what is held.
    assert (leak.kind, leak.sure, leak.count) == ("growth", "likely", 100)


def test_what_a_list_has_besides_a_bounded_deque_is_not_bounded(tmp_path: Path) -> None:
    source = (
        "import collections\nimport numpy as np\nrecent = collections.deque(maxlen=1000)\nhistory = []\n"
        "for step in range(200):\n    x = np.zeros(3000)\n    recent.append(x)\n    history.append(x)\ndel x\n"
    )
    [leak] = report_on(tmp_path, source).leaks
    assert leak.kind == "growth"


BOTH = """
import gc, threading, time
import numpy as np
import disposescope as ds

gc.disable()
kept = []

class Reader:
    def __init__(self, block):
        self.block = block
        self.on_close = self.close
    def close(self):
        self.block = None

def make():
    return np.zeros(5_000)

for n in range(100):
    with ds.dispose_scope("pass"):
        pass
    kept.append(make())
    Reader(make())

def later():
    time.sleep(0.5)
    np.zeros(10)

threading.Thread(target=later).start()
"""


def test_a_line_whose_results_a_list_has_and_cycles_have_is_told_of_both(tmp_path: Path) -> None:
    assert sorted(leak.kind for leak in report_on(tmp_path, BOTH).leaks) == ["cycle", "growth"]


MODELS = """
import torch

def main():
    models = {start}
    for step in range(60):
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU())
        with torch.no_grad():
            for _ in range(5):
                model(torch.rand(4, 64)).sum().item()
        {keep}

main()
"""


def test_models_that_main_collected_are_reported_although_they_were_freed_with_it(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    source = MODELS.format(start="[]", keep="models.append(model)")
    [leak] = report_on(tmp_path, source).leaks
    assert (leak.kind, leak.freed) == ("model", "when main() returned")
    assert leak.count > 40
    assert leak.nbytes == leak.count * (64 * 64 + 64) * 4


def test_models_that_main_kept_through_a_long_training_are_told(tmp_path: Path) -> None:
    source = """
import torch
from torch import nn

def fit(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()

def main():
    board = []
    for trial in range(30):
        model = nn.Sequential(nn.Linear(64, 400), nn.Tanh(), nn.Linear(400, 1))
        fit(model, 3)
        board.append(model)
    fit(board[7], 200)

main()
"""
    first = str(report_on(tmp_path, source, is_measured=False)).split("\n")[0]
    assert first.startswith("no leaks; 6.3 MB held until freed: 30 × ")
    assert first.endswith(" main(): local 'board', freed when main() returned")


def test_models_of_which_main_kept_one_at_a_time_are_not_reported(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert (
        report_on(tmp_path, MODELS.format(start="[None]", keep="models[0] = model"), is_measured=False).verdict
        == "clean"
    )


WEIGHTS = """
import torch
weight = torch.randn(1000, 1000, requires_grad=True)
losses = []
for step in range(40):
    losses.append((torch.randn(10, 1000) @ weight).tanh().sum())
"""


def test_the_graph_of_a_row_does_not_count_parameters(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert all(leak.graph_nbytes < 4_000_000 for leak in report_on(tmp_path, WEIGHTS).leaks)


CHECKPOINTED = """
import torch
from torch.utils.checkpoint import checkpoint

net = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(3)])
kept = []

def block(x):
    for layer in net:
        x = torch.relu(layer(x))
        kept.append(torch.randn(64))
    return x

for step in range(60):
    checkpoint(block, torch.randn(4, 16, requires_grad=True), use_reentrant=False).sum().backward()
"""


def test_a_look_inside_of_a_checkpointed_function_saves_nothing_in_it(tmp_path: Path) -> None:
    """A checkpoint's hooks count what is saved, and compare it with what the second run saves."""
    pytest.importorskip("torch")
    report = report_on(tmp_path, CHECKPOINTED, is_measured=False)
    assert [leak.kind for leak in report.leaks] == ["growth"]
    assert report.unwatched == ()


TRAININGS = """
import torch

def train(seed):
    net = torch.nn.Sequential(torch.nn.Linear(100, 100), torch.nn.ReLU(), torch.nn.Linear(100, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(12):
        optimizer.zero_grad()
        net(torch.randn(4, 100)).square().mean().backward()
        optimizer.step()
    return net

def main():
    kept = {start}
    for seed in range(7):
        {keep}
    return kept

{call}
"""


@pytest.mark.parametrize("call", ["main()", "kept = main()"])
def test_models_that_stay_with_each_of_a_few_trainings_are_undecided(tmp_path: Path, call: str) -> None:
    pytest.importorskip("torch")
    source = TRAININGS.format(start="[]", keep="kept.append(train(seed))", call=call)
    report = report_on(tmp_path, source)
    assert (report.verdict, report.leaks) == ("undecided", ())
    [row] = [row for row in report.kept if row.unjudged == "growth"]
    assert row.tensor_kind == "torch.nn.Module"
    assert 4 <= row.count <= 7
    assert row.nbytes == row.count * (100 * 100 + 100 + 100 + 1) * 4 * 2  # with the gradients
    assert row.freed == (None if "kept =" in call else "when main() returned")


@pytest.mark.parametrize(
    ("start", "keep"),
    [("[None]", "kept[0] = train(seed)"), ("[train(seed) for seed in range(7)]", "train(seed)")],
    ids=["the last", "a table of all"],
)
def test_models_that_are_replaced_or_made_in_a_row_are_clean(tmp_path: Path, start: str, keep: str) -> None:
    pytest.importorskip("torch")
    assert (
        report_on(tmp_path, TRAININGS.format(start=start, keep=keep, call="kept = main()"), is_measured=False).verdict
        == "clean"
    )


ENSEMBLE = """
import torch

data = torch.rand(8, 256)
ensemble = []
for fold in range({models}):
    model = torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range({steps}):
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
    ensemble.append(model)
"""


@pytest.mark.parametrize("steps", [2, 10])
@pytest.mark.parametrize(("models", "verdict"), [(12, "suspects"), (24, "leaks")])
def test_as_many_models_as_an_ensemble_has_are_a_suspect(tmp_path: Path, models: int, verdict: str, steps: int) -> None:
    pytest.importorskip("torch")
    report = report_on(tmp_path, ENSEMBLE.format(models=models, steps=steps), is_measured=False)
    assert [(leak.kind, leak.count) for leak in report.leaks] == [("model", models)]
    assert report.verdict == verdict


def test_what_grows_is_looked_at_at_each_half_as_many_passes_more() -> None:
    looks: list[int] = []

    def look() -> Report:
        looks.append(number)
        return Report()

    growing = Growing(look)
    for number in range(1, 130):
        growing.passed("step", number)
    assert looks == [16, 24, 36, 54, 81, 121]


def test_a_pass_during_a_look_of_another_thread_leaves_the_next_one_to_look() -> None:
    looks: list[int] = []
    begun, go_on = threading.Event(), threading.Event()

    def look() -> Report:
        looks.append(number)
        if number == 16:
            begun.set()
            go_on.wait()
        return Report()

    def look_beside() -> Report:
        # A thread of the program looks all the same.
        growing.passed("step", number)
        looks.append(-number)
        return Report()

    growing = Growing(look)
    number = 16
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(growing.passed, "step", number)
        begun.wait()
        for number in range(17, 20):
            growing.passed("step", number)
        assert not growing.born(has_more=False)
        growing.look_beside(look_beside)
        go_on.set()
        other.result()
    for number in range(20, 40):
        growing.passed("step", number)
    assert looks == [16, 24, 36]
    number = 54
    growing.look_beside(look_beside)
    assert looks == [16, 24, 36, 54, -54]


@pytest.mark.parametrize("ending", [ValueError, KeyboardInterrupt])
def test_a_look_that_ended_badly_hinders_no_other(
    ending: type[BaseException], capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> Report:
        raise ending

    growing = Growing(fail)
    for _ in range(2):
        with suppress(KeyboardInterrupt):
            assert growing.look()
    unwatched = [] if ending is KeyboardInterrupt else ["what grew while the program ran: ValueError()"]
    assert growing.unwatched() == unwatched
    assert capsys.readouterr().err.count("\n") == len(unwatched)


def test_where_looks_fail_the_program_goes_on_and_its_report_is_undecided(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import numpy as np\n"
        "from disposescope.leaks.running.inventory import Growing\n"
        "def look_at(self, report, births, live):\n"
        "    raise TypeError('broken')\n"
        "Growing.look_at = look_at\n"
        "def main():\n"
        "    kept = [np.zeros(1000 + n) for n in range(4)]\n"
        "    for n in range(200):\n"
        "        kept.append(np.zeros(1000))\n"
        "main()\n"
    )
    command = [sys.executable, "-m", "disposescope", "run", "-q", "-o", "r.json", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    report = report_from_json((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert done.returncode == 0
    assert done.stderr.count("leak-report: internal error: a look at what grows failed: TypeError('broken')") == 1
    assert report.unwatched == ("what grew while the program ran: TypeError('broken')",)
    assert report.verdict == "undecided"


@pytest.mark.parametrize(
    ("broken", "unseen"),
    [
        ("Inventory.__init__", ["what the program had when its code returned"]),
        ("Inventory.go_on", ["what its threads made after that", "what the program had in the end"]),
        (
            "LeakDetector.report",
            ["what the program had when its code returned", "what the program had in the end"],
        ),
    ],
)
def test_where_a_report_fails_the_program_ends_as_it_does_and_its_report_is_undecided(
    tmp_path: Path, broken: str, unseen: list[str]
) -> None:
    (tmp_path / "program.py").write_text(
        "import sys\n"
        "from disposescope.leaks import LeakDetector\n"
        "from disposescope.leaks.running.inventory import Inventory\n"
        "def fail(*args, **kwargs):\n"
        "    raise TypeError('broken')\n"
        f"{broken} = fail\n"
        "sys.exit(7)\n"
    )
    command = [sys.executable, "-m", "disposescope", "run", "-q", "-o", "r.json", "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    report = report_from_json((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert done.returncode == 7
    assert "Traceback" not in done.stderr
    assert done.stderr.count("leak-report: internal error: TypeError('broken')") == len(unseen)
    assert report.unwatched == tuple(f"{what}: TypeError('broken')" for what in unseen)
    assert report.verdict == "undecided"


UNDETACHED = """
import torch
from torch import nn

net = nn.RNN(16, 32)
weights = list(net.parameters())
state = torch.zeros(1, 8, 32)
for step in range(40):
    out, state = net(torch.randn(5, 8, 16), state)
    out.square().mean().backward(retain_graph=True)
    with torch.no_grad():
        after = [weight - 1e-4 * weight.grad for weight in weights]
    for weight, value in zip(weights, after):
        weight.data, weight.grad = value, None
"""


def test_all_lines_whose_results_a_leaking_graph_holds_leak(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    report = report_on(tmp_path, UNDETACHED)
    assert {(leak.kind, leak.sure) for leak in report.leaks} == {("graph", "likely")}
    lines = {UNDETACHED.splitlines()[leak.site.line - 1].strip() for leak in report.leaks if leak.site is not None}
    assert len(lines) == 2, lines
    assert all(leak.count < 16 for leak in report.kept if leak.kind == "graph")


LATE = """
import numpy as np

def main():
    for _ in range(1200):
        np.zeros(10)
    state = {name: np.zeros(6000) for name in range(7)}
    snapshots = []
    for epoch in range(10):
        for _ in range(5):
            fresh = {}
            for name, part in state.items():
                fresh[name] = np.add(part, 1.0)
            state = fresh
        snapshots.append(state)

main()
"""


def test_what_began_to_grow_in_the_second_half_of_a_program_is_looked_at(tmp_path: Path) -> None:
    report = report_on(tmp_path, LATE)
    assert report.verdict == "undecided"
    [leak] = [leak for leak in report.kept if leak.unjudged == "growth"]
    assert "local 'snapshots'" in leak.holder
    assert report_on(tmp_path, LATE.replace("snapshots.append(state)", "snapshots = [state]")).verdict == "clean"


DISPOSED = """
import disposescope as ds

CACHE = {}
for number in range(40):
    with ds.dispose_scope("request") as scope:
        CACHE[number] = ds.ones(1000)
        total = scope.move_to_outer(CACHE[number].sum())
"""


def test_what_is_disposed_is_not_said_to_be_freed_in_the_end(tmp_path: Path) -> None:
    [leak] = report_on(tmp_path, DISPOSED).leaks
    assert (leak.kind, leak.state, leak.count, leak.freed) == ("escaped", "disposed", 40, None)


TRAINED_THEN_TESTED = """
import torch

class Trainer:
    def __init__(self):
        self.net = torch.nn.Linear(64, 64)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.outputs = []

    def fit(self):
        for step in range(60):
            out = self.net(torch.ones(64, 64))
            self.optimizer.zero_grad()
            out.square().mean().backward()
            self.optimizer.step()
            {keeps}

    @torch.no_grad()
    def test(self):
        return sum(float(torch.tanh(self.net(torch.ones(64, 64))).mean()) for _ in range(600))

def main():
    trainer = Trainer()
    trainer.fit()
    trainer.test()

main()
"""


def test_growth_in_training_is_told_although_a_longer_test_follows(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    source = TRAINED_THEN_TESTED.format(keeps="self.outputs.append(out.detach())")
    report = report_on(tmp_path, source)
    [leak] = report.leaks
    assert (leak.kind, leak.count, leak.freed) == ("growth", 60, "when main() returned")
    assert leak.holder.endswith("main(): local 'trainer'.outputs[0]")
    assert report_on(tmp_path, TRAINED_THEN_TESTED.format(keeps="self.outputs = [out.detach()]")).leaks == ()


SORTED_BY_LENGTH = """
import torch

weight = torch.nn.Parameter(torch.ones(64))
optimizer = torch.optim.SGD([weight], lr=0.1)
for length in range(10, 610, 10):
    batch = torch.ones(length, 64)
    optimizer.zero_grad()
    (batch * weight).sum().backward()
    optimizer.step()
"""


def test_batches_that_become_longer_are_no_growth(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert report_on(tmp_path, SORTED_BY_LENGTH, is_measured=False).verdict == "clean"


TREES = """
import numpy as np

class Node:
    def __init__(self, state, parent):
        self.state, self.parent, self.children = state, parent, []

def search(rng, root):
    for _ in range(30):
        root.children.append(Node(rng.normal(size=(16, 16)), root))
        root = root.children[-1]
    return float(root.state.sum())

rng = np.random.default_rng(0)
print(sum(search(rng, Node(np.zeros((16, 16)), None)) for _ in range(200)))
"""


def test_cycles_that_the_collector_frees_as_they_come_are_no_leak(tmp_path: Path) -> None:
    assert report_on(tmp_path, TREES).leaks == ()


COUNTS_ITS_THREADS = """
import threading
import time

worker = threading.Thread(target=time.sleep, args=(0.1,))
worker.start()
while threading.active_count() > 1:
    time.sleep(0.01)
"""


def test_a_program_that_waits_until_its_threads_have_ended_ends(tmp_path: Path) -> None:
    assert report_on(tmp_path, COUNTS_ITS_THREADS).verdict == "clean"


BATCHES_OF_WORKERS = """
import torch
from torch.utils.data import DataLoader, Dataset

class Images(Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, index):
        return torch.full((2500,), float(index))

def main():
    kept = []
    for batch in DataLoader(Images(), batch_size=2, num_workers=2):
        kept.append(batch)

if __name__ == "__main__":
    main()
"""


def test_batches_of_workers_that_main_keeps_are_seen_although_they_arrive_in_our_code(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    # Batches that arrive while a report is written are recorded when that has ended, if they are
    # still there then: how many these are depends on the machine.
    [leak] = report_on(tmp_path, BATCHES_OF_WORKERS, has_timer=False).leaks
    assert (leak.sure, leak.freed) == ("possible", "when main() returned")
    # The last one may go before it is recorded: nothing is made after it.
    assert leak.count >= 99
    assert re.search(r"main\(\): local 'kept'\[[01]\]$", leak.holder)


LABELS = """
import numpy as np

labels = []

def read(count):
    return np.zeros(count)

for step in range(60):
    inputs, targets = read(200_000), read({targets})
    labels.append(targets)
"""


def test_the_last_inputs_are_no_part_of_the_labels_that_grow(tmp_path: Path) -> None:
    [leak] = report_on(tmp_path, LABELS.format(targets=1000)).leaks
    assert (leak.count, leak.nbytes, leak.holder) == (60, 480_000, "module __main__.labels[0]")
    # Fewer than 64 kB say nothing, however large the last inputs are.
    assert report_on(tmp_path, LABELS.format(targets=8)).verdict == "clean"


INPUTS_AHEAD = """
import collections
import numpy as np

labels = []
ahead = collections.deque(maxlen=4)

def read(count):
    return np.zeros(count)

for step in range(60):
    inputs, targets = read(200_000), read(8)
    ahead.append(inputs)
    labels.append(targets)
"""


def test_inputs_that_are_read_ahead_are_no_part_of_the_labels_that_are_kept(tmp_path: Path) -> None:
    report = report_on(tmp_path, INPUTS_AHEAD)
    assert report.verdict == "clean", str(report)
    assert {(row.holder, row.count) for row in report.kept} == {
        ("module __main__.ahead[0]", 4),
        ("module __main__.labels[0]", 60),
    }


def test_results_that_become_larger_in_one_list_grow(tmp_path: Path) -> None:
    source = (
        "import numpy as np\ndef to_host(count):\n    return np.zeros(count)\nkept = []\n"
        "for step in range(64):\n    kept.append(to_host(8 if step < 60 else 500_000))\n"
    )
    [leak] = report_on(tmp_path, source).leaks
    assert (leak.kind, leak.count) == ("growth", 64)


def test_a_line_that_joins_all_so_far_in_each_turn_gathers_nothing(tmp_path: Path) -> None:
    source = """
import numpy as np

def main():
    parts = []
    for step in range(100):
        parts.append(np.zeros(1000))
        for number in range(120):
            other = np.ones(10)
        joined = np.stack(parts)
    print(joined.shape)

main()
"""
    [leak] = report_on(tmp_path, source).leaks
    assert (leak.count, leak.holder.partition("local ")[2]) == (100, "'parts'[0]")


BEGUN_LATE = """
import torch

kept = []

def main():
    weight = torch.nn.Parameter(torch.ones(64, 64))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    {own}
    for step in range(100):
        out = torch.ones(64, 64) @ weight
        optimizer.zero_grad()
        out.square().mean().backward()
        optimizer.step()
        if {condition}:
            kept.append(out.detach())

main()
"""


@pytest.mark.parametrize("own", ["kept = []", "global kept"])
@pytest.mark.parametrize(("condition", "verdict"), [("step >= 60", "undecided"), ("60 <= step < 70", "clean")])
def test_growth_that_begins_late_in_the_run_is_undecided(
    tmp_path: Path, condition: str, verdict: str, own: str
) -> None:
    pytest.importorskip("torch")
    assert report_on(tmp_path, BEGUN_LATE.format(condition=condition, own=own)).verdict == verdict


EPISODES = """
import torch

def episode(policy, length):
    log_probs = []
    for _ in range(length):
        choice = torch.distributions.Categorical(logits=policy(torch.randn(32)))
        log_probs.append(choice.log_prob(choice.sample()))
    {keeps}
    return log_probs

kept = []

def main():
    policy = torch.nn.Linear(32, 4)
    optimizer = torch.optim.Adam(policy.parameters())
    for number in range(24):
        log_probs = episode(policy, 4 + number)
        loss = -torch.stack(log_probs).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

main()
"""


@pytest.mark.parametrize(("keeps", "verdict"), [("pass", "clean"), ("kept.append(log_probs)", "leaks")])
def test_episodes_that_become_longer_are_no_growth_unless_they_are_kept(
    tmp_path: Path, keeps: str, verdict: str
) -> None:
    pytest.importorskip("torch")
    assert report_on(tmp_path, EPISODES.format(keeps=keeps), is_measured=False).verdict == verdict


FEW_IN_MAIN = """
import numpy as np

def main():
    kept = {start}
    for step in range({steps}):
        kept.append({made})
        print(step)

main()
"""


@pytest.mark.parametrize(
    ("steps", "made"), [(10, "np.ones(20_000) * step"), (16, "np.ones(20_000) * step"), (20, "np.ones(20_000)")]
)
def test_a_few_results_that_main_keeps_are_undecided_and_counted(tmp_path: Path, steps: int, made: str) -> None:
    report = report_on(tmp_path, FEW_IN_MAIN.format(start="[]", steps=steps, made=made), has_timer=False)
    assert report.verdict == "undecided"
    [kept] = report.kept
    assert (kept.count, kept.freed) == (steps, "when main() returned")
    assert kept.nbytes == pytest.approx(160_000 * steps, rel=0.001)


def test_the_last_few_results_in_main_are_clean(tmp_path: Path) -> None:
    start = "__import__('collections').deque(maxlen=8)"
    program = FEW_IN_MAIN.format(start=start, steps=60, made="np.ones(20_000) * step")
    assert report_on(tmp_path, program, has_timer=False).verdict == "clean"


LITTLE_IN_MAIN = """
import numpy as np

def main():
    {body}

main()
"""
KEPT_UNSEEN = {
    "one array a turn": "kept = []\n    for turn in range(12):\n        kept.append(np.zeros(20_000))",
    "an expression a turn": "kept = []\n    for turn in range(9):\n        kept.append(np.ones(20_000) * turn)",
    "one for each epoch": (
        "kept = []\n    for epoch in range(10):\n        for step in range(20):\n            x = np.ones(100) * step\n"
        "        kept.append(np.ones(20_000) * epoch)"
    ),
}
CLEAN_UNSEEN = {
    "a comprehension": "rows = [np.zeros(20_000) for number in range(12)]",
    "put together": "kept = []\n    for turn in range(12):\n        kept.append(np.zeros(20_000))\n    np.stack(kept)",
    "a scope": (
        "import disposescope as ds\n    kept = []\n    with ds.dispose_scope():\n        for turn in range(12):\n"
        "            kept.append(ds.zeros(20_000))"
    ),
    "a full cache": (
        "cache = {}\n    for turn in range(200):\n        if turn % 8 not in cache:\n"
        "            cache[turn % 8] = np.zeros(20_000)\n        cache[turn % 8] * 2"
    ),
    "one at a time": "for turn in range(12):\n        kept = np.zeros(20_000)",
    "too few": "kept = []\n    for turn in range(5):\n        kept.append(np.zeros(20_000))",
}


@pytest.mark.parametrize("body", KEPT_UNSEEN.values(), ids=list(KEPT_UNSEEN))
def test_what_main_keeps_is_undecided_although_it_makes_too_little_for_a_look(tmp_path: Path, body: str) -> None:
    report = report_on(tmp_path, LITTLE_IN_MAIN.format(body=body), has_timer=False)
    [kept] = report.kept
    assert (report.verdict, kept.unjudged) == ("undecided", "growth")
    assert "held until freed: " in headline_of(report)
    # The last one may have been made after the last point of the line's course.
    turns = int(re.findall(r"range\((\d+)", body)[0])
    assert turns - 1 <= kept.count <= turns
    assert kept.nbytes == pytest.approx(160_000 * kept.count, rel=0.001)


@pytest.mark.parametrize("body", CLEAN_UNSEEN.values(), ids=list(CLEAN_UNSEEN))
def test_what_main_fills_once_or_lets_go_is_clean_also_without_a_look(tmp_path: Path, body: str) -> None:
    assert report_on(tmp_path, LITTLE_IN_MAIN.format(body=body), has_timer=False).verdict == "clean"


WAVES = """
import asyncio
import numpy as np
import disposescope as ds

history = {{}}

async def request(number):
    with ds.dispose_scope("request", escapes="keep"):
        result = np.ones(20_000) * number
        await asyncio.sleep(0)
        history[number{modulo}] = result

async def main():
    for wave in range(4):
        await asyncio.gather(*(request(50 * wave + number) for number in range(50)))

asyncio.run(main())
"""


@pytest.mark.parametrize(("modulo", "verdict"), [("", "undecided"), (" % 50", "clean")])
def test_what_requests_keep_that_begin_together_is_undecided(tmp_path: Path, modulo: str, verdict: str) -> None:
    report = report_on(tmp_path, WAVES.format(modulo=modulo), has_timer=False)
    assert report.verdict == verdict
    if verdict == "undecided":
        # The program marks its steps.
        assert "let it make more passes to know whether it grows" in headline_of(report)


BURSTS = """
import asyncio
import numpy as np

class Server:
    def __init__(self):
        self.sessions = {{}}

    async def handle(self, number):
        session = self.sessions[number{modulo}] = np.zeros(4_000)
        await asyncio.sleep(0)
        x = np.ones(512)
        session[:512] += x
        await asyncio.sleep(0)

async def main():
    server = Server()
    for burst in range(20):
        await asyncio.gather(*(server.handle(8 * burst + number) for number in range(8)))

asyncio.run(main())
"""


@pytest.mark.parametrize(("modulo", "verdict"), [("", "suspects"), (" % 16", "clean")])
def test_what_twenty_bursts_of_requests_keep_grows(tmp_path: Path, modulo: str, verdict: str) -> None:
    report = report_on(tmp_path, BURSTS.format(modulo=modulo), has_timer=False)
    assert report.verdict == verdict
    assert [leak.count for leak in report.leaks] == ([160] if modulo == "" else [])


STREAMS = """
import asyncio
import numpy as np

class Server:
    def __init__(self):
        self.sessions = {{}}

    async def handle(self, reader, writer):
        data = np.zeros(4_000)
        self.sessions[len(self.sessions){modulo}] = data
        await reader.read(4)
        writer.close()

async def client(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    payload = np.ones(512)
    writer.write(b"abcd")
    await reader.read()
    writer.close()

async def main():
    server = Server()
    listening = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    for _ in range(80):
        await asyncio.gather(client(listening.sockets[0].getsockname()[1]))
    listening.close()

asyncio.run(main())
"""


def test_what_a_server_keeps_is_held_by_its_variable_and_not_by_the_event_loop(tmp_path: Path) -> None:
    [leak] = report_on(tmp_path, STREAMS.format(modulo=""), has_timer=False).leaks
    assert re.fullmatch(r"task 'Task-1', suspended frame .* main\(\): local 'server'\.sessions\[0\]", leak.holder)
    assert "call_later" not in leak.remedy
    assert report_on(tmp_path, STREAMS.format(modulo=" % 4"), has_timer=False).verdict == "clean"
