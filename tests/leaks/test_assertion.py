"""The assertion raises with the report, lets exceptions through, and refuses misuse."""

import asyncio
import gc
import pickle
import warnings

import pytest

import disposescope as ds
from disposescope.leaks import LeakDetector, assert_no_leaks, take_snapshot


def test_a_clean_block_passes() -> None:
    with assert_no_leaks():
        with ds.dispose_scope() as scope:
            batch = ds.zeros(100)
            total = float(scope.move_to_outer(batch.sum()))
    assert total == 0


def test_a_leak_raises_with_the_report_as_text() -> None:
    history = []
    with pytest.raises(ds.LeakError) as caught:
        with assert_no_leaks():
            history.append(ds.zeros(3))
    message = str(caught.value)
    assert message.startswith("1 leak, 1 tensor, 24 bytes\n")
    assert "held by frame " in message
    assert message.endswith("local 'history'[0]")
    assert (caught.value.count, caught.value.nbytes) == (1, 24)
    assert str(pickle.loads(pickle.dumps(caught.value))) == message


def test_a_disposal_under_a_live_reference_raises() -> None:
    history = []
    with pytest.raises(ds.LeakError, match="disposed under a live reference"):
        with assert_no_leaks():
            with ds.dispose_scope():
                history.extend([ds.zeros(3)])
            with ds.dispose_scope():
                history.extend([ds.zeros(3)])


def test_an_exception_passes_through_unchanged() -> None:
    history = []
    with pytest.raises(KeyError):
        with assert_no_leaks():
            history.append(ds.zeros(3))
            raise KeyError


def test_the_error_keeps_nothing_alive() -> None:
    history = []
    with pytest.raises(ds.LeakError) as caught:
        with assert_no_leaks():
            history.append(ds.zeros(3))
    before = len(take_snapshot())
    history.clear()
    assert len(take_snapshot()) == before - 1
    assert caught.value.count == 1


def test_it_decorates_functions_and_coroutine_functions() -> None:
    history = []

    @assert_no_leaks()
    def clean(size: int) -> float:
        return float(ds.ones(size).sum())

    @assert_no_leaks()
    async def leak() -> None:
        await asyncio.sleep(0)
        history.append(ds.ones(3))

    assert clean(3) == clean(3) == 3
    assert clean.__name__ == "clean"
    with pytest.raises(ds.LeakError):
        asyncio.run(leak())
    with pytest.raises(TypeError, match="generator"):

        @assert_no_leaks()
        def generate():
            yield


def test_given_a_detector_or_a_snapshot_it_looks_at_once() -> None:
    old = take_snapshot()
    with LeakDetector() as detector:
        assert_no_leaks(detector)
        assert_no_leaks(old)
        kept = ds.zeros(3)
        for since in (detector, old):
            with pytest.raises(ds.LeakError, match="local 'kept'"):
                assert_no_leaks(since)
    assert len(kept) == 3
    with pytest.raises(TypeError, match="must be a LeakDetector or a Snapshot, not a Tensor"):
        assert_no_leaks(kept)


def test_one_that_is_never_entered_warns_that_it_checked_nothing() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert_no_leaks()
        gc.collect()
    assert [str(warning.message).partition(":")[0] for warning in caught] == [
        "assert_no_leaks() was never entered, so it checked nothing"
    ]


def test_it_is_used_for_one_with_statement() -> None:
    block = assert_no_leaks()
    with pytest.raises(RuntimeError, match="without having been entered"):
        block.__exit__(None, None, None)
    with block:
        pass
    with pytest.raises(RuntimeError, match="one with statement"):
        block.__enter__()
