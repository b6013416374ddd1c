"""The arena: an allocator in C that serves and recycles NumPy's memory inside scopes.

Read ``compiled.pyi``, then in ``src/`` pool/pool.h (blocks), accounts.h (owners), handler.h (what
NumPy calls), tracked.h and passes.h (plans). `budgets` counts the bytes of other libraries against
the budgets of scopes.
"""
