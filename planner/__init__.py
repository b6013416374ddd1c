"""Plans of memory: where in one slab buffers with known lives lie, so that it is as small as can be.

Read `plan`, then `table` (files of comma-separated values) and `src/planner.h` (the compiled part). The
room knows nothing of scopes and tensors.
"""
