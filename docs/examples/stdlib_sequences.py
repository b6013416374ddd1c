"""Byte bigrams of Python's own standard library, counted batch by batch in memory that stays flat.

Every line of source is one sequence of bytes. The lines are read lazily, packed into batches by the
collate hook, and each batch lives in a scope of its own. The counts are checked against a direct
count over the files.

    python docs/examples/stdlib_sequences.py [--repeat N] [--limit-files N] [--batch-size N]
"""

from __future__ import annotations

import argparse
import itertools
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil

import disposescope as ds

NEWLINE = 10


def source_files(limit: int | None) -> list[Path]:
    """The source files of the standard library, without installed packages, in a fixed order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(file for file in root.rglob("*.py") if "site-packages" not in file.parts)
    return files[:limit]


def lines(files: list[Path]) -> Iterator[np.ndarray]:
    """Each line as a sequence of bytes, shape (length,), dtype uint8.

    One file is open at a time.
    """
    for file in files:
        with file.open("rb") as source:
            for line in source:
                yield np.frombuffer(line, dtype=np.uint8)


def batches(sequences: Iterator[np.ndarray], batch_size: int) -> Iterator[ds.PackedSequence]:
    """The sequences in packed batches, as a DataLoader would hand them over."""
    collate = ds.pack_collate()
    while samples := list(itertools.islice(sequences, batch_size)):
        yield collate(samples)


def bigrams(packed: ds.PackedSequence) -> ds.Tensor:
    """How often each byte follows each other one within a sequence: shape (65536,), dtype int64.

    In the packed layout the byte at one step stands as many places behind its predecessor as there
    were sequences at the step before.
    """
    data, sizes = packed.data, packed.batch_sizes
    following = np.arange(int(sizes[0]), len(data))
    before = following - np.repeat(sizes[:-1], sizes[1:])
    return np.bincount(data[before].astype(np.int64) * 256 + data[following], minlength=65536)


def direct_bigrams(files: list[Path]) -> np.ndarray:
    """The same counts the plain way, file by file."""
    counts = np.zeros(65536, np.int64)
    for file in files:
        text = np.frombuffer(file.read_bytes(), dtype=np.uint8).astype(np.int64)
        pairs = text[:-1] * 256 + text[1:]
        counts += np.bincount(pairs[text[:-1] != NEWLINE], minlength=65536)
    return counts


class Progress:
    """A line that is rewritten on a terminal, and not printed where there is none."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.sequences = 0
        self.peak_nbytes = 0
        self._process = psutil.Process()
        self._shown = 0.0

    def add(self, sequences: int) -> None:
        self.sequences += sequences
        self.peak_nbytes = max(self.peak_nbytes, self._process.memory_info().rss)
        if sys.stderr.isatty() and self.seconds - self._shown > 0.2:
            self._shown = self.seconds
            print(f"\r{self}", end="", file=sys.stderr, flush=True)

    def done(self) -> None:
        if sys.stderr.isatty():
            print(f"\r{self}", file=sys.stderr)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def __str__(self) -> str:
        return (
            f"{self.sequences:>9,} sequences  {self.sequences / self.seconds:>9,.0f}/s  "
            f"{self.peak_nbytes / 2**20:,.1f} MiB resident at most"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=1, help="how often to go over the data")
    parser.add_argument("--limit-files", type=int, default=None, help="only the first files")
    parser.add_argument("--batch-size", type=int, default=512, help="sequences in a batch")
    options = parser.parse_args()
    if options.repeat < 1 or options.batch_size < 1 or (options.limit_files is not None and options.limit_files < 1):
        parser.error("--repeat, --batch-size and --limit-files must be at least 1")

    files = source_files(options.limit_files)
    print(f"{len(files):,} files, {sum(file.stat().st_size for file in files) / 2**20:,.1f} MiB of source")
    progress = Progress()
    with ds.dispose_scope("counts") as scope:
        counts = np.zeros(65536, np.int64)
        for _ in range(options.repeat):
            for packed in ds.scoped_batches(batches(lines(files), options.batch_size)):
                counts += bigrams(packed).numpy()
                progress.add(int(packed.batch_sizes[0]))
        progress.done()
        assert len(scope) == 0, "every batch went with its own scope"
    print(f"{progress.sequences:,} sequences at {progress.sequences / progress.seconds:,.0f} sequences/s")

    if not np.array_equal(counts, direct_bigrams(files) * options.repeat):
        print("the counts from the packed layout and the direct counts differ", file=sys.stderr)
        return 1
    common = int(counts.argmax())
    print(f"{counts.sum():,} bigrams, as counted directly; {bytes(divmod(common, 256))!r} is the most common")
    print(f"peak resident memory {progress.peak_nbytes / 2**20:,.1f} MiB")
    print(f"live bytes at the end {ds.statistics(process=True).live_nbytes}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
