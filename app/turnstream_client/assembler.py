"""Assembles a turn from the events of its stream, by the same rules in every client. No I/O."""

from collections.abc import Mapping
from typing import Any, Final

from turnstream_client.errors import StreamError
from turnstream_client.events import Json

ENDS: Final = frozenset({"turn_complete", "turn_cancelled", "turn_error"})


class Assembler:
    """The state of one turn after all events that were applied so far.

    `blocks` are JSON objects as in `GET …/turns/{turn}`; an open block has `open` set. `rounds` maps the number of a
    round to the members of its `round_start` and `round_stop`; if a round is repeated, its new members replace the old
    members. `actions` are the calls that wait for a person, and `jobs` are the background calls.
    """

    def __init__(self) -> None:
        self.start: Json = {}
        self.blocks: list[Json] = []
        self.rounds: dict[int, Json] = {}
        self.end: str | None = None
        self.stop_reason: str | None = None
        self.usage: Json = {}
        self.error: Json | None = None
        self.actions: list[Json] = []
        self.jobs: list[Json] = []
        self.degraded: list[Json] = []

    @classmethod
    def of(cls, turn: Mapping[str, Any]) -> "Assembler":
        """Starts from a turn in its JSON form. The caller then applies the events after the `cursor` of the turn."""
        state = cls()
        state.start = {"turn": turn["id"], "chat": turn["chat_id"], "model": turn["model"], "status": turn["status"]}
        state.blocks = [dict(block) for block in turn["blocks"]]
        for block in state.blocks:
            if block.get("open"):
                block.pop("interrupted", None)
        state.rounds = {round["round"]: dict(round) for round in turn["rounds"] if round["stop_reason"] != "voided"}
        state.stop_reason, state.usage, state.error = turn["stop_reason"], turn["usage"], turn["error"]
        state.actions, state.degraded = list(turn.get("actions", ())), list(turn.get("degraded", ()))
        state.jobs = list(turn.get("jobs", ()))
        if f"turn_{turn['status']}" in ENDS:
            state.end = f"turn_{turn['status']}"
        return state

    @property
    def open_block(self) -> Json | None:
        return self.blocks[-1] if self.blocks and self.blocks[-1].get("open") else None

    @property
    def waits(self) -> bool:
        """True if every call without a result is one of `actions`, so the turn waits for a person."""
        if self.end is not None or not self.actions or self.open_block is not None:
            return False
        answered = {(block["round"], block.get("tool_use_id")) for block in self.blocks}
        calls = [block for block in self.blocks if block["type"] == "tool_use" and not block.get("interrupted")]
        open_calls = {call.get("id") for call in calls if (call["round"], call.get("id")) not in answered}
        return open_calls <= {action["tool_use_id"] for action in self.actions}

    def apply(self, event: str, data: Mapping[str, Any]) -> None:
        """Applies the next event. Unknown events and notices have no effect, except notices about jobs. Raises
        StreamError.
        """
        if self.end is not None:
            raise StreamError(f"{event} came after {self.end}")
        match event:
            case "turn_start":
                self.start = dict(data)
            case "round_start":
                self.rounds[data["round"]] = dict(data)
            case "round_stop":
                self.rounds.setdefault(data["round"], {}).update(data)
            case "block_start":
                if self.open_block is not None or data["index"] != len(self.blocks):
                    raise StreamError(f"block {data['index']} began, but block {len(self.blocks)} was expected")
                self.blocks.append({**data, "text": "", "open": True})
                if data["type"] == "tool_result":
                    answered = data.get("tool_use_id")
                    self.actions = [action for action in self.actions if action["tool_use_id"] != answered]
                    self.jobs = [job for job in self.jobs if job["tool_use_id"] != answered]
            case "block_delta":
                block = self._open_block_at(data["index"])
                if data["offset"] != len(block["text"]):
                    position = f"{data['offset']} of block {data['index']}"
                    raise StreamError(f"text for offset {position} came at offset {len(block['text'])}")
                block["text"] += data["text"]
            case "block_stop":
                block = self._open_block_at(data["index"])
                del block["open"]
                block.update(data)
            case "reset":
                del self.blocks[data["index"] :]
                calls = {block.get("id") for block in self.blocks}
                self.actions = [action for action in self.actions if action["tool_use_id"] in calls]
                self.jobs = [job for job in self.jobs if job["tool_use_id"] in calls]
            case "action_required":
                self.actions = list(data["calls"])
            case "tool_progress" if job := data.get("job"):
                known = {each["id"]: each for each in self.jobs}
                self.jobs = list((known | {job["id"]: job}).values())
            case "turn_complete" | "turn_cancelled" | "turn_error":
                if self.open_block is not None:
                    raise StreamError(f"{event} came while block {len(self.blocks) - 1} was open")
                self.end, self.actions, self.degraded = event, [], list(data.get("degraded", ()))
                self.jobs = []
                self.stop_reason, self.usage, self.error = data["stop_reason"], data["usage"], data.get("error")
            case _:
                pass

    def _open_block_at(self, index: int) -> Json:
        block = self.open_block
        if block is None or block["index"] != index:
            raise StreamError(f"block {index} is not open")
        return block
