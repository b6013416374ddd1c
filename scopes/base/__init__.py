"""What all of scopes rests on: `errors`, `options`, places in code (`sites`), and the changes of a process (`process`).

Nothing here knows a scope.
"""
