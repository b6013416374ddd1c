"""The thread keeps the last ten."""

import queue
import threading
import time
from collections import deque

import numpy as np

todo: queue.Queue[int | None] = queue.Queue()
means = []


def work():
    frames = deque(maxlen=10)
    while (number := todo.get()) is not None:
        time.sleep(0.002)
        frame = np.full(20_000, number, float)
        frames.append(frame)
        means.append(float(frame.mean()))


for number in range(150):
    todo.put(number)
todo.put(None)
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(len(means))
