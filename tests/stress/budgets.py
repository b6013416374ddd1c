"""Budgets that are refused."""

from __future__ import annotations

import contextvars
import random
import threading

import numpy as np

import disposescope as ds

from .run import Run, torch


def budgets(run: Run) -> None:
    """Budgets that refuse on many threads, each told of its own; one budget that threads share."""

    def refusal(number: int, rng: random.Random) -> int:
        for which in range(6):
            budget = 100_000 + 1000 * number + which
            try:
                with ds.dispose_scope(f"of thread {number}", budget=budget) as scope:
                    kept = [np.full(100 * (1 + rng.randrange(20)), float(number)) for _ in range(3)]
                    for _ in range(3):
                        try:
                            np.empty(budget // 8 + rng.randrange(1000), dtype="float64")
                        except MemoryError:
                            pass
                        else:
                            run.wrong("a budget was not kept")
                    if scope.nbytes > budget:
                        run.wrong(f"{scope!r} is over its budget of {budget}")
                    if not all((array == number).all() for array in kept):
                        run.wrong("an array has other contents after a refusal")
                    if torch is not None and rng.random() < 0.5:
                        torch.zeros(budget)
                    else:
                        np.empty(budget)
            except MemoryError as error:
                notes = " ".join(getattr(error, "__notes__", ()))
                if f"budget {budget} bytes" not in notes or f"'of thread {number}'" not in notes:
                    run.wrong(f"the refusal in the scope with budget {budget} of thread {number} tells: {notes!r}")
            else:
                run.wrong("a budget was not kept at the end")
            del kept, scope
        return 24

    def shared(_number: int, rng: random.Random) -> int:
        budget = 300_000

        def work(seed: float) -> None:
            choose = random.Random(seed)
            for step in range(20):
                try:
                    array = np.full(choose.randrange(1, 20_000), float(step))
                    if not (array == step).all():
                        run.wrong("an array under a shared budget has other contents")
                except MemoryError:
                    pass
                if scope.nbytes > budget:
                    run.wrong(f"{scope!r} is over its budget of {budget}")

        with ds.dispose_scope("shared", budget=budget) as scope:
            threads = [
                threading.Thread(target=contextvars.copy_context().run, args=(work, rng.random())) for _ in range(3)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return 60

    run.in_threads(lambda number, rng: (refusal if number % 4 else shared)(number, rng))
