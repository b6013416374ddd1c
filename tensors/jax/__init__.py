"""JAX: how births of its arrays are seen, and how they are released.

Read `install`, `adapter`, `births`, `disposal`; `watching` is for the leak detector.
"""
