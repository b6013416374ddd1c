"""Write a report for PyTorch's memory viewer, as ``torch.cuda.memory._dump_snapshot`` does."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from sys import intern
from typing import Any, Final, final

from ...scopes.base.sites import Site
from ..report.leaks import Leak
from ..report.report import Report

__all__ = [
    "memory_viz_of",
]

_BLOCKS_AT_MOST: Final = 1000
"""A line has so many blocks at most. Where it has more live tensors, a block is several of them."""

_ALIGNMENT: Final = 512
"""The addresses of segments are multiples of so many bytes, as those of PyTorch's allocator."""
_FIRST_ADDRESS: Final = 1 << 32
"""The invented address of the first segment."""


def memory_viz_of(report: Report) -> bytes:
    """Return the report as a pickle for PyTorch's memory viewer.

    ``python -m torch.cuda._memory_viz`` and https://pytorch.org/memory_viz read it.

    Each line is a segment. Each live tensor of the line is a block of it, with the mean of their
    sizes. The trace has the allocations of leaked tensors in the order of birth, as far as their
    ages are known; the others were allocated before the trace. Devices ``cuda:0``, ``cuda:1`` and
    so on keep their numbers; other devices follow. The pickle has only dictionaries, lists, texts
    and numbers.
    """
    lines = [*_lines_of(report)]
    numbers = _device_numbers(line.device for line in lines)
    segments: list[dict[str, Any]] = []
    events: list[list[dict[str, Any]]] = [[] for _ in range(max(numbers.values(), default=0) + 1)]
    address = _FIRST_ADDRESS
    for line in lines:
        device = numbers[line.device]
        segment = _segment(line, device, address)
        segments.append(segment)
        events[device] += _allocations(line, segment)
        address += -(-segment["total_size"] // _ALIGNMENT) * _ALIGNMENT
    for trace in events:
        trace.sort(key=lambda event: event["time_us"])
    snapshot: dict[str, object] = {
        "segments": segments,
        "device_traces": events,
        "allocator_settings": {},
        "external_annotations": [],
    }
    # The viewer in the browser reads protocols 2 to 4.
    return pickle.dumps(snapshot, protocol=4)


@final
@dataclass(frozen=True, slots=True)
class _LineMemory:
    """The live memory of one line, and the times of birth of its leaked tensors."""

    device: str
    frames: tuple[Site, ...]
    count: int
    nbytes: int
    births_us: tuple[int, ...]

    @property
    def blocks(self) -> list[int]:
        """Return the sizes of the blocks of the line."""
        number = min(self.count, self.nbytes, _BLOCKS_AT_MOST)
        size, rest = divmod(self.nbytes, number)
        return [size + 1] * rest + [size] * (number - rest)


_Key = tuple[Site | None, str | None, str]
"""Line, kind and device."""


def _lines_of(report: Report) -> Iterator[_LineMemory]:
    leaks: dict[_Key, list[Leak]] = {}
    for leak in report.leaks:
        if leak.nbytes > 0 and leak.tensor is not None:
            leaks.setdefault((leak.site, leak.tensor_kind, leak.device or ""), []).append(leak)
    end_s = report.program.duration_s
    for row in report.sites:
        births_us = _births_us(leaks.pop((row.site, row.kind, row.device), []), end_s)
        if row.nbytes > 0 and row.count > 0:
            yield _LineMemory(row.device, _stack(row.site, row.frames), row.count, row.nbytes, births_us)
    for (site, _, device), rows in leaks.items():
        count, nbytes = sum(leak.count for leak in rows), sum(leak.nbytes for leak in rows)
        yield _LineMemory(device, _stack(site, rows[0].frames), max(1, count), nbytes, _births_us(rows, end_s))


def _stack(site: Site | None, frames: tuple[Site, ...]) -> tuple[Site, ...]:
    return frames or (() if site is None else (site,))


def _births_us(leaks: Iterable[Leak], end_s: float) -> tuple[int, ...]:
    """Return times of birth of the tensors of some leaks, in microseconds.

    A leak has only the first and the last time: the others are spread evenly between them.
    """
    found: list[int] = []
    for leak in leaks:
        if leak.oldest_age_s is None:
            continue
        first = end_s - leak.oldest_age_s
        last = first if leak.newest_age_s is None else end_s - leak.newest_age_s
        number = min(leak.count, _BLOCKS_AT_MOST)
        step = (last - first) / max(1, number - 1)
        found += [max(0, round((first + i * step) * 1e6)) for i in range(number)]
    return tuple(sorted(found))


def _device_numbers(devices: Iterable[str]) -> Mapping[str, int]:
    numbers: dict[str, int] = {}
    others: list[str] = []
    for device in sorted(set(devices)):
        kind, _, index = device.partition(":")
        if kind == "cuda" and index.isdecimal() and int(index) < 1024:
            numbers[device] = int(index)
        else:
            others.append(device)
    first = max(numbers.values(), default=-1) + 1
    return numbers | {device: first + i for i, device in enumerate(others)}


def _segment(line: _LineMemory, device: int, address: int) -> dict[str, Any]:
    frames = _frames(line)
    blocks: list[dict[str, Any]] = []
    block_address = address
    for size in line.blocks:
        block = {
            "size": size,
            "requested_size": size,
            "address": block_address,
            "state": "active_allocated",
            "frames": frames,
        }
        blocks.append(block)
        block_address += size
    return {
        "device": device,
        "address": address,
        "total_size": line.nbytes,
        "allocated_size": line.nbytes,
        "active_size": line.nbytes,
        "requested_size": line.nbytes,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": frames,
        "blocks": blocks,
    }


def _allocations(line: _LineMemory, segment: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield an allocation for each time of birth. The last blocks are taken for the leaked ones."""
    blocks: list[dict[str, Any]] = segment["blocks"]
    births = line.births_us[: len(blocks)]
    for birth, block in zip(births, blocks[len(blocks) - len(births) :], strict=True):
        yield {
            "action": "alloc",
            "addr": block["address"],
            "size": block["size"],
            "stream": 0,
            "time_us": birth,
            "frames": block["frames"],
        }


def _frames(line: _LineMemory) -> list[dict[str, Any]]:
    # The viewer takes a block with an empty stack for one that is older than the recording.
    frames = line.frames or (Site("unknown site", 0, "unknown"),)
    # Intern equal texts: as two objects they would be twice in the pickle, which would then differ
    # for equal reports.
    return [{"filename": intern(site.file), "line": site.line, "name": intern(site.function)} for site in frames]
