"""A byte-level LSTM that learns the source of Python's standard library, in memory that stays flat.

Each line is one sequence. Lines of different lengths are packed, not padded; every batch and all
that its step makes live in one scope; the only thing that is kept of a step is a number.

    python docs/examples/torch_lstm.py [--steps N] [--batch-size N]
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

import disposescope as ds

LONGEST = 120


class ByteModel(nn.Module):
    """Predicts each byte of a line from those before it."""

    def __init__(self, embedding: int = 32, hidden: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, embedding)
        self.lstm = nn.LSTM(embedding, hidden)
        self.head = nn.Linear(hidden, 256)

    def forward(self, inputs: PackedSequence) -> torch.Tensor:
        """Scores of the next byte at each packed place: shape (places, 256)."""
        embedded = PackedSequence(
            self.embed(inputs.data), inputs.batch_sizes, inputs.sorted_indices, inputs.unsorted_indices
        )
        hidden, _ = self.lstm(embedded)
        return self.head(hidden.data)


def lines(seed: int) -> Iterator[torch.Tensor]:
    """Lines of random files of the standard library, without end: shape (length,), dtype int64."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(file for file in root.rglob("*.py") if "site-packages" not in file.parts)
    order = random.Random(seed)
    while True:
        with order.choice(files).open("rb") as source:
            for line in source:
                if len(line) > 2:
                    yield torch.tensor(list(line[:LONGEST]))


def batches(batch_size: int, seed: int) -> Iterator[tuple[PackedSequence, torch.Tensor]]:
    """Inputs and, at the same packed places, the bytes that follow them."""
    source = lines(seed)
    while True:
        samples = list(itertools.islice(source, batch_size))
        inputs = ds.pack_sequence([sample[:-1] for sample in samples], enforce_sorted=False)
        targets = ds.pack_sequence([sample[1:] for sample in samples], enforce_sorted=False)
        yield inputs, targets.data


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=32)
    options = parser.parse_args()
    if options.steps < 1 or options.batch_size < 1:
        parser.error("--steps and --batch-size must be at least 1")

    torch.manual_seed(0)
    model = ByteModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    process = psutil.Process()
    losses: list[float] = []
    resident: list[int] = []
    started = time.perf_counter()
    data = itertools.islice(batches(options.batch_size, seed=0), options.steps)
    for step, (inputs, targets) in enumerate(ds.scoped_batches(data)):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        resident.append(process.memory_info().rss)
        if (step + 1) % max(options.steps // 10, 1) == 0:
            recent = losses[-max(options.steps // 10, 1) :]
            print(f"step {step + 1:>5}  loss {sum(recent) / len(recent):.3f}  {resident[-1] / 2**20:,.0f} MiB resident")
    tenth = max(options.steps // 10, 1)
    first, last = sum(losses[:tenth]) / tenth, sum(losses[-tenth:]) / tenth
    print(f"{options.steps / (time.perf_counter() - started):.1f} steps/s; loss {first:.3f} -> {last:.3f}")
    print(f"resident after a tenth {resident[tenth - 1] / 2**20:,.0f} MiB, at the end {resident[-1] / 2**20:,.0f} MiB")
    print(f"live bytes at the end {ds.statistics(process=True).live_nbytes}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
