"""Each request keeps what a dict comprehension makes of its image, and main() returns in the end.

kind: growth
holder: local 'service'.variants[
"""

import numpy as np


class Thumbnails:
    def __init__(self):
        self.variants = {}

    def handle(self, request, image):
        made = {scale: image[::scale, ::scale].copy() for scale in (1, 2, 3, 4, 6)}  # LEAK
        self.variants[request] = made
        return sum(int(variant[0, 0]) for variant in made.values())


def main():
    service = Thumbnails()
    image = np.zeros((120, 160), np.uint8)
    total = 0
    for request in range(100):
        total += service.handle(request, image)


main()
