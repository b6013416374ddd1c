"""Workspaces: loops whose memory is known, planned and explained.

Read `workspace`, then `recording` (what was born and freed in a pass), `advice` (what would lower its
peak), and `results` (what a workspace says of itself). Passes are recorded and served by the arena, in
`tensors/arena/src/passes.h`; where things lie is planned by `planner`.
"""
