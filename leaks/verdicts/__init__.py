"""Decide which kind of leak the resources of a line are, and how certain that is.

Read `growth`, `verdicts`, then `classify`, which turns a snapshot into a report; `without_tensors`
has leaks that are no tensors.
"""
