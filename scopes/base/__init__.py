"""The modules below scopes: `errors`, `options`, `files`, `sites` (lines of code) and `process`.

`process` has the table of patches, the fork handlers and the import hook. Nothing here knows a
scope.
"""
