"""What the compiled part of PyTorch is given is checked, and its errors name what was wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import disposescope as ds
from disposescope.scopes.context import CURRENT
from disposescope.tensors.torch import compiled as TORCH_COMPILED
from disposescope.tensors.torch.births import SEAM
from disposescope.tensors.torch.compiled import BirthWatch, MemoryRecorder, thread_state
from disposescope.tensors.torch.disposal import RECORDER
from tests.programs import run_program


def nothing(*_: object) -> None:
    return None


NEEDED: dict[str, Any] = {
    "memory": RECORDER,
    "kind": None,
    "mode": None,
    "budgeted": {},
    "waiting": [],
    "passing": {},
    "settle": nothing,
    "is_born": nothing,
    "judge": nothing,
    "is_overridden": nothing,
    "judge_frames": nothing,
    "give_up": nothing,
    "push_mode": nothing,
}
STARTED: dict[str, Any] = {
    "classes": (torch.Tensor,),
    "metaclasses": (type(torch.Tensor),),
    "attributes": (),
    "numpy": None,
    "handing": (),
    "backward": None,
    "libraries": (),
    "transforms": 0,
}


@pytest.fixture(scope="module", autouse=True)
def _installed():
    with ds.dispose_scope():
        torch.ones(1)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("memory", r"disposescope\.tensors\.torch\.compiled\.MemoryRecorder"),
        ("budgeted", "dict"),
        ("waiting", "list"),
        ("passing", "dict"),
        *(
            (name, "a function")
            for name in ("settle", "is_born", "is_overridden", "judge", "judge_frames", "give_up", "push_mode")
        ),
    ],
)
def test_a_watch_names_the_argument_that_it_cannot_use(name: str, expected: str) -> None:
    with pytest.raises(
        TypeError, match=rf"^internal error: {name} of BirthWatch\(\) has type int, expected {expected}$"
    ):
        BirthWatch(**{**NEEDED, name: 3})
    with pytest.raises(TypeError, match=f"missing required argument '{name}'"):
        BirthWatch(**{key: value for key, value in NEEDED.items() if key != name})
    assert BirthWatch(**NEEDED).allocations == 0


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("classes", [torch.Tensor], "classes of BirthWatch.start() has type list, expected tuple"),
        ("classes", (torch.Tensor, 3), "classes of BirthWatch.start() has type int, expected type"),
        ("metaclasses", (3,), "metaclasses of BirthWatch.start() has type int, expected type"),
        ("attributes", None, "attributes of BirthWatch.start() has type NoneType, expected tuple"),
        ("handing", None, "handing of BirthWatch.start() has type NoneType, expected tuple"),
        ("libraries", "libc10.so", "libraries of BirthWatch.start() has type str, expected tuple"),
        ("transforms", "key", "transforms of BirthWatch.start() has type str, expected int"),
    ],
)
def test_a_watch_that_is_started_names_the_argument_that_it_cannot_use(name: str, given: object, said: str) -> None:
    with pytest.raises(TypeError) as raised:
        SEAM.watch.start(**{**STARTED, name: given})
    assert str(raised.value) == f"internal error: {said}"


def test_classes_are_checked_and_what_does_not_watch_changes_none() -> None:
    other = BirthWatch(**NEEDED)
    for change in (other.add_classes, SEAM.watch.add_classes):
        with pytest.raises(TypeError, match=r"classes of BirthWatch.add_classes\(\) has type int, expected type$"):
            change((3,))
    with pytest.raises(TypeError, match=r"metaclasses of BirthWatch.stop\(\) has type int, expected tuple$"):
        other.stop(classes=(), metaclasses=3)
    other.add_classes((torch.Tensor,))
    other.stop(classes=(torch.Tensor,), metaclasses=(type(torch.Tensor),))
    with ds.dispose_scope() as scope:
        assert torch.from_numpy(ds.ones(2).numpy()) in scope


def test_a_watch_that_was_stopped_sees_nothing_until_it_is_started_again() -> None:
    program = """
import torch, disposescope as ds
with ds.dispose_scope():
    torch.ones(1)
from disposescope.tensors.torch import births
SEAM = births.SEAM
for _ in range(2):
    births._leave_allocations()
before = SEAM.watch.allocations
with ds.dispose_scope() as scope:
    made = torch.from_numpy(torch.ones(3).numpy())
    assert made not in scope and SEAM.watch.allocations == before
births.see_allocations(SEAM.kind)
with ds.dispose_scope() as scope:
    assert torch.from_numpy(torch.ones(3).numpy()) in scope
    again = births.see_allocations(SEAM.kind)
    assert torch.ones(3).add(1) in scope
print(SEAM.watch.allocations > 0)
"""
    assert run_program(program) == "True\n"


@pytest.mark.parametrize(("name", "expected"), [("tensor", "type"), ("storage_of", "a function")])
def test_a_recorder_names_the_argument_that_it_cannot_use(name: str, expected: str) -> None:
    given: dict[str, Any] = {"tensor": torch.Tensor, "storage_of": nothing, name: 3}
    with pytest.raises(
        TypeError, match=rf"^internal error: {name} of MemoryRecorder\(\) has type int, expected {expected}$"
    ):
        MemoryRecorder(**given)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("log", "PyCapsule"), *((name, "a function") for name in ("device_of", "look_at_other"))],
)
def test_a_recorder_checks_the_log_it_records_into(name: str, expected: str) -> None:
    with ds.LeakDetector():
        from disposescope.leaks.births.log import LOG

        given: dict[str, Any] = {"device_of": nothing, "look_at_other": nothing}
        log: Any = 3 if name == "log" else LOG.c_api
        recorder = MemoryRecorder(tensor=torch.Tensor, storage_of=nothing)
        said = rf"^internal error: {name} of MemoryRecorder.record_into\(\) has type int, expected {expected}$"
        with pytest.raises(TypeError, match=said):
            recorder.record_into(log, **{**given, **({} if name == "log" else {name: 3})})


def test_a_recorder_without_a_log_says_so() -> None:
    recorder = MemoryRecorder(tensor=torch.Tensor, storage_of=nothing)
    calls: list[tuple[Callable[[Any], object], str]] = [(recorder.look_at, "look_at"), (recorder.know, "know")]
    for call, name in calls:
        with pytest.raises(RuntimeError, match=rf"MemoryRecorder\.{name}\(\) was called before record_into\(\)$"):
            call(list)
    recorder.look()
    recorder.forget()


def test_a_recorder_with_a_log_names_what_it_cannot_look_at() -> None:
    with ds.LeakDetector():
        with pytest.raises(TypeError, match=r"tensor of MemoryRecorder.look_at\(\) has type int, expected Tensor$"):
            RECORDER.look_at(3)
        with pytest.raises(TypeError, match=r"objects of MemoryRecorder.know\(\) has type tuple, expected list$"):
            RECORDER.know(())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["compiled", "modes", "pending", "scopes", "stepping", "watched"])
def test_the_state_of_a_thread_refuses_what_compiled_code_cannot_read(name: str) -> None:
    state = thread_state()
    before = getattr(state, name)
    with pytest.raises(TypeError):
        setattr(state, name, "else")
    with pytest.raises((AttributeError, TypeError), match="delete"):
        delattr(state, name)
    assert getattr(state, name) == before


def test_each_thread_has_a_state_that_ends_with_it() -> None:
    states: list[object] = []
    thread = threading.Thread(target=lambda: states.extend((thread_state(), thread_state())))
    thread.start()
    thread.join()
    assert states[0] is states[1] is not thread_state() is thread_state()
    with pytest.raises(TypeError, match="cannot create"):
        type(thread_state())()


def test_a_birth_names_what_stands_in_the_place_of_the_current_scope() -> None:
    token = CURRENT.set("else")  # type: ignore[arg-type]
    try:
        with pytest.raises(TypeError, match=r"^internal error: the current scope has type str, expected DisposeScope"):
            torch.ones(3)
    finally:
        CURRENT.reset(token)


def test_a_verdict_that_is_none_is_named_with_its_code() -> None:
    program = """
import torch, disposescope as ds
from disposescope.tensors.torch import births
births.verdict = lambda code, module: "unknown"

def work():
    torch.ones(3)
try:
    with ds.dispose_scope():
        work()
except ValueError as error:
    print(error)
"""
    assert run_program(program).startswith("internal error: the verdict on the code of ")


def test_unborn_takes_a_function_and_its_argument() -> None:
    with pytest.raises(
        TypeError, match=r"^internal error: unborn\(\) takes a function and its argument, not 1 arguments$"
    ):
        TORCH_COMPILED.unborn(nothing)  # type: ignore[call-arg]
    assert TORCH_COMPILED.unborn(len, "ab") == 2
