"""A dialect of plain lines in one file, which uses only the seams that docs/dialects.md names."""

from collections.abc import AsyncGenerator
from typing import Literal

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from tests.support.http_client import Client
from tests.support.http_server import serving
from turnstream import Extension
from turnstream.api.exchange import post_message
from turnstream.api.http.call_group import CallGroup, EventStream
from turnstream.api.http.endpoint import Endpoint
from turnstream.api.http.reading import read_body
from turnstream.api.schemas.fields import Body
from turnstream.api.services import Services, identity_of, services_and_owner
from turnstream.domain.chats import Chat
from turnstream.domain.cursor import Cursor
from turnstream.domain.errors import RequestRefused
from turnstream.domain.events import BlockDelta, Event, Notice, TurnEnd
from turnstream.domain.turns import Turn
from turnstream.kit.clock import CLOCK
from turnstream.kit.ids import new_id
from turnstream.libraries.dialects.chats import checked_turn
from turnstream.libraries.dialects.histories import PastItem, PastMessage, PastText, digest_of, find_place, history_of
from turnstream.libraries.dialects.past_exchanges import histories_of
from turnstream.libraries.dialects.posting import post_in_seeded_chat
from turnstream.libraries.dialects.projection import Begin, CallResult, Close, Projection, Retract
from turnstream.libraries.dialects.streams import DialectReader, current_view, dialect_response
from turnstream.scripted import message_of, text
from turnstream.storage.chats.exchanges import Target


class Line(BaseModel):
    role: Literal["user", "assistant"]
    text: str

    def item(self) -> PastItem:
        return PastMessage([{"type": "text", "text": self.text}]) if self.role == "user" else PastText(self.text)


class Lines(Body):
    model: str
    lines: list[Line]


class LineEncoder:
    def __init__(self, turn: Turn) -> None:
        self._projection = Projection(turn)

    def __call__(self, event: Event | Notice, _cursor: Cursor | None) -> bytes:
        if isinstance(event, BlockDelta):
            return event.text.encode()
        match self._projection.take(event):
            case Begin(start=start):
                return f"{start.type}: ".encode()
            case Close():
                return b"\n"
            case CallResult(block=block):
                return f"{block.text}\n".encode()
            case Retract(index=index):
                return f"\nagain from {index}\n".encode()
            case TurnEnd(status=status):
                return f"{status}\n".encode()
            case _:
                return b""


async def converse(request: Request) -> Response:
    services, owner = services_and_owner(request)
    sent, _ = await read_body(request, Lines)
    services.streams.take(request)
    *history, message = (line.item() for line in sent.lines)
    new = checked_turn({"model": sent.model, "blocks": [{"type": "text", "text": sent.lines[-1].text}]})
    place = await find_place(services, identity_of(request), history[:-1], history[-1:])
    if place is not None:
        exchange = await post_message(services, new, Target(owner, place.chat, place.turn), None)
    else:
        now = CLOCK.now()
        chat = Chat(new_id(), owner, None, None, {}, created_at=now, updated_at=now)
        past = history_of(services, owner, history, "lines") if history else None
        exchange = await post_in_seeded_chat(services, new, chat, None, past)
    turn = exchange.assistant_turn
    await histories_of(services).keep(owner, await digest_of([*history, message]), turn.id)
    return dialect_response(services, line_frames(services, owner, turn), access_ended, b"")


async def line_frames(services: Services, owner: str, turn: Turn) -> AsyncGenerator[bytes, None]:
    view = current_view(services, turn)
    reader = DialectReader(services, owner, view, LineEncoder(view.turn))
    while True:
        if found := reader.look():
            yield found
        elif not await reader.more():
            if reader.waiting is not None:
                yield b"waiting\n"
            return


def access_ended(refusal: RequestRefused) -> bytes:
    return refusal.detail.encode()


ENDPOINT = Endpoint(
    "POST /api/lines",
    converse,
    "A message in plain lines",
    Lines,
    "text/event-stream",
    reach="handler",
    events="Lines",
    scopes=("send", "chat"),
    limits=("requests", "queued_turns", "streams"),
)
GROUP = CallGroup((ENDPOINT,), "Lines", "Plain lines", {"Lines": EventStream("Plain lines")})
LINES = Extension("lines", "plain lines", calls=lambda: (GROUP,))


async def test_a_dialect_of_plain_lines_needs_only_the_seams(database_url: str) -> None:
    async with serving(database_url, extensions=[LINES]) as server, Client(server.url) as api:

        async def say(*lines: tuple[str, str], answer: str) -> str:
            body = {
                "model": server.scripts.model(message_of(text(answer))),
                "lines": [{"role": role, "text": words} for role, words in lines],
            }
            return (await api.post("/api/lines", json=body)).text

        async def chats() -> int:
            return len((await api.json("GET", "/api/chats"))["chats"])

        assert await say(("user", "Moin"), answer="Ahoy.") == "text: Ahoy.\ncomplete\n"
        known = ("user", "Moin"), ("assistant", "Ahoy. "), ("user", "And?")
        assert await say(*known, answer="Nothing.") == "text: Nothing.\ncomplete\n"
        assert await chats() == 1, "the history has led to its place"
        assert await say(("user", "Moin"), ("assistant", "Elsewhere."), ("user", "And?"), answer="Here.")
        assert await chats() == 2, "an answer that is not from here is recorded in a chat of its own"
