"""A packet is sent at once."""

import weakref

import numpy as np


class Connection:
    def __init__(self):
        self.sent = 0
        weakref.finalize(self, print, end="")

    def write(self, packet):
        self.sent += packet.nbytes


def main():
    for step in range(80):
        packet = np.ones(2000)
        packet *= step
        connection.write(packet.copy())


connection = Connection()
main()
