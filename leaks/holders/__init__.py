"""Find what holds a resource: a search forward from everything that a program can reach.

Read `references`, `roots`, `paths`, `search`, and then `holders`, which the other rooms call.
"""
