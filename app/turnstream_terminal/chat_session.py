"""A person's session with a server: sends messages, shows turns, answers waiting calls, and stops turns."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Set
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

from turnstream_client.assembler import Assembler
from turnstream_client.errors import ConnectionLost, RequestRejected
from turnstream_client.events import Json
from turnstream_client.http import AsyncClient, StreamFollower
from turnstream_terminal.turn_view import TurnView

# The id of a call and the digest of its input: if the input changes, the call is a new question to the person.
CallKey = tuple[str, str]

_FRAME: Final = 0.08  # seconds
_STOP_TIMEOUT: Final = 10.0  # seconds
_TOO_LATE: Final = frozenset({404, 409})


@dataclass(slots=True)
class _FollowedTurn:
    """A turn that the session follows. `closed` has the keys of calls that can no longer be answered."""

    turn: Json
    follower: StreamFollower
    view: TurnView
    closed: set[CallKey] = field(default_factory=set)

    @property
    def ids(self) -> tuple[str, str]:
        return self.turn["chat_id"], self.turn["id"]


class ChatSession:
    """`open_view` creates the view of a turn. `model` and `options`, which are other members of the body, are sent with
    each message. `chat` is the id of the open chat, or None before the first message. `branch` is the parent of the
    next message; None means the newest turn. `attached` are blocks that the next message includes.

    The session shows a turn until the turn ends or waits for a person. Then `pending_calls` returns the waiting calls,
    `answer_call` answers a call, and `resume` shows the rest of the turn.

    With `offers_calls`, Ctrl-C during a turn that has background calls only sets `interrupted`; then the caller stops a
    call or the turn.
    """

    def __init__(
        self,
        client: AsyncClient,
        open_view: Callable[[Assembler], TurnView],
        model: str | None = None,
        options: Json | None = None,
        *,
        offers_calls: bool = False,
    ) -> None:
        self._client = client
        self._open_view = open_view
        self.model = model
        self._options = options
        self._offers_calls = offers_calls
        self.interrupted = False
        self._current: _FollowedTurn | None = None
        self.chat: str | None = None
        self.branch: str | None = None
        self.attached: list[Json] = []

    async def send(self, text: str) -> Assembler:
        """Sends `text` and the attached blocks in the open chat, or in a new chat, and shows the answer."""
        text = text.encode(errors="replace").decode()  # text typed in another encoding has lone surrogates
        members = dict(self._options or {})
        if self.branch:
            members["parent_id"] = self.branch
        if self.attached:
            members["blocks"] = [{"type": "text", "text": text}, *self.attached]
        return await self._show_exchange(self._client.post_turn(self.chat, text, self.model, str(uuid4()), members))

    async def edit(self, turn: Json, text: str) -> Assembler:
        """Sends `text` and the files of the user turn `turn` as a sibling of that turn, and shows the answer."""
        files = [input_of(block) for block in turn["blocks"] if "source" in block.get("data", {})]
        members = {
            **(self._options or {}),
            "parent_id": turn["parent_id"],
            "on_busy": "branch",
            "blocks": [{"type": "text", "text": text}, *files],
        }
        return await self._show_exchange(
            self._client.post_turn(turn["chat_id"], text, self.model, str(uuid4()), members)
        )

    async def retry(self, turn: Json) -> Assembler:
        """Requests another answer as a sibling of the assistant turn `turn`, and shows this answer."""
        members: Json = {"model": self.model} if self.model else {}
        return await self._show_exchange(self._client.regenerate(turn["chat_id"], turn["id"], members))

    async def _show_exchange(self, posting: Awaitable[Json]) -> Assembler:
        view = self._open_view(Assembler())
        try:
            async with _drawing(view):
                exchange = await posting
        except BaseException:
            view.finish()
            raise
        turn: Json = exchange["assistant_turn"]
        self.chat, self.branch, self.attached = turn["chat_id"], None, []
        return await self._follow(turn, view)

    async def follow(self, turn: Json) -> Assembler:
        """Shows an assistant turn as it is now, then its new events. A cancellation (Ctrl-C) stops the turn."""
        return await self._follow(turn, self._open_view(Assembler()))

    async def pending_calls(self) -> list[Json]:
        """Returns the displayed calls that still wait for a person. A call that is not displayed yet is left out,
        because the person has not seen its context.
        """
        current = self._followed
        shown = {call_key(action) for action in current.view.state.actions} - current.closed
        turn = await self._client.turn(*current.ids)
        actions = [action for action in turn["actions"] if call_key(action) in shown]
        current.view.state.actions = actions
        return actions

    async def answer_call(self, call: Json, action: Json) -> None:
        """Sends `action` as the answer to `call`. Raises RequestRejected if the answer is late or invalid."""
        current = self._followed
        try:
            await self._client.answer_call(*current.ids, action, str(uuid4()))
        except RequestRejected as error:
            if error.status in _TOO_LATE:
                current.closed.add(call_key(call))
            raise

    async def resume(self, skipped: Set[CallKey] = frozenset()) -> Assembler:
        """Shows the turn until it ends, until a call that is not in `skipped` waits, or until all open calls wait."""
        return await self._show(self._followed, skipped)

    async def stop_call(self, job: Json) -> None:
        """Stops a background call. Raises RequestRejected."""
        await self._client.cancel_call(*self._followed.ids, job["tool_use_id"])

    async def stop(self) -> Assembler:
        """Stops a waiting turn."""
        current = self._followed
        try:
            await self._stop(current)
        finally:
            current.view.finish()
        return current.view.state

    @property
    def _followed(self) -> _FollowedTurn:
        assert self._current is not None, "no turn was sent or followed"
        return self._current

    async def _follow(self, turn: Json, view: TurnView) -> Assembler:
        view.state = Assembler.of(turn)
        follower = self._client.follow(turn["chat_id"], turn["id"], turn["cursor"])
        self._current = _FollowedTurn(turn, follower, view)
        return await self._show(self._current, frozenset())

    async def _show(self, current: _FollowedTurn, skipped: Set[CallKey]) -> Assembler:
        view, waits = current.view, False
        self.interrupted = False

        def needs_a_person() -> bool:
            return view.state.waits or any(call_key(action) not in skipped for action in view.state.actions)

        try:
            try:
                waits = await _feed_view(current.follower, view, needs_a_person)
            except RequestRejected as error:
                if error.status != 400:  # 400: the cursor is invalid, for example after a backup was restored
                    raise
                turn = await self._client.turn(*current.ids)
                view.state, current.follower = Assembler.of(turn), self._client.follow(*current.ids, turn["cursor"])
                waits = await _feed_view(current.follower, view, needs_a_person)
            if not waits and view.state.end is None:  # the turn ended before the connection
                view.state = Assembler.of(await self._client.turn(*current.ids))
        except asyncio.CancelledError:
            # On Ctrl-C asyncio.Runner cancels this task once. The task itself then requests the stop of the turn, so it
            # must be able to await again.
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            if self._offers_calls and view.state.jobs and view.state.end is None:
                self.interrupted = waits = True
            else:
                await self._stop(current)
        finally:
            if waits:
                view.pause()
            else:
                view.finish()
        return view.state

    async def _stop(self, current: _FollowedTurn) -> None:
        view = current.view
        view.stopping()
        try:
            async with asyncio.timeout(_STOP_TIMEOUT), _drawing(view):
                await self._client.cancel(*current.ids)
            async with asyncio.timeout(_STOP_TIMEOUT):
                await _feed_view(current.follower, view, lambda: False)
        except (ConnectionLost, TimeoutError):
            raise ConnectionLost("the server did not confirm the stop, so the answer may continue") from None


def input_of(block: Json) -> Json:
    """Returns a block that sends the file of a stored block again."""
    source, title = block["data"]["source"], block["data"].get("title")
    if source["type"] != "upload":  # the block itself contains the text
        source = {"type": "base64", "data": b64encode(block["text"].encode()).decode()}
    else:
        source = {"type": "upload", "id": source["id"]}
    return {"type": block["type"], "source": source, **({"title": title} if title else {})}


def call_key(call: Json) -> CallKey:
    return call["tool_use_id"], call["input_digest"]


async def _feed_view(follower: StreamFollower, view: TurnView, is_enough: Callable[[], bool]) -> bool:
    """Passes events to the view. Returns False when the turn has ended, or True as soon as `is_enough` is true."""
    if view.state.end is not None or is_enough():
        return view.state.end is None
    async with _drawing(view), aclosing(follower.events()) as events:
        async for event in events:
            view.apply(event)
            if is_enough():
                return True
    return False


@asynccontextmanager
async def _drawing(view: TurnView) -> AsyncIterator[None]:
    async def draw() -> None:
        while True:
            view.draw()
            await asyncio.sleep(_FRAME)

    task = asyncio.create_task(draw())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
