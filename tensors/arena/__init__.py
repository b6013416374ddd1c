"""The arena: an allocator in C that serves and recycles NumPy's memory inside scopes.

Its sources are in ``src/``, its functions in ``compiled.pyi``. `budgets` counts the bytes of other
libraries against the budgets of scopes.
"""
