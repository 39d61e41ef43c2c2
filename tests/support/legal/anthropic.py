"""Checks requests to the Anthropic API. The checker reads their JSON, and is independent of the tested code.

The rules come from recorded refusals and from the documentation. One user message has all results, directly after their
calls; nothing is empty; thinking is signed and never last; server tools come in pairs; and there are at most four cache
marks.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

Json = Mapping[str, Any]

THOUGHTS = {"thinking", "redacted_thinking"}
SERVER_CALLS = {"server_tool_use", "mcp_tool_use"}
REFUSED_PARAMS = {"temperature", "top_p", "top_k"}
# The families of models that refuse sampling parameters.
UNSAMPLED = tuple(
    f"claude-{name}" for name in ("fable", "haiku-5", "mythos", "opus-4-7", "opus-4-8", "opus-5", "sonnet-5")
)


def request_problems(body: Json, *, paused: bool = False) -> list[str]:
    """Returns everything that the provider would refuse. `paused` is true if the last round stopped with pause_turn or
    in a server tool.
    """
    problems = [*_outer_problems(body), *message_problems(body["messages"], paused=paused)]
    if _programs_at_work(body["messages"]) and "container" not in body:
        problems.append("calls of a program are pending, and no container is named")
    return problems


def message_problems(messages: Sequence[Json], *, paused: bool = False) -> list[str]:
    if not messages:
        return ["there are no messages"]
    problems = [*_role_problems(messages, paused)]
    for number, message in enumerate(messages):
        before = messages[number - 1] if number else None
        after = messages[number + 1] if number + 1 < len(messages) else None
        found = [
            *_block_problems(message),
            *_call_problems(message, after),
            *_result_problems(message, before),
            *_thinking_problems(message, is_last=after is None),
        ]
        problems += [f"messages.{number}: {problem}" for problem in found]
    return [*problems, *_server_tool_problems(messages)]


def _outer_problems(body: Json) -> Iterator[str]:
    if body["model"].startswith(UNSAMPLED) and (found := REFUSED_PARAMS & body.keys()):
        yield f"refused parameters: {found}"
    if "tool_choice" in body and not body.get("tools"):
        yield "tool_choice without tools"
    if not isinstance(body.get("max_tokens"), int):
        yield "max_tokens is missing"
    marked = [thing for thing in _things(body) if "cache_control" in thing]
    if len(marked) > 4:
        yield f"{len(marked)} cache marks"
    yield from (f"a cache mark on {thing['type']}" for thing in marked if thing.get("type") in THOUGHTS)


def _things(body: Json) -> Iterator[Json]:
    yield from body.get("tools", ())
    yield from body.get("system", ())
    for message in body["messages"]:
        yield from message["content"]


def _role_problems(messages: Sequence[Json], paused: bool) -> Iterator[str]:
    roles = [message["role"] for message in messages]
    if roles[0] != "user":
        yield "the first message is not the user's"
    if roles[-1] != "user" and not (paused or messages[-1]["content"][-1]["type"] == "compaction"):
        yield "the last message is the assistant's"
    yield from (
        f"messages.{number} has the role of the one before" for number, pair in _pairs(roles) if len({*pair}) == 1
    )


def _pairs(items: Sequence[Any]) -> Iterator[tuple[int, tuple[Any, Any]]]:
    return enumerate(pairwise(items), start=1)


def _block_problems(message: Json) -> Iterator[str]:
    if not any(_says_something(block) for block in message["content"]):
        yield "says nothing"
    for block in message["content"]:
        kind, role = block["type"], message["role"]
        if kind == "text" and not block["text"]:
            yield "empty text"
        if kind in THOUGHTS and role != "assistant":
            yield f"{kind} of the {role}"
        if kind == "thinking" and not block.get("signature"):
            yield "thinking without a signature"
        if kind == "tool_result" and block.get("is_error") and not block.get("content"):
            yield "an error result without content"
        if kind == "tool_result" and isinstance(block.get("content"), list):
            yield from _part_problems(block["content"], is_error=block.get("is_error", False))
        if kind == "tool_use" and not (block["id"] and block["name"] and isinstance(block["input"], dict)):
            yield "a call without id, name or an object as input"


def _part_problems(parts: Sequence[Json], *, is_error: bool) -> Iterator[str]:
    for part in parts:
        if part["type"] == "text" and not part["text"].strip():
            yield "an empty text in a result"
        if part["type"] != "text" and is_error:
            yield f"an error result with {part['type']}"


def _says_something(block: Json) -> bool:
    return bool(block["type"] != "text" or block["text"].strip())


def _of(message: Json | None, *kinds: str) -> list[Json]:
    return [block for block in message["content"] if block["type"] in kinds] if message else []


def _call_problems(message: Json, after: Json | None) -> Iterator[str]:
    calls = [block["id"] for block in _of(message, "tool_use")]
    if len(calls) != len({*calls}):
        yield "tool_use ids are not unique"
    if calls and message["role"] != "assistant":
        yield "a call of the user"
    if calls != [block["tool_use_id"] for block in _of(after, "tool_result")][: len(calls)]:
        yield f"calls {calls} without results in their order right after"
    kinds = [block["type"] for block in message["content"]]
    if calls and "text" in kinds[len(kinds) - kinds[::-1].index("tool_use") :]:
        yield "text after the last call"


def _result_problems(message: Json, before: Json | None) -> Iterator[str]:
    results = [block["tool_use_id"] for block in _of(message, "tool_result")]
    calls = [block["id"] for block in _of(before, "tool_use")]
    if results and results != calls:
        yield f"results {results} for calls {calls}"
    if any(block["type"] != "tool_result" for block in message["content"][: len(results)]):
        yield "results are not first"


def _thinking_problems(message: Json, is_last: bool) -> Iterator[str]:
    kinds = [block["type"] for block in message["content"]]
    if message["role"] == "assistant" and not is_last and {*kinds[-1:]} & THOUGHTS:
        yield "ends in thinking"


def _server_tool_problems(messages: Sequence[Json]) -> Iterator[str]:
    asked: dict[str, int] = {}
    known: set[str] = set()
    for number, message in enumerate(messages):
        for block in message["content"]:
            allowed = known if block["type"].endswith("_tool_result") else asked
            if (caller := _caller(block)) and caller not in allowed:
                yield f"messages.{number}: {block['type']} of a program {caller} that is not at work"
            if block["type"] in SERVER_CALLS:
                asked[block["id"]] = number
                known.add(block["id"])
            elif block["type"].endswith("_tool_result") and asked.pop(block["tool_use_id"], None) is None:
                yield f"messages.{number}: {block['type']} without its call"
    yield from (f"messages.{n}: {id} was never answered" for id, n in asked.items() if not _may_wait(messages, id, n))


def _caller(block: Json) -> str | None:
    return (block.get("caller") or {}).get("tool_id")


def _may_wait(messages: Sequence[Json], id: str, number: int) -> bool:
    """Returns whether a server tool may still be running. This requires that only results of client tools follow, and
    answers whose calls the server tool makes.
    """
    following = messages[number + 1 :]
    answers = [message for message in following if message["role"] == "assistant"]
    said = [block["type"] for message in following if message["role"] == "user" for block in message["content"]]
    called = all(any(_caller(block) == id for block in answer["content"]) for answer in answers)
    return called and {*said} <= {"tool_result"}


def _programs_at_work(messages: Sequence[Json]) -> set[str]:
    """Returns the programs with pending calls, which therefore have no result."""
    blocks = [block for message in messages for block in message["content"]]
    answered = {block["tool_use_id"] for block in blocks if block["type"].endswith("_tool_result")}
    return {caller for block in blocks if (caller := _caller(block)) and caller not in answered}
