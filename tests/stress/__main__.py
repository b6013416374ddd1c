"""The program: see the page of this folder."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import importlib
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from typing import Literal

import disposescope as ds

from .run import HANG_S, Run, has
from .text import write_files


@dataclass(frozen=True, slots=True)
class Scenario:
    """Where one round of a scenario is defined, what it needs, and which counters balance after it.

    What was created has died ("created"), unless objects of users' kinds were attached; what was
    owned is not owned any more ("owned"), unless members of composites were born before their
    composite.
    """

    module: str
    needs: str | None = None
    balance: tuple[Literal["created", "owned"], ...] = ("created", "owned")


SCENARIOS = {
    "torch_tensors": Scenario("torch_tensors", "torch"),
    "scopes": Scenario("scopes", balance=("created",)),
    "text": Scenario("text"),
    "tensors": Scenario("tensors"),
    "packs": Scenario("packed", balance=()),
    "torch_packs": Scenario("packed", "torch", ()),
    "budgets": Scenario("budgets"),
    "contexts": Scenario("contexts"),
    "detectors": Scenario("detectors", balance=()),
    "interrupts": Scenario("interrupts", balance=()),
    "recursion": Scenario("interrupts", balance=("owned",)),
    "forks": Scenario("processes", balance=()),
    "workers": Scenario("processes", "torch", ()),
    # Last: JAX has threads of its own, and what is forked while they run may hang.
    "jax_arrays": Scenario("jax_arrays", "jax"),
}
"""The scenarios, each a function of its name that runs one round."""


def figures(scenario: Scenario) -> dict[str, int]:
    """What is the same before and after a round, of which nothing is left."""
    gc.collect()
    gc.collect()
    now = ds.statistics(process=True)
    arena = ds.arena_statistics()
    told = {
        "resources alive": now.live,
        "their bytes": now.live_nbytes,
        "blocks of the arena": arena.blocks,
        "bytes of the arena": arena.live_nbytes,
    }
    if "created" in scenario.balance:
        died = now.disposed_in_scope + now.disposed_unscoped
        told["created less disposed"] = now.created_in_scope + now.created_unscoped - died
    if "owned" in scenario.balance:
        lost = now.disposed_in_scope + now.detached
        told["owned, by the counters"] = now.created_in_scope + now.attached - lost
    return told


def run_scenario(name: str, rounds: int, threads: int, seed: int) -> Run:
    """Run a scenario until its rounds are done, or one of them has findings."""
    scenario = SCENARIOS[name]
    one_round = getattr(importlib.import_module(f"{__package__}.{scenario.module}"), name)
    run = Run(name, threads, seed)
    gc.collect()
    # What was imported is not searched at every collection.
    gc.freeze()
    while run.round < rounds and not run.findings:
        run.round += 1
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        before = figures(scenario)
        try:
            one_round(run)
        except BaseException as error:
            run.unexpected("the main thread", error)
        run.nothing_is_current("the main thread")
        run.look_at_suspects()
        after = figures(scenario)
        for what, figure in before.items():
            if after[what] != figure:
                run.wrong(f"{what}: {figure} before the round, {after[what]} after it")
    faulthandler.cancel_dump_traceback_later()
    return run


def main() -> int:
    """Run what the command line names; the status of the program."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="of each scenario (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="of all random choices (default: 0)")
    parser.add_argument("--threads", type=int, default=8, help="that compute at once (default: 8)")
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, default=list(SCENARIOS), help="these scenarios alone")
    options = parser.parse_args()
    faulthandler.enable()
    warnings.simplefilter("error")
    # JAX, and newer Pythons, warn of a fork in a process with threads, which is what is wanted
    # here.
    warnings.filterwarnings("ignore", message=".*fork")
    sys.setswitchinterval(1e-4)
    # Modules are not imported while interrupts arrive: Python leaves files open then.
    for public in ds.__all__:
        getattr(ds, public)
    found = 0
    with tempfile.TemporaryDirectory(prefix="stress") as folder:
        write_files(folder)
        for name in options.only:
            needs = SCENARIOS[name].needs
            if needs is not None and not has(needs):
                print(f"{name}: not run, there is no {needs}", flush=True)
                continue
            # At once, so that a crash has its name.
            print(f"{name}:", end=" ", flush=True)
            began = time.perf_counter()
            run = run_scenario(name, options.rounds, options.threads, options.seed)
            took = f"{time.perf_counter() - began:.1f} s"
            print(f"{run.round} rounds, {run.operations} operations, {len(run.findings)} findings, {took}", flush=True)
            for finding in run.findings[:10]:
                print("   ", finding.rstrip().replace("\n", "\n    "), flush=True)
            found += len(run.findings)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
