"""The task is cancelled when nobody wants its answer any more."""

import asyncio
import contextlib

import disposescope as ds

loop = asyncio.new_event_loop()


async def listen(ready):
    with ds.dispose_scope("listen"):
        buffer = ds.zeros((200, 200))
        await ready.wait()
        return float(buffer.sum())


async def main():
    task = asyncio.create_task(listen(asyncio.Event()))
    await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


loop.run_until_complete(main())
loop.close()
