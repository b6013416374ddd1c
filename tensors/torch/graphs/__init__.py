"""Autograd graphs: the walk through one (`walk`), what users ask of it (`graph`), and what holds what (`references`).

The last is for the search of holders, and has modules, optimizers and other parts of PyTorch too.
"""
