"""Find what holds a resource: a search forward from everything that a program can reach.

Read `references`, `origins`, `roots`, `paths`, `search`, and then `holders`, which the other rooms
call.
"""
