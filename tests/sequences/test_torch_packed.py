"""PyTorch's packed sequence is one resource.

It counts once, moves and dies as one, and shares with its conversions.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import gc
import io
import operator
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import disposescope as ds
from disposescope.scopes.identity import DEAD, LIVE, SHARED
from tests.patched import guard_fails
from tests.scopes.toys import no_cyclic_garbage, recorded

torch = pytest.importorskip("torch")
rnn = pytest.importorskip("torch.nn.utils.rnn")


@pytest.fixture(autouse=True)
def nothing_is_left() -> Any:
    gc.collect()
    before = len(LIVE), len(SHARED)
    yield
    gc.collect()
    ds.statistics()
    assert (len(LIVE), len(SHARED)) == before


def sequences() -> list[Any]:
    return [torch.ones(2, 3), torch.ones(4, 3)]


UNSORTED, SORTED = (2, 4, 3), (4, 3, 2)


def saved(packed: Any) -> Any:
    stream = io.BytesIO()
    torch.save(packed, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


class Subclass(rnn.PackedSequence):
    """A packed sequence of a user's."""


def pack(lengths: tuple[int, ...], made: Any = rnn.pack_sequence) -> Any:
    return made([torch.ones(length, 3) for length in lengths], enforce_sorted=lengths == SORTED)


def pack_padded(lengths: tuple[int, ...], made: Any = rnn.pack_padded_sequence) -> Any:
    return made(torch.ones(4, 3, 3), torch.tensor(lengths), enforce_sorted=lengths == SORTED)


def clones(packed: Any) -> list[Any]:
    return [member if member is None else member.clone() for member in packed]


# All members are new.
MAKERS: dict[str, Callable[[Any], Any]] = {
    "pack_sequence": pack,
    "pack_padded_sequence": pack_padded,
    "ds.pack_sequence": lambda lengths: pack(lengths, ds.pack_sequence),
    "ds.pack_padded_sequence": lambda lengths: pack_padded(lengths, ds.pack_padded_sequence),
    "constructor": lambda lengths: rnn.PackedSequence(*clones(pack(lengths))),
    "constructor of a pair": lambda lengths: rnn.PackedSequence(clones(pack(SORTED))[:2]),
    "constructor by name": lambda lengths: rnn.PackedSequence(
        **dict(zip(rnn.PackedSequence._fields, clones(pack(lengths)), strict=True))
    ),
    "_make": lambda lengths: rnn.PackedSequence._make(clones(pack(lengths))),
    "_replace of all": lambda lengths: pack(lengths)._replace(
        **dict(zip(rnn.PackedSequence._fields, clones(pack(lengths)), strict=True))
    ),
    "deepcopy": lambda lengths: copy.deepcopy(pack(lengths)),
    **{
        f"pickle by protocol {protocol}": lambda lengths, protocol=protocol: pickle.loads(
            pickle.dumps(pack(lengths), protocol)
        )
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)
    },
    "torch.load": lambda lengths: saved(pack(lengths)),
    "subclass": lambda lengths: Subclass(*clones(pack(lengths))),
    "pack_padded_sequence of a subclass": lambda lengths: Subclass._make(pack_padded(lengths)),
}

# The data is new, the other members are those of the source.
CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "double": lambda source: source.double(),
    "to": lambda source: source.to(torch.float16),
    "to by name": lambda source: source.to(dtype=torch.float64, device="cpu"),
    "cpu": lambda source: source.cpu(dtype=torch.float64),
    "long": lambda source: source.long(),
    "_replace": lambda source: source._replace(data=source.data + 1),
    "constructor": lambda source: rnn.PackedSequence(source.data * 2, *source[1:]),
    "RNN": lambda source: torch.nn.RNN(3, 2)(source)[0],
    "GRU": lambda source: torch.nn.GRU(3, 2)(source)[0],
    "LSTM": lambda source: torch.nn.LSTM(3, 2)(source)[0],
    "deep LSTM": lambda source: torch.nn.LSTM(3, 2, num_layers=3, bidirectional=True)(source)[0],
    "LSTM with projections": lambda source: torch.nn.LSTM(3, 4, proj_size=2)(source)[0],
    "LSTM without a graph": lambda source: torch.no_grad()(torch.nn.LSTM(3, 2))(source)[0],
}

# All members are those of the source.
SAME: dict[str, Callable[[Any], Any]] = {
    "to": lambda source: source.to(torch.float32),
    "to by name": lambda source: source.to(device="cpu"),
    "cpu": lambda source: source.cpu(),
    "float": lambda source: source.float(),
    "copy": copy.copy,
    "constructor": lambda source: rnn.PackedSequence(*source),
    "_replace": lambda source: source._replace(),
}

lengths_given = pytest.mark.parametrize("lengths", [UNSORTED, SORTED], ids=["unsorted", "sorted"])
made_anyhow = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
converted_anyhow = pytest.mark.parametrize("convert", CONVERSIONS.values(), ids=CONVERSIONS)


def same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and len(one) == len(other) and all(map(operator.is_, one, other))


@contextlib.contextmanager
def helper() -> Iterator[Callable[[Callable[[], object]], object]]:
    """Yield a function that runs what it is given on one other thread, in the scope of this one."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda work: pool.submit(contextvars.copy_context().run, work).result()


def run_on_a_thread(work: Callable[[], object]) -> None:
    with helper() as run:
        run(work)


def members_of(packed: Any) -> list[Any]:
    return [member for member in packed if member is not None]


def nbytes_of(*packs: Any) -> int:
    storages = [member.untyped_storage() for packed in packs for member in members_of(packed)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


class TestHoweverItWasMade:
    @made_anyhow
    @lengths_given
    def test_it_counts_once(self, make: Any, lengths: Any) -> None:
        with ds.dispose_scope() as scope:
            ds.reset_statistics()
            packed = make(lengths)
            now = ds.statistics()
            assert len(scope) == now.live == now.created_in_scope - now.disposed_in_scope == 1
            assert scope.nbytes == now.live_nbytes == nbytes_of(packed)
            [listed] = scope.live
            assert same(listed, packed)
            del listed
            assert {ds.owner_of(resource) for resource in (packed, *members_of(packed))} == {scope}
            assert all(resource in scope for resource in (packed, *members_of(packed)))
        assert all(map(ds.is_disposed, (packed, *members_of(packed))))
        for member in members_of(packed):
            with pytest.raises(ds.DisposedError):
                member.sum()
        now = ds.statistics()
        assert now.created_in_scope == now.disposed_in_scope
        assert (now.live, now.moved, now.detached) == (0, 0, 0)

    @made_anyhow
    @lengths_given
    def test_a_verb_on_a_member_acts_on_the_whole(self, make: Any, lengths: Any) -> None:
        for place in range(len(members_of(make(lengths)))):
            with ds.dispose_scope("outer") as outer, ds.dispose_scope() as scope:
                packed = make(lengths)
                member = members_of(packed)[place]
                ds.reset_statistics()
                scope.move_to_outer(member)
                assert (len(scope), len(outer), ds.statistics().moved) == (0, 1, 1)
                assert {ds.owner_of(resource) for resource in (packed, *members_of(packed))} == {outer}
                outer.detach(member)
                assert {ds.owner_of(resource) for resource in (packed, *members_of(packed))} == {None}
                scope.attach(member)
                now = ds.statistics()
                assert (len(scope), len(outer), now.detached, now.attached, now.live) == (1, 0, 1, 1, 1)
                scope.dispose_everything_but(member)
                assert not ds.is_disposed(packed)
                ds.dispose(member)
                assert all(map(ds.is_disposed, (packed, *members_of(packed))))
                assert (len(scope), ds.statistics().disposed_in_scope) == (0, 1)
                for call in (torch.nn.GRU(3, 2), rnn.pad_packed_sequence, ds.unpack_sequence):
                    with pytest.raises(ds.DisposedError):
                        call(packed)

    @made_anyhow
    def test_in_a_strict_scope_a_member_is_refused(self, make: Any) -> None:
        with ds.dispose_scope("outer") as outer, ds.dispose_scope(strict=True) as scope:
            packed = make(UNSORTED)
            for member in members_of(packed):
                for verb in (scope.move_to_outer, scope.detach, scope.attach):
                    with pytest.raises(ds.NotOwnedError, match=r"name the torch.*PackedSequence itself"):
                        verb(member)
            assert len(scope) == 1
            scope.move_to_outer(packed)
            assert (len(scope), len(outer)) == (0, 1)

    @made_anyhow
    @lengths_given
    def test_made_outside_of_scopes_it_is_one_as_soon_as_a_verb_meets_it(self, make: Any, lengths: Any) -> None:
        packed = make(lengths)
        assert ds.statistics().live == 0
        with ds.dispose_scope() as scope:
            assert ds.owner_of(packed) is None
            assert len(scope) == 0
            scope.attach(packed)
            assert (len(scope), ds.statistics().attached) == (1, 1)
        assert all(map(ds.is_disposed, (packed, *members_of(packed))))
        packed = make(lengths)
        ds.dispose([packed])
        assert all(map(ds.is_disposed, (packed, *members_of(packed))))

    @made_anyhow
    def test_the_scope_of_an_exception_disposes_it(self, make: Any) -> None:
        kept: list[Any] = []
        with pytest.raises(KeyError), ds.dispose_scope("outer") as outer:
            with ds.dispose_scope():
                kept.append(make(UNSORTED))
                kept.append(ds.move_to_outer(make(UNSORTED)))
                raise KeyError
        assert outer.closed
        assert all(ds.is_disposed(member) for packed in kept for member in members_of(packed))

    # PyTorch's own picklers are classes of their own, which are garbage.
    @pytest.mark.parametrize("make", [MAKERS[name] for name in MAKERS if not name.startswith(("pickle", "torch"))])
    @lengths_given
    def test_it_leaves_nothing_behind_and_no_garbage(self, make: Any, lengths: Any) -> None:
        make(lengths)
        with ds.dispose_scope() as scope, no_cyclic_garbage():
            known = len(LIVE), len(DEAD), len(SHARED)
            for _ in range(3):
                make(lengths)
                ds.dispose(make(lengths))
                with ds.dispose_scope():
                    packed = make(lengths)
                del packed
            assert (len(LIVE), len(DEAD), len(SHARED), len(scope)) == (*known, 0)

    @made_anyhow
    def test_a_member_that_outlives_it_is_the_scopes_own(self, make: Any) -> None:
        for place in range(len(members_of(make(UNSORTED)))):
            with ds.dispose_scope() as scope:
                ds.reset_statistics()
                packed = make(UNSORTED)
                member = members_of(packed)[place]
                del packed
                assert ds.owner_of(member) is scope
                assert len(scope) == 1
                assert scope.live[0] is member
                now = ds.statistics()
                assert now.live == now.created_in_scope - now.disposed_in_scope == 1
            assert ds.is_disposed(member)

    @pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
    def test_in_a_function_of_torch_jit_it_is_a_plain_named_tuple(self) -> None:
        @torch.jit.script
        def scripted(padded: torch.Tensor, lengths: torch.Tensor) -> rnn.PackedSequence:
            return rnn.pack_padded_sequence(padded, lengths, enforce_sorted=False)

        with ds.dispose_scope("outer") as outer:
            with ds.dispose_scope() as scope:
                packed = scope.attach(scripted(torch.ones(4, 3, 3), torch.tensor(UNSORTED)))
                scope.move_to_outer(packed)
                assert not isinstance(packed, rnn.PackedSequence)
            assert len(outer) == 4
            whole = rnn.PackedSequence(*packed)
            assert len(outer) == 1
            assert rnn.unpack_sequence(whole)[1].shape == (4, 3)
        assert all(map(ds.is_disposed, packed))


LENGTHS = torch.tensor([2, 4], dtype=torch.int32)
# Of sequences, a padded batch and a packed one.
BIRTHS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "pack_sequence": lambda sequences, padded, packed: rnn.pack_sequence(sequences, enforce_sorted=False),
    "pack_sequence, sorted": lambda sequences, padded, packed: rnn.pack_sequence(sequences[::-1]),
    "ds.pack_sequence": lambda sequences, padded, packed: ds.pack_sequence(sequences, enforce_sorted=False),
    "pack_padded_sequence": lambda sequences, padded, packed: rnn.pack_padded_sequence(
        padded, LENGTHS, enforce_sorted=False
    ),
    "pack_padded_sequence, lengths in a list": lambda sequences, padded, packed: rnn.pack_padded_sequence(
        padded, [2, 4], enforce_sorted=False
    ),
    "constructor": lambda sequences, padded, packed: rnn.PackedSequence(*clones(packed)),
    "constructor, without the inverse": lambda sequences, padded, packed: rnn.PackedSequence(*clones(packed[:3])),
    "to": lambda sequences, padded, packed: packed.to(torch.float64),
    "half": lambda sequences, padded, packed: packed.half(),
    "_replace": lambda sequences, padded, packed: packed._replace(data=packed.data * 2),
    "deepcopy": lambda sequences, padded, packed: copy.deepcopy(packed),
    "pickle": lambda sequences, padded, packed: pickle.loads(pickle.dumps(packed)),
}


class TestOneBirth:
    """Whatever was seen of its members first."""

    @pytest.fixture
    def given(self) -> tuple[Any, ...]:
        return sequences(), torch.ones(4, 2, 3), pack(UNSORTED)

    @pytest.fixture(autouse=True)
    def begun(self, given: Any) -> None:
        ds.reset_statistics()

    @staticmethod
    def counted(process: bool = False) -> tuple[int, int, int]:
        now = ds.statistics(process=process)
        return now.created_in_scope + now.created_unscoped, now.disposed_in_scope + now.disposed_unscoped, now.live

    @pytest.mark.parametrize("detected", [False, True], ids=["alone", "detector"])
    @pytest.mark.parametrize("make", BIRTHS.values(), ids=BIRTHS)
    def test_is_counted_and_no_disposal(self, make: Any, detected: bool, given: Any) -> None:
        with ds.LeakDetector() if detected else contextlib.nullcontext(), ds.dispose_scope() as scope:
            packed = make(*given)
            assert self.counted() == (1, 0, 1)
            assert len(scope) == 1
            del packed
            assert self.counted() == (1, 1, 0)

    def test_of_a_member_that_outlives_it(self, given: Any) -> None:
        with ds.dispose_scope():
            sizes = rnn.pack_sequence(given[0], enforce_sorted=False).batch_sizes
            # The composite's life, which is over, and the member's own.
            assert self.counted() == (2, 1, 1)
            del sizes
            assert self.counted() == (2, 2, 0)

    def test_of_an_rnn_is_one_more_than_that_of_its_tensors(self, given: Any) -> None:
        with torch.no_grad(), ds.dispose_scope() as scope:
            result, hidden = torch.nn.GRU(3, 2)(given[2])
            created, disposed, live = self.counted()
            assert created - disposed == live == len(scope) == 2
            assert [type(each) for each in (result, hidden)] == [rnn.PackedSequence, torch.Tensor]

    def test_on_another_thread_counts_there(self, given: Any) -> None:
        before = self.counted(process=True)
        made: list[Any] = []

        def work() -> None:
            ds.reset_statistics()
            made.append(rnn.pack_sequence(given[0], enforce_sorted=False))
            made.append(self.counted())

        with ds.dispose_scope():
            run_on_a_thread(work)
            assert made[1] == (1, 0, 1)
            assert self.counted() == (0, 0, 0)
            now = self.counted(process=True)
            assert [one - other for one, other in zip(now, before, strict=True)] == [1, 0, 1]

    @pytest.mark.parametrize("ended", [False, True], ids=["running", "ended"])
    def test_around_the_tensors_of_another_thread_counts_here(self, ended: bool, given: Any) -> None:
        before = self.counted(process=True)
        made: list[Any] = []
        with ds.dispose_scope():
            with helper() as run:
                run(lambda: made.extend(clones(given[2])))
                if not ended:
                    packed = rnn.PackedSequence(*made)
            if ended:
                packed = rnn.PackedSequence(*made)
            assert self.counted() == (1, 0, 1)
            now = self.counted(process=True)
            assert [one - other for one, other in zip(now, before, strict=True)] == [1, 0, 1]
            assert not ds.is_disposed(packed)

    def test_after_a_reset_of_the_process_nothing_of_an_ended_thread_is_taken_back(self, given: Any) -> None:
        made: list[Any] = []
        with ds.dispose_scope():
            run_on_a_thread(lambda: made.extend(clones(given[2])))
            ds.reset_statistics(process=True)
            packed = rnn.PackedSequence(*made)
            assert self.counted(process=True)[:2] == (1, 0)
            assert not ds.is_disposed(packed)

    def test_is_heard_of_once(self, given: Any) -> None:
        with ds.dispose_scope(), recorded() as recorder:
            packed = rnn.pack_sequence(given[0], enforce_sorted=False)
            made = torch.ones(3)
            torch.ones(2)
            births = [event[1] for event in recorder.events if event[0] == "born"]
            assert births == ["torch.nn.utils.rnn.PackedSequence", "torch.Tensor"]
            assert not ds.is_disposed([packed, made][0])

    def test_is_one_record_of_a_detector(self, given: Any) -> None:
        with ds.LeakDetector() as detector, ds.dispose_scope():
            packed = rnn.pack_sequence(given[0], enforce_sorted=False)
            [record] = detector.take_snapshot()
            assert record.kind == "torch.nn.utils.rnn.PackedSequence"
            assert record.nbytes == nbytes_of(packed)

    def test_that_fails_leaves_what_was_made_to_the_scope(self, given: Any) -> None:
        with ds.dispose_scope() as scope:
            with pytest.raises(RuntimeError, match="sorted") as caught:
                rnn.pack_sequence(given[0])
            created, disposed, live = self.counted()
            assert created - disposed == live == len(scope) == 2
            held = scope.live
        assert all(map(ds.is_disposed, held))
        assert self.counted() == (created, created, 0)
        del caught

    @pytest.mark.parametrize("reset", [False, True])
    def test_what_is_kept_of_the_way_counts_when_somebody_counts(
        self, reset: bool, given: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kept = self.keep_padded(monkeypatch)
        with ds.dispose_scope() as outer, ds.dispose_scope() as scope:
            packed = rnn.pack_sequence(given[0], enforce_sorted=False)
            if reset:
                ds.reset_statistics()
            assert self.counted() == ((0, 0, 2) if reset else (2, 0, 2))
            scope.move_to_outer(kept)
            assert len(scope) == len(outer) == 1
            kept.clear()
            assert self.counted() == ((0, 1, 1) if reset else (2, 1, 1))
            assert not ds.is_disposed(packed)

    @pytest.mark.parametrize("verb", ["move_to_outer", "keep", "dispose"])
    def test_what_is_kept_of_the_way_counts_as_it_leaves_its_scope(
        self, verb: str, given: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kept = self.keep_padded(monkeypatch)
        with ds.dispose_scope(), ds.dispose_scope():
            rnn.pack_sequence(given[0], enforce_sorted=False)
            getattr(ds, verb)(kept)
            kept.clear()
            assert self.counted() == (2, 2, 0)

    @staticmethod
    def keep_padded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        kept: list[Any] = []
        pack = rnn._VF._pack_padded_sequence

        def keeping(padded: Any, *options: Any) -> Any:
            kept.append(padded)
            return pack(padded, *options)

        monkeypatch.setattr(rnn._VF, "_pack_padded_sequence", keeping, raising=False)
        return kept

    def test_what_the_user_calls_himself_counts_as_ever(self, given: Any) -> None:
        order = torch.tensor([1, 0])
        with ds.dispose_scope() as scope:
            padded = rnn.pad_sequence(given[0])
            assert self.counted() == (1, 0, 1)
            inverse = rnn.invert_permutation(order)
            created, disposed, live = self.counted()
            assert created - disposed == live == len(scope) == 2
            assert [padded in scope, inverse in scope] == [True, True]


class TestSharedMembers:
    @converted_anyhow
    @pytest.mark.parametrize("first", ["source", "conversion"])
    def test_a_conversion_is_one_resource_and_the_last_of_the_two_takes_what_they_share(
        self, convert: Any, first: str
    ) -> None:
        with ds.dispose_scope() as scope:
            ds.reset_statistics()
            source = pack(UNSORTED)
            conversion = convert(source)
            packs = [each for each in scope.live if type(each) is rnn.PackedSequence]
            assert [same(each, other) for each, other in zip(packs, (source, conversion), strict=True)] == [True, True]
            assert all(any(each is other for other in source[1:]) for each in conversion[1:])
            assert scope.nbytes >= nbytes_of(source, conversion)
            assert {ds.owner_of(resource) for resource in (*source, *conversion)} == {scope}
            now = ds.statistics()
            assert now.live == now.created_in_scope - now.disposed_in_scope == len(scope)
            del packs
            gone, left = (source, conversion) if first == "source" else (conversion, source)
            ds.dispose(gone.data)
            assert ds.is_disposed(gone)
            assert not any(map(ds.is_disposed, (left, *left)))
            assert len(rnn.unpack_sequence(left)) == 3
            ds.dispose(left.batch_sizes)
            assert all(map(ds.is_disposed, (left, *left)))

    @converted_anyhow
    def test_a_conversion_in_an_inner_scope_leaves_the_source_usable(self, convert: Any) -> None:
        with ds.dispose_scope("outer") as outer:
            source = pack(UNSORTED)
            with ds.dispose_scope() as scope:
                conversion = convert(source)
                assert ds.owner_of(conversion) is ds.owner_of(conversion.data) is scope
                assert ds.owner_of(source) is ds.owner_of(source.batch_sizes) is outer
                assert len(outer) == 1
            assert ds.is_disposed(conversion)
            assert not any(map(ds.is_disposed, (source, *source)))
            assert len(rnn.unpack_sequence(source)) == 3
            assert same(outer.live[0], source)

    @converted_anyhow
    def test_a_conversion_of_what_no_scope_owns_takes_nothing_of_it(self, convert: Any) -> None:
        source = pack(UNSORTED)
        with ds.dispose_scope() as scope:
            conversion = convert(source)
            assert ds.owner_of(conversion) is scope
            assert len([each for each in scope.live if type(each) is rnn.PackedSequence]) == 1
        assert ds.is_disposed(conversion)
        assert len(rnn.unpack_sequence(source)) == 3

    @converted_anyhow
    def test_a_conversion_that_was_moved_out_outlives_the_scope_of_its_source(self, convert: Any) -> None:
        with ds.dispose_scope("outer") as outer:
            with ds.dispose_scope() as scope:
                source = pack(UNSORTED)
                conversion = scope.move_to_outer(convert(source))
            assert ds.is_disposed(source)
            assert len(outer) == 1
            assert same(outer.live[0], conversion)
            assert len(rnn.unpack_sequence(conversion)) == 3
        assert all(map(ds.is_disposed, conversion))

    @converted_anyhow
    def test_many_conversions_of_one_leave_nothing_behind(self, convert: Any) -> None:
        with ds.dispose_scope() as scope:
            source = pack(UNSORTED)
            convert(source)
            gc.collect()
            known = len(LIVE), len(scope)
            for _ in range(600):
                convert(source)
            gc.collect()
            assert (len(LIVE), len(scope)) == known
            assert not SHARED

    @pytest.mark.parametrize("make", SAME.values(), ids=SAME)
    def test_around_the_same_members_it_is_the_same_resource(self, make: Any) -> None:
        with ds.dispose_scope() as scope:
            source = pack(UNSORTED)
            again = make(source)
            assert same(again, source)
            assert len(scope) == 1
            del source
            assert same(scope.live[0], again)
            ds.dispose(again.sorted_indices)
            assert all(map(ds.is_disposed, again))

    @pytest.mark.parametrize("left", ["first", "second"])
    def test_of_two_around_one_data_either_may_go(self, left: str) -> None:
        with ds.dispose_scope() as scope:
            ds.reset_statistics()
            first = pack(UNSORTED)
            second = first._replace(batch_sizes=first.batch_sizes.clone())
            assert len(scope) == 1
            assert same(scope.live[0], first)
            packed = first if left == "first" else second
            del first, second
            assert len(scope) == 1
            assert same(scope.live[0], packed)
            assert scope.nbytes == nbytes_of(packed)
            now = ds.statistics()
            assert now.live == now.created_in_scope - now.disposed_in_scope == 1
            ds.dispose(packed.data)
            assert all(map(ds.is_disposed, packed))

    def test_the_one_without_indices_may_stay(self) -> None:
        with ds.dispose_scope() as scope:
            first = pack(UNSORTED)
            second = rnn.PackedSequence(first.data, first.batch_sizes)
            del first
            assert same(scope.live[0], second)
            assert len(scope) == 1
            ds.dispose(second.batch_sizes)
            assert ds.is_disposed(second.data)

    def test_many_around_one_data_are_not_remembered(self) -> None:
        with ds.dispose_scope() as scope:
            packed = pack(UNSORTED)
            known = len(LIVE)
            for _ in range(100):
                packed = packed._replace(batch_sizes=packed.batch_sizes.clone())
            assert same(scope.live[0], packed)
            assert len(scope) == 1
            assert len(LIVE) == known

    def test_around_the_batch_sizes_of_another_it_shares_them(self) -> None:
        with ds.dispose_scope() as scope:
            packed = pack(SORTED)
            lengths = rnn.PackedSequence(packed.batch_sizes, packed.batch_sizes.clone())
            assert len(scope) == 2
            ds.dispose(packed)
            assert lengths.data.tolist() == [3, 3, 2, 1]
            ds.dispose(lengths)
            assert ds.is_disposed(packed.batch_sizes)


class TestWhereItIsMade:
    def test_of_what_another_scope_owns_it_is_that_scopes(self) -> None:
        with ds.dispose_scope("outer") as outer:
            given = clones(pack(UNSORTED))
            with ds.dispose_scope() as scope:
                packed = rnn.PackedSequence(*given)
                assert (len(scope), len(outer)) == (0, 1)
            assert rnn.unpack_sequence(packed)[1].shape == (4, 3)
            assert same(outer.live[0], packed)

    def test_of_what_was_detached_it_is_unowned(self) -> None:
        with ds.dispose_scope() as scope:
            given = scope.detach(clones(pack(UNSORTED)))
            packed = rnn.PackedSequence(*given)
            assert ds.owner_of(packed) is None
            assert len(scope) == 0
            assert ds.statistics().live == 1
        assert not any(map(ds.is_disposed, packed))
        ds.dispose(packed.batch_sizes)
        assert all(map(ds.is_disposed, packed))

    def test_of_what_was_disposed_it_is_refused(self) -> None:
        with ds.dispose_scope():
            packed = pack(UNSORTED)
            ds.dispose(packed)
            with pytest.raises(ds.DisposedError):
                rnn.PackedSequence(torch.ones(9, 3), *packed[1:])
            with pytest.raises(ds.DisposedError):
                packed._replace(data=torch.ones(9, 3))

    def test_of_two_devices_it_is_refused(self) -> None:
        with ds.dispose_scope() as scope:
            packed = pack(UNSORTED)
            with pytest.raises(ds.DeviceMismatchError, match="data is on meta:0, sorted_indices is on cpu:0"):
                packed._replace(data=packed.data.to("meta"))
            assert len(scope) == 1

    def test_what_no_packed_sequence_can_be_of_is_let_through(self) -> None:
        with ds.dispose_scope() as scope:
            data = torch.ones(3)
            made = rnn.PackedSequence._make([data, [2, 1], None, None])
            assert made.batch_sizes == [2, 1]
            assert scope.live == (data,)
            assert rnn.PackedSequence._make([1, 2, 3, 4]) == (1, 2, 3, 4)

    def test_after_a_reset_only_what_was_made_since_is_counted(self) -> None:
        with ds.dispose_scope():
            given = clones(pack(UNSORTED))
            ds.reset_statistics()
            packed = rnn.PackedSequence(*given)
            assert (ds.statistics().created_in_scope, ds.statistics().live) == (1, 1)
            del packed, given
            assert (ds.statistics().disposed_in_scope, ds.statistics().live) == (1, 0)

    def test_on_another_thread_it_is_unowned_unless_the_scope_came_along(self) -> None:
        made: list[Any] = []
        with ds.dispose_scope() as scope:
            for run in (lambda work: work(), contextvars.copy_context().run):
                thread = threading.Thread(target=run, args=(lambda: made.append(pack(UNSORTED)),))
                thread.start()
                thread.join()
            assert len(scope) == 1
            assert same(scope.live[0], made[1])
        assert [ds.is_disposed(packed) for packed in made] == [False, True]
        assert all(map(ds.is_disposed, made[1]))

    def test_threads_that_share_members_release_each_once(self) -> None:
        failures: list[BaseException] = []
        with ds.dispose_scope("outer") as outer:
            source = pack(UNSORTED)
            start = threading.Barrier(4)

            def work() -> None:
                try:
                    start.wait()
                    for _ in range(100):
                        with ds.dispose_scope():
                            conversion = source.double()
                            again = rnn.PackedSequence(*conversion)
                        assert ds.is_disposed(again)
                except BaseException as error:
                    failures.append(error)

            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert failures == []
            assert len(outer) == 1
            assert not any(map(ds.is_disposed, source))

    def test_in_a_generator_it_is_the_generators(self) -> None:
        def packs() -> Any:
            with ds.dispose_scope():
                while True:
                    yield pack(UNSORTED)

        with ds.dispose_scope() as scope:
            suspended = packs()
            given = next(suspended)
            own = pack(UNSORTED)
            assert len(scope) == 1
            assert same(scope.live[0], own)
            suspended.close()
            assert ds.is_disposed(given)
            assert not ds.is_disposed(own)

    def test_of_two_tasks_each_has_its_own(self) -> None:
        async def task(barrier: asyncio.Barrier) -> Any:
            with ds.dispose_scope() as scope:
                packed = pack(UNSORTED)
                await barrier.wait()
                conversion = packed.double()
                await barrier.wait()
                assert len(scope) == 2
                await barrier.wait()
            return packed, conversion

        async def both() -> Any:
            barrier = asyncio.Barrier(2)
            return await asyncio.gather(task(barrier), task(barrier))

        for packs in asyncio.run(both()):
            assert all(map(ds.is_disposed, packs))

    def test_what_a_function_returns_is_moved_out_whole(self) -> None:
        @ds.dispose_scope()
        def forward(lengths: Any) -> Any:
            packed = pack(lengths)
            return {"outputs": [torch.nn.GRU(3, 2)(packed)[0]], "inputs": (packed, packed.double())}

        with ds.dispose_scope() as scope:
            made = forward(UNSORTED)
            assert len(scope) == 3
            assert all(type(each) is rnn.PackedSequence for each in scope.live)
        assert ds.is_disposed(made["outputs"][0])

    def test_compiled_code_gives_one(self) -> None:
        def function(packed: Any) -> Any:
            return rnn.PackedSequence(packed.data * 2, *packed[1:])

        source = pack(UNSORTED)
        compiled = torch.compile(function, backend="eager", fullgraph=True)
        try:
            compiled(source)
        except torch._dynamo.exc.Unsupported as error:
            pytest.skip(f"this PyTorch compiles no function that makes one: {str(error).splitlines()[0]}")
        assert torch.equal(compiled(source).data, function(source).data)
        with ds.dispose_scope() as scope:
            packed = compiled(source)
            assert len(scope) == 1
            assert ds.owner_of(packed) is scope
            # Where a scope is not given what compiled code returns, it has what that code made:
            # the data.
            if guard_fails("_maybe_set_eval_frame"):
                assert scope.live[0] is packed.data
            else:
                assert same(scope.live[0], packed)
        assert ds.is_disposed(packed)

    def test_of_a_budget_it_takes_what_its_members_take(self) -> None:
        with ds.dispose_scope(budget="100KiB") as scope:
            for _ in range(20):
                pack(UNSORTED)
            packed = rnn.pack_sequence([torch.ones(1000)] * 10)
            with pytest.raises(MemoryError):
                packed.to(torch.float64).data.repeat(2)
            assert len([each for each in scope.live if type(each) is rnn.PackedSequence]) == 1

    def test_under_a_function_mode_of_the_users_it_is_one(self) -> None:
        class Mode(torch.overrides.TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                return func(*args, **(kwargs or {}))

        with ds.dispose_scope() as scope, Mode():
            packed = pack(UNSORTED)
            assert same(scope.live[0], packed)
            assert len(scope) == 1

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="memory is pinned for CUDA")
    def test_pinned_it_is_one(self) -> None:
        with ds.dispose_scope() as scope:
            packed = pack(UNSORTED)
            pinned = packed.pin_memory()
            assert len(scope) == 2
            assert same(scope.live[1], pinned)


class TestWhatAModelKeeps:
    @pytest.mark.parametrize("made", [ds.pack_sequence, rnn.pack_sequence])
    def test_a_buffer_leaves_it_and_stays(self, made: Any) -> None:
        module = torch.nn.Module()
        with ds.dispose_scope() as scope:
            packed = pack(UNSORTED, made)
            output = torch.nn.GRU(3, 2)(packed)[0]
            module.register_buffer("sizes", packed.batch_sizes)
            assert packed in scope
            assert ds.owner_of(packed.batch_sizes) is None
        assert module.sizes.tolist() == [3, 3, 2, 1]
        assert all(map(ds.is_disposed, (packed.data, packed.sorted_indices, output.data)))

    def test_a_gradient_leaves_it_and_stays(self) -> None:
        weight = torch.nn.Parameter(torch.zeros(9, 3))
        with ds.dispose_scope():
            packed = pack(UNSORTED)
            weight.grad = packed.data
            del packed
        assert weight.grad.sum() == 27

    def test_a_copy_of_a_module_keeps_its_own(self) -> None:
        module = torch.nn.Module()
        module.packed = pack(UNSORTED)
        with ds.dispose_scope() as scope:
            copied = copy.deepcopy(module)
            assert len(scope) == 0
        assert not any(map(ds.is_disposed, copied.packed))


def test_a_leak_report_has_it_once_whatever_made_it() -> None:
    with ds.LeakDetector() as detector:
        with ds.dispose_scope("step") as scope:
            HELD.append(scope.move_to_outer(rnn.pack_sequence(sequences(), enforce_sorted=False)))
            HELD.append(scope.move_to_outer(HELD[0].double()))
        report = detector.report()
        assert [record.kind for group in report.leaks for record in group.records] == [
            "torch.nn.utils.rnn.PackedSequence"
        ] * 2
        HELD.clear()


@pytest.mark.parametrize("pack", [ds.pack_sequence, rnn.pack_sequence])
def test_it_moves_and_dies_as_one_whoever_made_it(pack: Any) -> None:
    with ds.dispose_scope("outer") as outer:
        with ds.dispose_scope() as scope:
            packed = pack(sequences(), enforce_sorted=False)
            assert packed in scope
            assert ds.owner_of(packed) is scope
            assert scope.move_to_outer(packed) is packed
            assert len(scope) == 0
        assert len(outer) == 1
        assert outer.live == (packed,)
        assert type(outer.live[0]) is rnn.PackedSequence
        assert not ds.is_disposed(packed)
    assert ds.is_disposed(packed)
    assert all(map(ds.is_disposed, packed))


def test_what_we_make_counts_once() -> None:
    with ds.dispose_scope() as scope:
        given = sequences()
        ds.reset_statistics()
        packed = ds.pack_sequence(given, enforce_sorted=False)
        assert ds.statistics().created_in_scope == 1
        assert len(scope) == 3
        assert ds.statistics().live == 3
        scope.dispose_everything()
        assert ds.statistics().disposed_in_scope == 3
    with pytest.raises(ds.DisposedError):
        packed.data.sum()


def test_a_member_stands_for_it() -> None:
    with ds.dispose_scope("outer") as outer:
        with ds.dispose_scope() as scope:
            packed = ds.pack_sequence(sequences(), enforce_sorted=False)
            scope.move_to_outer(packed.batch_sizes)
        assert ds.owner_of(packed.data) is outer
        ds.dispose(packed.sorted_indices)
        assert all(map(ds.is_disposed, packed))


def test_any_tuple_around_the_same_data_is_the_same_resource() -> None:
    with ds.dispose_scope() as scope:
        packed = ds.pack_sequence(sequences(), enforce_sorted=False)
        again = rnn.PackedSequence(*packed)
        assert again in scope
        del packed
        gc.collect()
        ds.dispose(again)
        assert ds.is_disposed(again)
        assert len(scope) == 0


@pytest.mark.parametrize("first", ["source", "conversion"])
def test_a_conversion_shares_members_and_the_last_one_takes_them_along(first: str) -> None:
    with ds.dispose_scope():
        source = ds.pack_sequence(sequences(), enforce_sorted=False)
        conversion = ds.attach(source.double())
        assert source.to(torch.float32) is source
        assert conversion.batch_sizes is source.batch_sizes
        gone, left = (source, conversion) if first == "source" else (conversion, source)
        ds.dispose(gone)
        assert ds.is_disposed(gone)
        assert not any(map(ds.is_disposed, left))
        assert len(ds.unpack_sequence(left)) == 2
        ds.dispose(left)
        assert all(map(ds.is_disposed, left))


def test_a_conversion_that_was_moved_out_outlives_its_source() -> None:
    with ds.dispose_scope("outer") as outer:
        with ds.dispose_scope() as scope:
            source = ds.pack_sequence(sequences(), enforce_sorted=False)
            hidden, _ = torch.nn.GRU(3, 2)(source)
            kept = scope.move_to_outer([source.double(), hidden])
        assert ds.is_disposed(source)
        assert len(outer) == 2
        for packed in kept:
            assert ds.unpack_sequence(packed)[1].shape[0] == 4
    assert all(ds.is_disposed(member) for packed in kept for member in packed)


def test_it_dies_by_reference_count_and_what_outlives_it_stays_owned() -> None:
    with ds.dispose_scope() as scope:
        packed = ds.pack_sequence(sequences(), enforce_sorted=False)
        data = packed.data
        del packed
        assert ds.owner_of(data) is scope
        assert len(scope) == 1
        packed = ds.pack_sequence(sequences(), enforce_sorted=False)
        ds.reset_statistics()
        del packed
        assert ds.statistics().disposed_in_scope == 1
        assert len(scope) == 1
    assert ds.is_disposed(data)


def test_what_a_scope_does_not_own_of_it_is_left_where_it_is() -> None:
    data = torch.ones(3)
    with ds.dispose_scope("outer") as outer:
        with ds.dispose_scope() as scope:
            packed = rnn.PackedSequence(data, torch.tensor([2, 1]))
            scope.move_to_outer(packed)
        assert packed.batch_sizes in outer
    assert data.sum() == 3
    assert ds.is_disposed(packed.batch_sizes)


def test_attach_takes_all_of_one_that_was_made_outside() -> None:
    packed = rnn.pack_sequence(sequences(), enforce_sorted=False)
    with ds.dispose_scope() as scope:
        scope.attach({"batch": packed})
        assert len(scope) == 1
        assert ds.statistics().attached == 1
    assert all(map(ds.is_disposed, packed))
    with ds.dispose_scope() as scope, pytest.raises(ds.DisposedError):
        scope.attach(packed)


def test_it_is_a_member_of_a_composite_of_the_users_own() -> None:
    class Batch:
        def __init__(self, packed: Any) -> None:
            self.packed = packed

    ds.register_kind(Batch, members=lambda batch: {"packed": batch.packed, "data": batch.packed.data})
    with ds.dispose_scope() as scope:
        batch = scope.attach(Batch(rnn.pack_sequence(sequences(), enforce_sorted=False)))
        assert batch.packed in scope
        assert ds.owner_of(batch.packed.batch_sizes) is scope
    assert all(map(ds.is_disposed, batch.packed))


def test_mixed_devices_are_refused_and_nothing_moves() -> None:
    packed = rnn.pack_sequence(sequences(), enforce_sorted=False)
    mixed = rnn.PackedSequence(packed.data.to("meta"), *packed[1:])
    with ds.dispose_scope() as scope:
        with pytest.raises(ds.DeviceMismatchError, match="data is on meta:0, sorted_indices is on cpu:0"):
            scope.attach(mixed)
        assert len(scope) == 0


def test_batch_sizes_are_on_the_cpu_and_bytes_count_where_they_are() -> None:
    with ds.dispose_scope():
        packed = ds.pack_sequence([torch.ones(length, device="meta") for length in (4, 2)])
        rows = ds.statistics().by_device
        assert rows["meta:0"].live_nbytes == 0
        assert rows["cpu:0"].live_nbytes == packed.batch_sizes.nbytes


def test_a_scope_that_detaches_graphs_detaches_its_data() -> None:
    with ds.dispose_scope("outer"):
        with ds.dispose_scope(graph="detach") as scope:
            packed = ds.pack_sequence([torch.ones(3, requires_grad=True) * 2])
            scope.move_to_outer(packed)
        assert packed.data.grad_fn is None
        assert packed.data.tolist() == [2.0] * 3


HELD: list[Any] = []


def test_a_leak_report_names_its_holder() -> None:
    with ds.LeakDetector() as detector:
        with ds.dispose_scope("step") as scope:
            HELD.append(scope.move_to_outer(ds.pack_sequence(sequences(), enforce_sorted=False)))
        [group] = detector.report().leaks
        assert [record.kind for record in group.records] == ["torch.nn.utils.rnn.PackedSequence"]
        assert group.holder.endswith(".HELD[0][0]")
        HELD.clear()


def test_what_is_packed_and_padded_counts_against_the_budget() -> None:
    given = [torch.ones(1000) for _ in range(20)]
    with ds.dispose_scope(budget="100KiB") as scope:
        packed = ds.pack_sequence(given)
        for call in (
            lambda: ds.pad_sequence(given),
            lambda: ds.unpack_sequence(packed),
            lambda: ds.pack_sequence(given),
        ):
            with pytest.raises(MemoryError):
                call()
        assert len(scope) == 1
