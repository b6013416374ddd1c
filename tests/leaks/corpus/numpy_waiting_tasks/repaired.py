"""A semaphore bounds how many wait, and the answer comes."""

import asyncio

import numpy as np


async def notify(request, answered, places):
    await answered.wait()
    places.release()
    return request.sum()


async def handle(number, answered, places):
    await places.acquire()
    request = np.full(5000, number)
    asyncio.create_task(notify(request, answered, places))  # noqa: RUF006 (as programs have it)
    asyncio.get_running_loop().call_soon(answered.set)
    await asyncio.sleep(0)


async def main():
    places = asyncio.Semaphore(8)
    for number in range(200):
        await handle(number, asyncio.Event(), places)


asyncio.run(main())
