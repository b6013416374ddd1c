"""An example row for a report is a view of the whole batch.

kind: view
holder: module __main__.examples
"""

import disposescope as ds

examples = []

for step in range(3):
    with ds.dispose_scope("step") as scope:
        batch = ds.zeros((1000, 200)) + step
        examples.append(scope.move_to_outer(batch[0]))  # LEAK
