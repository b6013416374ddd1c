"""It keeps the last batch only."""

import threading

import torch

local = threading.local()
ready = threading.Event()
stop = threading.Event()


def work():
    for step in range(60):
        local.batch = torch.full((500,), float(step))
        (local.batch * 2).sum().item()
    ready.set()
    stop.wait()


threading.Thread(target=work).start()
ready.wait()
threading._register_atexit(stop.set)  # before the threads are waited for
