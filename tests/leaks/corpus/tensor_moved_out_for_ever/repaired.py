"""The results of a few steps are reduced and dropped."""

import disposescope as ds

results = []
sums = []

for step in range(60):
    with ds.dispose_scope("step") as scope:
        result = ds.arange(2000) + step
        results.append(scope.move_to_outer(result))
    if len(results) == 6:
        sums.append(sum(float(result.sum()) for result in results))
        results.clear()
