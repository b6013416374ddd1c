"""A MemoryError that leaves a scope lists once what is live."""

import pytest

import disposescope as ds
from disposescope.leaks import LeakDetector

KEPT: list[object] = []


class OutOfMemoryError(RuntimeError):
    """Called as PyTorch's for accelerators is, which cannot be raised without one."""


@pytest.mark.parametrize(
    "error",
    [MemoryError("no"), OutOfMemoryError("no"), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")],
)
def test_it_gets_the_largest_live_lines_as_a_note(error: Exception) -> None:
    with LeakDetector():
        KEPT.extend(ds.zeros(1_000_000) for _ in range(2))
        KEPT.append(ds.ones(10))
        with pytest.raises(type(error)) as caught:
            with ds.dispose_scope("outer"):
                with ds.dispose_scope("inner"):
                    raise error
        KEPT.clear()
    [note] = [note for note in caught.value.__notes__ if note.startswith("most of the live memory")]
    first, second = note.splitlines()[1:3]
    assert first.startswith("  16.0 MB in 2 Tensor on cpu:0 at ")
    assert "test_out_of_memory.py:" in first
    assert second.startswith("  80 bytes in 1 Tensor on cpu:0 at ")


def test_the_tensor_that_was_made_last_is_listed() -> None:
    torch = pytest.importorskip("torch")
    with LeakDetector():
        with pytest.raises(MemoryError) as caught:
            with ds.dispose_scope():
                KEPT.append(torch.zeros(10))
                KEPT.append(torch.zeros(500_000))
                raise MemoryError
        KEPT.clear()
    [note] = caught.value.__notes__
    first, second = note.splitlines()[1:]
    assert first.startswith("  2.0 MB in 1 torch.Tensor on cpu:0 at ")
    assert second.startswith("  40 bytes in 1 torch.Tensor on cpu:0 at ")


def test_without_a_detector_a_member_that_has_outlived_its_composite_is_reported() -> None:
    packed = ds.pack_sequence([ds.zeros(500_000)])
    data = packed.data
    del packed
    with pytest.raises(MemoryError) as caught:
        with ds.dispose_scope():
            raise MemoryError
    assert f"{data.nbytes / 1e6:.1f} MB in 1 Tensor " in caught.value.__notes__[0]


def test_without_a_detector_the_kinds_are_reported() -> None:
    KEPT.append(ds.zeros(1_000_000))
    with pytest.raises(MemoryError) as caught:
        with ds.dispose_scope():
            raise MemoryError
    KEPT.clear()
    assert "Tensor (open a LeakDetector to learn the lines)" in caught.value.__notes__[0]


def test_other_errors_get_nothing_and_a_budget_speaks_for_itself() -> None:
    for error in (ValueError("no"), RuntimeError("no"), RuntimeError(7)):
        with pytest.raises(type(error)) as caught:
            with ds.dispose_scope():
                raise error
        assert not hasattr(caught.value, "__notes__")
    if ds.arena_statistics().available:
        with pytest.raises(MemoryError) as refused:
            with ds.dispose_scope(budget=1000):
                ds.zeros(1_000_000)
        assert [note.partition(" of ")[0] for note in refused.value.__notes__] == ["the budget"]
