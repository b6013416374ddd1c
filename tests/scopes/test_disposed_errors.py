"""A `DisposedError` tells what scope released the resource, its line, and what to write instead."""

from __future__ import annotations

import asyncio
import gc
import pickle
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial

import pytest

import disposescope as ds
from tests.scopes.toys import Bundle, Disposable, Toy, fails


def line_here() -> int:
    return sys._getframe(1).f_lineno


def error_of(use: Callable[[], object]) -> ds.DisposedError:
    with pytest.raises(ds.DisposedError) as raised:
        use()
    return raised.value


def tells(error: ds.DisposedError, name: str, line: int) -> None:
    assert error.scope == name
    assert error.site.startswith(f"tests/scopes/test_disposed_errors.py:{line} in "), error.site
    assert f" by scope {name!r} entered at {error.site}" in str(error)
    assert "ds.move_to_outer(x)" in str(error)
    assert "ds.keep(x)" in str(error)


def _torch_tensor() -> tuple[object, Callable[[], object]]:
    torch = pytest.importorskip("torch")
    tensor = torch.ones(3)
    return tensor, lambda: tensor + 1


def _torch_packed() -> tuple[object, Callable[[], object]]:
    torch = pytest.importorskip("torch")
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    return packed, lambda: packed.data + 1


def _jax_array() -> tuple[object, Callable[[], object]]:
    jnp = pytest.importorskip("jax.numpy")
    array = jnp.ones(3)
    return array, lambda: array + 1


def _tensor() -> tuple[object, Callable[[], object]]:
    tensor = ds.ones(3)
    return tensor, lambda: tensor + 1


def _packed() -> tuple[object, Callable[[], object]]:
    packed = ds.pack_sequence([ds.ones(3), ds.ones(2)])
    return packed, lambda: packed.data + 1


def _own() -> tuple[object, Callable[[], object]]:
    own = ds.attach(Disposable()) if ds.current_scope() else Disposable()
    return own, lambda: ds.check_alive(own)


MAKERS = [
    _tensor,
    _packed,
    _own,
    _torch_tensor,
    _torch_packed,
    _jax_array,
]


@pytest.mark.parametrize("make", MAKERS)
def test_it_names_the_scope_its_line_and_what_to_write(make):
    line = line_here() + 1
    with ds.dispose_scope("epoch seven"):
        _, use = make()
    tells(error_of(use), "epoch seven", line)


@pytest.mark.parametrize("make", MAKERS)
def test_dispose_says_that_no_scope_did_it(make):
    resource, use = make()
    ds.dispose(resource)
    error = error_of(use)
    assert "by a call of dispose(), not by a scope" in str(error)
    assert (error.scope, error.site) == ("", "")


def test_dispose_in_a_scope_is_not_the_scope_s_doing():
    with ds.dispose_scope("step"):
        tensor = ds.ones(3)
        ds.dispose(tensor)
        assert "not by a scope" in str(error_of(lambda: tensor + 1))


@pytest.mark.parametrize("release", ["dispose_everything", "close", "dispose_everything_but"])
def test_every_way_in_which_a_scope_releases_names_it(release):
    line = line_here() + 1
    with ds.dispose_scope("step") as scope:
        tensor = ds.ones(3)
        getattr(scope, release)(*([None] if release.endswith("but") else []))
        tells(error_of(lambda: tensor + 1), "step", line)


def test_it_is_the_scope_that_released_it_and_not_the_one_it_was_born_in():
    line = line_here() + 1
    with ds.dispose_scope("outer"):
        with ds.dispose_scope("inner"):
            tensor = ds.move_to_outer(ds.ones(3))
    tells(error_of(lambda: tensor + 1), "outer", line)


def test_a_scope_without_a_name_is_told_by_its_line():
    with ds.dispose_scope():
        tensor = ds.ones(3)
    error = error_of(lambda: tensor + 1)
    assert error.scope == ""
    assert f"has been disposed by a scope entered at {error.site}" in str(error)


class _Managed:
    """A context manager of a program's own, which opens a scope."""

    def __enter__(self) -> ds.DisposeScope:
        self.scope = ds.dispose_scope("managed")
        return self.scope.__enter__()

    def __exit__(self, *what: object) -> None:
        self.scope.__exit__(*what)  # type: ignore[arg-type]  # as given


def _in_generator(manager: AbstractContextManager[object]) -> Iterator[object]:
    with manager:
        yield ds.ones(3)


def test_a_scope_that_a_context_manager_of_the_package_opens_is_told_by_the_line_of_the_block():
    workspace = ds.Workspace("loop")
    for _ in range(2):
        line = line_here() + 1
        with workspace.run():
            tensor = ds.ones(3)
        tells(error_of(lambda tensor=tensor: tensor + 1), "loop", line)
    for tensor in _in_generator(workspace.run()):
        held = tensor
    tells(error_of(lambda: held + 1), "loop", _in_generator.__code__.co_firstlineno + 1)


def test_a_scope_that_a_context_manager_of_the_program_opens_is_told_by_its_own_line():
    for _ in range(2):
        with _Managed():
            tensor = ds.ones(3)
        tells(error_of(lambda tensor=tensor: tensor + 1), "managed", _Managed.__enter__.__code__.co_firstlineno + 2)


def test_a_decorated_function_is_named_by_its_first_line():
    kept = []
    line = line_here() + 2

    @ds.dispose_scope("call")
    def work():
        kept.append(ds.ones(3))

    work()
    tells(error_of(lambda: kept[0] + 1), "call", line)


def test_a_decorated_callable_without_code_is_named_by_the_line_of_its_call():
    kept = []
    call = ds.dispose_scope("call")(partial(lambda: kept.append(ds.ones(3))))
    call()
    tells(error_of(lambda: kept[0] + 1), "call", line_here() - 1)


@contextmanager
def opened() -> Iterator[None]:
    with ds.dispose_scope("generator"):
        yield


def test_a_block_that_is_a_generator_is_named_by_its_own_line():
    with opened():
        tensor = ds.ones(3)
    assert " in opened()" in error_of(lambda: tensor + 1).site


def test_a_scope_on_an_exit_stack_is_named_by_the_line_of_the_user():
    line = line_here() + 2
    with ExitStack() as stack:
        stack.enter_context(ds.dispose_scope("stack"))
        tensor = ds.ones(3)
    tells(error_of(lambda: tensor + 1), "stack", line)


def test_a_scope_of_a_task_is_named_by_the_line_of_the_user():
    async def main():
        with ds.dispose_scope("task"):
            await asyncio.sleep(0)
            return ds.ones(3)

    tensor = asyncio.run(main())
    tells(error_of(lambda: tensor + 1), "task", line_here() - 5)


def test_the_scope_of_a_batch_is_named_by_the_line_of_its_loop():
    line = line_here() + 2
    tensors = []
    for _ in ds.scoped_batches([1, 2]):
        tensors.append(ds.ones(3))
    assert f":{line} in " in error_of(lambda: tensors[0] + 1).site


def test_members_name_the_scope_of_their_composite():
    with ds.dispose_scope("step") as scope:
        toy = Toy(1)
        scope.attach(Bundle((toy,)))
    assert error_of(lambda: ds.check_alive(toy)).scope == "step"


def test_what_failed_to_release_and_is_disposed_later_is_not_the_scope_s_doing():
    failing = fails(ValueError())
    with pytest.raises(ExceptionGroup), ds.dispose_scope("step") as scope:
        scope.attach(failing)
    failing.on_release = lambda: None
    ds.dispose(failing)
    assert "not by a scope" in str(error_of(lambda: ds.check_alive(failing)))


def test_what_it_tells_keeps_no_scope_and_no_frame():
    class Local:
        pass

    def block():
        local = Local()
        with ds.dispose_scope("step") as scope:
            tensor = ds.ones(3)
        return tensor, weakref.ref(scope), weakref.ref(local)

    tensor, scope, local = block()
    gc.collect()
    assert scope() is None
    assert local() is None
    assert error_of(lambda: tensor + 1).scope == "step"


def test_it_survives_pickling():
    with ds.dispose_scope("step"):
        tensor = ds.ones(3)
    error = error_of(lambda: tensor + 1)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.scope, again.site) == (str(error), error.scope, error.site)
