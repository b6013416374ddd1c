"""Types registered as pytrees are walked as their library walks them.

That is so where the program has imported the library.
"""

import subprocess
import sys
import types

import pytest

import disposescope as ds


class Boxed:
    """A type that only a registry knows."""

    __slots__ = ("child", "name")

    def __init__(self, child, name="x"):
        self.child = child
        self.name = name

    def __getattr__(self, name):
        raise AssertionError(f"asked for {name}")


def flatten(boxed):
    return (boxed.child,), boxed.name


def unflatten(name, children):
    return type("never", (Boxed,), {})(*children, name)


def new_type():
    # A class of its own: a registration is for good.
    return type("Registered", (Boxed,), {"__slots__": ()})


def in_torch(cls, to_parts):
    pytree = pytest.importorskip("torch.utils._pytree")
    pytree.register_pytree_node(cls, lambda boxed: (list(to_parts(boxed)[0]), to_parts(boxed)[1]), unflatten)


def in_jax(cls, to_parts):
    pytest.importorskip("jax").tree_util.register_pytree_node(cls, to_parts, unflatten)


def in_optree(cls, to_parts):
    pytest.importorskip("optree").register_pytree_node(cls, to_parts, unflatten, namespace=f"tests{id(cls)}")


def in_optree_for_all(cls, to_parts):
    optree = pytest.importorskip("optree")
    optree.register_pytree_node(cls, to_parts, unflatten, namespace=optree.registry.__GLOBAL_NAMESPACE)


REGISTRIES = [in_torch, in_jax, in_optree, in_optree_for_all]


@pytest.mark.parametrize("register", REGISTRIES)
class TestRegisteredTypes:
    def test_every_verb_finds_their_children(self, register):
        cls = new_type()
        register(cls, flatten)
        with ds.dispose_scope() as outer, ds.dispose_scope() as scope:
            tensor, nested, other = ds.ones(1), ds.ones(2), ds.ones(3)
            tree = [cls({"a": tensor, "b": (cls(nested),)})]
            assert scope.move_to_outer(tree) is tree
            assert tensor in outer
            assert nested in outer
            assert scope.attach(tree) is tree
            scope.dispose_everything_but(tree)
            assert ds.is_disposed(other)
            assert scope.move_to(outer, tree) is tree
            outer.detach(tree)
            assert ds.owner_of(nested) is None
            ds.dispose(tree)
            assert ds.is_disposed(tensor)
            assert ds.is_disposed(nested)

    def test_what_is_no_child_moves_too(self, register):
        cls = new_type()
        register(cls, flatten)
        with ds.dispose_scope() as outer, ds.dispose_scope() as scope:
            tensor, static = ds.ones(1), ds.ones(2)
            scope.move_to_outer(cls(tensor, ("static", static)))
            assert static in outer

    def test_a_function_that_raises_changes_nothing(self, register):
        def failing(_boxed):
            raise ValueError("on the way")

        cls = new_type()
        register(cls, failing)
        with ds.dispose_scope() as outer, ds.dispose_scope() as scope:
            tensor = ds.ones(1)
            for verb in (scope.move_to_outer, scope.detach, scope.dispose_everything_but, ds.dispose, outer.attach):
                with pytest.raises(ValueError, match="on the way"):
                    verb([tensor, cls(tensor)])
            assert tensor in scope


@pytest.mark.parametrize("name", ["torch.utils._pytree", "jax.tree_util", "optree.registry"])
def test_a_library_that_is_being_imported_on_another_thread_is_not_asked(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    with ds.dispose_scope() as scope:
        tensor = ds.ones(1)
        scope.detach([Boxed(None), tensor])
        assert ds.owner_of(tensor) is None


def test_nothing_is_imported_for_it():
    program = """
import sys
import disposescope as ds

class Hidden:
    def __init__(self, tensor):
        self.tensor = tensor

with ds.dispose_scope() as scope:
    try:
        scope.move_to_outer(Hidden(ds.ones(1)))
    except ds.UnknownKindError:
        pass
    scope.move_to_outer([Hidden(None), {1: (2,)}])
libraries = {"torch", "jax", "optree", "pandas", "scipy", "pyarrow", "flax", "transformers"}
print(sorted(libraries & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
