"""Each request starts a task that waits for an answer that never comes: asyncio.run() cancels them.

kind: growth
holder: task '
"""

import asyncio

import numpy as np


async def notify(request, answered):
    await answered.wait()
    return request.sum()


async def handle(number, answered):
    request = np.full(5000, number)  # LEAK
    asyncio.create_task(notify(request, answered))  # noqa: RUF006 (as programs have it)
    await asyncio.sleep(0)


async def main():
    answered = asyncio.Event()
    for number in range(200):
        await handle(number, answered)


asyncio.run(main())
