"""A task waits for an event that never comes, inside its scope, and keeps its buffers.

kind: suspended
holder: listen
"""

import asyncio

import disposescope as ds

tasks = []
loop = asyncio.new_event_loop()


async def listen(ready):
    with ds.dispose_scope("listen"):  # LEAK
        buffer = ds.zeros((200, 200))
        await ready.wait()
        return float(buffer.sum())


async def main():
    tasks.append(asyncio.create_task(listen(asyncio.Event())))
    await asyncio.sleep(0)


loop.run_until_complete(main())
