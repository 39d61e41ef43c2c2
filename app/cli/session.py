"""What one person does with one server: says something, watches the answer, stops it, takes up a chat again."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, TypeVar
from uuid import uuid4

from app.cli.answer import Answer
from app.cli.assembler import Assembler, Json
from app.cli.client import Client, Lost
from app.cli.follow import Follower

T = TypeVar("T")

_FRAME: Final = 0.08  # seconds
_PATIENCE: Final = 10.0  # seconds, for a turn that was asked to stop


class Session:
    """`show` makes what shows a turn. `chat` is the id of the open one; None until something was said."""

    def __init__(self, client: Client, show: Callable[[Assembler], Answer], model: str | None = None) -> None:
        self._client = client
        self._show = show
        self._model = model
        self.chat: str | None = None

    async def ask(self, text: str) -> Assembler:
        """Says `text` in the open chat, or in a new one, and shows the answer to its end."""
        answer = self._show(Assembler())
        text = text.encode(errors="replace").decode()  # bytes of another encoding, which Python hands on as surrogates
        try:
            async with _drawing(answer):
                exchange = await self._client.post_turn(self.chat, text, self._model, str(uuid4()))
        except BaseException:
            answer.finish()
            raise
        turn: Json = exchange["assistant_turn"]
        self.chat = turn["chat_id"]
        return await self._follow(turn, answer)

    async def follow(self, turn: Json) -> Assembler:
        """Shows an assistant turn as it is, and then to its end. Being cancelled (by Ctrl-C) stops the turn."""
        return await self._follow(turn, self._show(Assembler()))

    async def _follow(self, turn: Json, answer: Answer) -> Assembler:
        answer.state = Assembler.of(turn)
        follower = Follower(self._client, turn["chat_id"], turn["id"], turn["cursor"])
        try:
            await _watch(follower, answer)
        except asyncio.CancelledError:
            await self._stop(turn, follower, answer)
        finally:
            answer.finish()
        return answer.state

    async def _stop(self, turn: Json, follower: Follower, answer: Answer) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()
        answer.stopping()
        try:
            async with asyncio.timeout(_PATIENCE), _drawing(answer):
                await self._client.cancel(turn["chat_id"], turn["id"])
            async with asyncio.timeout(_PATIENCE):
                await _watch(follower, answer)
        except (Lost, TimeoutError):
            raise Lost("the server could not be told to stop, or has not done so yet: the answer may go on") from None


def carry_out(runner: asyncio.Runner, work: Coroutine[Any, Any, T]) -> T:
    """Runs `work`. The first Ctrl-C is its own affair; the second ends it where it stands."""
    try:
        return runner.run(work)
    except KeyboardInterrupt:
        runner.run(_cancel_all())
        raise


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


async def _watch(follower: Follower, answer: Answer) -> None:
    if answer.state.end is None:
        async with _drawing(answer), aclosing(follower.events()) as events:
            async for event in events:
                answer.take(event)


@asynccontextmanager
async def _drawing(answer: Answer) -> AsyncIterator[None]:
    task = asyncio.create_task(_draw(answer))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _draw(answer: Answer) -> None:
    while True:
        answer.draw()
        await asyncio.sleep(_FRAME)
