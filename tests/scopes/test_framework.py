"""A framework of a stranger's: arrays on cards, in one file, by what `disposescope.frameworks` offers alone."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import disposescope as ds
from disposescope.frameworks import Framework, register

LIBRARY = '''
"""Arrays in the memory of cards, as CuPy's are on GPUs."""

import itertools

used = {0: 0, 1: 0}
made = []  # called with each array that is made
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


current = 0
'''

ADAPTER = """
from disposescope.frameworks import Framework, Kind, born, disposed_error


class Cards(Framework):
    module = "cards"

    @property
    def kinds(self):
        import cards

        self.kind = Kind(
            cls=cards.Array,
            name="cards.Array",
            release=cards.Array.free,
            storages=lambda array: [] if array.memory is None else [(array.memory.address, array.memory.nbytes)],
            device=lambda array: f"card:{array.card}",
            describe=lambda array: f"cards.Array ({array.count},)",
            is_disposed=lambda array: array.memory is None,
        )
        return [self.kind]

    @property
    def current_indices(self):
        import cards

        return {"card": lambda: cards.current}

    def install(self):
        import cards

        def refuse(array):
            raise disposed_error(array, self.kind)

        cards.Array.refuse = refuse
        cards.made.append(lambda array: born(array, self.kind))
"""


@pytest.fixture
def cards(tmp_path, monkeypatch):
    """The library, with a framework for it, in this process."""
    (tmp_path / "cards.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cards", raising=False)  # a page of the docs has one too
    names = {}
    exec(ADAPTER, names)
    register(names["Cards"]())
    yield importlib.import_module("cards")
    del sys.modules["cards"]


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
    return subprocess.run(
        [sys.executable, "-c", start + textwrap.dedent(program)], capture_output=True, text=True, timeout=100
    )


def test_an_adapter_of_another_package_is_found_by_its_entry_point_once_its_library_is_imported(tmp_path):
    installed(tmp_path, "cards_adapter:Cards")
    ended = run(tmp_path, PROGRAM)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("entry_point", ["cards_adapter:Missing", "nowhere:Cards", "cards_adapter:born"])
def test_an_adapter_that_fails_is_named_in_a_warning_and_the_program_goes_on(tmp_path, entry_point):
    installed(tmp_path, entry_point)
    ended = run(
        tmp_path,
        """
        import cards, disposescope as ds
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


def test_what_is_no_framework_is_refused():
    with pytest.raises(TypeError, match="expected an instance of Framework"):
        register(object())

    class Nameless(Framework):
        pass

    with pytest.raises(ValueError, match="Nameless does not say which module it is for"):
        register(Nameless())
