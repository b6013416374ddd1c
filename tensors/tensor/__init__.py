"""`ds.Tensor`: the class, its constructors, and how scopes and leak detectors see NumPy's memory.

Read `tensor`, then `constructors`. `arena_service` connects scopes to the arena. `framework` tells
a leak detector of arrays in the arena, `buffers` of arrays over other memory.
"""
