"""A table of all scales, a list of one-element lists and a grid are each made once, and used."""

import numpy as np


class Thumbnails:
    def __init__(self, image):
        self.image = image
        self.variants = {scale: image[::scale, ::scale].copy() for scale in range(1, 101)}
        self.rows = [[np.zeros(5000)] for _ in range(100)]
        self.grid = [[np.zeros(500) for _ in range(10)] for _ in range(20)]

    def handle(self, request):
        variant = self.variants[1 + request % 100]
        return int(variant[0, 0])


def main():
    service = Thumbnails(np.zeros((120, 160), np.uint8))
    total = 0
    for request in range(100):
        total += service.handle(request)


main()
