"""What becomes of blocks in the words of the AI SDK: the same for messages that are read and for those that stream."""

from collections.abc import Iterator, Sequence
from typing import Any

from app.api.codec import block_details, input_of, parsed
from app.domain.asks import Ask
from app.domain.blocks import Block
from app.domain.events import TurnEnd
from app.domain.results import count_files, parts_of
from app.domain.turns import Turn

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


def end_metadata(end: TurnEnd) -> Json:
    error = {"error": {"type": end.error.type, "message": end.error.message}} if end.error else {}
    return {"status": end.status, "stopReason": end.stop_reason, "usage": end.usage, **error}


def client_tools(turn: Turn) -> frozenset[str]:
    """The tools that whoever watches the turn must run."""
    return frozenset(spec.name for spec in turn.request.tools if spec.client) if turn.request else frozenset()


def runs_here(block_type: str, name: str | None, clients: frozenset[str]) -> Json:
    """The SDK takes a tool that is not its own to run for one of the provider's."""
    return {} if block_type == "tool_use" and name in clients else {"providerExecuted": True}


def input_json(block: Block) -> Any:
    return input_of(block.text)


def output_json(text: str) -> Any:
    """JSON objects and lists as such, everything else as the words that the model is told."""
    value = parsed(text) if text.lstrip()[:1] in {"{", "["} else text
    return value if isinstance(value, dict | list) else text


def approval_id(tool_use_id: str, digest: str) -> str:
    """It says which call is meant, and which input was looked at."""
    return f"{tool_use_id}:{digest}"


def result_json(block: Block, asks: Sequence[Ask]) -> Json:
    """What came of a call, and the SDK's name for that."""
    if approval_json(block, asks).get("approved") is False:
        return {"state": "output-denied"}
    if block.is_error:
        return {"state": "output-error", "errorText": block.text}
    output = {"content": parts_of(block)} if count_files(block) else output_json(block.text)
    return {"state": "output-available", "output": output}


def approval_json(block: Block, asks: Sequence[Ask]) -> Json:
    """What a person has decided about the call that `block` is, or is the result of; nothing where nobody has."""
    ask = _ask_about(block, asks)
    if ask is None or ask.answer is None or ask.answer.kind not in {"approve", "deny"}:
        return {}
    reason = {"reason": ask.answer.text} if ask.answer.text else {}
    return {"approved": ask.answer.kind == "approve", **reason}


def _ask_about(block: Block, asks: Sequence[Ask]) -> Ask | None:
    """The ask for leave to run the call."""
    return next(
        (
            ask
            for ask in asks
            if ask.kind == "approval" and (ask.round, ask.tool_use_id) == (block.round, block.tool_use_id)
        ),
        None,
    )


def result_of_provider(block: Block, calls: Sequence[str]) -> tuple[str, Any] | None:
    """The call at the provider that this block is the result of, and what came of it."""
    data = block_details(block).get("data")
    if not isinstance(data, dict) or data.get("tool_use_id") not in calls:
        return None
    return str(data["tool_use_id"]), data.get("content")


def sources_of(block: Block) -> Iterator[Json]:
    """Citations: those of the web as the SDK has them, others as data."""
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
    """A block that the SDK has no word for, as the API shows it."""
    name = block.type.replace("_", "-")
    return {"type": f"data-{name}", "id": str(block.index), "data": {"text": block.text, **block_details(block)}}
