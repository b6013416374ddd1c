"""A scope is entered by hand, and an early return forgets to leave it.

kind: scope
holder: request
"""

import disposescope as ds

kept = []


def serve(size):
    scope = ds.dispose_scope("request")
    scope.__enter__()  # LEAK
    answer = ds.zeros((size, 100))
    kept.append((scope, answer))
    if size > 10:
        return len(answer)
    scope.close()
    return 0


serve(500)
