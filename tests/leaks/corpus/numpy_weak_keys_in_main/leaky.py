"""A dictionary with weak keys has a result for each session, and main() has the sessions.

kind: growth, escaped
holder: RESULTS[<Session>] (as long as this key lives)
"""

import weakref

import numpy as np

RESULTS = weakref.WeakKeyDictionary()


class Session:
    pass


def main():
    sessions = []
    for _ in range(80):
        session = Session()
        sessions.append(session)
        RESULTS[session] = np.zeros(20_000)  # LEAK
    print(len(sessions), len(RESULTS))


main()
