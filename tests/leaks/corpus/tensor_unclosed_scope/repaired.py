"""The with statement leaves it on every way out."""

import disposescope as ds


def serve(size):
    with ds.dispose_scope("request"):
        answer = ds.zeros((size, 100))
        if size > 10:
            return len(answer)
    return 0


serve(500)
