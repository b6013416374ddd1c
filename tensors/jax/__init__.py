"""JAX: how births of its arrays are seen, and how they are released.

Read `install`, `framework`, `adapter`, `births`, `disposal`.
"""
