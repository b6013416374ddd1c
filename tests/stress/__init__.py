"""Stress the library with threads, interrupts, forks and detectors, and check every result.

::

    python -m tests.stress --rounds 20 --seed 0
    python -m tests.stress --rounds 200 --only torch_tensors text --threads 4

runs, at the root of the checkout, each scenario for a fixed number of rounds. What a thread does is
chosen at random from the seed, the scenario, the round and the number of the thread, never from the
clock; how the threads interleave is up to the machine. In every round what is computed is compared
with what was computed beforehand. At its end, when all threads have ended, nothing may be left: no
current scope, no living resource, no block of the arena, and statistics that add up.

One line for each scenario tells its rounds, its operations (computations and verbs) and its
findings. A finding is a wrong result, an exception of a type that was not due, a scope left current
or open, or something left behind. It is printed, ends its scenario, and makes the status 1. A crash
ends the program, and `faulthandler` tells where; so does a round that takes longer than five
minutes. A scenario whose library is not installed is passed over.

`run` says what a scenario has at hand and how results are checked; `__main__` lists the scenarios
and runs them; each of the other modules has one or two.
"""
