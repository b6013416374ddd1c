"""A context variable of a task collects what each request made, and goes with the task.

kind: growth
holder: context variable 'payloads' of task
"""

import asyncio
import contextvars

import numpy as np

payloads = contextvars.ContextVar("payloads", default=())


async def handle(number):
    payload = np.full(5000, float(number))  # LEAK
    payloads.set((*payloads.get(), payload))
    await asyncio.sleep(0)
    return payload.sum()


async def serve():
    total = 0.0
    for number in range(200):
        total += await handle(number)
    return total


print(asyncio.run(serve()))
