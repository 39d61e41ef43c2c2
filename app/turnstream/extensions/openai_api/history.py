"""Histories that clients send: items without ids of this server, as a digest, as an answer, and as exchanges."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from turnstream.domain.blocks import Block
from turnstream.domain.errors import RequestRefused
from turnstream.domain.kinds import TEXT, TOOL_RESULT, TOOL_USE
from turnstream.extensions.openai_api.inputs import blocks_of, result_text, text_of
from turnstream.extensions.openai_api.objects import Json
from turnstream.extensions.openai_api.schemas import FunctionOutputItem, InputItem, MessageItem, OutputItem

PARAGRAPH = "\n\n"
_LONGEST_ID = 256  # characters: the ids of calls are in an index


def canonical(items: Sequence[InputItem]) -> list[list[Any]]:
    """The content of a history, without the forms in which it may be sent. Instructions are no part of it."""
    return list(_canonical(items))


def _canonical(items: Sequence[InputItem]) -> Iterator[list[Any]]:
    for item in items:
        match item:
            case MessageItem(role="user", content=content):
                blocks = blocks_of(content, "input")
                yield ["user", [block["text"] if "text" in block else str(block["source"]) for block in blocks]]
            case MessageItem(role="assistant", content=content):
                yield ["assistant", text_of(content, "input").strip()]
            case OutputItem(type="function_call"):
                yield ["call", item.call_id]
            case FunctionOutputItem():
                yield ["output", item.call_id, result_text(item)]
            case _:
                pass


@dataclass(frozen=True, slots=True)
class PastAnswer:
    """What a client has of an answer: its text without white space, and the ids of its calls."""

    text: str
    calls: tuple[str | None, ...]

    @classmethod
    def of_items(cls, items: Sequence[InputItem]) -> Self:
        texts = [text_of(item.content, "input") for item in items if isinstance(item, MessageItem)]
        calls = [i.call_id for i in items if isinstance(i, OutputItem) and i.type == "function_call"]
        return cls("".join("".join(texts).split()), tuple(calls))

    @classmethod
    def of_response(cls, response: Mapping[str, Any]) -> Self:
        return cls("".join(text_in(response).split()), tuple(call["call_id"] for call in calls_in(response)))


def text_in(response: Mapping[str, Any]) -> str:
    """The text of a response, without that of its thinking. A call of a tool is the end of a paragraph."""
    text, was_called = "", False
    for item in response["output"]:
        if item["type"] == "message":
            text += (PARAGRAPH if text and was_called else "") + "".join(part["text"] for part in item["content"])
            was_called = False
        elif item["type"] == "mcp_call":
            was_called = True
    return text


def calls_in(response: Mapping[str, Any]) -> list[Json]:
    return [item for item in response["output"] if item["type"] == "function_call"]


@dataclass(slots=True)
class Past:
    """An exchange of a history: the message as NewTurn takes it, and the blocks of its answer in rounds."""

    message: list[Json] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    stop_reasons: list[str] = field(default_factory=list)
    open: dict[str, str] = field(default_factory=dict)  # calls without a result, with their names

    def add(self, type: str, text: str, id: str | None = None, name: str | None = None, *, error: bool = False) -> None:
        if type != TOOL_RESULT and (not self.blocks or self.blocks[-1].type == TOOL_RESULT):
            self.stop_reasons.append("end_turn")
        if type == TOOL_USE:
            self.stop_reasons[-1] = "tool_use"
            self.open[id or ""] = name or ""
        round, index = len(self.stop_reasons), len(self.blocks)
        self.blocks.append(Block(index, round, 1, type, text, tool_use_id=id, name=name, is_error=error))

    def answer(self, id: str, text: str, *, error: bool = False) -> None:
        """The result of a call. One that no call has asked for is left out: no provider takes it."""
        if (name := self.open.pop(id, None)) is not None:
            self.add(TOOL_RESULT, text, id, name, error=error)

    def close(self) -> None:
        for id in list(self.open):
            self.answer(id, "This call has no result.", error=True)


def past_of(items: Sequence[InputItem]) -> list[Past]:
    """The exchanges of a history. Every call gets a result. Raises RequestRefused."""
    exchanges: list[Past] = []
    for item in items:
        if isinstance(item, MessageItem) and item.role == "user":
            if not exchanges or exchanges[-1].blocks:
                exchanges.append(Past())
            exchanges[-1].message += blocks_of(item.content, "input")
            continue
        if not exchanges:
            exchanges.append(Past())
        now = exchanges[-1]
        match item:
            case MessageItem(role="assistant", content=content) if (text := text_of(content, "input")).strip():
                now.close()
                now.add(TEXT, text)
            case OutputItem(type="function_call"):
                if not item.call_id or not item.name or len(item.call_id) > _LONGEST_ID:
                    detail = f"`input` must have calls with a `name` and an id of at most {_LONGEST_ID} characters."
                    raise RequestRefused(detail, field="input")
                if now.blocks and now.blocks[-1].type == TOOL_RESULT:
                    now.close()
                now.add(TOOL_USE, item.arguments or "{}", item.call_id, item.name)
            case FunctionOutputItem():
                now.answer(item.call_id, result_text(item))
            case _:
                pass
    for each in exchanges:
        each.close()
    return [each for each in exchanges if each.message or each.blocks]
