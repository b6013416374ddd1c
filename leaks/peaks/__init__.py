"""Find the peak of memory in a recording of births and deaths, and what would lower it.

Read `recording` (what was born and freed), `functions` (which functions of NumPy and PyTorch make
new memory), `files` (parsed sources), `values` (whether an expression is a number or an array),
`source` (what the source does with a value), `advice` (what would lower the peak), then `program`
(the peak of a whole program). The passes of workspaces are recorded and explained with these
modules too. They need NumPy.
"""
