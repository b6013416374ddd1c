"""Snapshots count bytes once for each storage, and compare."""

from contextlib import nullcontext

import pytest

import disposescope as ds
from disposescope.leaks import LeakDetector, take_snapshot
from disposescope.scopes.kinds import Kind, add_kind


def test_the_bytes_of_one_storage_count_once() -> None:
    with LeakDetector() as detector:
        base = ds.zeros(1000)
        views = [base[:10], base[10:20]]
        snapshot = detector.take_snapshot()
    assert snapshot.nbytes == 8000
    assert [(record.used_nbytes, record.nbytes, record.is_view) for record in snapshot] == [
        (8000, 8000, False),
        (80, 8000, True),
        (80, 8000, True),
    ]
    assert len({record.storages for record in snapshot}) == 1
    assert len(views) == 2


def test_compare_to_returns_new_gone_and_grown() -> None:
    history = []

    def step() -> None:
        history.append(ds.zeros(10))

    with LeakDetector() as detector:
        leaving = ds.zeros(5)
        step()
        old = detector.take_snapshot()
        del leaving
        step()
        step()
        change = detector.take_snapshot().compare_to(old)
    assert [record.shape for record in change.new] == [(10,), (10,)]
    assert [record.shape for record in change.gone] == [(5,)]
    assert [(growth.count, growth.nbytes) for growth in change.grown] == [(2, 160)]
    assert str(change.grown[0]).endswith("step(): +2, +160 bytes")
    assert len(history) == 3


def test_a_resource_at_the_address_of_one_that_died_is_new() -> None:
    with LeakDetector() as detector:
        tensor = ds.zeros(5)
        old = detector.take_snapshot()
        del tensor
        tensor = ds.zeros(5)
        change = detector.take_snapshot().compare_to(old)
    assert (len(change.new), len(change.gone)) == (1, 1)
    assert len(tensor) == 5


def test_since_leaves_out_what_was_there() -> None:
    before = ds.zeros(5)
    old = take_snapshot()
    after = ds.zeros(6)
    assert [record.shape for record in take_snapshot().since(old)] == [(6,)]
    assert len(before) + len(after) == 11


def test_a_snapshot_prints_as_a_table() -> None:
    with LeakDetector() as detector:
        with ds.dispose_scope("step") as step:
            kept = step.move_to_outer(ds.zeros(1000))
        other = ds.ones((2, 2), dtype="float32")
    lines = [
        line.partition("  test")[0].partition("  /")[0].rstrip() for line in str(detector.take_snapshot()).splitlines()
    ]
    assert lines[0] == "kind                       bytes  state  scope  born at"
    assert lines[1].startswith("Tensor float64 (1000,)    8.0 kB  alive  step")
    assert lines[2].startswith("Tensor float32 (2, 2)   16 bytes  alive  -")
    assert len(kept) + len(other) == 1002


def test_a_snapshot_is_filtered_by_site_kind_and_module() -> None:
    with LeakDetector() as detector:
        kept = [ds.zeros(3)]
        snapshot = detector.take_snapshot()
    line = next(iter(snapshot)).site.line
    for site in ("test_snapshot.py", f"test_snapshot.py:{line}", "*/leaks/*", "*test_snap*"):
        assert len(snapshot.filter(site=site)) == 1, site
    assert len(snapshot.filter(site=f"test_snapshot.py:{line + 1}")) == 0
    assert len(snapshot.filter(kind="Tensor")) == len(snapshot.filter(kind="T*", site="*.py")) == 1
    assert len(snapshot.filter(kind="torch.*")) == 0
    assert len(snapshot.filter(module=__name__)) == 1
    assert len(snapshot.filter(module="json")) == len(snapshot.filter(module="string")) == 0
    with pytest.raises(ValueError, match="no module 'nowhere' with a file has been imported"):
        snapshot.filter(module="nowhere")
    assert len(kept) == 1


def test_a_snapshot_shows_as_a_table_in_a_notebook() -> None:
    with LeakDetector() as detector:
        with ds.dispose_scope("<step>") as step:
            kept = [step.move_to_outer(ds.zeros(1000)) for _ in range(101)]
        text = detector.take_snapshot()._repr_html_()
    assert text.startswith("<table>\n<thead><tr><th>kind</th><th>bytes</th>")
    assert '<tr><td>Tensor float64 (1000,)</td><td style="text-align: right">8.0 kB</td><td>alive</td>' in text
    assert "&lt;step&gt;" in text
    assert text.count("<tr>") == len(kept)
    assert text.endswith("<p>and 1 more</p>")
    assert "<table>" in ds.live_tensors()._repr_html_()


def test_a_snapshot_can_be_reported_when_its_detector_has_gone() -> None:
    with LeakDetector() as detector:
        kept = [ds.zeros(10) for _ in range(3)]
        snapshot = detector.take_snapshot()
    del detector
    with LeakDetector() as other:
        for _ in range(40):
            kept.append(ds.ones(5))
            other.mark("step")
        [leak] = snapshot.report().leaks
    assert (leak.count, leak.trend) == (3, None), "the other's growth is not this one's"
    assert len(kept) == 43


@pytest.mark.parametrize("watched", [True, False])
def test_what_another_thread_disposes_at_that_moment_is_reported_as_disposed(watched: bool) -> None:
    class Fading:
        gone = False

        def dispose(self) -> None:
            self.gone = True

    class FadingKind(Kind):
        cls = Fading
        name = "Fading"
        release = staticmethod(Fading.dispose)

        def storages(self, thing: Fading) -> tuple[tuple[object, int], ...]:
            if thing.gone:
                raise ds.DisposedError("it is gone", resource=thing)
            return ((id(thing), 10),)

        def device(self, thing: Fading) -> object:
            return None

    add_kind(FadingKind())
    with LeakDetector() if watched else nullcontext() as detector:
        thing = Fading()
        with ds.dispose_scope() as scope:
            scope.attach(thing)
            # As another thread leaves it between two looks: released, and not yet taken out of the
            # living.
            thing.gone = True
            snapshot = take_snapshot() if detector is None else detector.take_snapshot()
            [record] = [record for record in snapshot if record.kind == "Fading"]
            assert (record.state, record.nbytes, record.storages) == ("disposed", 0, ())
            thing.gone = False
            scope.detach(thing)
