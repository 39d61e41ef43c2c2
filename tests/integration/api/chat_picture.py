"""The state that a client assembles from the stream of a chat. An assertion fails for each promise that the stream
breaks.
"""

import copy
from dataclasses import dataclass, field
from typing import Any

from tests.support.http_client import Event

Json = dict[str, Any]

ENDS = {"turn_complete": "complete", "turn_cancelled": "cancelled", "turn_error": "error"}
NOTICES = {"status", "retry", "tool_progress", "tool_output", "queue"}


@dataclass
class Pictured:
    """A turn, as far as the client has received it. `known` is true once the client may receive the turn's own
    events.
    """

    parent: str | None
    role: str
    blocks: list[Json] = field(default_factory=list)
    events: int = 0
    status: str | None = None

    def take(self, name: str, data: Json) -> None:
        assert self.status is None, "nothing comes after the end of a turn"
        assert (name == "turn_start") == (self.events == 0)
        self.events += 1
        match name:
            case "block_start":
                assert data["index"] == len(self.blocks)
                self.blocks.append({**data, "text": "", "open": True})
            case "block_delta":
                assert data["index"] == len(self.blocks) - 1
                assert data["offset"] == len(self.blocks[-1]["text"])
                self.blocks[-1]["text"] += data["text"]
            case "block_stop":
                assert self.blocks[-1].pop("open")
                self.blocks[-1] |= data
            case "reset":
                del self.blocks[data["index"] :]
            case _:
                self.status = ENDS.get(name)


@dataclass
class ChatPicture:
    cursor: str | None = None
    chat: Json | None = None
    turns: dict[str, Pictured] = field(default_factory=dict)
    deleted: bool = False

    def copy(self) -> "ChatPicture":
        return copy.deepcopy(self)

    def take(self, event: Event) -> None:
        assert not self.deleted
        assert (event.id is None) == (event.name in NOTICES | {"chat_deleted"})
        assert event.id is None or event.id != self.cursor
        data = dict(event.data)
        match event.name:
            case "chat":
                assert self.chat is None or data != self.chat, "a chat is told of when it has changed"
                self.chat = data
            case "turn":
                assert data["turn"] not in self.turns, "a turn is told of once"
                assert data["parent_id"] is None or data["parent_id"] in self.turns, "after the turn it follows"
                self.turns[data["turn"]] = Pictured(data["parent_id"], data["role"], data.get("blocks", []))
            case "turns_deleted":
                gone = set(data["turns"])
                self.turns = {id: turn for id, turn in self.turns.items() if id not in gone}
                assert not any(turn.parent in gone for turn in self.turns.values())
            case "chat_deleted":
                self.deleted = True
            case "queue":
                assert data == {}
            case _:
                turn = data["turn"] if event.name == "turn_start" else data.pop("turn")
                if event.id:
                    self.turns[turn].take(event.name, data)
        self.cursor = event.id or self.cursor

    @property
    def all_ended(self) -> bool:
        return all(turn.status or turn.role == "user" for turn in self.turns.values())

    def assert_shows(self, turns: list[Json]) -> None:
        """Checks the state against `turns`, which are all turns of the chat as the API returns them."""
        assert self.turns.keys() == {turn["id"] for turn in turns}
        for turn in turns:
            shown = self.turns[turn["id"]]
            assert (shown.parent, shown.role) == (turn["parent_id"], turn["role"])
            assert shown.blocks == turn["blocks"]
            assert turn["role"] == "user" or shown.status == turn["status"]


def pictured(turns: list[Json], cursor: str) -> ChatPicture:
    """Returns the state of a client that has read the turns as JSON. The JSON includes the effect of all events so
    far.
    """
    picture = ChatPicture(cursor)
    for turn in turns:
        ended = turn["status"] if turn["role"] == "assistant" and turn["ended_at"] else None
        picture.turns[turn["id"]] = Pictured(turn["parent_id"], turn["role"], turn["blocks"], 1, ended)
    return picture
