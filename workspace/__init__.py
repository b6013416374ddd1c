"""Workspaces: loops whose memory is known, planned and explained.

Read `workspace`, then `results` (what a workspace says of itself). Passes are recorded and served
by the arena, in `tensors/arena/src/passes.h`; what was born in them, and what would lower their
peak, is found by `leaks.peaks`; where things lie is planned by `planner`.
"""
