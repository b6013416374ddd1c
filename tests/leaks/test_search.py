"""Of several holders the plainest is reported; storages are found without their tensors."""

import _signal
import asyncio
import contextvars
import functools
import gc
import logging
import logging.handlers
import re
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

import disposescope as ds
from disposescope.leaks import LeakDetector
from disposescope.leaks.births.log import Subject
from disposescope.leaks.holders import holders as _holders
from disposescope.leaks.holders import search as _search
from disposescope.leaks.holders.holders import Holders, Reason
from disposescope.leaks.holders.roots import is_of_library, user_roots
from disposescope.scopes.identity import entry_of
from disposescope.tensors.numpy.storage import storage_of

BOX: dict[str, Any] = {}
HERE = f"module {__name__}.BOX"


class Seen:
    """Memory as a detector remembers it."""

    def __init__(self, identity: Hashable, nbytes: int, kind: str, device: str, is_there: Callable[[], bool]) -> None:
        self.identity, self.nbytes, self.kind, self.device, self.is_there = identity, nbytes, kind, device, is_there

    def __call__(self) -> object:
        return self if self.is_there() else None


class Box:
    """What holds something by an attribute, and itself."""

    tensor: ds.Tensor
    itself: object


@pytest.fixture(autouse=True)
def _empty_box() -> Iterator[None]:
    yield
    BOX.clear()


def asked(*subjects: Subject) -> tuple[Reason, tuple[str, ...]]:
    with Holders([subjects], object_limit=10_000_000) as holders:
        return holders.reasons_of([subjects[0]])[0], holders.chains_of(subjects)


def tensor_in(place: Callable[[ds.Tensor], object]) -> Subject:
    """The entry of a tensor that only a place holds."""
    tensor = ds.zeros(3)
    entry = entry_of(tensor)
    assert entry is not None
    place(tensor)
    return entry


def raised(*held: object) -> ValueError:
    def fail(held: object) -> None:
        raise ValueError

    try:
        fail(held)
    except ValueError as error:
        return error
    raise AssertionError


def generator_with(held: object) -> Iterator[None]:
    yield
    del held


def saving(tensor: ds.Tensor) -> Callable[[int, object], object]:
    def save(_number: int, _frame: object) -> object:
        return tensor

    return save


def test_what_a_handler_of_a_signal_keeps_is_said_to_be_held_by_it() -> None:
    tensor = ds.zeros(3)
    before = signal.signal(signal.SIGUSR2, saving(tensor))
    try:
        entry = entry_of(tensor)
        del tensor
        reason, [chain] = asked(entry)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert reason == "held"
    assert chain.startswith("handler of SIGUSR2, closure of saving() at ")
    assert chain.endswith(", cell 'tensor'")


def test_handlers_of_signals_are_not_asked_for_their_text() -> None:
    """`asyncio.run` installs one that has the main task: its text has that of results awaited."""

    class Handler:
        def __init__(self, tensor: ds.Tensor) -> None:
            self.tensor = tensor

        def __call__(self, number: int, frame: object) -> None: ...

        def __eq__(self, other: object) -> bool:
            raise AssertionError("__eq__")

        def __hash__(self) -> int:
            return 0

        def __repr__(self) -> str:
            raise AssertionError("__repr__")

    tensor = ds.zeros(3)
    before = signal.signal(signal.SIGUSR2, Handler(tensor))
    try:
        entry = entry_of(tensor)
        del tensor
        reason, [chain] = asked(entry)
    finally:
        _signal.signal(signal.SIGUSR2, int(before))
    assert reason == "held"
    assert chain == "handler of SIGUSR2.tensor"


def test_up_to_three_chains_are_reported_the_shortest_first() -> None:
    def place(tensor: ds.Tensor) -> None:
        BOX.update(far={"a": {"b": [tensor]}}, near=[tensor], third=(0, tensor), fourth={tensor})

    reason, chains = asked(tensor_in(place))
    assert reason == "held"
    assert len(chains) == 3
    assert set(chains) == {f"{HERE}['near'][0]", f"{HERE}['third'][1]", f"{HERE}['fourth'].<element>"}


def test_chains_that_differ_in_an_index_are_one() -> None:
    BOX["history"] = []
    entries = [tensor_in(lambda tensor: BOX["history"].append(tensor)) for _ in range(100)]
    BOX["last"] = [entries[-1]()]
    assert asked(*entries)[1] == (f"{HERE}['history'][0]",)
    assert asked(entries[-1])[1] == (f"{HERE}['history'][99]", f"{HERE}['last'][0]")


def test_what_is_held_in_many_ways_is_told_of_three() -> None:
    BOX["boxes"] = SimpleNamespace()
    entries = [
        tensor_in(lambda tensor, name=f"part{number}": setattr(BOX["boxes"], name, tensor)) for number in range(13)
    ]
    assert asked(*entries)[1] == tuple(f"{HERE}['boxes'].part{number}" for number in range(3))


def test_chains_that_differ_by_one_of_many_keys_are_one() -> None:
    BOX["layers"] = {}
    entries = [
        tensor_in(lambda tensor, name=name: BOX["layers"].setdefault(name, {}).update(weight=tensor))
        for name in [f"{number} of {'many ' * 10}" for number in range(40)]
    ]
    assert len(asked(*entries[:3])[1]) == 3
    assert asked(*entries)[1] == (f"{HERE}['layers'][...]['weight']",)


def test_chains_that_differ_by_how_often_a_step_is_taken_are_one() -> None:
    def put_before(tensor: ds.Tensor) -> None:
        BOX["newest"] = SimpleNamespace(data=tensor, previous=BOX.get("newest"))

    entries = [tensor_in(put_before) for _ in range(100)]
    assert asked(*entries[:98])[1] == (f"{HERE}['newest'].previous … .previous.data",)
    assert asked(entries[-4])[1] == (f"{HERE}['newest'].previous.previous.previous.data",)


@pytest.mark.parametrize("special", [raised, generator_with])
def test_what_a_list_holds_too_is_the_lists(special: Callable[[object], Any]) -> None:
    def place(tensor: ds.Tensor) -> None:
        BOX["special"] = special(tensor)
        if not isinstance(BOX["special"], ValueError):
            next(BOX["special"])

    entry = tensor_in(place)
    reason, [chain, *_] = asked(entry)
    assert reason == ("exception" if special is raised else "suspended")
    assert chain.startswith(f"{HERE}['special']")
    BOX["list"] = [[[[entry()]]]]
    assert asked(entry) == ("held", (f"{HERE}['list'][0][0][0][0]",))


def test_an_exception_in_an_attribute_and_in_a_log_record_holds() -> None:
    class Job:
        error: BaseException | None = None

    def place(tensor: ds.Tensor) -> None:
        BOX["job"] = job = Job()
        job.error = raised(tensor)

    reason, [chain, *_] = asked(tensor_in(place))
    assert reason == "exception"
    assert chain.startswith(f"{HERE}['job'].error.__traceback__ frame ")

    def log(tensor: ds.Tensor) -> None:
        BOX.clear()
        BOX["handler"] = handler = logging.handlers.MemoryHandler(10)
        error = raised(tensor)
        handler.emit(logging.LogRecord("x", 10, "x", 1, "x", (), (type(error), error, error.__traceback__)))

    reason, [chain, *_] = asked(tensor_in(log))
    assert reason == "exception"
    assert chain.startswith(f"{HERE}['handler'].buffer[0].exc_info[2] frame ")


def test_an_exception_on_another_thread_is_in_flight() -> None:
    ready, done = threading.Event(), threading.Event()
    entries: list[Subject] = []

    def work() -> None:
        try:
            tensor_in(lambda tensor: entries.append(entry_of(tensor)) or _fail(tensor))
        except KeyError:
            ready.set()
            done.wait()

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait()
    reason, chains = asked(*entries)
    done.set()
    thread.join()
    assert reason == "exception"
    assert chains[0].startswith("exception in flight on thread ")


def _fail(_held: object) -> None:
    raise KeyError


def test_thread_locals_context_variables_and_tasks_hold() -> None:
    class Local(threading.local):
        def __init__(self) -> None:
            made.append(threading.get_ident())

    made: list[int] = []
    BOX["local"] = Local()
    ready, done = threading.Event(), threading.Event()
    entries: list[Subject] = []

    def work() -> None:
        entries.append(tensor_in(lambda tensor: setattr(BOX["local"], "batch", [tensor])))
        ready.set()
        done.wait()

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait()
    told = asked(*entries)
    done.set()
    thread.join()
    assert told == ("held", (f"{HERE}['local'] (of a thread).batch[0]",))
    assert len(made) == 2, "no thread got values because of the search"

    variable: contextvars.ContextVar[Any] = contextvars.ContextVar("batches")
    entry = tensor_in(lambda tensor: variable.set([tensor]))
    assert asked(entry) == ("held", ("context variable 'batches'[0]",))
    variable.set(None)

    async def main() -> tuple[Reason, tuple[str, ...]]:
        entries: list[Subject] = []

        async def worker() -> None:
            batch = ds.zeros(3)
            entries.append(entry_of(batch))
            await asyncio.sleep(60)
            del batch

        task = asyncio.create_task(worker(), name="reader")
        while not entries:
            await asyncio.sleep(0)
        reference = weakref.ref(task)
        del task
        told = asked(*entries)
        reference().cancel()
        return told

    reason, [chain] = asyncio.run(main())
    assert reason == "held"
    assert re.fullmatch(r"task 'reader', suspended frame .*test_search.py:\d+ .*worker\(\): local 'batch'", chain)


def test_what_many_tasks_wait_with_is_told_once_and_where_the_oldest_has_it() -> None:
    async def worker(app: dict[str, Any]) -> None:
        await asyncio.sleep(60)
        app.clear()

    async def main() -> list[tuple[str, ...]]:
        entry = tensor_in(lambda tensor: BOX.update(app={"cache": [tensor]}))
        app = BOX.pop("app")
        server = asyncio.create_task(worker({"app": app}), name="Task-90")
        await asyncio.sleep(0)
        own = [tensor_in(lambda tensor: BOX.setdefault("own", []).append(tensor)) for _ in range(9)]
        tasks = [
            asyncio.create_task(worker({"batch": batch, "app": app}), name=f"Task-{100 + index}")
            for index, batch in enumerate(BOX.pop("own"))
        ]
        tasks.append(server)
        del app
        await asyncio.sleep(0)
        told = [asked(entry)[1], asked(*own)[1]]
        for task in tasks:
            task.cancel()
        return told

    [[oldest, *_], batches] = asyncio.run(main())
    assert re.fullmatch(r"task 'Task-90', suspended frame .* local 'app'\['app'\]\['cache'\]\[0\]", oldest)
    [batch] = batches
    assert re.fullmatch(r"task 'Task-100', suspended frame .* local 'app'\['batch'\]", batch)


def test_a_chain_of_closures_of_one_function_is_told_in_short() -> None:
    def chained(previous: object, tensor: object) -> Callable[[], object]:
        return lambda: (previous, tensor)

    with LeakDetector() as detector:
        BOX["handlers"] = None
        for _ in range(9):
            BOX["handlers"] = chained(BOX["handlers"], ds.zeros(3))
        [leak] = detector.take_snapshot().report().leaks
    assert 0 < leak.holder.count("cell 'previous'") <= 2, leak.holder


def test_a_chain_of_one_key_is_told_in_short() -> None:
    with LeakDetector() as detector:
        BOX["last"] = None
        for _ in range(9):
            BOX["last"] = {"before": BOX["last"], "frame": ds.zeros(3)}
        [leak] = detector.take_snapshot().report().leaks
    assert 0 < leak.holder.count("['before']") <= 2, leak.holder


def test_a_context_variable_of_a_task_holds_also_for_another_thread_that_looks() -> None:
    variable: contextvars.ContextVar[Any] = contextvars.ContextVar("batches")

    async def main() -> list[tuple[Reason, tuple[str, ...]]]:
        entry = tensor_in(lambda tensor: variable.set([tensor]))
        loop = asyncio.get_running_loop()
        return [asked(entry), await loop.run_in_executor(None, asked, entry)]

    for reason, chains in asyncio.run(main()):
        assert reason == "held"
        assert re.fullmatch(r"context variable 'batches' of task 'Task-\d+'\[0\]", chains[0])


def test_the_callback_of_a_weak_reference_and_cached_values_hold() -> None:
    class Model:
        @functools.cached_property
        def weights(self) -> ds.Tensor:
            return ds.zeros(3)

    BOX["model"] = Model()
    entry = entry_of(BOX["model"].weights)
    assert entry is not None
    assert asked(entry) == ("held", (f"{HERE}['model'].weights",))

    def place(tensor: ds.Tensor) -> None:
        BOX["watch"] = weakref.ref(BOX["model"], lambda _: tensor)

    reason, [chain] = asked(tensor_in(place))
    assert reason == "held"
    assert chain.startswith(f"{HERE}['watch'].__callback__, closure of ")


def test_a_plain_array_is_found_by_its_memory_also_behind_views(monkeypatch: pytest.MonkeyPatch) -> None:
    # What is used in full cannot be pinned: a search has not to go on for it, and does here.
    monkeypatch.setattr("disposescope.leaks.holders.search._EXTRA_OBJECTS", 10**9)
    array = np.zeros(1000)
    identity, nbytes = storage_of(array)
    watch = weakref.ref(array)
    sighting = Seen(identity, nbytes, "numpy.ndarray", "cpu:0", lambda: watch() is not None)
    BOX["view"] = [array[:10][2:4]]
    del array
    reason, chains = asked(sighting)
    assert (reason, chains) == ("held", (f"{HERE}['view'][0]",))
    with Holders([[sighting]], object_limit=10**7, sizes={identity: nbytes}) as holders:
        assert holders.used_nbytes(identity) == 16, "the base of the view is held by the view alone"
    array = BOX["view"][0].base
    with Holders([[sighting]], object_limit=10**7, sizes={identity: nbytes}) as holders:
        assert holders.used_nbytes(identity) == 8016
    del array
    BOX.clear()
    assert sighting() is None


def in_two_places(thing: object) -> dict[str, object]:
    return {"a": [thing], "b": {"x": thing}}


def memory_of(array: Any) -> Seen:
    identity, nbytes = storage_of(array)
    watch = weakref.ref(array)
    return Seen(identity, nbytes, "numpy.ndarray", "cpu:0", lambda: watch() is not None)


@pytest.mark.parametrize(
    ("hold", "texts"),
    [
        (in_two_places, ["['a'][0]", "['b']['x']"]),
        (lambda array: in_two_places(array[:2]), ["['a'][0]", "['b']['x']"]),
        # Two views of one array, and a list that has it twice.
        (lambda array: {"a": [array[:2], array[1:]], "b": {"x": array[2:]}}, ["['a'][1]", "['b']['x']"]),
        (lambda array: {"a": [array, array], "b": (array,)}, ["['a'][0]", "['b'][0]"]),
        (lambda array: {"a": [array, array[:2]]}, ["['a'][0]"]),
    ],
)
def test_all_that_hold_a_plain_array_are_reported(hold: Callable[[Any], dict[str, Any]], texts: list[str]) -> None:
    arrays = [np.ones(4) for _ in range(20)]
    BOX["all"] = [hold(array) for array in arrays]
    subjects = [memory_of(array) for array in arrays]
    del arrays
    _, chains = asked(*subjects)
    assert [chain.removeprefix(f"{HERE}['all'][0]") for chain in chains] == texts


def test_a_report_keeps_nothing_alive() -> None:
    class Thing:
        pass

    with LeakDetector() as detector:
        BOX["thing"] = thing = Thing()
        watch = weakref.ref(thing)
        BOX["batch"] = batch = ds.zeros(3)
        array = weakref.ref(batch)
        del thing, batch
        report = detector.report()
        BOX.clear()
        assert (watch(), array()) == (None, None)
    assert report.count == 1


def test_a_search_that_fails_lets_go(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = tensor_in(lambda tensor: BOX.setdefault("batch", tensor))
    monkeypatch.setattr("disposescope.leaks.holders.holders.user_roots", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        asked(entry)
    BOX.clear()
    assert entry() is None


def test_recursive_structures_and_huge_containers_end_at_the_limit() -> None:
    loop: list[Any] = []
    loop.append(loop)
    BOX["loop"] = loop
    BOX["huge"] = [[] for _ in range(1_000_000)]
    entry = tensor_in(lambda tensor: setattr(ds, "_test_batch", [[[tensor]]]))
    try:
        with Holders([[entry]], object_limit=200_000) as holders:
            assert holders.reasons_of([entry]) == ["unfinished"]
            assert holders.chains_of([entry]) == ("not found within 200,000 objects",)
    finally:
        del ds._test_batch
    gc.collect()


def test_a_list_counts_by_its_references_without_those_to_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    # A process that ran many tests has some 100,000 objects of modules, and more references.
    monkeypatch.setattr(_search, "REFERENCES_PER_OBJECT", 2)
    box: list[object] = []
    BOX["references"] = [box] * 3_000_000
    entry = tensor_in(lambda tensor: BOX.setdefault("batch", [[[tensor]]]))
    with Holders([[entry]], object_limit=1_000_000) as holders:
        assert holders.reasons_of([entry]) == ["unfinished"]
    with Holders([[entry]], object_limit=10_000_000) as holders:
        assert holders.chains_of([entry]) == (f"{HERE}['batch'][0][0][0]",)
    BOX["references"] = [1] * 3_000_000
    with Holders([[entry]], object_limit=1_000_000) as holders:
        assert holders.chains_of([entry]) == (f"{HERE}['batch'][0][0][0]",)


@pytest.mark.long
def test_many_cycles_are_all_found() -> None:
    gc.disable()
    entries = []
    for _ in range(30):
        box = Box()
        box.itself, box.tensor = box, ds.ones(3)
        entries.append(entry_of(box.tensor))
        del box
    with Holders([[entry] for entry in entries if entry is not None], object_limit=10**7) as holders:
        assert {holders.reasons_of([entry])[0] for entry in entries if entry is not None} == {"cycle"}
    gc.enable()


@pytest.mark.long
def test_what_a_search_for_cycles_did_not_come_to_is_unfinished(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.disable()
    box = Box()
    box.itself, box.tensor = box, ds.ones(3)
    entry = entry_of(box.tensor)
    assert entry is not None
    del box
    monkeypatch.setattr(_holders, "_CYCLE_OBJECTS_PER_OBJECT", 0)
    with Holders([[entry]], object_limit=10**7) as holders:
        assert holders.reasons_of([entry]) == ["unfinished"]
    gc.enable()


def test_for_few_subjects_no_library_is_searched_where_few_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "_kept", [ds.zeros(10) for _ in range(5)], raising=False)
    entries = [entry for tensor in vars(logging)["_kept"] if (entry := entry_of(tensor)) is not None]
    with Holders([entries[:2], entries[2:]], object_limit=10**7, few=2) as holders:
        assert holders.reasons_of(entries) == ["unknown"] * 2 + ["held"] * 3
    with Holders([entries[:2]], object_limit=10**7) as holders:
        assert holders.reasons_of(entries[:2]) == ["held"] * 2


def test_what_is_found_does_not_depend_on_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = iter(range(0, 10**9, 3600))
    for clock in ("monotonic", "perf_counter", "time", "process_time"):
        monkeypatch.setattr(time, clock, lambda: float(next(passed)))
    BOX["history"] = history = [ds.zeros(10) for _ in range(2000)]
    subjects = [entry for tensor in history if (entry := entry_of(tensor)) is not None]
    del history
    with Holders([subjects], object_limit=10**7) as holders:
        assert set(holders.reasons_of(subjects)) == {"held"}


@pytest.mark.unmeasured
@pytest.mark.long
def test_many_searches_keep_nothing_alive_and_leave_resident_memory_flat() -> None:
    history = BOX["history"] = [ds.zeros(10) for _ in range(50)]
    BOX["lost"] = weakref.ref(lost := Box())
    lost.tensor = ds.ones(10)
    lost.itself = lost
    entries = [entry_of(tensor) for tensor in (*history, lost.tensor)]
    subjects = [entry for entry in entries if entry is not None]
    things = [weakref.ref(thing) for thing in (*history, lost)]
    del lost
    process = psutil.Process()

    def search() -> None:
        with Holders([subjects], object_limit=10_000_000) as holders:
            assert holders.chains_of(subjects)

    for _ in range(2):
        search()
    objects, resident = len(gc.get_objects()), [process.memory_info().rss]
    for _ in range(10):
        search()
        resident.append(process.memory_info().rss)
    # A search meets some 100,000 objects: one that kept what it had met would show by megabytes
    # each time. The C library takes some now and then.
    assert min(after - before for before, after in pairwise(resident)) < 1 << 20
    assert len(gc.get_objects()) - objects < 1000
    history.clear()
    gc.collect()
    assert [thing() for thing in things] == [None] * 51


def test_a_thread_that_ends_during_the_search_keeps_its_name() -> None:
    began, go_on = threading.Event(), threading.Event()

    def work() -> None:
        measured = [1]
        began.set()
        go_on.wait()
        measured.clear()

    thread = threading.Thread(target=work, name="camera-7")
    thread.start()
    began.wait()
    groups = user_roots()
    first = [next(groups), next(groups)]
    go_on.set()
    thread.join()
    texts = [origin.text for group in (*first, *groups) for origin, _ in group]
    assert any("on thread 'camera-7': local 'measured'" in text for text in texts)


@pytest.mark.parametrize(("folder", "is_library"), [("site-packages", True), ("src", False)])
def test_a_package_without_a_file_is_a_library_where_its_folders_are_installed(
    folder: str, is_library: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as `cuda`, which PyTorch imports: its 20,000 objects are not the program's."""
    name = f"spaced_{is_library}".lower()
    (tmp_path / folder / name / "inner").mkdir(parents=True)
    (tmp_path / folder / name / "inner" / "driver.py").write_text("table = {}")
    monkeypatch.syspath_prepend(tmp_path / folder)
    modules = name, f"{name}.inner", f"{name}.inner.driver"
    import_module(modules[-1])
    try:
        assert getattr(sys.modules[name], "__file__", None) is None
        assert [is_of_library(module) for module in modules] == [is_library] * 3
    finally:
        for module in modules:
            del sys.modules[module]


def test_modules_that_cython_makes_belong_to_no_program() -> None:
    assert is_of_library("_cython_3_2_9")
    assert is_of_library("cython_runtime")


@pytest.mark.long
def test_a_class_that_was_dropped_is_in_a_cycle_with_itself() -> None:
    class Weighted:
        values = ds.zeros(5)

    values = weakref.ref(Weighted.values)
    subject = entry_of(Weighted.values)
    assert subject is not None
    gc.disable()
    try:
        del Weighted
        reason, [chain] = asked(subject)
    finally:
        gc.enable()
    assert reason == "cycle"
    assert re.search(r"class .*Weighted\.__mro__\[0\] -> class .*Weighted, holds \.values", chain)
    gc.collect()
    assert values() is None


@pytest.mark.long
def test_an_object_with_a_class_of_its_own_that_a_library_made_is_in_a_cycle() -> None:
    # As in `torch.nn.utils.parametrize`: the property of the class has the object in a closure.
    def parametrized() -> Subject | None:
        box = Box()
        box.tensor = ds.ones(3)
        names = {"__module__": "logging", "weight": property(lambda _: box.tensor)}
        box.__class__ = type("ParametrizedBox", (Box,), names)
        return entry_of(box.tensor)

    gc.disable()
    try:
        subject = parametrized()
        assert subject is not None
        reason, [chain] = asked(subject)
    finally:
        gc.enable()
    assert reason == "cycle"
    assert chain.endswith("until the next gc.collect()")
    gc.collect()
    assert subject() is None


def test_a_search_goes_through_a_class_whose_statement_still_runs() -> None:
    # Such a class has None for its ``__mro__``, as has a type of compiled code that is not ready.
    chains: list[str] = []
    kept: list[object] = []

    class Asking(type):
        def mro(cls) -> list[type]:
            kept.append(cls)
            chains.extend(ds.why_alive(kept[0]))
            return super().mro()

    kept.append(ds.Tensor(np.zeros(1000)))
    Asking("Asked", (), {"kept": kept})
    assert any("'kept'[0]" in each for each in chains)
