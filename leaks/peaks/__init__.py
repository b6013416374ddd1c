"""Find the peak of memory in a recording of lives, and what would lower it. Needs NumPy.

Read `recording` (what was born and freed), `functions` (what is known of NumPy and PyTorch),
`files` (parsed sources), `values` (what a value is), `source` (what becomes of it), `advice` (what
would lower the peak), then `program` (the peak of a whole program). Passes of workspaces are
recorded and explained with them too.
"""
