"""The log of births: what was born, on which line, and what became of it.

Read `log` first; `record_builder` makes records of its rows, `lines` groups them, `open_scopes`
knows the scopes that are open. The log is a compiled type: its sources are in ``src/``, its methods
in ``compiled.pyi``.
"""
