"""What is said of whole programs that keep something, and free it in the end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from disposescope.leaks.report.report import Report
from disposescope.leaks.reporters.json_report import report_from_json


def report_on(folder: Path, source: str) -> Report:
    """Return the report on a program, which must end well."""
    (folder / "program.py").write_text(source)
    command = [sys.executable, "-m", "disposescope", "run", "-q", "-o", "r.json", "program.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return report_from_json((folder / "r.json").read_text(encoding="utf-8"))


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
    assert "held to the end: " in text.split("\n")[0]
    assert "\nundecided, held to the end:\n" in text


def test_what_main_let_go_before_its_end_is_not_undecided(tmp_path: Path) -> None:
    source = SETUP.replace(
        "    return len(tables)", "    cache.clear()\n    later = [np.zeros(100) for _ in range(400)]\n"
    )
    assert report_on(tmp_path, source).verdict == "clean"


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
    source = CALLERS.replace("errors = []\n", "").replace("errors.append", "main.errors.append")
    source = source.replace("for n in range(40):\n    handle(n)", "")
    source += "def main():\n    main.errors = errors = []\n    for n in range(40):\n        handle(n)\n"
    source += "    main.errors = None\nmain()\n"
    [leak] = [leak for leak in report_on(tmp_path, source).leaks if leak.kind != "cycle"]
    assert leak.kind == "exception"
    assert leak.freed is not None


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
    assert " of a coroutine: local '" in leak.holder


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
