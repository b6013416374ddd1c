"""Plans of memory: the offsets of buffers with known lives in a slab as small as possible.

Read `plan`, then `table` (files of comma-separated values) and `src/planner.h` (the compiled part).
Nothing here knows scopes or tensors.
"""
