"""A thread that still waits for work has kept every batch in its thread local.

kind: growth
holder: module __main__.local
"""

import threading

import torch

local = threading.local()
ready = threading.Event()
stop = threading.Event()


def work():
    local.batches = []
    for step in range(60):
        batch = torch.full((500,), float(step))  # LEAK
        local.batches.append(batch)
        (batch * 2).sum().item()
    ready.set()
    stop.wait()


threading.Thread(target=work).start()
ready.wait()
threading._register_atexit(stop.set)  # before the threads are waited for
