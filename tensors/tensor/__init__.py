"""`ds.Tensor`: class and constructors, and what a leak detector sees of it and of plain arrays.

Read `tensor`, then `constructors`; `arena_service` is how scopes use the arena, `framework` what a
leak detector asks.
"""
