"""Work for the server, done while somebody looks on."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from rich.console import Console

from app.terminal.terminal import watching

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Carrier:
    """In between, the prompt has the terminal to itself."""

    runner: asyncio.Runner
    console: Console

    def __call__(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work`. The first Ctrl-C is its own affair; the second ends it where it stands."""
        with watching(self.console):
            try:
                return self.runner.run(work)
            except KeyboardInterrupt:
                self.runner.run(_cancel_all())
                raise


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
