"""The detector of a running program: it watches births, records the run, and takes snapshots.

Read `detector`, `snapshot`, `watching`, `recording`; `freed` tells why one object is alive.
"""
