"""A release happens once per resource, wherever another thread takes over between its steps."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import disposescope as ds
from disposescope.scopes import functions as _verbs
from disposescope.scopes import identity as _deaths
from disposescope.scopes import ownership
from disposescope.scopes.context import HOOKS
from disposescope.scopes.identity import DEAD, LIVE, entry_of, release, track
from disposescope.scopes.kinds import Kind, add_kind
from tests.scopes.toys import TOY, Disposable, Pair, Recorder, Toy, counts, fails, recorded, tables_are_sound


def on_another_thread(work: Callable[[], object]) -> None:
    """Do all of it at this moment, as if another thread had taken over here."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_what_was_released_is_not_released_by_an_entry_that_came_later():
    """Another thread had looked for its entry before the release, and makes one after it."""
    toy = Toy(1)
    assert release(entry_of(toy)) is None
    late = track(toy, TOY)
    assert release(late) is None
    assert toy.releases == 1
    assert counts() == {"created_unscoped": 1, "disposed_unscoped": 1}
    assert id(toy) in DEAD
    assert id(toy) not in LIVE
    del toy
    assert tables_are_sound()


def test_an_entry_of_another_resource_at_the_same_address_is_replaced():
    """Its callback was interrupted, so that it stayed where the dead are."""
    toy, gone = Toy(1), Toy(2)
    stale = entry_of(gone)
    del gone
    DEAD[id(toy)] = stale
    entry = entry_of(toy)
    assert release(entry) is None
    assert toy.releases == 1
    assert DEAD[id(toy)] is entry


def test_a_resource_that_has_come_to_the_address_of_a_dead_one_keeps_its_entry():
    toys = [Toy(1), Toy(2)]
    entry, other = map(entry_of, toys)
    key = id(toys[0])
    del toys[0]
    LIVE[key] = other
    assert release(entry) is None
    assert LIVE.pop(key) is other
    assert toys[0].releases == 0


def test_what_cannot_be_remembered_and_is_attached_again_keeps_its_second_entry():
    class Slotted:
        __slots__ = ("disposals",)

        def __init__(self) -> None:
            self.disposals = 0

        def dispose(self) -> None:
            self.disposals += 1

    with ds.dispose_scope() as scope:
        slotted = scope.attach(Slotted())
        entry = entry_of(slotted)
        assert release(entry) is None
        scope.attach(slotted)
        assert release(entry) is None
        assert slotted.disposals == 1
        assert slotted in scope
    assert slotted.disposals == 2


@pytest.mark.parametrize("room", [_verbs, ownership], ids=["dispose", "attach"])
def test_what_another_thread_disposes_after_it_was_found_alive_is_released_once(monkeypatch, room: Any):
    plan = room.plan_members
    theirs = Disposable()

    def planned(resource: object, kind: Kind) -> Any:
        found = plan(resource, kind)
        monkeypatch.undo()
        on_another_thread(lambda: ds.dispose(resource))
        return found

    monkeypatch.setattr(room, "plan_members", planned)
    with ds.dispose_scope() as scope:
        if room is _verbs:
            ds.dispose(theirs)
        else:
            with pytest.raises(ds.DisposedError):
                scope.attach(theirs)
        assert len(scope) == 0
    assert theirs.disposals == 1
    assert id(theirs) not in LIVE


@pytest.mark.parametrize("room", [_verbs, ownership], ids=["dispose", "attach"])
def test_a_member_that_another_thread_disposes_after_it_was_planned_is_released_once(monkeypatch, room: Any):
    absorb = room.absorb_members
    theirs, ours = Disposable(), Disposable()
    pair = Pair(theirs, ours)

    def absorbed(*arguments: Any) -> None:
        monkeypatch.undo()
        on_another_thread(lambda: ds.dispose(theirs))
        absorb(*arguments)

    monkeypatch.setattr(room, "absorb_members", absorbed)
    with ds.dispose_scope() as scope:
        if room is _verbs:
            ds.dispose(pair)
        else:
            scope.attach(pair)
    assert (theirs.disposals, ours.disposals) == (1, 1)
    assert tables_are_sound()


def test_an_entry_that_another_thread_makes_at_that_moment_is_the_one(monkeypatch):
    theirs = Disposable()
    with ds.dispose_scope("a") as a, ds.dispose_scope("b") as b:
        monkeypatch.setattr(_deaths, "dead_entry_of", after(_deaths.dead_entry_of, 1, lambda: a.attach(theirs)))
        b.attach(theirs)
        assert (len(a), len(b)) == (0, 1)
        assert ds.owner_of(theirs) is b
    assert theirs.disposals == 1


def test_an_entry_that_is_made_after_a_release_is_taken_back(monkeypatch):
    """The release comes between the look for the dead and the new entry."""
    theirs = Disposable()

    def others() -> None:
        ds.dispose(theirs)

    with ds.dispose_scope() as scope:
        monkeypatch.setattr(_deaths, "dead_entry_of", after(_deaths.dead_entry_of, 1, others))
        with pytest.raises(ds.DisposedError):
            scope.attach(theirs)
        assert len(scope) == 0
    assert theirs.disposals == 1
    assert id(theirs) not in LIVE


def test_an_entry_that_stayed_of_something_that_is_gone_is_replaced_when_its_address_is_attached():
    theirs, gone = Disposable(), Toy(1)
    stale = entry_of(gone)
    del gone
    LIVE[id(theirs)] = stale
    with ds.dispose_scope() as scope:
        scope.attach(theirs)
        assert theirs in scope
    assert theirs.disposals == 1


def test_a_tuple_that_two_threads_gather_at_once_is_one_composite():
    torch = pytest.importorskip("torch")
    pack = torch.nn.utils.rnn.pack_sequence
    with ds.dispose_scope() as scope:
        packed = pack([torch.ones(2), torch.ones(1)])
        with pytest.MonkeyPatch.context() as patch:
            again = after(ownership.plan_members, 1, lambda: scope.attach(packed))
            patch.setattr(ownership, "plan_members", again)
            scope.attach(packed)
        assert packed in scope
        assert len(scope) == 1
    assert ds.is_disposed(packed)


class TestAReleaseThatFails:
    """It leaves its resource alive, unowned and not disposed."""

    class Fragile:
        def __init__(self, release: Callable[[], object]) -> None:
            self.release = release

        def dispose(self) -> None:
            self.release()

    class Slotted:
        __slots__ = ("release",)

        def __init__(self, release: Callable[[], object]) -> None:
            self.release = release

        def dispose(self) -> None:
            self.release()

    @pytest.fixture(autouse=True)
    def others(self) -> int:
        """How many of other tests live on, because classes are registered for good."""
        return ds.statistics().live

    def fails(self) -> None:
        raise OSError("busy")

    @pytest.mark.parametrize("cls", [Fragile, Slotted])
    def test_of_a_users_object(self, cls: Any):
        released: list[int] = []
        thing = cls(self.fails)
        with pytest.raises(ExceptionGroup), ds.dispose_scope() as scope:
            scope.attach(thing)
        assert not ds.is_disposed(thing)
        assert ds.owner_of(thing) is None
        assert thing not in scope
        thing.release = lambda: released.append(1)
        ds.dispose(thing)
        assert released == [1]
        assert ds.is_disposed(thing) is (cls is self.Fragile)
        assert tables_are_sound()

    def test_of_a_toy_that_dies_later(self, others: int):
        toy = fails(OSError("busy"))
        with pytest.raises(ExceptionGroup), ds.dispose_scope() as scope:
            scope.attach(toy)
        assert counts() == {"created_unscoped": 1, "attached": 1, "detached": 1, "live": others + 1}
        assert id(toy) not in DEAD
        del toy
        # The error that it raises each time has a traceback, in which the toy is.
        gc.collect()
        now = ds.statistics()
        assert (now.created_unscoped, now.attached, now.detached, now.disposed_unscoped) == (1, 1, 1, 1)
        assert now.live == others
        assert tables_are_sound()

    def test_by_dispose(self, others: int):
        toy = fails(OSError("busy"))
        for times in (1, 2):
            with pytest.raises(ExceptionGroup):
                ds.dispose(toy)
            assert toy.releases == times
            assert counts() == {"created_unscoped": 1, "live": others + 1}

    def test_of_a_member(self, others: int):
        first, last, broken = Toy(1), Toy(2), fails(OSError("busy"))
        with pytest.raises(ExceptionGroup), ds.dispose_scope() as scope:
            pair = scope.attach(Pair(first, broken, last))
        assert ds.is_disposed(pair)
        assert (first.releases, broken.releases, last.releases) == (1, 1, 1)
        assert not ds.is_disposed(broken)
        assert ds.statistics().live == others + 1
        with pytest.raises(ExceptionGroup):
            ds.dispose(broken)
        assert broken.releases == 2
        assert tables_are_sound()

    def test_of_a_composite(self, others: int):
        class Whole:
            def __init__(self, *members: object) -> None:
                self.members = members

        def release(whole: Whole) -> None:
            if busy:
                raise OSError("busy")

        ds.register_kind(Whole, release=release, members=lambda whole: whole.members)
        busy = True
        toy, broken = Toy(1), fails(OSError("busy"))
        whole = Whole(toy, broken)
        with pytest.raises(ExceptionGroup), ds.dispose_scope() as scope:
            scope.attach(whole)
        assert not ds.is_disposed(whole)
        assert ds.is_disposed(toy)
        assert not ds.is_disposed(broken)
        assert ds.statistics().live == others + 1
        busy = False
        with pytest.raises(ExceptionGroup):
            ds.dispose(whole)
        assert ds.is_disposed(whole)
        assert (toy.releases, broken.releases) == (1, 2)
        assert not ds.is_disposed(broken)
        assert ds.statistics().live == others + 1
        assert tables_are_sound()

    def test_of_a_resource_that_says_it_is_disposed(self, others: int):
        """What its release raised came after that, as an interrupt does."""

        class Late:
            is_gone = False

        class LateKind(Kind):
            cls = Late
            name = "Late"

            def release(self, late: Late) -> None:
                late.is_gone = True
                raise OSError("late")

            def is_disposed(self, late: Late) -> bool:
                return late.is_gone

        add_kind(LateKind())
        late = Late()
        with pytest.raises(ExceptionGroup), ds.dispose_scope() as scope:
            scope.attach(late)
        assert ds.is_disposed(late)
        now = ds.statistics()
        assert (now.attached, now.disposed_in_scope, now.detached, now.live) == (1, 1, 0, others)

    def test_reaches_listeners(self):
        toy = fails(OSError("busy"))
        with recorded() as recorder, pytest.raises(ExceptionGroup), ds.dispose_scope() as scope:
            scope.attach(toy)
        assert recorder.events[-3:-1] == [("disposed", "Faulty", scope), ("moved", "Faulty", scope, None)]


def after(function: Callable[..., Any], call: int, work: Callable[[], object]) -> Callable[..., Any]:
    """The function, with another thread that takes over after a call of it."""
    calls = 0

    def called(*arguments: Any) -> Any:
        nonlocal calls
        result = function(*arguments)
        calls += 1
        if calls == call:
            on_another_thread(work)
        return result

    return called


def test_without_memory_for_what_a_listener_raised_the_release_is_done():
    testcapi = pytest.importorskip("_testcapi")

    class Raising(Recorder):
        def disposed(self, entry, owner):
            raise ValueError("of the listener")

    listener = Raising()
    outcomes = set()
    for failing in range(1, 12):
        # What is left of the last round dies while there is memory.
        toy = entry = raised = result = None
        toy = Toy(1)
        entry = entry_of(toy)
        # Lists come from the system, not from those that Python has kept.
        lists = [[] for _ in range(200)]
        HOOKS.listeners.append(listener)
        # A tool for coverage that gets no memory stops for good.
        tracing = sys.gettrace()
        sys.settrace(None)
        testcapi.set_nomemory(failing, failing + 1)
        try:
            result = release(entry)
        except BaseException as error:
            raised = error
        finally:
            testcapi.remove_mem_hooks()
            sys.settrace(tracing)
            HOOKS.listeners.remove(listener)
            del lists
        outcomes.add(type(raised))
        if raised is not None:
            assert toy.releases == 1
        elif toy.releases == 0:
            assert isinstance(result, MemoryError | BaseExceptionGroup)
            assert entry_of(toy) is entry
    assert outcomes == {type(None), MemoryError}
