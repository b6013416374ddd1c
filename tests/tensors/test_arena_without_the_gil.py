"""NumPy reallocates without the GIL while it parses text.

Whoever calls the arena's functions in that way meets no harm.
"""

from __future__ import annotations

import contextvars
import ctypes
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import disposescope as ds
from tests.programs import run_program

COUNT = 60_000
TEXT = " ".join(map(str, range(COUNT)))
NUMBERS = np.arange(float(COUNT))

POINTER = ctypes.c_void_p
FUNCTIONS = (
    ("ctx", POINTER),
    ("malloc", ctypes.CFUNCTYPE(POINTER, POINTER, ctypes.c_size_t)),
    ("calloc", ctypes.CFUNCTYPE(POINTER, POINTER, ctypes.c_size_t, ctypes.c_size_t)),
    ("realloc", ctypes.CFUNCTYPE(POINTER, POINTER, POINTER, ctypes.c_size_t)),
    ("free", ctypes.CFUNCTYPE(None, POINTER, POINTER, ctypes.c_size_t)),
)


class Handler(ctypes.Structure):
    """NumPy's ``PyDataMem_Handler``; ctypes gives up the GIL where it calls its functions."""

    _fields_ = (("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), *FUNCTIONS)


# Threads that Python has never seen: each asks for blocks, lets them grow, and looks at what they
# hold.
FOREIGN = """
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct handler {
    char name[127];
    uint8_t version;
    void *ctx;
    void *(*malloc)(void *, size_t);
    void *(*calloc)(void *, size_t, size_t);
    void *(*realloc)(void *, void *, size_t);
    void (*free)(void *, void *, size_t);
};

static struct handler *handler;
static long rounds;

static long differing(const unsigned char *bytes, unsigned char expected, size_t count)
{
    long found = bytes == NULL;
    for (size_t i = 0; bytes != NULL && i < count; i++) {
        found += bytes[i] != expected;
    }
    return found;
}

static void *work(void *number)
{
    static const size_t sizes[] = {1, 16, 64, 1000, 5000, 70000, 200000};
    unsigned char mark = (unsigned char)(1 + (intptr_t)number);
    long wrong = 0;
    for (long i = 0; i < rounds; i++) {
        size_t size = sizes[(i + mark) % 7];
        unsigned char *cleared = handler->calloc(handler->ctx, size, 2);
        wrong += differing(cleared, 0, 2 * size);
        unsigned char *block = handler->malloc(handler->ctx, size);
        memset(block, mark, size);
        block = handler->realloc(handler->ctx, block, 3 * size);
        wrong += differing(block, mark, size);
        memset(block, mark, 3 * size);
        handler->free(handler->ctx, cleared, 2 * size);
        block = handler->realloc(handler->ctx, block, 1);
        wrong += differing(block, mark, 1);
        handler->free(handler->ctx, block, 1);
    }
    return (void *)wrong;
}

long run(struct handler *given, long threads, long given_rounds)
{
    pthread_t started[16];
    long wrong = 0;
    handler = given;
    rounds = given_rounds;
    for (long i = 0; i < threads; i++) {
        wrong += pthread_create(&started[i], NULL, work, (void *)i) != 0;
    }
    for (long i = 0; i < threads; i++) {
        void *told;
        pthread_join(started[i], &told);
        wrong += (long)told;
    }
    return wrong;
}

static void *kept;

void ask_at_the_end(struct handler *given)
{
    handler = given;
    kept = handler->malloc(handler->ctx, 100);
}

__attribute__((destructor)) static void after_the_interpreter(void)
{
    if (kept != NULL) {
        handler->free(handler->ctx, handler->malloc(handler->ctx, 100), 100);
        printf("%d %d %d\\n", handler->malloc(handler->ctx, 100) == NULL, handler->calloc(handler->ctx, 1, 100) == NULL,
               handler->realloc(handler->ctx, kept, 200) == NULL);
        handler->free(handler->ctx, kept, 100);
        fflush(stdout);
    }
}
"""


def handler_of_the_arena() -> Handler:
    with ds.dispose_scope():
        [capsule] = [value for variable, value in contextvars.copy_context().items() if "alloc" in variable.name]
    pointer_in = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_in.restype, pointer_in.argtypes = POINTER, (ctypes.py_object, ctypes.c_char_p)
    handler: Handler = Handler.from_address(pointer_in(capsule, b"mem_handler"))
    assert handler.name == b"disposescope_arena"
    return handler


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler here")
    folder = tmp_path_factory.mktemp("foreign")
    (folder / "foreign.c").write_text(FOREIGN)
    library = folder / "foreign.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-pthread", folder / "foreign.c", "-o", library], check=True)
    return library


def together(*work: Callable[[], object]) -> None:
    """Run functions at once, each in a thread of its own; what one raises is raised here."""
    barrier = threading.Barrier(len(work))
    failures: list[BaseException] = []

    def run(function: Callable[[], object]) -> None:
        try:
            barrier.wait()
            function()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(function,)) for function in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def parse(rounds: int, folder: Path | None = None) -> None:
    """Parse the same text again and again in scopes of all sorts, and look at the numbers."""
    for round_ in range(rounds):
        options: dict[str, Any] = ({}, {"strict": True}, {"budget": "8 MiB"})[round_ % 3]
        with ds.dispose_scope(**options) as scope:
            array = np.fromstring(TEXT, sep=" ") if folder is None else np.fromfile(folder / "text", sep=" ")
            np.testing.assert_array_equal(array, NUMBERS)
            assert array in scope
            assert scope.nbytes == array.nbytes
            del array


def come_and_go(rounds: int) -> None:
    """Make and drop arrays of the sizes that parsing passes through, and look at what they hold."""
    for _ in range(rounds):
        with ds.dispose_scope():
            for size in (10, 4096, 8192, 16_384):
                arrays = [np.full(size, float(mark)) for mark in range(5)]
                for mark, array in enumerate(arrays):
                    assert (array == mark).all()


PROGRAM = """
import contextlib, sys
import numpy as np, disposescope as ds
text = " ".join(map(str, range(200_000)))
with DETECTOR, ds.dispose_scope(OPTIONS) as scope:
    array = np.fromstring(text, sep=" ")
    assert array in scope and (array == np.arange(200_000.0)).all()
    scope.move_to_outer(array)
print(array.size)
"""


@pytest.mark.parametrize("detector", ["contextlib.nullcontext()", "ds.LeakDetector()"])
@pytest.mark.parametrize("options", ["", "strict=True", "budget='8 MiB'"])
def test_text_is_parsed_in_scopes_of_all_sorts(options: str, detector: str) -> None:
    # In an interpreter of their own: this was a segmentation fault.
    code = PROGRAM.replace("OPTIONS", options).replace("DETECTOR", detector)
    assert run_program(code) == "200000\n"
    assert run_program(code, DISPOSESCOPE_ARENA_DEBUG="1") == "200000\n"


def test_a_strict_scope_names_the_line_that_parsed_what_escapes(tmp_path: Path) -> None:
    (tmp_path / "text").write_text(TEXT)
    with pytest.raises(ds.EscapedError, match=f"1 array with {8 * COUNT} bytes") as caught:
        with ds.dispose_scope(strict=True):
            kept = np.fromfile(tmp_path / "text", sep=" ")
    [site] = caught.value.sites
    assert Path(__file__).name in site
    np.testing.assert_array_equal(kept, NUMBERS)


def test_a_budget_refuses_to_let_an_array_grow_while_it_is_parsed() -> None:
    with pytest.raises(MemoryError) as caught:
        with ds.dispose_scope("small", budget=200_000) as scope:
            with pytest.raises(MemoryError):
                np.fromstring(TEXT, sep=" ")
            assert scope.nbytes == 0
            kept = np.fromstring("1 2 3", sep=" ")
            np.fromstring(TEXT, sep=" ")
    [note] = caught.value.__notes__
    assert note.startswith("the budget of scope 'small' refused it: budget 200000 bytes, live ")
    assert kept.tolist() == [1, 2, 3]


@pytest.mark.parametrize("detects", [False, True])
def test_threads_that_parse_and_threads_that_make_arrays_do_not_disturb_each_other(
    tmp_path: Path, detects: bool
) -> None:
    (tmp_path / "text").write_text(TEXT)
    before = ds.arena_statistics()
    work = [lambda: parse(30), lambda: parse(30), lambda: parse(30, tmp_path), *[lambda: come_and_go(60)] * 2]
    if detects:
        with ds.LeakDetector():
            together(*work)
    else:
        together(*work)
    after = ds.arena_statistics()
    assert (after.blocks, after.live_nbytes) == (before.blocks, before.live_nbytes)


def test_a_thread_that_gave_up_the_gil_may_call_each_function_of_the_handler() -> None:
    handler = handler_of_the_arena()
    before = ds.arena_statistics()

    def call(mark: int) -> None:
        for size in (1, 16, 64, 1000, 5000, 70_000, 200_000) * 5:
            cleared = handler.calloc(None, size, 2)
            assert ctypes.string_at(cleared, 2 * size) == bytes(2 * size)
            block = handler.malloc(None, size)
            ctypes.memset(block, mark, size)
            block = handler.realloc(None, block, 3 * size)
            assert ctypes.string_at(block, size) == bytes([mark]) * size
            handler.free(None, cleared, 2 * size)
            handler.free(None, block, 3 * size)

    with ds.dispose_scope(strict=True):
        call(9)
        together(*[lambda mark=mark: call(mark) for mark in range(3)], lambda: parse(10), lambda: come_and_go(20))
    after = ds.arena_statistics()
    assert (after.blocks, after.live_nbytes) == (before.blocks, before.live_nbytes)


@pytest.mark.parametrize("detects", [False, True])
def test_threads_that_python_has_never_seen_may_call_the_handler(foreign: Path, detects: bool) -> None:
    library = ctypes.CDLL(str(foreign))
    library.run.argtypes, library.run.restype = (POINTER, ctypes.c_long, ctypes.c_long), ctypes.c_long
    handler = handler_of_the_arena()
    before = ds.arena_statistics()
    wrong: list[int] = []

    def run() -> None:
        wrong.append(library.run(ctypes.addressof(handler), 4, 50))

    if detects:
        with ds.LeakDetector():
            together(run, lambda: parse(10), lambda: come_and_go(20))
    else:
        together(run, lambda: parse(10), lambda: come_and_go(20))
    after = ds.arena_statistics()
    assert wrong == [0]
    assert (after.blocks, after.live_nbytes) == (before.blocks, before.live_nbytes)


def test_once_the_interpreter_has_ended_there_is_no_memory_and_nothing_is_freed(foreign: Path) -> None:
    code = f"""
import ctypes, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.tensors.test_arena_without_the_gil import handler_of_the_arena
ctypes.PyDLL({str(foreign)!r}).ask_at_the_end(ctypes.c_void_p(ctypes.addressof(handler_of_the_arena())))
"""
    assert run_program(code) == "1 1 1\n"


@pytest.fixture(autouse=True)
def switches_between_threads_are_frequent() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)
