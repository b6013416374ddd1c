"""Autograd graphs.

`walk` goes through a graph. `graph` has the public functions about graphs. `references` tells the
search for holders what tensors, nodes, modules and optimizers hold.
"""
