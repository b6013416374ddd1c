"""Autograd graphs.

`walk` is the walk through one, `graph` what users ask of it, and `references` what holds what. The
last is for the search of holders, and has modules, optimizers and other parts of PyTorch too.
"""
