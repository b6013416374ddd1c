"""What does a scope cost a training step on a GPU, and what memory does it give back?

Run as a script. The sides take turns step by step in one process, and each step waits for the
device.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

import disposescope as ds

torch = pytest.importorskip("torch", reason="measures PyTorch")
nn = torch.nn
MIB = 2**20


class Trainer:
    """A small GPT, and a step of it that leaves its variables as a loop in a script does."""

    def __init__(self, width: int, layers: int, batch: int, length: int) -> None:
        torch.manual_seed(0)
        block = nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True)
        blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.model = nn.Sequential(nn.Embedding(1024, width), blocks, nn.Linear(width, 1024)).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        self.tokens = torch.randint(0, 1024, (batch, length), device="cuda")
        self.left: Any = None

    def step(self) -> float:
        with torch.autocast("cuda", torch.bfloat16):
            logits = self.model(self.tokens)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), self.tokens.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.left = logits, loss  # what the names of a loop hold until the next step has made its own
        return float(loss.item())


def seconds_of(step: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def in_turns(plain: Callable[[], object], scoped: Callable[[], object], rounds: int) -> tuple[float, float, float]:
    """Median seconds of each side, and the median of the ratios of neighbours."""
    for _ in range(5):
        plain()
        scoped()
    pairs = [(seconds_of(plain), seconds_of(scoped)) for _ in range(rounds)]
    first, second = zip(*pairs, strict=True)
    return statistics.median(first), statistics.median(second), statistics.median(b / a for a, b in pairs)


def peak_of(step: Callable[[], object]) -> int:
    for _ in range(3):
        step()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(5):
        step()
    return int(torch.cuda.max_memory_allocated())


def main() -> None:
    print(sys.version.split()[0], torch.__version__, torch.cuda.get_device_name())
    for width, layers, batch, length in ((256, 4, 8, 128), (1024, 8, 16, 512)):
        trainer = Trainer(width, layers, batch, length)

        def scoped(trainer: Trainer = trainer) -> None:
            with ds.dispose_scope():
                trainer.step()

        name = f"{layers} layers of {width}, batch {batch} x {length}"
        plain_s, scoped_s, ratio = in_turns(trainer.step, scoped, 60)
        print(f"{name}: {plain_s * 1e3:.2f} ms plain, {scoped_s * 1e3:.2f} ms in a scope, ratio {ratio:.3f}")
        _, _, ratio = in_turns(trainer.step, trainer.step, 60)
        print(f"  plain beside plain: ratio {ratio:.3f}")
        with ds.LeakDetector(frames=1):
            watched_s, _, _ = in_turns(trainer.step, scoped, 60)
        unwatched_s, _, _ = in_turns(trainer.step, scoped, 60)
        print(f"  with a detector open (one frame): {watched_s * 1e3:.2f} ms, without {unwatched_s * 1e3:.2f} ms")
        trainer.left = None
        plain_peak, scoped_peak = peak_of(trainer.step), peak_of(scoped)
        print(f"  peak {plain_peak / MIB:.0f} MiB plain, {scoped_peak / MIB:.0f} MiB in a scope")
        history: list[Any] = []
        for block in (nullcontext, ds.dispose_scope):
            trainer.left = None
            history.clear()
            before = torch.cuda.memory_allocated()
            for _ in range(20):
                with block():
                    trainer.step()
                    history.append(trainer.left)
            print(f"  20 steps whose outputs a list holds, {block.__name__}: "
                  f"{(torch.cuda.memory_allocated() - before) / MIB:.0f} MiB more")  # fmt: skip
        del trainer, history

    x = torch.ones(16, device="cuda")

    def adds(count: int = 1000) -> None:
        for _ in range(count):
            x + 1

    def adds_in_scope() -> None:
        with ds.dispose_scope():
            adds()

    plain_s, scoped_s, ratio = in_turns(adds, adds_in_scope, 60)
    print(f"a small addition: {plain_s * 1e3:.2f} us plain, {scoped_s * 1e3:.2f} us in a scope, ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
