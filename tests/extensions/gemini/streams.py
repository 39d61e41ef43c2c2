"""Streams in the forms that models of the Gemini API send, and helpers that read the streams."""

import json
from collections.abc import Sequence
from typing import Any

from turnstream.domain.blocks import Block
from turnstream.extensions.gemini.wire import GeminiWire
from turnstream.llm.accumulator import Accumulator
from turnstream.llm.provider import Part

Json = dict[str, Any]
MODEL = "gemini-3.8-flash"
FIRST, SECOND = "Eo8BCowBAb4+9vv/AA==", "CiMBjz1rX25KieIB"


def chunk(*parts: Json, usage: Json | None = None, **members: Any) -> bytes:
    """Returns an event whose first candidate has these parts."""
    candidate = {"content": {"parts": [*parts], "role": "model"}, **members, "index": 0}
    figures = {"promptTokenCount": 29, "candidatesTokenCount": 15, "totalTokenCount": 44} if usage is None else usage
    body = {"candidates": [candidate], "usageMetadata": figures, "modelVersion": MODEL, "responseId": "resp-1"}
    return event(body)


def event(body: Any) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\r\n\r\n"


def call(name: str, args: Json, signature: str | None = None, id: str | None = None) -> Json:
    said = {"name": name, "args": args} | ({"id": id} if id else {})
    return {"functionCall": said} | ({"thoughtSignature": signature} if signature else {})


STOP: Json = {"finishReason": "STOP"}
GROUNDING: Json = {
    "searchEntryPoint": {"renderedContent": "<div>…</div>"},
    "groundingChunks": [
        {"web": {"uri": "https://example.org/a", "title": "example.org"}},
        {"web": {"uri": "https://example.org/b"}},
        {"retrievedContext": {"uri": "gs://files/c", "title": "c"}},
    ],
    "groundingSupports": [
        {"segment": {"startIndex": 12, "endIndex": 28, "text": "Low at 06:14."}, "groundingChunkIndices": [0, 1]},
        {"segment": {"startIndex": 0, "text": "not in the text"}, "groundingChunkIndices": [0, 9]},
    ],
    "webSearchQueries": ["tide today"],
}
STREAMS: dict[str, bytes] = {
    "text with a signature at its end": (
        chunk({"text": "Größe "}) + chunk({"text": "zählt 🌊"}) + chunk({"text": "", "thoughtSignature": FIRST}, **STOP)
    ),
    "a thought, then a signed text": (
        chunk({"text": "**Thinking**\n", "thought": True})
        + chunk({"text": "of tides.", "thought": True})
        + chunk({"text": "It is "})
        + chunk({"text": "high.", "thoughtSignature": FIRST})
        + chunk({"text": " Very high."})
        + chunk({"text": ""}, **STOP)
    ),
    "parallel calls, of which the first is signed": (
        chunk({"text": "Let me look.", "thought": True})
        + chunk(call("doc_search", {"query": "rule"}, FIRST), call("doc_tree", {}))
        + chunk({"text": ""}, **STOP)
    ),
    "calls with ids": (
        chunk({"text": "I look."}, call("doc_search", {"query": 'a"b'}, FIRST, "fc_1"))
        + chunk(call("doc_search", {"query": "ü"}, None, "fc_2"), **STOP)
    ),
    "code that ran": (
        chunk({"executableCode": {"language": "PYTHON", "code": "print(1)\n"}, "thought": True})
        + chunk({"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1\n"}, "thought": True}, **STOP)
        + chunk({"text": "It is 1."})
        + chunk({"text": ""}, **STOP)
    ),
    "tools of the provider beside ours": (
        chunk({"toolCall": {"id": "t1", "toolType": "GOOGLE_SEARCH_WEB", "args": {"queries": ["x"]}}})
        + chunk(
            {
                "toolResponse": {"id": "t1", "toolType": "GOOGLE_SEARCH_WEB", "response": {"n": 1}},
                "thoughtSignature": SECOND,
            }
        )
        + chunk(call("doc_tree", {}, FIRST, "fc_1"), **STOP)
    ),
    "grounding": (
        chunk({"text": "The tide. "}, groundingMetadata={})
        + chunk({"text": "Low at 06:14."}, groundingMetadata=GROUNDING, **STOP)
    ),
    "an image": chunk(
        {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}, "thoughtSignature": FIRST}, **STOP
    ),
    "a signature without a text": (
        chunk(call("doc_tree", {}, FIRST)) + chunk({"text": "", "thoughtSignature": SECOND}, **STOP)
    ),
}


def read(body: bytes, *, size: int | None = None, whole: bool = False) -> tuple[list[Part], GeminiWire]:
    wire = GeminiWire(None, MODEL, b"seed")
    if whole:
        return wire.feed_whole(body), wire
    parts: list[Part] = []
    step = size or len(body)
    for start in range(0, len(body), step):
        parts += wire.feed(body[start : start + step])
    return parts + wire.end(), wire


def accumulated(parts: Sequence[Part]) -> tuple[list[Block], Accumulator]:
    accumulator = Accumulator(round=1, attempt=1, first_index=0)
    changes = accumulator.feed(parts)
    return [change for change in changes if isinstance(change, Block)], accumulator


def blocks_of(body: bytes) -> list[Block]:
    return accumulated(read(body)[0])[0]
