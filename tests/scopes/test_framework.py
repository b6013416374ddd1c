"""A stranger's framework: arrays on cards, in one file, by `disposescope.frameworks` alone."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import disposescope as ds
from disposescope.frameworks import Framework, Kind, belongs_to_model, born_late, register
from disposescope.scopes.kinds import KINDS, add_kind, find_births_with

LIBRARY = '''
"""Arrays in the memory of cards, as CuPy's are on GPUs."""

import ctypes
import itertools

used = {0: 0, 1: 0}
made = []  # called with each array that is made
cached = 0
current = 0
_addresses = itertools.count(0x1000, 0x1000)


class Memory:
    def __init__(self, nbytes, card):
        self.address, self.nbytes, self.card = next(_addresses), nbytes, card
        used[card] += nbytes

    def __del__(self):
        used[self.card] -= self.nbytes


class Array:
    def __init__(self, count, card=0, memory=None):
        self.count, self.card = count, card
        self.memory = Memory(8 * count, card) if memory is None else memory
        for tell in made:
            tell(self)

    def __getitem__(self, part):
        if self.memory is None:
            return self.refuse()
        return Array(len(range(self.count)[part]), self.card, self.memory)

    def refuse(self):
        raise ValueError("no memory")

    def free(self):
        self.memory = None


def zeros(count):
    return Array(count)


class Stream:
    """Holds an array as compiled code does: the garbage collector sees nothing of it."""

    def __init__(self, array):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(array))
        self.address = id(array)

    def array(self):
        return ctypes.cast(self.address, ctypes.py_object).value

    def __del__(self):
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(self.array()))


def compiled(source):
    """A function of the user's, compiled for cards."""
    names = {"__name__": "cards.kernels", "Array": Array}
    exec(compile(source, "<kernel>", "exec"), names)
    return names["kernel"]


parameters = []  # called with each array that a model takes


def parameter(array):
    for tell in parameters:
        tell(array)
    return array


constants = []


def constant(count):
    """An array that the library keeps for itself."""
    constants.append(Array(count))
'''

ADAPTER = """
from disposescope.frameworks import (
    Framework, HeldMemory, Kind, LiveMemory, Role, belongs_to_model, born, disposed_error
)


class ArrayKind(Kind):
    name = "cards.Array"

    def __init__(self, cls):
        self.cls = cls

    def release(self, array):
        array.free()

    def storages(self, array):
        return [] if array.memory is None else [(array.memory.address, array.memory.nbytes)]

    def device(self, array):
        return f"card:{array.card}"

    def describe(self, array):
        return f"cards.Array ({array.count},)"

    def is_disposed(self, array):
        return array.memory is None


class Cards(Framework):
    module = "cards"
    log = None
    watching = False

    @property
    def kinds(self):
        import cards

        self.cards, self.kind = cards, ArrayKind(cards.Array)
        return [self.kind]

    @property
    def current_indices(self):
        return {"card": lambda: self.cards.current}

    def install(self):
        def refuse(array):
            raise disposed_error(array, self.kind)

        self.cards.Array.refuse = refuse
        self.cards.made.append(self.made)
        self.cards.parameters.append(self.taken_by_a_model)

    def made(self, array):
        born(array, self.kind)
        if self.watching:
            memory = array.memory
            self.log.record_memory(memory, None, memory.nbytes, self.kind.name, f"card:{memory.card}")

    def taken_by_a_model(self, array):
        belongs_to_model(array)
        if self.log is not None:
            self.log.exclude(array.memory)

    def start_watching(self, log):
        self.log, self.watching = log, True

    def stop_watching(self):
        self.watching = False

    def live_memory(self, after, until):
        if self.log is None:
            return None
        references, rows = self.log.recorded_memory(after, until)
        return LiveMemory(self.kind.name, references, rows, self.identify, self.lives)

    def identify(self, memory):
        return (memory.address, memory.nbytes) if type(memory) is self.cards.Memory else None

    def lives(self, reference, number):
        return reference() is not None

    def part_of(self, cls):
        return {self.cards.Array: "tensor", self.cards.Stream: "node"}.get(cls)

    def references(self, thing):
        return [(".array()", thing.array())] if type(thing) is self.cards.Stream else []

    def memory_of(self, thing):
        memory = getattr(thing, "memory", None)
        return [] if memory is None else [HeldMemory("", memory.address, memory.nbytes)]

    def role_of_code(self, code, module):
        if module == "cards.kernels":
            return Role.USER
        if code is self.cards.constant.__code__:
            return Role.KEEPER
        if code in (self.cards.Array.__init__.__code__, type(self).made.__code__):
            return Role.PASSING
        return None

    def cached_nbytes(self):
        return self.cards.cached


class Broken(Cards):
    def install(self):
        raise OSError("no card")
"""


@pytest.fixture
def cards(tmp_path, monkeypatch):
    """The library, with a framework for it, in this process."""
    (tmp_path / "cards.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cards", raising=False)  # a page of the docs has one too
    monkeypatch.delitem(sys.modules, "cards_adapter", raising=False)
    (tmp_path / "cards_adapter.py").write_text(ADAPTER)
    register(importlib.import_module("cards_adapter").Cards())
    with ds.dispose_scope():
        library = importlib.import_module("cards")
    yield library
    del sys.modules["cards"], sys.modules["cards_adapter"]


def test_arrays_of_a_strangers_library_live_as_long_as_their_scope(cards):
    outside = cards.Array(5)
    with ds.dispose_scope() as outer:
        with ds.dispose_scope() as scope:
            lost, kept = cards.Array(10), cards.Array(20, card=1)
            part = kept[:5]
            assert (len(scope), scope.nbytes) == (3, 80 + 160)
            assert scope.live == (lost, kept, part)
            scope.move_to_outer({"part": part})
        assert ds.is_disposed(lost)
        assert ds.is_disposed(kept)
        assert cards.used == {0: 40, 1: 160}
        assert ds.owner_of(part) is outer
        assert ds.statistics().by_device["card:1"].live_nbytes == 160
        with pytest.raises(ds.DisposedError, match=r"cards\.Array \(10,\) has been disposed"):
            lost[1:]
    assert cards.used == {0: 40, 1: 0}
    assert not ds.is_disposed(outside)


def test_a_composite_of_them_is_refused_on_two_cards(cards):
    class Pair:
        def __init__(self, *members):
            self.members = members

    ds.register_kind(Pair, members=lambda pair: pair.members)
    with ds.dispose_scope() as scope, pytest.raises(ds.DeviceMismatchError, match="card:1"):
        scope.attach(Pair(cards.Array(3), cards.Array(3, card=1)))


def test_a_detector_reports_them_by_their_line(cards):
    with ds.LeakDetector() as detector:
        kept = cards.Array(100)
        line = sys._getframe().f_lineno - 1
        [record] = detector.take_snapshot()
    assert record.site is not None
    assert (record.kind, record.nbytes, record.device, record.site.line) == ("cards.Array", 800, "card:0", line)
    assert kept.memory is not None


def test_a_detector_reports_memory_that_outlives_its_array(cards):
    with ds.LeakDetector() as detector:
        with ds.dispose_scope():
            memory = cards.Array(100).memory
            line = sys._getframe().f_lineno - 1
        [record] = detector.take_snapshot()
    assert record.site is not None
    assert (record.kind, record.nbytes, record.device, record.site.line) == ("cards.Array", 800, "card:0", line)
    assert record.scope == ""
    del memory
    assert not detector.take_snapshot()


def test_an_array_and_its_memory_are_reported_once(cards):
    with ds.LeakDetector() as detector:
        array = cards.Array(100)
        part = array[:10]
        assert len(detector.take_snapshot()) == 2
        assert detector.report().nbytes == 800
        del array
        [record] = detector.take_snapshot()
    assert record.nbytes == 800
    assert part.count == 10


def test_a_snapshot_of_the_process_tells_what_was_there_before_the_detector(cards):
    early = cards.Array(1234)
    with ds.LeakDetector() as detector:
        assert not detector.take_snapshot()
    # Arrays of other tests may be alive: their size tells this one from them.
    [record] = [each for each in ds.take_snapshot().filter(kind="cards.*") if each.nbytes == 9872]
    assert (record.device, record.site) == ("card:0", None)
    assert early.count == 1234


def test_memory_of_an_array_that_was_there_before_the_detector_is_not_told_as_new(cards):
    early = cards.Array(100)
    with ds.LeakDetector() as detector:
        del early
        late = cards.Array(3)
        [record] = detector.take_snapshot()
    assert record.nbytes == 24
    assert late.count == 3


STREAMS = []


def test_the_search_for_holders_finds_what_the_garbage_collector_does_not_see(cards):
    with ds.LeakDetector() as detector:
        STREAMS.append(cards.Stream(cards.Array(100)))
        [leak] = detector.report().leaks
        STREAMS.clear()
    assert leak.nbytes == 800
    assert leak.holder is not None
    assert leak.holder.endswith(f"{__name__}.STREAMS[0].array()"), leak.holder


def test_the_roles_of_code_tell_which_line_a_birth_is_at(cards):
    kernel = cards.compiled("\n\ndef kernel():\n    return Array(4)\n")
    with ds.LeakDetector() as detector:
        of_a_function = cards.zeros(3)
        line = sys._getframe().f_lineno - 1
        of_a_kernel = kernel()
        cards.constant(5)
        zeros, compiled = detector.take_snapshot()
    assert zeros.site is not None
    assert (zeros.site.file, zeros.site.line) == (__file__, line)
    assert compiled.site is not None
    assert (compiled.site.file, compiled.site.line) == ("<kernel>", 4)
    assert (of_a_function.count, of_a_kernel.count) == (3, 4)


def test_what_the_library_keeps_for_later_use_is_in_the_report(cards):
    cards.cached = 0
    with ds.LeakDetector(timeline_s=60) as detector:
        before = ds.arena_statistics().cached_nbytes
        cards.cached = 10_000_000_000
        report = detector.report()
    assert report.timeline is not None
    cached = [sample.cached_nbytes for sample in report.timeline.samples]
    assert cached[0] < 10_000_000_000 <= cached[-1]
    assert before < 10_000_000_000
    cards.cached = 0


def test_what_a_model_takes_is_no_scopes_and_in_no_report(cards):
    with ds.LeakDetector() as detector, ds.dispose_scope() as scope:
        weights, lost = cards.parameter(cards.Array(3)), cards.Array(4)
        belongs_to_model("no resource")
        assert scope.live == (lost,)
        [record] = detector.take_snapshot()
    assert record.nbytes == 32
    assert not ds.is_disposed(weights)


PROGRAM = """
import sys
import disposescope as ds

with ds.dispose_scope():
    pass
assert "cards_adapter" not in sys.modules, "an adapter is loaded before its library"
with ds.dispose_scope():
    import cards
    array = cards.Array(3)
assert ds.is_disposed(array), "it is not owned"
"""


def installed(folder: Path, entry_point: str) -> None:
    (folder / "cards.py").write_text(LIBRARY)
    (folder / "cards_adapter.py").write_text(ADAPTER)
    metadata = folder / "cards_adapter-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: cards-adapter\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[disposescope.frameworks]\ncards = {entry_point}\n")


def run(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    root = Path(ds.__file__).parents[1]
    start = f"import sys; sys.path[:0] = [{str(folder)!r}, {str(root)!r}]\n"
    return subprocess.run([sys.executable, "-c", start + textwrap.dedent(program)], capture_output=True, text=True)


def test_an_adapter_of_another_package_is_found_by_its_entry_point_once_its_library_is_imported(tmp_path):
    installed(tmp_path, "cards_adapter:Cards")
    ended = run(tmp_path, PROGRAM)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    "entry_point", ["cards_adapter:Missing", "nowhere:Cards", "cards_adapter:born", "cards_adapter:Broken"]
)
def test_an_adapter_that_fails_is_named_in_a_warning_and_the_program_goes_on(tmp_path, entry_point):
    installed(tmp_path, entry_point)
    ended = run(
        tmp_path,
        """
        import cards, disposescope as ds
        for _ in range(2):
            with ds.dispose_scope():
                array = cards.Array(3)
        print(array.count)
        """,
    )
    assert ended.stdout == "3\n"
    [warning] = [line for line in ended.stderr.splitlines() if "RuntimeWarning" in line]
    assert f"scopes do not own what cards makes: the entry point of disposescope.frameworks for it, {entry_point}," in (
        warning
    )


def test_where_warnings_are_errors_an_adapter_that_fails_is_named_all_the_same(tmp_path):
    installed(tmp_path, "cards_adapter:Broken")
    ended = run(
        tmp_path,
        """
        import warnings
        warnings.simplefilter("error")
        import cards, disposescope as ds
        with ds.dispose_scope():
            print(cards.Array(3).count)
        """,
    )
    assert (ended.returncode, ended.stdout) == (0, "3\n"), ended.stderr
    assert "RuntimeWarning: scopes do not own what cards makes: the entry point" in ended.stderr


@pytest.mark.parametrize("filters", ["default", "error"])
def test_a_library_whose_framework_cannot_be_installed_is_named_and_the_program_goes_on(tmp_path, filters):
    (tmp_path / "cards.py").write_text(LIBRARY)
    ended = run(
        tmp_path,
        f"""
        import warnings
        warnings.simplefilter({filters!r})
        import disposescope as ds
        from disposescope.scopes.framework import register_lazily

        def load():
            raise TypeError("another number of arguments")

        register_lazily("cards", load)
        for _ in range(2):
            import cards
            with ds.dispose_scope():
                print(cards.Array(3).count)
        with ds.LeakDetector() as detector:
            print(detector.report().unwatched)
        """,
    )
    assert (ended.returncode, ended.stdout) == (0, "3\n3\n('cards: what it makes',)\n"), ended.stderr
    [warning] = [line for line in ended.stderr.splitlines() if "RuntimeWarning" in line]
    assert warning.endswith(
        "scopes do not own what cards makes: its framework could not be installed: "
        "TypeError: another number of arguments"
    )


def test_what_is_no_framework_is_refused():
    with pytest.raises(TypeError, match="expected an instance of Framework"):
        register(object())

    class Nameless(Framework):
        pass

    with pytest.raises(ValueError, match="Nameless does not say which module it is for"):
        register(Nameless())


def test_births_of_subclasses_are_asked_for_before_a_verb_acts_on_one():
    class Array:
        pass

    class SharedArray(Array):
        pass

    class ArrayKind(Kind):
        cls = Array
        name = "Array"

    unseen = []

    def find_births(scope):
        while unseen:
            array, owner = unseen.pop()
            born_late(array, kind, owner)

    kind = ArrayKind()
    add_kind(kind)
    find_births_with(Array, find_births)
    try:
        with ds.dispose_scope() as scope:
            arrays = [SharedArray() for _ in range(3)]
            for verb in (scope.__contains__, ds.owner_of, scope.detach, ds.dispose):
                array = SharedArray()
                unseen.append((array, scope))
                assert verb(array) is not False
                assert not unseen
                arrays.append(array)
            assert [ds.is_disposed(array) for array in arrays[3:]] == [False, False, False, True]
            assert scope.live == tuple(arrays[3:5])
    finally:
        for table in (KINDS.finders, KINDS.registered):
            table.pop(Array, None)
            table.pop(SharedArray, None)
        KINDS.finder_by_type.clear()
        KINDS.by_type.clear()
