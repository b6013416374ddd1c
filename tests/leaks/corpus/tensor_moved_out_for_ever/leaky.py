"""Every step moves its result out, and nobody takes it from the list.

kind: growth
holder: module __main__.results
"""

import disposescope as ds

results = []

for step in range(60):
    with ds.dispose_scope("step") as scope:
        result = ds.arange(2000) + step  # LEAK
        results.append(scope.move_to_outer(result))
