"""The buffer of a connection is emptied when the connection is finalized, which is at exit.

kind: growth
holder: weakref.finalize
"""

import weakref

import numpy as np


class Connection:
    def __init__(self):
        buffer = []
        self.buffer = weakref.ref(self)
        self.write = buffer.append
        weakref.finalize(self, list.clear, buffer)


def main():
    for step in range(80):
        packet = np.ones(2000)
        packet *= step
        connection.write(packet.copy())  # LEAK


connection = Connection()
main()
del connection.write
