"""A detector sees arrays that keep bytes, a bytearray or an mmap alive."""

import mmap
import pickle
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy import frombuffer as early_frombuffer

import disposescope as ds
from disposescope.leaks import LeakDetector
from disposescope.leaks.births.log import LOG

BOX: dict[str, Any] = {}
MAKERS = {"bytes": bytes, "bytearray": bytearray, "mmap": lambda nbytes: mmap.mmap(-1, nbytes)}


@pytest.fixture(autouse=True)
def _empty_box() -> Iterator[None]:
    yield
    BOX.clear()


@pytest.mark.parametrize("name", MAKERS)
def test_a_small_view_of_a_buffer_counts_with_the_bytes_that_it_pins(name: str) -> None:
    with LeakDetector() as detector:
        BOX["header"] = np.frombuffer(MAKERS[name](4_000_000), np.uint8)[:10]
        report = detector.report(of_program=True)
    [leak] = report.leaks
    assert (leak.kind, leak.sure, leak.nbytes, leak.used_nbytes) == ("view", "likely", 4_000_000, 10)
    assert leak.site is not None
    assert leak.site.function == "test_a_small_view_of_a_buffer_counts_with_the_bytes_that_it_pins"
    assert leak.holder == f"module {__name__}.BOX['header']"


@pytest.mark.parametrize("name", MAKERS)
def test_a_buffer_that_the_program_holds_itself_is_not_pinned(name: str) -> None:
    with LeakDetector() as detector:
        BOX["content"] = content = MAKERS[name](4_000_000)
        BOX["header"] = np.frombuffer(content, np.uint8, count=10)
        del content
        report = detector.report(of_program=True)
    assert report.leaks == ()
    assert [(leak.count, leak.nbytes) for leak in report.kept] == [(1, 10)]


def test_several_arrays_over_a_buffer_that_the_program_holds_count_together() -> None:
    with LeakDetector() as detector:
        BOX["content"] = content = bytes(800_000)
        BOX["parts"] = [np.frombuffer(content, np.uint8, 100_000, offset) for offset in range(0, 400_000, 100_000)]
        del content
        report = detector.report(of_program=True)
    assert report.leaks == ()
    assert [(leak.count, leak.nbytes) for leak in report.kept] == [(4, 400_000)]


def test_what_is_used_in_full_by_several_views_is_not_pinned() -> None:
    with LeakDetector() as detector:
        content = bytes(800_000)
        BOX["parts"] = [np.frombuffer(content, np.uint8, 200_000, offset) for offset in range(0, 800_000, 200_000)]
        del content
        report = detector.report(of_program=True)
    assert report.leaks == ()
    [kept] = report.kept
    assert (kept.count, kept.nbytes) == (4, 800_000)


def test_a_closed_detector_still_tells_of_them() -> None:
    with LeakDetector() as detector:
        BOX["header"] = np.frombuffer(bytes(800_000), np.uint8)[:10]
    BOX["later"] = np.frombuffer(bytes(800_000), np.uint8)[:10]
    assert [record.nbytes for record in detector.take_snapshot()] == [800_000]


def test_arrays_that_have_gone_are_gone() -> None:
    with LeakDetector() as detector:
        np.frombuffer(bytes(800_000), np.uint8)
        assert len(detector.take_snapshot()) == 0


def test_a_tensor_over_a_buffer_counts_once() -> None:
    with LeakDetector() as detector:
        BOX["tensor"] = ds.asarray(np.frombuffer(bytearray(800_000), np.uint8))
        [record] = detector.take_snapshot()
    assert (record.kind, record.nbytes) == ("Tensor", 800_000)


def _mapped(folder: Path) -> Path:
    path = folder / "content.npy"
    np.save(path, np.zeros(100_000))
    return path


MADE = {
    "numpy.ndarray": lambda: np.ndarray((50_000,), buffer=bytearray(400_000)),
    "frombuffer": lambda: early_frombuffer(bytes(400_000)),
    "asarray": lambda: np.asarray(memoryview(bytearray(400_000))),
    "array.array": lambda: np.asarray(array("d", bytes(400_000))),
    "pickle": lambda: pickle.loads(pickle.dumps(np.zeros(50_000), 4)),
    "pickle in protocol 5": lambda: pickle.loads(pickle.dumps(np.zeros(50_000), 5)),
}


@pytest.mark.parametrize("name", MADE)
def test_a_growing_list_of_them_is_found(name: str) -> None:
    kept: list[Any] = []
    BOX["kept"] = kept
    make = MADE[name]
    with LeakDetector() as detector:
        for _ in range(40):
            kept.append(make())
            detector.mark()
        report = detector.report(of_program=True)
    [leak] = report.leaks
    assert (leak.kind, leak.count, leak.nbytes, leak.device) == ("growth", 40, 40 * 400_000, "cpu:0")
    assert leak.holder.endswith(".BOX['kept'][0]")


@pytest.mark.parametrize("name", MADE)
def test_what_is_let_go_is_not(name: str) -> None:
    kept: list[Any] = []
    BOX["kept"] = kept
    make = MADE[name]
    with LeakDetector() as detector:
        for _ in range(40):
            kept[:] = [make()]
            detector.mark()
        report = detector.report(of_program=True)
    assert report.leaks == ()


@pytest.mark.parametrize("open_map", [np.memmap, partial(np.load, mmap_mode="r")], ids=["memmap", "load"])
def test_maps_of_a_file_count_as_mapped_once_for_all_views(open_map: Callable[[Path], Any], tmp_path: Path) -> None:
    path = _mapped(tmp_path)
    with LeakDetector() as detector:
        BOX["views"] = [part for _ in range(40) for whole in [open_map(path)] for part in (whole[:9], whole[9:])]
        records = detector.take_snapshot().records
        of_devices = LOG.live_nbytes()
        report = detector.report(of_program=True)
    assert [(record.kind, record.device) for record in records] == [("numpy.ndarray", "mapped")] * 40
    assert sum(record.nbytes for record in records) == of_devices["mapped"]
    assert of_devices.get("cpu:0", 0) == 0
    assert report.leaks == ()
    assert sum(row.count for row in report.kept) == 40


def test_a_growing_list_of_maps_is_told_to_be_mapped_from_a_file(tmp_path: Path) -> None:
    path = _mapped(tmp_path)
    kept: list[Any] = []
    with LeakDetector() as detector:
        for _ in range(40):
            kept.append(np.load(path, mmap_mode="r")[:10])
            detector.mark()
        report = detector.report(of_program=True)
    [leak] = report.leaks
    assert (leak.kind, leak.count, leak.device) == ("growth", 40, "mapped")
    assert "mapped from a file or shared memory" in str(report)


def test_anonymous_maps_are_memory() -> None:
    with LeakDetector() as detector:
        BOX["whole"] = np.frombuffer(mmap.mmap(-1, 400_000), np.uint8)
        [record] = detector.take_snapshot()
    assert record.device == "cpu:0"


class _Plain(np.ndarray[Any, Any]):
    """A subclass that makes instances as NumPy does."""


def test_subclasses_are_made_as_before() -> None:
    with LeakDetector() as detector:

        class Late(np.ndarray[Any, Any]):
            pass

        BOX["kept"] = [
            _Plain((5,), buffer=bytearray(40)),
            np.ndarray.__new__(_Plain, (5,)),
            Late((5,), buffer=bytearray(40)),
        ]
        numbers = sorted(record.nbytes for record in detector.take_snapshot())
    assert numbers == [40, 40, 40]
    assert np.ndarray.__new__(Late, (3,)).shape == np.ndarray.__new__(_Plain, (3,)).shape == Late((3,)).shape == (3,)


def test_what_was_made_before_is_no_birth() -> None:
    old = np.frombuffer(bytes(400), np.uint8)
    with LeakDetector() as detector:
        BOX["kept"] = [
            np.asarray(old),
            np.array(old, copy=None),
            np.ascontiguousarray(old),
            old[1:],
            np.asarray(old[2:]),
        ]
        assert len(detector.take_snapshot()) == 0


def test_functions_of_numpy_stay_the_same_and_raise_the_same() -> None:
    before = np.frombuffer, np.asarray, np.ndarray.__new__
    with LeakDetector():
        assert (np.frombuffer, np.asarray, np.ndarray.__new__) == before
        assert np.frombuffer(b"ab", np.uint8).tolist() == [97, 98]
        with pytest.raises(ValueError, match="buffer"):
            np.frombuffer(b"abc", np.float64)
        with pytest.raises(TypeError, match="buffer is too small"):
            np.ndarray((5,), buffer=b"abc")
        with pytest.raises(TypeError):
            cast("Any", np.empty(3)).__setstate__(3)
