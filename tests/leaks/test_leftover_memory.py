"""Arrays that outlive their scope, and aliases of disposed tensors, are reported as escaped."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import disposescope as ds
from disposescope.leaks import Leak, LeakDetector, Report
from tests.leaks.births import arrays_are_seen

pytestmark = [arrays_are_seen, pytest.mark.long]


class Box:
    """What holds something by an attribute."""

    held: Any


BOX = Box()
KEPT: Any = None


@pytest.fixture(autouse=True)
def _nothing_is_kept() -> Iterator[None]:
    yield
    vars(BOX).clear()
    keep(None)


def report_of(detector: LeakDetector) -> Report:
    return detector.report(of_program=True, object_limit=10**8)


def one(leaks: tuple[Leak, ...]) -> Leak:
    [leak] = leaks
    return leak


def keep(thing: Any) -> None:
    globals()["KEPT"] = thing


def test_an_array_that_outlives_its_scope_is_reported_as_escaped_with_site_and_holder() -> None:
    with LeakDetector() as detector:
        with ds.dispose_scope("step"):
            BOX.held = np.ones(1000)
        leak = one(report_of(detector).leaks)
    assert (leak.kind, leak.sure, leak.state, leak.nbytes) == ("escaped", "possible", "alive", 8000)
    assert (leak.scopes, leak.holder) == (("step",), f"module {__name__}.BOX.held")
    assert leak.site is not None
    assert leak.site.function.endswith("with_site_and_holder")
    assert "move_to_outer" in leak.explanation


def test_arrays_that_escape_in_each_pass_are_reported_as_escaped_and_how_they_grow() -> None:
    history = BOX.held = []
    with LeakDetector() as detector:
        for _ in range(40):
            with ds.dispose_scope("step"):
                history.append(np.ones(1000))
        leak = one(report_of(detector).leaks)
    assert (leak.kind, leak.sure, leak.count) == ("escaped", "certain", 40)
    assert leak.trend is not None
    assert leak.trend.count_per_pass == 1.0


def test_a_few_that_stay_are_likely_where_they_are_of_several_passes() -> None:
    history = BOX.held = []
    with LeakDetector() as detector:
        for _ in range(4):
            with ds.dispose_scope("step"):
                history.append(np.ones(10_000))
        leak = one(report_of(detector).leaks)
    assert (leak.kind, leak.sure, leak.count) == ("escaped", "likely", 4)


def test_a_view_that_escaped_is_reported_as_escaped() -> None:
    with LeakDetector() as detector:
        with ds.dispose_scope("step"):
            BOX.held = np.ones(100_000)[:3]
        leak = one(report_of(detector).leaks)
    assert (leak.kind, leak.nbytes, leak.used_nbytes) == ("escaped", 800_000, 24)


def test_what_was_moved_out_has_not_escaped() -> None:
    with LeakDetector() as detector:
        with ds.dispose_scope("step") as step:
            BOX.held = step.move_to_outer(np.ones(1000))
        report = report_of(detector)
    assert report.leaks == ()
    assert one(report.kept).kind == "alive"


def test_what_the_outer_scope_owns_has_not_escaped_until_that_ends() -> None:
    with LeakDetector() as detector:
        with ds.dispose_scope("epoch"):
            with ds.dispose_scope("step") as step:
                BOX.held = step.move_to_outer(np.ones(1000))
            assert report_of(detector).leaks == ()
        assert one(report_of(detector).leaks).kind == "escaped"


def test_a_cache_that_fills_in_scopes_and_then_stays_is_no_leak() -> None:
    cache = BOX.held = {}
    with LeakDetector() as detector:
        for number in range(40):
            with ds.dispose_scope("step"):
                if number < 3:
                    cache[number] = np.ones(1000)
        report = report_of(detector)
    assert report.leaks == ()
    assert [(leak.kind, leak.sure, leak.count) for leak in report.kept] == [("escaped", "possible", 3)]


def test_a_scope_that_ended_once_is_no_bounded_loop() -> None:
    with LeakDetector() as detector:
        for _ in range(40):
            with ds.dispose_scope("step"):
                np.ones(10).sum()
        with ds.dispose_scope("evaluation"):
            BOX.held = np.ones(1000)
        assert one(report_of(detector).leaks).kind == "escaped"


def test_what_a_variable_alone_names_is_left_over() -> None:
    with LeakDetector() as detector:
        with ds.dispose_scope("step"):
            keep(np.ones((10, 100))[::2])
        report = report_of(detector)
    assert report.leaks == report.kept == ()
    leak = one(report.leftovers)
    assert (leak.kind, leak.sure, leak.holder) == ("escaped", "possible", f"module {__name__}.KEPT")


def test_the_last_batch_of_a_loop_is_left_over() -> None:
    with LeakDetector() as detector:
        for _ in range(3):
            with ds.dispose_scope("batch"):
                keep([np.ones(1000), {"target": np.ones(500)[10:]}])
        report = report_of(detector)
    assert report.leaks == report.kept == ()
    assert {holder.removeprefix(f"module {__name__}.") for leak in report.leftovers for holder in leak.holders} == {
        "KEPT[0]",
        "KEPT[1]['target']",
    }


def test_a_list_that_is_filled_in_a_scope_which_is_there_once_is_not_left_over() -> None:
    with LeakDetector() as detector:
        keep([])
        with ds.dispose_scope("step"):
            KEPT.append(np.ones(1000))
        assert one(report_of(detector).leaks).kind == "escaped"


def test_a_list_of_what_several_scopes_left_is_not_left_over() -> None:
    with LeakDetector() as detector:
        keep([])
        for _ in range(4):
            with ds.dispose_scope("step"):
                KEPT.append(np.ones(1000))
        del KEPT[0]
        assert one(report_of(detector).leaks).count == 3


def test_what_something_else_holds_beside_a_variable_is_not_left_over() -> None:
    with LeakDetector() as detector:
        with ds.dispose_scope("step"):
            keep(np.ones(1000))
            BOX.held = KEPT
        assert one(report_of(detector).leaks).kind == "escaped"


def test_a_view_in_a_variable_of_an_array_that_is_held_elsewhere_is_not_left_over() -> None:
    with LeakDetector() as detector:
        with ds.dispose_scope("step"):
            array = np.ones(1000)
            keep(array[:10])
            BOX.held = {"array": array}
            del array
        assert one(report_of(detector).leaks).kind == "escaped"


def test_a_block_reports_each_array_that_escaped_from_its_scopes() -> None:
    with LeakDetector() as detector:
        with ds.dispose_scope("step"):
            keep(np.ones(1000))
        report = detector.report(object_limit=10**8)
    assert one(report.leaks).kind == "escaped"
    assert report.leftovers == ()


@pytest.mark.parametrize("exported", [np.asarray, np.from_dlpack])
def test_an_alias_of_a_disposed_tensor_is_reported_as_escaped(exported: Any) -> None:
    with LeakDetector() as detector:
        with ds.dispose_scope("step"):
            curve = ds.ones(1000)
            BOX.held = exported(curve)
            del curve
        leak = one(report_of(detector).leaks)
    assert (leak.kind, leak.nbytes) == ("escaped", 8000)
    assert leak.explanation.startswith("Its tensor was disposed, and this is an alias")


def test_an_alias_of_a_tensor_that_is_disposed_outside_of_scopes_is_reported_as_escaped() -> None:
    with LeakDetector() as detector:
        curve = ds.ones(1000)
        BOX.held = np.asarray(curve)
        assert report_of(detector).leaks == ()
        curve.dispose()
        del curve
        assert one(report_of(detector).leaks).kind == "escaped"


def test_an_array_that_a_disposed_tensor_was_made_of_has_not_escaped() -> None:
    with LeakDetector() as detector:
        BOX.held = np.ones(1000)
        ds.asarray(BOX.held).dispose()
        assert report_of(detector).leaks == ()


def test_an_alias_that_was_moved_out_has_not_escaped() -> None:
    with LeakDetector() as detector:
        with ds.dispose_scope("step") as step:
            curve = ds.ones(1000)
            BOX.held = step.move_to_outer(np.asarray(curve))
            del curve
        assert report_of(detector).leaks == ()


@pytest.mark.parametrize("exported", [lambda tensor: tensor.numpy(), np.from_dlpack])
def test_an_alias_of_a_disposed_torch_tensor_is_reported_as_escaped(exported: Any) -> None:
    torch: Any = pytest.importorskip("torch")
    with LeakDetector() as detector:
        with ds.dispose_scope("step"):
            output = torch.full((1000,), 1.0)
            BOX.held = exported(output)
        del output
        leak = one(report_of(detector).leaks)
    assert (leak.kind, leak.tensor_kind, leak.nbytes) == ("escaped", "torch.Tensor", 4000)


def test_an_alias_of_a_torch_tensor_that_was_moved_out_has_not_escaped() -> None:
    torch: Any = pytest.importorskip("torch")
    with LeakDetector() as detector:
        with ds.dispose_scope("step") as step:
            output = torch.full((1000,), 1.0)
            BOX.held = step.move_to_outer(output.numpy()[:500])
            step.move_to_outer(np.arange(3))
        del output
        assert report_of(detector).leaks == ()


def test_arrays_under_a_torch_tensor_that_was_moved_out_have_not_escaped() -> None:
    torch: Any = pytest.importorskip("torch")
    with LeakDetector() as detector:
        with ds.dispose_scope("step") as step:
            BOX.held = step.move_to_outer(torch.from_numpy(np.ones(1000)))
        assert report_of(detector).leaks == ()


def test_arrays_that_a_scope_keeps_have_not_escaped_from_it() -> None:
    history = BOX.held = []
    with LeakDetector() as detector:
        for _ in range(40):
            with ds.dispose_scope("request", escapes="keep"):
                history.append(np.zeros(1000))
        leak = one(report_of(detector).leaks)
    assert (leak.kind, leak.sure, leak.count) == ("growth", "likely", 40)
    assert leak.remedy.startswith("clear the holder")


def test_arrays_that_a_scope_keeps_escape_from_the_outer_one_that_does_not() -> None:
    history = BOX.held = []
    with LeakDetector() as detector:
        with ds.dispose_scope("epoch"):
            for _ in range(3):
                with ds.dispose_scope("step", escapes="keep"), ds.dispose_scope(escapes="keep"):
                    history.append(np.zeros(1000))
            assert [leak.kind for leak in report_of(detector).leaks] == []
            # What is asked of the memory shortens the way from one scope to the next.
            assert ds.statistics().live == 0
        assert one(report_of(detector).leaks).kind == "escaped"
