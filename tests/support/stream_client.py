"""A client of the stream that is as strict as possible: it assembles a turn, and checks every frame."""

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from turnstream.domain.blocks import Block
from turnstream.domain.cursor import START, Cursor
from turnstream.domain.events import (
    ActionRequired,
    BlockDelta,
    BlockStart,
    BlockStop,
    Event,
    Notice,
    Reset,
    RoundStart,
    RoundStop,
    TurnEnd,
    TurnStart,
)
from turnstream.domain.kinds import USER_TEXT
from turnstream.domain.log import marks_of
from turnstream.domain.turns import Turn


def encode(event: Event | Notice, cursor: Cursor | None) -> bytes:
    data = pickle.dumps((event, None if cursor is None else str(cursor)))
    return len(data).to_bytes(4, "big") + data


def decode(frames: bytes) -> Iterator[tuple[Event | Notice, str | None]]:
    while frames:
        size = int.from_bytes(frames[:4], "big")
        yield pickle.loads(frames[4 : 4 + size])
        frames = frames[4 + size :]


@dataclass
class Piece:
    """A block, as far as the client has received it."""

    start: BlockStart
    text: str = ""
    stop: Block | None = None


@dataclass
class Client:
    cursor: Cursor = START
    blocks: list[Piece] = field(default_factory=list)
    rounds: dict[int, RoundStop | None] = field(default_factory=dict)
    started: bool = False
    asked: tuple[ActionRequired, ...] = ()
    end: TurnEnd | None = None
    notices: list[Notice | ActionRequired] = field(default_factory=list)
    resets: list[int] = field(default_factory=list)

    def copy(self) -> "Client":
        return replace(
            self, blocks=[replace(piece) for piece in self.blocks], rounds=dict(self.rounds), resets=[*self.resets]
        )

    def take(self, frames: bytes) -> None:
        for event, identity in decode(frames):
            assert self.end is None or isinstance(event, Reset), "nothing comes after the end"
            if identity is None:  # a notice, or an `action_required` that includes an elicitation
                assert isinstance(event, Notice | ActionRequired), "what is a part of the log has an id"
                self.notices.append(event)
                continue
            assert not isinstance(event, Notice)
            cursor = Cursor.parse(identity)
            assert cursor > self.cursor or isinstance(event, Reset), "ids only grow"
            self.cursor = cursor
            self._apply(event)

    def _apply(self, event: Event) -> None:
        match event:
            case TurnStart():
                assert not self.started
                self.started = True
            case RoundStart():
                assert self.started
                self.rounds[event.round] = None
            case BlockStart():
                assert all(piece.stop for piece in self.blocks), "one block is open at a time"
                assert event.index == len(self.blocks)
                assert event.round in self.rounds or (event.round, event.type) == (0, USER_TEXT)
                self.blocks.append(Piece(event))
            case BlockDelta(index, offset, text):
                assert text
                assert index == len(self.blocks) - 1
                assert self.blocks[-1].stop is None
                assert offset == len(self.blocks[-1].text)
                self.blocks[-1].text += text
            case BlockStop(block=block):
                assert block.index == len(self.blocks) - 1
                assert self.blocks[-1].stop is None
                self.blocks[-1].stop = block
            case RoundStop():
                self.rounds[event.round] = event
            case ActionRequired():
                assert self.rounds[event.round] is not None, "what is asked for is what a whole reply asks for"
                assert event.actions
                assert {action.tool_use_id for action in event.actions} <= self._unanswered(event.round)
                self.asked += (event,)
            case Reset(index=index):
                assert index <= len(self.blocks), "nothing is forgotten that was never told"
                del self.blocks[index:]
                self.resets.append(index)
                self.end = None  # the database may have lost the end
                assert all(piece.stop for piece in self.blocks)
            case TurnEnd():
                self.end = event

    def _unanswered(self, round: int) -> set[str | None]:
        """Returns the calls of a round for which no result was received."""
        starts = [piece.start for piece in self.blocks if piece.start.round == round]
        ids = {kind: {s.tool_use_id for s in starts if s.type == kind} for kind in ("tool_use", "tool_result")}
        return ids["tool_use"] - ids["tool_result"]

    def assert_holds(self, turn: Turn) -> None:
        """Checks that the assembled turn equals the ended turn."""
        for piece, block in zip(self.blocks, turn.blocks, strict=True):
            assert piece.stop == block
            assert piece.text == block.text
            start = piece.start
            assert (start.index, start.round, start.type) == (block.index, block.round, block.type)
            assert (start.tool_use_id, start.name) == (block.tool_use_id, block.name)
        for round in turn.rounds:
            if round.sealed:
                stop = self.rounds[round.number]
                assert stop is not None
                assert (stop.stop_reason, stop.usage) == (round.stop_reason, round.usage)
        marks = marks_of(turn)
        asked = tuple(mark for mark in marks if isinstance(mark, ActionRequired))
        # A restored database may have lost an ask but kept its call. Then only the end shows that the ask is gone.
        assert self.asked == asked or (self.resets and set(asked) <= set(self.asked))
        assert self.end is not None
        assert self.end == marks[-1]
