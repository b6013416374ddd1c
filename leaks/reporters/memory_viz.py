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
"""Of one line; where more tensors are live there, a block stands for several."""

_ALIGNMENT: Final = 512
_FIRST_ADDRESS: Final = 1 << 32


def memory_viz_of(report: Report) -> bytes:
    """Return the report as a pickle for PyTorch's memory viewer.

    ``python -m torch.cuda._memory_viz`` and https://pytorch.org/memory_viz read it.

    Each line is a segment, each tensor that is live there a block of it, of the mean of their
    sizes. What leaked is allocated in the trace, in the order of birth, as far as ages are known;
    the rest was there before. Devices keep their numbers where they are ``cuda:0``, ``cuda:1`` and
    so on; others follow. Nothing but dictionaries, lists, texts and numbers is in the pickle.
    """
    owners = [*_owners(report)]
    numbers = _device_numbers(owner.device for owner in owners)
    segments: list[dict[str, Any]] = []
    events: list[list[dict[str, Any]]] = [[] for _ in range(max(numbers.values(), default=0) + 1)]
    address = _FIRST_ADDRESS
    for owner in owners:
        device = numbers[owner.device]
        segment = _segment(owner, device, address)
        segments.append(segment)
        events[device] += _allocations(owner, segment)
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
class _Owner:
    """The live bytes of one line, and the births of the leaked ones."""

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


def _owners(report: Report) -> Iterator[_Owner]:
    leaks: dict[_Key, list[Leak]] = {}
    for leak in report.leaks:
        if leak.nbytes > 0 and leak.tensor is not None:
            leaks.setdefault((leak.site, leak.tensor_kind, leak.device or ""), []).append(leak)
    end_s = report.program.duration_s
    for row in report.sites:
        those = leaks.pop((row.site, row.kind, row.device), [])
        if row.nbytes > 0 and row.count > 0:
            yield _Owner(row.device, _stack(row.site, row.frames), row.count, row.nbytes, _births_us(those, end_s))
    for (site, _, device), those in leaks.items():
        count, nbytes = sum(leak.count for leak in those), sum(leak.nbytes for leak in those)
        yield _Owner(device, _stack(site, those[0].frames), max(1, count), nbytes, _births_us(those, end_s))


def _stack(site: Site | None, frames: tuple[Site, ...]) -> tuple[Site, ...]:
    return frames or (() if site is None else (site,))


def _births_us(leaks: Iterable[Leak], end_s: float) -> tuple[int, ...]:
    """Return when the tensors of some leaks were born, spread evenly over their births."""
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


def _segment(owner: _Owner, device: int, address: int) -> dict[str, Any]:
    frames = _frames(owner)
    blocks: list[dict[str, Any]] = []
    at = address
    for size in owner.blocks:
        state = {"size": size, "requested_size": size, "address": at, "state": "active_allocated", "frames": frames}
        blocks.append(state)
        at += size
    return {
        "device": device,
        "address": address,
        "total_size": owner.nbytes,
        "allocated_size": owner.nbytes,
        "active_size": owner.nbytes,
        "requested_size": owner.nbytes,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": frames,
        "blocks": blocks,
    }


def _allocations(owner: _Owner, segment: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the allocations of the leaked blocks, which are the last ones."""
    blocks: list[dict[str, Any]] = segment["blocks"]
    births = owner.births_us[: len(blocks)]
    for birth, block in zip(births, blocks[len(blocks) - len(births) :], strict=True):
        yield {
            "action": "alloc",
            "addr": block["address"],
            "size": block["size"],
            "stream": 0,
            "time_us": birth,
            "frames": block["frames"],
        }


def _frames(owner: _Owner) -> list[dict[str, Any]]:
    # To the viewer, an empty stack is a block from before its recording began.
    frames = owner.frames or (Site("unknown site", 0, "unknown"),)
    # Use one object for equal texts. A pickle would store them twice, and differ for equal reports.
    return [{"filename": intern(site.file), "line": site.line, "name": intern(site.function)} for site in frames]
