"""Random streams of OpenAI's two APIs, for the stage of `plays`. The streams are complete, and only faults on the
network damage them.
"""

import json
from collections.abc import Iterator, Sequence
from typing import ClassVar

from tests.integration.plays import Author, Json, Written

Message = tuple[list[Json], list[tuple[str, str]], str]


class ChatAuthor(Author):
    """Writes streams of Chat Completions."""

    finishes: ClassVar = {
        "end_turn": "stop",
        "stop_sequence": "stop",
        "max_tokens": "length",
        "refusal": "content_filter",
    }
    members: ClassVar = {"text": "content", "thinking": "reasoning_content"}

    def _block(self) -> list[Written]:
        return self._random.choice((self._text, self._thinking, self._call, self._call))()

    def _message(self, groups: Sequence[list[Written]], stop_reason: str | None) -> Message:
        blocks = [block for group in groups for block in group]
        calls = any(block["type"] == "tool_use" for block, _, _ in blocks)
        stop_reason = "tool_use" if calls else stop_reason or self._random.choice(list(self.finishes))
        return list(self._events(blocks, stop_reason)), [], stop_reason

    def _events(self, blocks: Sequence[Written], stop_reason: str) -> Iterator[Json]:
        yield _chunk({"role": "assistant", "content": ""})
        number = -1
        for block, deltas, _ in blocks:
            if block["type"] == "tool_use":
                number += 1
                call = {"id": block["id"], "type": "function", "function": {"name": block["name"], "arguments": ""}}
                yield _chunk({"tool_calls": [{"index": number, **call}]})
            for words in _words(block, deltas):
                if block["type"] == "tool_use":
                    yield _chunk({"tool_calls": [{"index": number, "function": {"arguments": words}}]})
                else:
                    yield _chunk({self.members[block["type"]]: words})
        yield _chunk({}, self.finishes.get(stop_reason, "tool_calls"))
        usage = {"prompt_tokens": self._random.randrange(100), "completion_tokens": self._random.randrange(50)}
        yield {"choices": [], "usage": usage}

    def _frame(self, event: Json, newline: str, plain: bool) -> str:
        frame = f"data: {json.dumps(event, ensure_ascii=plain)}{newline}{newline}"
        comment = f": OPENROUTER PROCESSING{newline}{newline}" if self._random.random() < 0.1 else ""
        return comment + frame + (f"data: [DONE]{newline}{newline}" if event.get("usage") else "")


class ResponsesAuthor(ChatAuthor):
    finishes: ClassVar = {"end_turn": "", "max_tokens": "max_output_tokens", "refusal": "content_filter"}
    members: ClassVar = {
        "text": "output_text",
        "thinking": "reasoning_summary_text",
        "tool_use": "function_call_arguments",
    }

    def _events(self, blocks: Sequence[Written], stop_reason: str) -> Iterator[Json]:
        response: Json = {"id": "resp_1", "object": "response", "status": "in_progress"}
        yield {"type": "response.created", "response": response}
        for place, (block, deltas, text) in enumerate(blocks):
            item, at = self._item(block), {"output_index": place}
            yield {"type": "response.output_item.added", **at, "item": item}
            for words in _words(block, deltas):
                yield {"type": f"response.{self.members[block['type']]}.delta", **at, "delta": words}
            yield {"type": "response.output_item.done", **at, "item": self._item(block, text)}
        usage = {"input_tokens": self._random.randrange(100), "output_tokens": self._random.randrange(50)}
        ended: Json = {"status": "completed"}
        if reason := self.finishes.get(stop_reason):
            ended = {"status": "incomplete", "incomplete_details": {"reason": reason}}
        yield {"type": f"response.{ended['status']}", "response": {**response, **ended, "usage": usage}}

    def _item(self, block: Json, text: str = "") -> Json:
        match block["type"]:
            case "text":
                return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
            case "thinking":
                summary = [{"type": "summary_text", "text": text}] if text else []
                return {"type": "reasoning", "id": "rs_1", "encrypted_content": "e", "summary": summary}
            case _:
                return {"type": "function_call", "call_id": block["id"], "name": block["name"], "arguments": text}

    def _frame(self, event: Json, newline: str, plain: bool) -> str:
        return f"event: {event['type']}{newline}data: {json.dumps(event, ensure_ascii=plain)}{newline}{newline}"


def _words(block: Json, deltas: Sequence[Json]) -> Iterator[str]:
    member = {"tool_use": "partial_json"}.get(block["type"], block["type"])
    return (delta[member] for delta in deltas if member in delta)


def _chunk(delta: Json, finish: str | None = None) -> Json:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "gpt", "choices": [choice]}
