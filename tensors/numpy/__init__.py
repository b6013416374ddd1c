"""Plain NumPy arrays: alignment, storages, and the statistics of the arena that serves them.

Read `storage` first.
"""
