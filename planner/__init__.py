"""Plans of memory: where buffers with known lives lie in one slab, to make it as small as can be.

Read `plan`, then `table` (files of comma-separated values) and `src/planner.h` (the compiled part).
The room knows nothing of scopes and tensors.
"""
