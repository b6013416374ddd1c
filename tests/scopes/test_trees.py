"""Promises of the walk: what it enters, what is a leaf, what it refuses; it runs nobody's code."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import functools
import gc
import logging
import operator
import pathlib
import re
import threading
import types
import typing
import weakref
from unittest import mock

import attrs
import numpy as np
import pytest

import disposescope as ds
from tests.scopes.toys import Disposable, Pair, Toy, Unknown, no_cyclic_garbage, owned_by

Point = collections.namedtuple("Point", "x y")


class Typed(typing.NamedTuple):
    x: object
    y: object = None


@dataclasses.dataclass
class Plain:
    x: object
    y: object = None


@dataclasses.dataclass(slots=True)
class Slotted:
    x: object


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: object


@dataclasses.dataclass
class Inherited(Plain):
    z: object = None


@dataclasses.dataclass(slots=True)
class InheritedSlots(Slotted):
    z: object = None


@dataclasses.dataclass
class Initialised:
    given: dataclasses.InitVar[object]
    kept: object = dataclasses.field(init=False)

    def __post_init__(self, given):
        self.kept = [given]


@attrs.define
class Defined:
    x: object


@attrs.frozen
class DefinedFrozen:
    x: object


@attrs.define(slots=False)
class DefinedOpen:
    x: object


@attrs.define
class DefinedChild(Defined):
    z: object = None


class Mapped(collections.abc.Mapping):
    def __init__(self, items):
        self._items_of_it = items

    def __getitem__(self, key):
        return self._items_of_it[key]

    def __iter__(self):
        return iter(self._items_of_it)

    def __len__(self):
        return len(self._items_of_it)


class ListWithAttributes(list):
    pass


class DictWithAttributes(dict):
    pass


class TupleWithAttributes(tuple):
    pass


class SlotsOverSlots(list):
    __slots__ = ("mine",)


def with_attribute(container, value):
    container.extra = value
    return container


def with_slot(value):
    container = SlotsOverSlots()
    container.mine = value
    return container


def cyclic(toy):
    tree = [toy]
    tree.append({"self": tree, "tuple": (tree,)})
    return tree


def deep(toy):
    tree = toy
    for level in range(5_000):
        tree = [tree] if level % 3 else {"k": tree}
    return tree


def chained(toy):
    tree = Plain(toy)
    for _ in range(5_000):
        tree = Plain(tree)
    return tree


CONTAINERS = {
    "itself": lambda toy: toy,
    "list": lambda toy: [1, toy],
    "tuple": lambda toy: (None, toy),
    "namedtuple": lambda toy: Point(1, toy),
    "NamedTuple": lambda toy: Typed(toy),
    "dict value": lambda toy: {"a": toy},
    "dict key": lambda toy: {toy: 1},
    "dict key in a tuple": lambda toy: {("a", toy): 1},
    "set": lambda toy: {1, toy},
    "frozenset": lambda toy: frozenset([toy]),
    "set in a tuple in a set": lambda toy: {(1, frozenset([toy]))},
    "deque": lambda toy: collections.deque([toy], maxlen=3),
    "OrderedDict": lambda toy: collections.OrderedDict(a=toy),
    "defaultdict": lambda toy: collections.defaultdict(list, a=[toy]),
    "Counter": lambda toy: collections.Counter({toy: 2}),
    "UserDict": lambda toy: collections.UserDict(a=toy),
    "UserList": lambda toy: collections.UserList([toy]),
    "MappingProxyType": lambda toy: types.MappingProxyType({"a": toy}),
    "ChainMap": lambda toy: collections.ChainMap({}, {"a": toy}),
    "Mapping": lambda toy: Mapped({"a": toy}),
    "WeakValueDictionary": lambda toy: weakref.WeakValueDictionary(a=toy),
    "dict keys view": lambda toy: {toy: 1}.keys(),
    "dict values view": lambda toy: {1: toy}.values(),
    "dict items view": lambda toy: {1: toy}.items(),
    "OrderedDict values view": lambda toy: collections.OrderedDict(a=toy).values(),
    "dataclass": lambda toy: Plain(1, toy),
    "slotted dataclass": lambda toy: Slotted(toy),
    "frozen dataclass": lambda toy: Frozen(toy),
    "inherited dataclass": lambda toy: Inherited(toy),
    "inherited slots": lambda toy: InheritedSlots(toy),
    "dataclass with InitVar": lambda toy: Initialised(toy),
    "attrs": lambda toy: Defined(toy),
    "frozen attrs": lambda toy: DefinedFrozen(toy),
    "attrs without slots": lambda toy: DefinedOpen(toy),
    "inherited attrs": lambda toy: DefinedChild(toy),
    "list subclass": lambda toy: ListWithAttributes([toy]),
    "attribute of a list": lambda toy: with_attribute(ListWithAttributes(), toy),
    "attribute of a dict": lambda toy: with_attribute(DictWithAttributes(), [toy]),
    "attribute of a tuple": lambda toy: with_attribute(TupleWithAttributes(), {toy}),
    "slot of a list": lambda toy: with_slot(toy),
    "extra attribute of a dataclass": lambda toy: with_attribute(Plain(1), toy),
    "SimpleNamespace": lambda toy: types.SimpleNamespace(a=toy),
    "cycle": cyclic,
    "five thousand deep": deep,
    "five thousand dataclasses": chained,
}
# The walk knows no attributes of these: they are refused, and nothing is lost.
REFUSED_BY_CHOICE = {"SimpleNamespace", "UserList"}


class TestContainers:
    @pytest.mark.parametrize("name", sorted(CONTAINERS.keys() - REFUSED_BY_CHOICE))
    def test_every_verb_finds_what_is_in_a(self, name):
        with ds.dispose_scope() as outer:
            with ds.dispose_scope() as inner:
                toy, other = Toy(1), Toy(2)
                tree = CONTAINERS[name](toy)
                assert inner.move_to_outer(tree) is tree
                assert owned_by(outer, toy)
                assert inner.attach(tree) is tree
                assert inner.detach(tree) is tree
                assert ds.owner_of(toy) is None
                assert inner.attach(tree) is tree
                assert owned_by(inner, toy, other) or owned_by(inner, other, toy)
                assert inner.dispose_everything_but(tree) is tree
                assert owned_by(inner, toy)
                assert inner.move_to(outer, tree) is tree
            assert toy.value == 1
            assert other.value is None
            ds.dispose(tree)
            assert toy.releases == 1
            ds.dispose(tree)
            assert toy.releases == 1
            if name.startswith("five"):
                unwind(tree)

    @pytest.mark.parametrize("name", sorted(REFUSED_BY_CHOICE))
    def test_what_is_no_container_of_these_is_refused_and_named(self, name):
        with ds.dispose_scope() as outer, ds.dispose_scope() as inner:
            toy = Toy(1)
            with pytest.raises(ds.UnknownKindError, match=name):
                inner.move_to_outer([CONTAINERS[name](toy)])
            assert owned_by(inner, toy)
            assert len(outer) == 0

    def test_a_resource_met_twice_is_one(self):
        with ds.dispose_scope() as outer, ds.dispose_scope() as inner:
            toy = Toy(1)
            inner.move_to_outer([toy, {"a": toy}, {toy}, (toy, [toy])])
            assert ds.statistics().moved == 1
            assert owned_by(outer, toy)

    def test_registered_kinds_inside_containers(self):
        with ds.dispose_scope() as outer, ds.dispose_scope() as inner:
            pair, thing = inner.attach([Pair(Toy(1)), Disposable()])
            inner.move_to_outer({"pair": pair, "things": [thing]})
            assert owned_by(outer, pair, thing)

    def test_a_wide_tree(self):
        with ds.dispose_scope() as outer, ds.dispose_scope() as inner:
            toys = [Toy(index) for index in range(20_000)]
            inner.move_to_outer({"all": toys})
            assert len(outer) == 20_000
            assert len(inner) == 0

    def test_leaves_no_cyclic_garbage(self):
        with no_cyclic_garbage():
            with ds.dispose_scope() as scope:
                toy = Toy(1)
                tree = [toy, {"a": (toy,)}, Plain(toy)]
                scope.move_to_outer(tree)
                scope.attach(tree)
                del tree, toy


def unwind(tree):
    """Take a deep tree apart from the outside, so that its end needs no recursion."""
    while isinstance(tree, list | dict | Plain):
        if isinstance(tree, Plain):
            inner, tree.x = tree.x, None
            tree = inner
        else:
            tree = tree.pop(0) if isinstance(tree, list) else tree.pop("k")


def closure_over(thing):
    def inner():
        return thing

    return inner


def with_default(thing):
    def inner(x=thing, *, y=None):
        return x, y

    return inner


def with_keyword_default(thing):
    def inner(*, y=thing):
        return y

    return inner


def with_function_attribute(thing):
    def inner(): ...

    inner.cache = thing
    return inner


def suspended_over(thing):
    def generator(held):
        yield 1
        yield held

    running = generator(thing)
    next(running)
    return running


def cached_over(thing):
    @functools.cache
    def cached():
        return thing

    cached()
    return cached


class Slots:
    __slots__ = ("a",)

    def __init__(self, a):
        self.a = a


class Method:
    def __init__(self, held):
        self.held = held

    def method(self): ...


HIDING = {
    "object with a dict": Unknown,
    "object with slots": Slots,
    "SimpleNamespace": lambda toy: types.SimpleNamespace(a=toy),
    "closure": closure_over,
    "default": with_default,
    "keyword default": with_keyword_default,
    "attribute of a function": with_function_attribute,
    "bound method": lambda toy: Method(toy).method,
    "partial": lambda toy: functools.partial(print, toy),
    "cache": cached_over,
    "iterator": lambda toy: iter([toy]),
    "dict iterator": lambda toy: iter({1: toy}.items()),
    "map": lambda toy: map(str, [toy]),
    "enumerate": lambda toy: enumerate([toy]),
    "generator": suspended_over,
    "cell": lambda toy: types.CellType(toy),
    "exception": lambda toy: ValueError(toy),
    "mock": lambda toy: mock.Mock(return_value=toy),
    "object in an object in a list": lambda toy: Unknown([Unknown({"a": (toy,)})]),
}


class TestUnknownTypes:
    @pytest.mark.parametrize("name", HIDING)
    def test_that_hide_a_resource_are_refused_and_nothing_changes(self, name):
        with ds.dispose_scope() as outer, ds.dispose_scope() as inner:
            before, toy, after = Toy(0), Toy(1), Toy(2)
            tree = [before, {"key": HIDING[name](toy)}, after]
            verbs = [
                inner.move_to_outer,
                inner.detach,
                inner.dispose_everything_but,
                ds.dispose,
                lambda tree: inner.move_to(outer, tree),
                outer.attach,
            ]
            for verb in verbs:
                with pytest.raises(ds.UnknownKindError, match="the tensors themselves") as caught:
                    verb(tree)
                cls = type(tree[1]["key"])
                # What advises to register a function, or a type of Python's own, is of no use.
                is_own = cls.__module__ not in ("builtins", "functools", "types")
                assert (f"register_kind({cls.__qualname__}, members=...)" in str(caught.value)) is is_own
                assert caught.value.type_name == f"{cls.__module__}.{cls.__qualname__}"
                assert caught.value.path.endswith("[1]['key']")
                assert cls.__qualname__ in str(caught.value)
                assert "Toy" in str(caught.value)
            assert owned_by(inner, before, toy, after)
            assert len(outer) == 0

    def test_at_the_root_too(self):
        with ds.dispose_scope() as scope:
            toy = Toy(1)
            with pytest.raises(ds.UnknownKindError):
                scope.move_to_outer(Unknown(toy))

    def test_that_hide_what_others_own_are_leaves_for_a_scope(self):
        unowned = Toy(0)
        with ds.dispose_scope() as outer:
            foreign = Toy(1)
            with ds.dispose_scope() as inner:
                hiding = Unknown(foreign, unowned)
                assert inner.move_to_outer(hiding) is hiding
                assert inner.detach([hiding]) == [hiding]
            assert owned_by(outer, foreign)

    def test_that_hide_a_member_of_an_owned_composite_are_refused(self):
        with ds.dispose_scope() as scope:
            toy = Toy(1)
            _pair = scope.attach(Pair(toy))
            with pytest.raises(ds.UnknownKindError):
                scope.move_to_outer(Unknown(toy))

    def test_that_hide_what_is_elsewhere_in_the_tree_lose_nothing(self):
        with ds.dispose_scope() as outer, ds.dispose_scope() as inner:
            toy, pair = Toy(1), inner.attach(Pair(Toy(2)))
            inner.move_to_outer([Unknown(toy), {"a": Unknown([pair]), "b": (pair, toy)}])
            assert owned_by(outer, toy, pair)

    def test_types_that_come_and_go_are_not_remembered(self):
        gone = []
        with ds.dispose_scope() as scope:
            for _ in range(5_000):
                cls = type("Passing", (), {})
                scope.move_to_outer([cls()])
                gone.append(weakref.ref(cls))
        del cls
        gc.collect()
        assert sum(reference() is None for reference in gone) > 500

    def test_once_registered_they_are_understood(self):
        class Batch:
            def __init__(self, x):
                self.x = x

        ds.register_kind(Batch, members=lambda batch: {"x": batch.x})
        with ds.dispose_scope() as outer, ds.dispose_scope() as inner:
            batch = inner.attach(Batch(Toy(1)))
            inner.move_to_outer([batch])
            assert owned_by(outer, batch)

    def test_the_nearest_is_found_also_in_a_large_object(self):
        class Large:
            pass

        with ds.dispose_scope() as scope:
            toy = Toy(1)
            for position in ("first", "last"):
                large = Large()
                if position == "first":
                    large.inner = Unknown(toy)
                large.table = [{"n": [str(index), [index]]} for index in range(20_000)]
                large.more = [[[index]] for index in range(20_000)]
                if position == "last":
                    large.inner = Unknown(toy)
                with pytest.raises(ds.UnknownKindError):
                    scope.move_to_outer(large)

    def test_the_search_is_bounded(self):
        class Large:
            pass

        large = Large()
        large.table = [[index] for index in range(300_000)]
        looked_at = 0

        def counting(node, original=gc.get_referents):
            nonlocal looked_at
            looked_at += 1
            return original(node)

        with mock.patch("disposescope.scopes.tree_walk.gc.get_referents", counting):
            with ds.dispose_scope() as scope:
                scope.move_to_outer(large)
        assert looked_at < 50_000


class Model:
    def __init__(self):
        self.weights = [1.0, 2.0]
        self.parent = {"self": self}


LEAVES = {
    "path": pathlib.Path("/"),
    "date": datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
    "module": operator,
    "function": closure_over,
    "builtin": len,
    "class": Unknown,
    "dataclass itself": Plain,
    "abstract class": collections.abc.Mapping,
    "pattern": re.compile("x"),
    "lock": threading.Lock(),
    "object": object(),
    "model": Model(),
    "logger": logging.getLogger("x"),
    "complex": 1j,
    "range": range(3),
    "slice": slice(1, 2),
    "bytes": b"x",
    "bytearray": bytearray(b"x"),
    "memoryview": memoryview(b"x"),
    "ellipsis": ...,
    "type alias": list[int],
    "enum": re.RegexFlag.A,
    "weakref to something": weakref.ref(Unknown),
    "mock": mock.MagicMock(),
    "generator": (x for x in [1]),
    "exception": ValueError("x"),
}


class TestLeaves:
    @pytest.mark.parametrize("name", LEAVES)
    def test_what_holds_no_resource_is_a_leaf(self, name):
        leaf = LEAVES[name]
        with ds.dispose_scope() as outer, ds.dispose_scope() as inner:
            toy = Toy(1)
            for tree in (leaf, [leaf, toy], {"leaf": leaf}):
                assert inner.move_to_outer(tree) is tree
            together = [leaf, toy]
            assert inner.attach(together) is together
            inner.move_to_outer([leaf, toy])
            assert owned_by(outer, toy)

    def test_a_functions_globals_are_not_searched(self):
        namespace = {"__name__": "elsewhere"}
        exec("def function(): ...", namespace)
        with ds.dispose_scope() as scope:
            namespace["toy"] = toy = Toy(1)
            scope.move_to_outer([namespace["function"]])
            assert toy in scope

    def test_a_weak_reference_hides_nothing(self):
        with ds.dispose_scope() as scope:
            toy = Toy(1)
            scope.move_to_outer([weakref.ref(toy)])
            assert toy in scope

    def test_an_object_that_refers_to_its_scope_hides_nothing_by_that(self):
        class Unreferable(tuple):
            __slots__ = ()

            def dispose(self):
                pass

        with ds.dispose_scope() as scope:
            scope.attach(Unreferable((1,)))
            _toy = Toy(1)
            for tree in (Unknown(scope), scope, [scope]):
                assert scope.move_to_outer(tree) is tree

    def test_an_exception_with_a_traceback_is_not_searched_through_its_frames(self):
        def failing():
            local = Toy(5)
            raise ValueError("text", local.value)

        with ds.dispose_scope() as scope:
            kept = Toy(1)
            with pytest.raises(ValueError, match="text") as caught:
                failing()
            assert scope.move_to_outer([caught.value]) == [caught.value]
            assert kept in scope

    def test_a_dead_proxy_is_a_leaf(self):
        proxy = weakref.proxy(Unknown())
        gc.collect()
        with ds.dispose_scope() as scope:
            assert scope.move_to_outer([proxy])


class Trap:
    """Whoever runs the code of this object fails the test."""

    def __init__(self, held=None):
        object.__setattr__(self, "held", held)

    def __getattribute__(self, name):
        raise AssertionError(f"read {name}")

    @property
    def tripped(self):
        raise AssertionError("ran a property")

    __getattr__ = __iter__ = __len__ = __bool__ = __hash__ = __eq__ = __repr__ = __getattribute__

    @property
    def __class__(self):
        raise AssertionError("asked for the class")


@dataclasses.dataclass(eq=False)
class Trapped:
    x: object

    @property
    def tripped(self):
        raise AssertionError("ran a property")

    def __getattr__(self, name):
        raise AssertionError(f"asked for {name}")


RAN = []
"""What ran of the code of the objects that a walk met."""


def records(name):
    def special(*_args, **_options):
        RAN.append(name)
        raise RuntimeError(f"{name} was run")

    return special


SPECIALS = (
    "__getattribute__", "__getattr__", "__setattr__", "__delattr__", "__dir__", "__iter__", "__next__", "__len__",
    "__bool__", "__hash__", "__eq__", "__repr__", "__str__", "__call__", "__contains__", "__getitem__", "__index__",
    "__reduce_ex__", "__copy__", "__enter__", "__array__", "__dlpack__",
)  # fmt: skip


class Metatrap(type):
    """The class of a class that notes whoever asks it."""

    def __getattribute__(cls, name):
        RAN.append(f"class attribute {name}")
        return super().__getattribute__(name)

    __instancecheck__ = records("__instancecheck__")
    __subclasscheck__ = records("__subclasscheck__")


def trap(kind=object, metaclass=type, **more):
    """Return a subclass of `kind` whose every property and special method raises.

    Each notes in `RAN` that it ran.
    """
    notes = {name: records(name) for name in SPECIALS}
    for name in ("prop", "data", "shape", "device", "dispose", "dtype", "members", "grad_fn", "__class__"):
        notes[name] = property(records(f"property {name}"))
    if kind is object:
        notes["__init__"] = lambda self, held=None: object.__setattr__(self, "held", held)
    return metaclass("Noting", (kind,), notes | more)


Noting = trap()
NotingEverything = trap(metaclass=Metatrap)
NotingDict = trap(dict)
NotingList = trap(list)
NotingTuple = trap(tuple)
NotingSet = trap(set, __hash__=object.__hash__)
NotingDeque = trap(collections.deque)
NotingModule = trap(types.ModuleType, __init__=types.ModuleType.__init__)
NotingArray = trap(np.ndarray)
NotingDataclass = trap(Plain)
NotingAttrs = trap(DefinedOpen)
NotingSlots = trap(Slotted)
NotingFields = trap(__slots__=("held",), __init__=lambda self, held: type(self).held.__set__(self, held))


def built(cls, *args):
    """An instance that was made by the base of a class, whose attributes nobody may set."""
    base = cls.__base__
    made = base.__new__(cls, *args) if base in (tuple, np.ndarray) else base.__new__(cls)
    if base not in (tuple, np.ndarray):
        base.__init__(made, *args)
    return made


def held_by_fields(cls, toy):
    made = object.__new__(cls)
    if "__slots__" in vars(cls.__base__) or "__slots__" in vars(cls):
        next(vars(base)["x"] for base in cls.__mro__ if "x" in vars(base)).__set__(made, toy)
    else:
        vars(Plain)["__dict__"].__get__(made).update(x=toy)
    return made


NOTING_CONTAINERS = {
    "dict": lambda toy: built(NotingDict, {"a": toy}),
    "list": lambda toy: built(NotingList, [toy]),
    "tuple": lambda toy: built(NotingTuple, (toy,)),
    "set": lambda toy: built(NotingSet, [toy]),
    "deque": lambda toy: built(NotingDeque, [toy]),
    "dataclass": lambda toy: held_by_fields(NotingDataclass, toy),
    "dataclass with slots": lambda toy: held_by_fields(NotingSlots, toy),
}
NOTING_LEAVES = {
    "object": lambda: Noting(),
    "object of a noting class": lambda: built(NotingEverything),
    "module": lambda: NotingModule("noting"),
    "array": lambda: np.ndarray.__new__(NotingArray, (3,)),
    "attrs": lambda: object.__new__(NotingAttrs),
    "dataclass": lambda: object.__new__(NotingDataclass),
}


def attach_or_refuse(scope, tree):
    with contextlib.suppress(ds.UnknownKindError):
        scope.attach(tree)


VERBS = {
    "move_to_outer": lambda scope, tree: scope.move_to_outer(tree),
    "compact": lambda scope, tree: scope.move_to_outer(tree, compact=True),
    "move_to": lambda scope, tree: scope.move_to(scope.outer, tree),
    "attach": lambda scope, tree: scope.attach(tree),
    "detach": lambda scope, tree: scope.detach(tree),
    "dispose_everything_but": lambda scope, tree: scope.dispose_everything_but(tree),
    "dispose": lambda _, tree: ds.dispose(tree),
    "tidy": lambda _, tree: ds.tidy(lambda: tree),
}


class TestNobodysCodeRuns:
    @pytest.fixture(autouse=True)
    def _nothing_ran(self):
        RAN.clear()
        yield
        assert RAN == []

    @pytest.mark.parametrize("verb", VERBS)
    @pytest.mark.parametrize("leaf", NOTING_LEAVES)
    def test_not_of_a_leaf(self, leaf, verb):
        act = attach_or_refuse if verb == "attach" else VERBS[verb]
        with ds.dispose_scope(), ds.dispose_scope() as scope:
            thing = NOTING_LEAVES[leaf]()
            RAN.clear()
            for tree in (thing, [thing], {"a": (thing,)}, Plain(thing)):
                act(scope, tree)

    @pytest.mark.parametrize("leaf", NOTING_LEAVES)
    def test_not_of_what_is_asked_for(self, leaf):
        with ds.dispose_scope() as scope:
            thing = NOTING_LEAVES[leaf]()
            RAN.clear()
            _ = thing in scope
            for ask in (ds.owner_of, ds.is_disposed):
                with contextlib.suppress(ds.UnknownKindError):
                    ask(thing)

    @pytest.mark.parametrize("verb", VERBS)
    @pytest.mark.parametrize("container", NOTING_CONTAINERS)
    def test_not_of_a_container_of_a_users_own(self, container, verb):
        with ds.dispose_scope() as outer, ds.dispose_scope() as scope:
            toy = Toy(1)
            VERBS[verb](scope, NOTING_CONTAINERS[container](toy))
            assert ds.is_disposed(toy) == (verb == "dispose")
            assert (toy in outer) == (verb in ("move_to_outer", "compact", "move_to"))

    @pytest.mark.parametrize("verb", VERBS)
    @pytest.mark.parametrize("cls", [Noting, NotingEverything])
    def test_not_of_an_object_that_hides_a_resource(self, cls, verb):
        with ds.dispose_scope() as outer, ds.dispose_scope() as scope:
            toys = [Toy(1), Toy(2)]
            thing = object.__new__(cls)
            object.__setattr__(thing, "held", toys[1])
            RAN.clear()
            refusing = contextlib.nullcontext() if verb == "tidy" else pytest.raises(ds.UnknownKindError)
            with refusing:
                VERBS[verb](scope, [toys[0], thing])
            assert owned_by(scope, *toys)
            assert len(outer) == 0
            assert [toy.value for toy in toys] == [1, 2]

    def test_not_of_an_object_of_unknown_type(self):
        with ds.dispose_scope() as scope:
            trap = Trap()
            assert scope.move_to_outer(trap) is trap
            with pytest.raises(ds.UnknownKindError):
                scope.attach([trap])
            toy = Toy(1)
            with pytest.raises(ds.UnknownKindError):
                scope.move_to_outer([Trap([toy])])
            assert trap not in scope

    def test_not_properties_of_a_dataclass(self):
        with ds.dispose_scope() as outer, ds.dispose_scope() as inner:
            toy = Toy(1)
            inner.move_to_outer(Trapped(toy))
            assert owned_by(outer, toy)

    def test_not_of_an_unknown_object_inside_an_unknown_object(self):
        with ds.dispose_scope() as scope:
            scope.move_to_outer(Unknown(Trap(), [Trap()]))

    def test_mocks_are_not_disposable_and_nothing_is_called_on_them(self):
        stub = mock.MagicMock()
        with ds.dispose_scope() as scope:
            with pytest.raises(ds.UnknownKindError):
                scope.attach([stub, mock.Mock(spec=Toy), mock.NonCallableMock()])
            scope.move_to_outer({"stub": stub})
            assert len(scope) == 0
        assert stub.mock_calls == []

    def test_an_instance_with_a_dispose_attribute_of_its_own_is_no_resource(self):
        thing = Unknown()
        thing.dispose = lambda: pytest.fail("disposed")
        with ds.dispose_scope() as scope:
            with pytest.raises(ds.UnknownKindError):
                scope.attach(thing)
            assert len(scope) == 0


class Failing(Mapped):
    def __getitem__(self, key):
        raise RuntimeError("on the way")


class Endless(Mapped):
    def __iter__(self):
        yield from self._items_of_it
        raise RuntimeError("on the way")


class FailingComposite:
    pass


def _no_members(_composite):
    raise RuntimeError("on the way")


ds.register_kind(FailingComposite, members=_no_members)


class TestAWalkThatRaises:
    @pytest.mark.parametrize("verb", sorted(VERBS.keys() - {"tidy"}))
    @pytest.mark.parametrize("failing", [Failing, Endless])
    def test_changes_nothing(self, failing, verb):
        with ds.dispose_scope() as outer, ds.dispose_scope() as scope:
            foreign, unowned = outer.attach(Toy(1)), scope.detach(Toy(2))
            toys = [Toy(3), Toy(4)]
            before = ds.statistics()
            with pytest.raises(RuntimeError, match="on the way"):
                VERBS[verb](scope, [toys[0], foreign, unowned, failing({"a": toys[1]})])
            assert ds.statistics() == before
            assert owned_by(scope, *toys)
            assert owned_by(outer, foreign)
            assert ds.owner_of(unowned) is None
            assert unowned.value == 2

    @pytest.mark.parametrize("verb", ["attach", "dispose"])
    def test_changes_nothing_if_a_composite_fails_to_return_its_members(self, verb):
        with ds.dispose_scope() as outer, ds.dispose_scope() as scope:
            foreign, toy = outer.attach(Toy(1)), Toy(2)
            before = ds.statistics()
            with pytest.raises(RuntimeError, match="on the way"):
                VERBS[verb](scope, [toy, foreign, FailingComposite()])
            assert ds.statistics() == before
            assert owned_by(scope, toy)
            assert owned_by(outer, foreign)

    def test_of_what_a_decorated_function_returns_releases_it_with_the_scope(self):
        toys = []

        def make():
            toys.extend([Toy(1), Toy(2)])
            return [toys[0], Failing({"a": toys[1]})]

        with ds.dispose_scope() as scope:
            with pytest.raises(RuntimeError, match="on the way"):
                ds.tidy(make)
            assert len(scope) == 0
            assert ds.current_scope() is scope
        assert [toy.releases for toy in toys] == [1, 1]


class TestPaths:
    @pytest.mark.parametrize(
        ("tree", "path"),
        [
            (lambda bad: bad, ""),
            (lambda bad: [0, bad], "[1]"),
            (lambda bad: {"a": {3: bad}}, "['a'][3]"),
            (lambda bad: Plain(bad), ".x"),
            (lambda bad: Defined([bad]), ".x[0]"),
            (lambda bad: Point(1, bad), "[1]"),
            (lambda bad: {Point: bad}, "[<type>]"),
            (lambda bad: collections.deque([1, bad]), "[1]"),
        ],
    )
    def test_the_error_spells_where_it_was(self, tree, path):
        with ds.dispose_scope() as scope:
            toy = Toy(1)
            with pytest.raises(ds.UnknownKindError) as caught:
                scope.move_to_outer(tree(Unknown(toy)))
        assert caught.value.path == f"the tree given to move_to_outer(){path}"
        assert str(caught.value).startswith(caught.value.path)
        assert caught.value.__context__ is None
