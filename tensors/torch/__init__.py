"""PyTorch: which tensors a scope owns, how they are disposed, their graphs, and what a detector sees.

Read `install`, `adapter`, `births`, `disposal`, `exclusions`; then `graph_walk` and `graph` for
autograd and `watching`, `references` for the leak detector. The compiled part is in ``src/``.
"""
