"""Workspaces: loops whose memory is planned in one slab, after one pass was recorded.

Read `workspace`, then `results` (statistics and peaks). The arena records and serves the passes
(`tensors/arena/src/passes.h`). `leaks.peaks` finds what was born in them and what would lower their
peak. `planner` plans the offsets in the slab.
"""
