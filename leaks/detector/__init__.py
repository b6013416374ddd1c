"""The detector while a program runs: watching births, recording the course of a run, taking snapshots.

Read `detector`, `snapshot`, `watching`, `recording`.
"""
