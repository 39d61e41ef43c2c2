"""Watches for causes of a slow server: work that blocks the event loop, and long transactions."""

import asyncio

from turnstream.extension import Context, Extension, Work


def _work(context: Context) -> Work:
    from turnstream.extensions.watches.loop_watch import LoopWatch
    from turnstream.extensions.watches.transactions import TransactionWatch

    async def watch_loop() -> None:
        with LoopWatch():
            await asyncio.Event().wait()

    return Work(tasks=[watch_loop, TransactionWatch(context.database).run])


EXTENSION = Extension("watches", "metrics of what holds the event loop, and of the oldest transaction", work=_work)
