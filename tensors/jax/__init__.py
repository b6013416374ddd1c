"""JAX: how births of its arrays are seen, and how they are released.

Read `install`, `framework`, `adapter`, `births` and `disposal`, in this order.
"""
