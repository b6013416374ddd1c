"""What scopes rest on: `errors`, `options`, `files`, places in code (`sites`), and `process`.

The last has the changes that the package makes in other code. Nothing here knows a scope.
"""
