"""What one person does with one server: says something, watches the answer, stops it, takes up a chat again."""

import asyncio
from collections.abc import AsyncIterator, Callable, Set
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

from app.terminal.assembler import Assembler, Json
from app.terminal.errors import Lost, Refused
from app.terminal.http_client import Client, TurnFollower
from app.terminal.turn_view import AnswerView

# A call that waits, with the very input that was looked at.
Asked = tuple[str, str]

_FRAME: Final = 0.08  # seconds
_PATIENCE: Final = 10.0  # seconds, for a turn that was asked to stop
_TOO_LATE: Final = frozenset({404, 409})


@dataclass(slots=True)
class _Watched:
    """The turn that is watched. `gone` are the calls that no answer of ours can reach any more."""

    turn: Json
    follower: TurnFollower
    answer: AnswerView
    gone: set[Asked] = field(default_factory=set)

    @property
    def place(self) -> tuple[str, str]:
        return self.turn["chat_id"], self.turn["id"]


class ChatSession:
    """`show` makes what shows a turn. `chat` is the id of the open one; None until something was said.

    A turn is shown to its end, or until it waits for a person. Then `waiting` says what for, `act` answers, `go_on`
    shows the rest.
    """

    def __init__(self, client: Client, show: Callable[[Assembler], AnswerView], model: str | None = None) -> None:
        self._client = client
        self._show = show
        self._model = model
        self._watched: _Watched | None = None
        self.chat: str | None = None

    async def ask(self, text: str) -> Assembler:
        """Says `text` in the open chat, or in a new one, and shows the answer."""
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
        """Shows an assistant turn as it is, and then what comes. Being cancelled (by Ctrl-C) stops the turn."""
        return await self._follow(turn, self._show(Assembler()))

    async def waiting(self) -> list[Json]:
        """Those of the calls that were shown which wait for a person at this moment: others are not asked about before
        the stream has told what led to them.
        """
        watched = self._now_watched
        shown = {asked(action) for action in watched.answer.state.actions} - watched.gone
        turn = await self._client.turn(*watched.place)
        actions = [action for action in turn["actions"] if asked(action) in shown]
        watched.answer.state.actions = actions
        return actions

    async def act(self, call: Json, action: Json) -> None:
        """Answers `call`. Raises Refused where that is too late, or where the answer does not do."""
        watched = self._now_watched
        try:
            await self._client.act(*watched.place, action, str(uuid4()))
        except Refused as error:
            if error.status in _TOO_LATE:
                watched.gone.add(asked(call))
            raise

    async def go_on(self, passed: Set[Asked] = frozenset()) -> Assembler:
        """Shows the turn until it ends, or waits again: for something that was not `passed`, or for nothing else."""
        return await self._show_on(self._now_watched, passed)

    async def stop(self) -> Assembler:
        """Stops a turn that waits."""
        watched = self._now_watched
        try:
            await self._stop(watched)
        finally:
            watched.answer.finish()
        return watched.answer.state

    @property
    def _now_watched(self) -> _Watched:
        assert self._watched is not None, "no turn was asked for"
        return self._watched

    async def _follow(self, turn: Json, answer: AnswerView) -> Assembler:
        answer.state = Assembler.of(turn)
        self._watched = _Watched(turn, TurnFollower(self._client, turn["chat_id"], turn["id"], turn["cursor"]), answer)
        return await self._show_on(self._watched, frozenset())

    async def _show_on(self, watched: _Watched, passed: Set[Asked]) -> Assembler:
        answer, waits = watched.answer, False
        try:
            waits = await _watch(watched.follower, answer, lambda: _needs_a_person(answer.state, passed))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            await self._stop(watched)
        finally:
            if waits:
                answer.pause()
            else:
                answer.finish()
        return answer.state

    async def _stop(self, watched: _Watched) -> None:
        answer = watched.answer
        answer.stopping()
        try:
            async with asyncio.timeout(_PATIENCE), _drawing(answer):
                await self._client.cancel(*watched.place)
            async with asyncio.timeout(_PATIENCE):
                await _watch(watched.follower, answer, lambda: False)
        except (Lost, TimeoutError):
            raise Lost("the server could not be told to stop, or has not done so yet: the answer may go on") from None


def asked(call: Json) -> Asked:
    return call["tool_use_id"], call["input_digest"]


def _needs_a_person(state: Assembler, passed: Set[Asked]) -> bool:
    return state.waits or any(asked(action) not in passed for action in state.actions)


async def _watch(follower: TurnFollower, answer: AnswerView, enough: Callable[[], bool]) -> bool:
    """Until the turn has ended, or until it is `enough`, which is returned."""
    if answer.state.end is not None or enough():
        return answer.state.end is None
    async with _drawing(answer), aclosing(follower.events()) as events:
        async for event in events:
            answer.take(event)
            if enough():
                return True
    return False


@asynccontextmanager
async def _drawing(answer: AnswerView) -> AsyncIterator[None]:
    task = asyncio.create_task(_draw(answer))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _draw(answer: AnswerView) -> None:
    while True:
        answer.draw()
        await asyncio.sleep(_FRAME)
