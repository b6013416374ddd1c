"""The detector watches births and disposals, names them in errors, and keeps nothing alive."""

import gc
import sys
import threading
import weakref
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import disposescope as ds
from disposescope.leaks import LeakDetector, Report, Site, live_tensors, take_snapshot
from disposescope.leaks.detector import watching as _watching
from disposescope.leaks.detector.recording import RunRecorder
from disposescope.leaks.detector.watching import is_watching
from disposescope.scopes.context import HOOKS
from disposescope.scopes.framework import FRAMEWORKS, BirthLog, Framework
from tests.programs import run_program


def test_what_is_born_inside_and_alive_is_recorded() -> None:
    with LeakDetector() as detector:
        with ds.dispose_scope("step") as step:
            kept = step.move_to_outer(ds.zeros((2, 3), dtype="float32"))
    [record] = detector.take_snapshot()
    assert (record.kind, record.shape, record.dtype, record.nbytes) == ("Tensor", (2, 3), "float32", 24)
    assert (record.scope, record.state, record.disposal, record.generation) == ("step", "alive", None, 1)
    assert record.age_s is not None
    assert record.age_s >= 0
    assert not record.is_view
    assert kept.shape == (2, 3)


def test_temporaries_that_die_by_reference_count_never_show() -> None:
    with LeakDetector() as detector:
        total = float((ds.ones(100) * 2 + 1).sum())
    assert total == 300
    assert len(detector.take_snapshot()) == 0
    assert repr(detector) == "<LeakDetector closed, knows 0 births>"


def test_what_was_born_before_is_not_recorded() -> None:
    before = ds.zeros(3)
    with LeakDetector() as detector:
        pass
    after = ds.zeros(3)
    assert len(detector.take_snapshot()) == 0
    assert before.shape == after.shape


def test_a_disposed_resource_that_is_still_referenced_is_recorded_with_both_sites() -> None:
    kept = []
    with LeakDetector() as detector:
        with ds.dispose_scope("step"):
            kept.append(ds.zeros(3))
            born = sys._getframe().f_lineno - 1
    [record] = detector.take_snapshot()
    assert record.site is not None
    assert record.disposal is not None
    assert (record.state, record.nbytes, record.shape, record.dtype) == ("disposed", 0, (3,), "float64")
    assert (record.site.line, record.disposal.line) == (born, born - 1), "the scope is left at its with statement"


def test_errors_name_the_lines_of_birth_and_disposal_while_a_detector_is_open() -> None:
    with LeakDetector():
        tensor = ds.zeros(3)
        line = sys._getframe().f_lineno - 1
        tensor.dispose()
        with pytest.raises(ds.DisposedError) as caught:
            tensor + 1
        with LeakDetector():
            with pytest.raises(ds.DisposedError) as again:
                tensor + 1
    name = "test_errors_name_the_lines_of_birth_and_disposal_while_a_detector_is_open()"
    message = str(caught.value)
    assert f"test_detector.py:{line} in {name}, disposed at " in message
    assert f"test_detector.py:{line + 2} in {name})" in message
    assert str(again.value) == message


def test_errors_name_each_line_once_with_two_open_detectors() -> None:
    with LeakDetector(), LeakDetector():
        tensor = ds.zeros(3)
        tensor.dispose()
        with pytest.raises(ds.DisposedError) as caught:
            tensor + 1
    assert str(caught.value).count("born at") == 1


def test_without_a_detector_errors_say_how_to_learn_more() -> None:
    tensor = ds.zeros(3)
    tensor.dispose()
    with pytest.raises(ds.DisposedError, match="open a LeakDetector"):
        tensor + 1


def test_detectors_nest_and_each_knows_its_own_block() -> None:
    with LeakDetector() as outer:
        first = ds.zeros(1)
        with LeakDetector() as inner:
            second = ds.zeros(2)
        third = ds.zeros(3)
    assert [record.shape for record in outer.take_snapshot()] == [(1,), (2,), (3,)]
    assert [record.shape for record in inner.take_snapshot()] == [(2,)]
    assert len(first) + len(second) + len(third) == 6


def test_a_detector_may_be_entered_again_while_open_and_starts_anew_later() -> None:
    detector = LeakDetector()
    with detector:
        with detector:
            first = ds.zeros(1)
        second = ds.zeros(2)
    assert len(detector.take_snapshot()) == 2
    with detector:
        third = ds.zeros(3)
    assert [record.shape for record in detector.take_snapshot()] == [(3,)]
    assert len(first) + len(second) + len(third) == 6
    with pytest.raises(RuntimeError, match="left more often"):
        detector.__exit__(None, None, None)


def test_a_detector_that_was_never_entered_refuses_to_say_what_is_there() -> None:
    detector = LeakDetector()
    kept = [np.ones(1_000) for _ in range(50)]
    for ask in (detector.report, detector.take_snapshot, detector.memory, partial(ds.assert_no_leaks, detector)):
        with pytest.raises(RuntimeError, match="has not been entered, so it watched nothing: write `with"):
            ask()
    with detector:
        kept.append(np.ones(2_000))
    # After the block there is a window to report.
    assert [leak.nbytes for leak in detector.report(of_program=True).kept] == [16_000]
    assert len(kept) == 51


def test_a_detector_is_gone_from_the_listeners_also_after_an_exception() -> None:
    before = list(HOOKS.listeners)
    with pytest.raises(KeyError):
        with LeakDetector():
            raise KeyError
    assert before == HOOKS.listeners


def test_births_of_all_threads_are_watched() -> None:
    kept = []
    with LeakDetector() as detector:
        threads = [threading.Thread(target=lambda: kept.append(ds.zeros(5))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(detector.take_snapshot()) == len(kept) == 4


def test_detector_snapshot_and_report_keep_nothing_alive() -> None:
    with LeakDetector() as detector:
        tensor = ds.zeros(1000)
    watch = weakref.ref(tensor)
    snapshot = detector.take_snapshot()
    report = snapshot.report()
    assert report.count == 1
    del tensor
    assert watch() is None
    assert len(detector.take_snapshot()) == 0
    assert snapshot.report().count == 0, "what has gone since is no leak"
    assert len(snapshot) == 1


def test_a_detector_leaves_no_cyclic_garbage() -> None:
    def use() -> None:
        with LeakDetector() as detector:
            with ds.dispose_scope():
                kept = ds.zeros(3)
            str(detector.report())
            assert kept.disposed

    use()
    gc.collect()
    gc.disable()
    try:
        use()
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_generation_counts_the_scopes_closed_since_birth() -> None:
    with LeakDetector() as detector:
        first = ds.zeros(1)
        for _ in range(3):
            with ds.dispose_scope():
                pass
        second = ds.zeros(1)
    assert [record.generation for record in detector.take_snapshot()] == [3, 0]
    assert len(first) == len(second)


def test_a_member_that_outlives_its_composite_keeps_its_site() -> None:
    with LeakDetector() as detector:
        packed = ds.pack_sequence([ds.ones(3), ds.ones(2)])
        whole = detector.take_snapshot()
        data = packed.data
        del packed
        gc.collect()
        [record] = detector.take_snapshot()
    assert [found.kind for found in whole] == ["PackedSequence"]
    assert whole.nbytes > 0
    assert (record.kind, record.site) == ("Tensor", whole.records[0].site)
    assert len(data) == 5


def test_take_snapshot_knows_the_process_and_the_sites_that_detectors_know() -> None:
    unwatched = ds.zeros(7)
    with ds.dispose_scope():
        pass
    with LeakDetector():
        with ds.dispose_scope():
            pass
        with LeakDetector():
            watched = ds.zeros(9)
            with ds.dispose_scope():
                pass
            records = {record.shape: record for record in take_snapshot()}
    assert records[7,].site is None
    assert records[7,].generation is None
    assert records[9,].site is not None
    assert records[9,].generation == 1
    assert len(unwatched) + len(watched) == 16


def test_live_tensors_are_the_largest_first_without_the_disposed() -> None:
    small, large, gone = ds.zeros(10), ds.zeros(20_000), ds.zeros(30_000)
    gone.dispose()
    shapes = [record.shape for record in live_tensors()]
    assert shapes.index((20_000,)) < shapes.index((10,))
    assert (30_000,) not in shapes
    assert len(small) + len(large) == 20_010


def test_a_repr_shows_the_state() -> None:
    detector = LeakDetector()
    assert repr(detector) == "<LeakDetector closed, knows 0 births>"
    with detector:
        kept = ds.zeros(1)
        assert repr(detector) == "<LeakDetector open, knows 1 births>"
    assert len(kept) == 1


class Interrupted(Framework):
    """A framework that is interrupted when it begins to watch."""

    def __init__(self) -> None:
        self.begun = 0

    def start_watching(self, log: BirthLog, /) -> None:
        self.begun += 1
        raise KeyboardInterrupt

    def stop_watching(self) -> None:
        self.begun -= 1


def test_an_interrupt_while_a_detector_is_opened_leaves_none_open(monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = Interrupted()
    bootstrap = threading.Thread._bootstrap_inner
    detector = LeakDetector()
    with monkeypatch.context() as patched:
        patched.setattr(FRAMEWORKS, "_installed", (*FRAMEWORKS._installed, watcher))
        patched.setattr(FRAMEWORKS, "_with_own", {})
        with pytest.raises(KeyboardInterrupt):
            detector.__enter__()
        assert not is_watching()
        assert watcher.begun == 0
    assert threading.Thread._bootstrap_inner is bootstrap
    with detector:
        kept = ds.zeros(3)
        assert len(detector.take_snapshot()) == 1
    assert not is_watching()
    assert len(kept) == 3


def test_an_interrupt_while_a_second_one_is_opened_leaves_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def adjust() -> None:
        raise KeyboardInterrupt

    with LeakDetector() as detector:
        with monkeypatch.context() as patched:
            patched.setattr(RunRecorder, "start", lambda recorder: adjust())
            with pytest.raises(KeyboardInterrupt):
                LeakDetector(timeline_s=0.1).__enter__()
        assert is_watching()
        kept = ds.zeros(3)
        assert len(detector.take_snapshot()) == 1
    assert not is_watching()
    assert len(kept) == 3


def test_a_thread_that_starts_while_another_closes_the_last_detector_watches_nothing() -> None:
    started = []
    with LeakDetector():
        _watching._lock.acquire()
        try:
            thread = threading.Thread(target=lambda: started.append(_watching._here.era))
            thread.start()
            thread.join(500)
        finally:
            _watching._lock.release()
    assert started == [0]


def test_a_report_is_one_line_in_a_repl_and_a_table_in_a_notebook() -> None:
    with ds.LeakDetector() as detector:
        kept = [ds.zeros((1000, 10))[:1]]
        found = detector.report()
    assert repr(found) == "<Report: 1 leak, 1 tensor, 80.0 kB; print() shows it>"
    page = found._repr_html_()
    assert "<p>1 leak, 1 tensor" in page
    assert "<td>view (likely)</td>" in page
    assert "local &#x27;kept&#x27;" in page
    assert len(kept) == 1
    assert "<table>" not in Report()._repr_html_()


def test_a_line_of_a_notebook_is_called_by_its_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = SimpleNamespace(compile=SimpleNamespace(_filename_map={"/tmp/ipykernel_1/2.py": 17}))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert str(Site("/tmp/ipykernel_1/2.py", 1, "<module>")) == "In [17], line 1"
    assert str(Site("/tmp/ipykernel_1/2.py", 3, "step")) == "In [17], line 3 in step()"
    assert str(Site("/elsewhere/3.py", 3, "step")) == "/elsewhere/3.py:3 in step()"
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert str(Site("/tmp/ipykernel_1/2.py", 1, "<module>")) == "/tmp/ipykernel_1/2.py:1"


@pytest.mark.long
def test_a_closed_detector_that_is_still_named_changes_nothing_for_later_ones() -> None:
    history: list[ds.Tensor] = []

    def loop(detector: LeakDetector, steps: int, keep: bool) -> None:
        for _ in range(steps):
            made = ds.zeros(2000)
            if keep:
                history.append(made)
            detector.mark("step")

    def told() -> tuple[object, ...]:
        with LeakDetector() as detector:
            loop(detector, 30, keep=False)
            loop(detector, 8, keep=True)
            report = detector.report(of_program=True)
        history.clear()
        [row] = report.sites
        kept = [(leak.kind, leak.count, leak.unjudged) for leak in report.kept]
        return report.verdict, [(leak.kind, leak.sure) for leak in report.leaks], kept, row.count, row.births

    def told_of_few_steps() -> tuple[object, ...]:
        with LeakDetector() as detector:
            loop(detector, 8, keep=True)
            report = detector.report(of_program=True)
        history.clear()
        [row] = report.sites
        return report.verdict, [leak.unjudged for leak in report.kept], row.count, row.births

    alone = told(), told_of_few_steps()
    with LeakDetector() as earlier:
        loop(earlier, 100, keep=False)
    assert (told(), told_of_few_steps()) == alone
    assert told_of_few_steps() == ("undecided", ["growth"], 8, 8)
    assert len(earlier.take_snapshot()) == 0
    # So many steps that of the few later ones hardly any would be recorded.
    with LeakDetector() as earlier:
        loop(earlier, 9_000, keep=False)
    assert told() == alone[0]
    # What it could tell of its own steps is forgotten then, and not taken for known.
    with LeakDetector() as earlier:
        loop(earlier, 40, keep=True)
    mine = list(history)
    assert told() == alone[0]
    report = earlier.report(of_program=True)
    assert len(mine) == 40
    assert [(leak.kind, leak.count) for leak in report.leaks] == [("growth", 40)]


DISPOSED_BEFORE_FRAMEWORKS_WATCH = """
import numpy as np
import disposescope as ds
from disposescope.leaks.detector import watching

with ds.dispose_scope():
    ds.zeros(3)
watch = watching._watch_this_thread


def dispose_and_watch():
    # As another thread may: the listener is there, and no framework has begun to watch.
    ds.zeros(3).dispose()
    watch()


watching._watch_this_thread = dispose_and_watch
with ds.LeakDetector() as detector:
    kept = ds.ones(3)
    print(len(detector.report().leaks), kept.shape)
"""


def test_what_is_disposed_while_a_detector_is_being_opened_raises_nothing() -> None:
    assert run_program(DISPOSED_BEFORE_FRAMEWORKS_WATCH) == "1 (3,)\n"
