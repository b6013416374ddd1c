"""Resources of users' kinds that threads share: their owners, their releases, and their counts."""

from __future__ import annotations

import contextlib
import contextvars
import random
import sys
import threading

import disposescope as ds

from ..scopes.toys import Toy, tables_are_sound
from .run import Run, Work


def scopes(run: Run) -> None:
    """Scopes given to threads with their context, or by hand, or closed by one of them; counts."""
    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        given_with_their_context(run)
        pulled_about(run)
        closed_meanwhile(run)
        counted_meanwhile(run)
    finally:
        sys.setswitchinterval(switching)
    if not tables_are_sound():
        run.wrong("the tables of resources are not sound")


def in_copies_of_the_context(run: Run, work: Work) -> list[Work]:
    contexts = [contextvars.copy_context() for _ in range(run.threads)]
    return [lambda number, rng: contexts[number].run(work, number, rng)] * run.threads


def given_with_their_context(run: Run) -> None:
    """What each thread makes in one scope, moves, detaches, disposes or drops is released once."""
    made: list[Toy] = []
    with ds.dispose_scope() as outer, ds.dispose_scope() as scope:

        def work(_number: int, rng: random.Random) -> int:
            kept = []
            for step in range(200):
                toy = Toy(step)
                kept.append(toy)
                match rng.randrange(6):
                    case 0:
                        scope.move_to_outer(toy)
                    case 1:
                        ds.dispose(toy)
                    case 2:
                        scope.detach(toy)
                        outer.attach(toy)
                    case 3:
                        kept.pop()
                        del toy
                    case 4:
                        scope.move_to(outer, [toy])
                        scope.attach(toy)
            made.extend(kept)
            return 200

        with run.background(*in_copies_of_the_context(run, work)):
            pass
        alive = sum(toy.value is not None for toy in made)
        if len(outer) + len(scope) != alive:
            run.wrong(f"{alive} resources are alive, and {len(outer)} and {len(scope)} owned")
    released_once(run, made)


def pulled_about(run: Run) -> None:
    """Resources that all threads attach, move, detach and dispose end with at most one owner."""
    pool = [Toy(index) for index in range(30)]
    with ds.dispose_scope("a") as a, ds.dispose_scope("b") as b, ds.dispose_scope("c") as c:

        def work(_number: int, rng: random.Random) -> int:
            for _ in range(500):
                toy, scope = rng.choice(pool), rng.choice((a, b, c))
                match rng.randrange(8):
                    case 0 | 1 | 2:
                        with contextlib.suppress(ds.DisposedError):
                            scope.attach(toy)
                    case 3 | 4:
                        scope.move_to_outer(toy)
                    case 5 | 6:
                        scope.detach(toy)
                    case 7 if rng.random() < 0.01:
                        ds.dispose(toy)
            return 500

        run.in_threads(work)
        for toy in pool:
            holders = [scope for scope in (a, b, c) if any(toy is other for other in scope.live)]
            owner = ds.owner_of(toy)
            if holders != ([] if owner is None else [owner]):
                run.wrong(f"{toy!r} belongs to {owner!r}, and {holders!r} list it")
            if toy.releases != ds.is_disposed(toy):
                run.wrong(f"{toy!r} was released {toy.releases} times")
        owned = sum(ds.owner_of(toy) is not None for toy in pool)
        if len(a) + len(b) + len(c) != owned:
            run.wrong(f"{owned} resources are owned, and {len(a)}, {len(b)} and {len(c)} counted")
    for toy in pool:
        if toy.releases > 1:
            run.wrong(f"{toy!r} was released {toy.releases} times")


def closed_meanwhile(run: Run) -> None:
    """A scope that is closed while others make resources in it keeps none of them."""
    for _ in range(10):
        made: list[Toy] = []
        with ds.dispose_scope() as outer:
            started = threading.Barrier(run.threads + 1)

            def work(_number: int, _rng: random.Random, started: threading.Barrier = started) -> int:
                started.wait()
                for index in range(60):
                    made.append(Toy(index))  # noqa: B023  # the threads end before the next round
                return 60

            with ds.dispose_scope() as inner, run.background(*in_copies_of_the_context(run, work)):
                started.wait()
                inner.close()
            if len(inner):
                run.wrong(f"a closed scope owns {len(inner)} resources")
            for toy in made:
                if (toy in outer) == ds.is_disposed(toy):
                    run.wrong(f"{toy!r} of a closed scope belongs to {ds.owner_of(toy)!r}")
        released_once(run, made)


def counted_meanwhile(run: Run) -> None:
    """Process counts are right while threads come and go, and never sink while several ask."""
    before = ds.statistics(process=True).created_unscoped
    expected = 10 * run.threads
    done = threading.Event()

    def ask(_number: int, _rng: random.Random) -> int:
        least, asked = before, 0
        while not done.is_set():
            now = ds.statistics(process=True).created_unscoped
            if not least <= now <= before + expected:
                run.wrong(f"{now - before} of {expected} were counted after {least - before}")
                break
            least, asked = now, asked + 1
        return asked

    def make(_number: int, _rng: random.Random) -> int:
        Toy()
        return 1

    with run.background(ask, ask, ask):
        for _ in range(10):
            run.in_threads(make)
        done.set()
    counted = ds.statistics(process=True).created_unscoped - before
    if counted != expected:
        run.wrong(f"{counted} were counted in the end, not {expected}")


def released_once(run: Run, made: list[Toy]) -> None:
    for toy in made:
        if toy.releases != 1:
            run.wrong(f"{toy!r} was released {toy.releases} times")
