"""Checks requests to Chat Completions. The checker reads their JSON, and is independent of the tested code.

The rules come from the reference and from recorded refusals. Where servers differ, the strictest rule applies. Results
come directly after their calls and in no other place; nothing is empty; no two user messages are adjacent; and
arguments are JSON.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

Json = Mapping[str, Any]

MEMBERS = {
    "system": {"role", "content"},
    "user": {"role", "content"},
    "tool": {"role", "content", "tool_call_id"},
    "assistant": {"role", "content", "tool_calls"},
}
THOUGHTS = {"reasoning", "reasoning_content", "reasoning_text", "reasoning_details"}
PARTS = {"text": "text", "image_url": "image_url", "file": "file"}
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def request_problems(body: Json, *, ids: str = r".{1,40}", thoughts: bool = False) -> list[str]:
    """Returns everything that a server would refuse. `thoughts` is true for a server that requires its own thoughts
    back.
    """
    messages = body["messages"]
    problems = [*_outer_problems(body), *_order_problems(messages)]
    for number, message in enumerate(messages):
        allowed = MEMBERS[message["role"]] | (THOUGHTS if thoughts and message["role"] == "assistant" else set())
        found = [f"unknown members {strange}"] if (strange := message.keys() - allowed) else []
        found += [*_content_problems(message), *_call_problems(message, messages[number + 1 :], ids)]
        problems += [f"messages.{number}: {problem}" for problem in found]
    return problems


def _outer_problems(body: Json) -> Iterator[str]:
    if not body.get("tools") and body.keys() & {"tool_choice", "parallel_tool_calls"}:
        yield "a choice of tools without tools"
    for tool in body.get("tools", ()):
        if tool["type"] == "function" and not NAME.fullmatch(tool["function"]["name"]):
            yield f"a tool named {tool['function']['name']!r}"
    if body.get("stream") is not True:
        yield "no stream"


def _order_problems(messages: Sequence[Json]) -> Iterator[str]:
    roles = [message["role"] for message in messages if message["role"] != "system"]
    if not roles or roles[0] != "user":
        yield "the first message is not the user's"
    if roles and roles[-1] == "assistant":
        yield "the last message is the assistant's"
    if "system" in [message["role"] for message in messages[1:]]:
        yield "a system message that is not the first"
    yield from (f"two messages of the {one} in a row" for one, two in pairwise(roles) if one == two != "tool")


def _content_problems(message: Json) -> Iterator[str]:
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        return
    if not content:
        yield "no content"
    elif isinstance(content, str):
        if message["role"] == "user" and not content.strip():
            yield "blank content"
    else:
        yield from (f"a part of the type {part['type']}" for part in content if not part.get(PARTS.get(part["type"])))


def _call_problems(message: Json, after: Sequence[Json], ids: str) -> Iterator[str]:
    calls = message.get("tool_calls", [])
    if "tool_calls" in message and not calls:
        yield "an empty list of calls"
    called = [call["id"] for call in calls]
    if len(called) != len({*called}):
        yield "ids of calls are not unique"
    for call in calls:
        if not (re.fullmatch(ids, call["id"], re.DOTALL) and call["type"] == "function"):
            yield f"a call with the id {call['id']!r}"
        if not NAME.fullmatch(call["function"]["name"]):
            yield f"a call named {call['function']['name']!r}"
        if not isinstance(json.loads(call["function"]["arguments"]), dict):
            yield "arguments that are no object"
    if message["role"] != "tool":
        answers = []
        for later in after:
            if later["role"] != "tool":
                break
            answers.append(later["tool_call_id"])
        if answers != called:
            yield f"results {answers} for calls {called}"
