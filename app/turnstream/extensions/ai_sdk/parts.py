"""Converts blocks to parts of the AI SDK. Stored messages and streams have equal parts."""

from collections.abc import Iterator, Sequence
from typing import Any

from turnstream.api.codec import block_details, input_of, parsed
from turnstream.domain.asks import Ask
from turnstream.domain.blocks import Block
from turnstream.domain.events import TurnEnd
from turnstream.domain.output import output_of
from turnstream.domain.results import count_files, parts_of
from turnstream.domain.turns import Turn
from turnstream.libraries.dialects.apps import MEDIA_TYPE, app_of, mcp_result
from turnstream.libraries.dialects.projection import Runner

Json = dict[str, Any]

_FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool-calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content-filter",
}


def finish_reason(stop_reason: str | None) -> str:
    return _FINISH_REASONS.get(stop_reason or "", "other")


def start_metadata(turn: Turn) -> Json:
    model = turn.request.model if turn.request else None
    return {"chat": turn.chat_id, "parent": turn.parent_id, "model": model}


def end_metadata(end: TurnEnd, turn: Turn) -> Json:
    error = {"error": {"type": end.error.type, "message": end.error.message, **end.error.wait}} if end.error else {}
    output = {} if (text := output_of(turn)) is None else {"output": parsed(text)}
    return {"status": end.status, "stopReason": end.stop_reason, "usage": end.usage, **output, **error}


def runs_here(runner: Runner | None) -> Json:
    """Returns a mark for calls that the page must not run: the SDK treats such a call as a call of the provider."""
    return {} if runner == "client" else {"providerExecuted": True}


def input_json(block: Block) -> Any:
    return input_of(block.text)


def output_json(text: str) -> Any:
    """Returns the value if the text is a JSON object or list, otherwise the text itself, as the model received it."""
    value = parsed(text) if text.lstrip()[:1] in {"{", "["} else text
    return value if isinstance(value, dict | list) else text


def approval_id(tool_use_id: str, digest: str) -> str:
    """Returns the id of an approval: the call, and the digest of the input that the person sees."""
    return f"{tool_use_id}:{digest}"


def result_json(block: Block, asks: Sequence[Ask]) -> Json:
    """Returns the result of a call, with its state in the SDK's terms. For a tool with an app, the result has the SDK's
    metadata for MCP Apps, in the form that the SDK's own MCP client uses.
    """
    if approval_json(block, asks).get("approved") is False:
        return {"state": "output-denied"}
    if block.is_error:
        return {"state": "output-error", "errorText": block.text}
    if (app := app_of(block)) is not None:
        about = {"resourceUri": app.uri, "mimeType": MEDIA_TYPE, "server": app.server}
        return {"state": "output-available", "output": mcp_result(block), "toolMetadata": {"app": about}}
    output = {"content": parts_of(block)} if count_files(block) else output_json(block.text)
    return {"state": "output-available", "output": output}


def client_data_part(block: Block) -> Json:
    """Returns the part with a result's data for clients. Its id is the id of the call: the SDK's tool parts have no
    member for such data.
    """
    data = parsed(block.client_data or "null")
    return {"type": "data-tool-data", "id": block.tool_use_id, "data": {"name": block.name, "data": data}}


def approval_json(block: Block, asks: Sequence[Ask]) -> Json:
    """Returns the person's decision about a call, or an empty object if there is no decision. `block` is the call or
    its result.
    """
    ask = next((ask for ask in asks if ask.kind == "approval" and ask.key == block.key), None)
    if ask is None or ask.answer is None or ask.answer.kind not in {"approve", "deny"}:
        return {}
    reason = {"reason": ask.answer.text} if ask.answer.text else {}
    return {"approved": ask.answer.kind == "approve", **reason}


def sources_of(block: Block) -> Iterator[Json]:
    """Yields the citations of a block: citations of web pages as the SDK's sources, other citations as data parts."""
    citations = block_details(block).get("citations")
    for number, citation in enumerate(citations if isinstance(citations, list) else ()):
        identity = f"{block.index}.{number}"
        url = citation.get("url") if isinstance(citation, dict) else None
        if isinstance(url, str) and url.startswith(("https://", "http://")):
            title = {"title": citation["title"]} if isinstance(citation.get("title"), str) else {}
            yield {"type": "source-url", "sourceId": identity, "url": url, **title}
        else:
            yield {"type": "data-citation", "id": identity, "data": citation}


def data_part(block: Block) -> Json:
    """Returns the data part for a block that has no part in the AI SDK. Its members are named as in the API."""
    name = block.type.replace("_", "-")
    return {"type": f"data-{name}", "id": str(block.index), "data": {"text": block.text, **block_details(block)}}
