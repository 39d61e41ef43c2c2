"""A local provider that compacts conversations by itself, like the Anthropic API with `context_management`.

The provider is independent of our code: it reads a request's JSON, refuses the same requests as that API, and answers
with a stream.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.canned import Answer, Asked, CannedServer
from tests.support.legal.anthropic import request_problems

Json = Mapping[str, Any]

FACT = re.compile(r"fact \d+")
BETAS = {"clear_tool_uses_20250919": "context-management-2025-06-27", "compact_20260112": "compact-2026-01-12"}
KEPT = 3  # the number of tool uses that are kept
JSON = {"content-type": "application/json"}


@dataclass
class Compacting(CannedServer):
    """A provider that compacts by itself. `known` has the facts in the request of each call; `compactions` has the
    blocks that it sent.
    """

    window: int = 70_000
    pages: int = 0
    known: list[list[str]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    compactions: list[bytes] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def answer_to(self, asked: Asked) -> Answer:
        body = json.loads(asked.body)
        counts = asked.target.startswith("/v1/messages/count_tokens")
        self.problems += [
            *request_problems({"max_tokens": 1, **body} if counts else body),
            *self._problems(asked, body),
        ]
        edits = {edit["type"]: edit for edit in body.get("context_management", {}).get("edits", ())}
        seen = _behind_compaction([block for message in body["messages"] for block in message["content"]])
        seen, applied = _cleared(seen, edits.get("clear_tool_uses_20250919"))
        size, summary = _size(seen), b""
        if counts:
            return Answer(json.dumps({"input_tokens": size}).encode(), headers=JSON)
        compact = edits.get("compact_20260112")
        if compact and size > compact["trigger"]["value"]:
            facts = sorted({*FACT.findall(json.dumps(seen))}, key=lambda fact: int(fact.split()[1]))
            summary = _compaction(f"Known: {', '.join(facts)}. \u00e9", f"enc/{len(self.compactions)}+==")
            self.compactions.append(summary)
            if compact.get("pause_after_compaction"):
                return Answer(b"".join(_stream(summary, None, size, applied)))
            seen, size = [json.loads(summary)], len(summary) // 4
        if size > self.window:
            words = f"prompt is too long: {size} tokens > {self.window} maximum"
            refusal = {"type": "error", "error": {"type": "invalid_request_error", "message": words}}
            return Answer(json.dumps(refusal).encode(), 400, JSON)
        self.known.append(FACT.findall(json.dumps(seen)))
        self.sizes.append(size)
        return Answer(b"".join(_stream(summary, self._reply(body), size, applied)))

    def _problems(self, asked: Asked, body: Json) -> Iterator[str]:
        """Finds violations of the API's rules: edits and returned compactions need their betas, and a compaction must
        come back unchanged.
        """
        edits = [edit["type"] for edit in body.get("context_management", {}).get("edits", ())]
        betas = asked.headers.get("anthropic-beta", "").split(",")
        yield from (f"{edit} without its beta" for edit in edits if BETAS[edit] not in betas)
        if edits and not asked.target.endswith("?beta=true"):
            yield "betas at the address of what is none"
        sent_back = asked.body.count(b'"type":"compaction"')
        if sent_back and BETAS["compact_20260112"] not in betas:
            yield "a compaction without its beta"
        if sent_back != sum(asked.body.count(block) for block in self.compactions):
            yield "a compaction that came back changed"

    def _reply(self, body: Json) -> Json:
        """Returns the model's reply. If the request has a tool, the model calls it until it has read all pages."""
        pages = sum(block["type"] == "tool_result" for message in body["messages"] for block in message["content"])
        if body.get("tools") and pages < self.pages:
            return {"type": "tool_use", "id": f"page_{pages + 1}", "name": "look", "input": {}}
        return {"type": "text", "text": "I will remember."}


def _behind_compaction(blocks: Sequence[Json]) -> Sequence[Json]:
    places = [place for place, block in enumerate(blocks) if block["type"] == "compaction" and block["content"]]
    return blocks[places[-1] :] if places else blocks


def _cleared(blocks: Sequence[Json], edit: Json | None) -> tuple[Sequence[Json], Sequence[Json]]:
    if edit is None or _size(blocks) <= edit["trigger"]["value"]:
        return blocks, []
    results = [place for place, block in enumerate(blocks) if block["type"] == "tool_result"][:-KEPT]
    left = [{**block, "content": "[cleared]"} if place in results else block for place, block in enumerate(blocks)]
    saved = _size(blocks) - _size(left)
    if saved < edit["clear_at_least"]["value"]:
        return blocks, []
    return left, [{"type": edit["type"], "cleared_tool_uses": len(results), "cleared_input_tokens": saved}]


def _size(blocks: Sequence[Json]) -> int:
    return len(json.dumps(blocks)) // 4


def _compaction(content: str, secret: str) -> bytes:
    block = {"type": "compaction", "content": content, "signature": "sig/1e2", "encrypted_content": secret}
    return json.dumps(block, separators=(",", ":"), ensure_ascii=False).encode()


def _stream(summary: bytes, reply: Json | None, size: int, applied: Sequence[Json]) -> Iterator[bytes]:
    yield _event(type="message_start", message={"usage": {"input_tokens": size, "output_tokens": 1}})
    iterations: list[Json] = []
    if summary:
        block = json.loads(summary)
        yield _event(type="content_block_start", index=0, content_block={**block, "content": None})
        delta = {"type": "compaction_delta", "content": block["content"]}
        yield _event(type="content_block_delta", index=0, delta=delta)
        yield _event(type="content_block_stop", index=0)
        iterations.append({"type": "compaction", "input_tokens": 56_000, "output_tokens": 100})
    if reply is not None:
        yield from _reply_events(reply)
    usage = {"output_tokens": 10, "iterations": [*iterations, {"type": "message", "input_tokens": size}]}
    reason = "compaction" if reply is None else "tool_use" if reply["type"] == "tool_use" else "end_turn"
    applied_edits = {"applied_edits": applied}
    yield _event(type="message_delta", delta={"stop_reason": reason}, usage=usage, context_management=applied_edits)
    yield _event(type="message_stop")


def _reply_events(reply: Json) -> Iterator[bytes]:
    start = {**reply, "text": ""} if reply["type"] == "text" else reply
    yield _event(type="content_block_start", index=1, content_block=start)
    if reply["type"] == "text":
        delta = {"type": "text_delta", "text": reply["text"]}
        yield _event(type="content_block_delta", index=1, delta=delta)
    yield _event(type="content_block_stop", index=1)


def _event(**data: Any) -> bytes:
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()
