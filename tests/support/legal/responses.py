"""Checks requests to the Responses API. The checker reads their JSON, and is independent of the tested code.

The rules come from the reference and from recorded refusals. Every call is followed by one result. No item of the
provider is sent without the item that it belongs to. A thought is directly followed by the item that it led to. Nothing
is empty.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

Json = Mapping[str, Any]

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
PARTS = {"input_text": "text", "input_image": "image_url", "input_file": None}
RESULTS = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
# Types of calls whose results come from the provider, or from a foreign client.
PAIRS = {
    "apply_patch_call": "apply_patch_call_output",
    "computer_call": "computer_call_output",
    "local_shell_call": "local_shell_call_output",
    "program": "program_output",
    "shell_call": "shell_call_output",
}


def request_problems(body: Json) -> list[str]:
    """Returns everything that the API would refuse."""
    items = body["input"]
    problems = [*_outer_problems(body), *_order_problems(items), *_call_problems(items), *_thought_problems(body)]
    for number, item in enumerate(items):
        problems += [f"input.{number}: {problem}" for problem in _item_problems(item)]
    return problems


def _outer_problems(body: Json) -> Iterator[str]:
    if not body.get("tools") and body.keys() & {"tool_choice", "parallel_tool_calls"}:
        yield "a choice of tools without tools"
    for tool in body.get("tools", ()):
        if tool["type"] == "function" and not NAME.fullmatch(tool["name"]):
            yield f"a tool named {tool['name']!r}"
    if body.get("stream") is not True:
        yield "no stream"
    if "instructions" in body and not body["instructions"]:
        yield "empty instructions"


def _kind(item: Json) -> str:
    kind: str = item.get("type") or "message"
    return kind


def _order_problems(items: Sequence[Json]) -> Iterator[str]:
    roles = [item.get("role") for item in items]
    if not roles or roles[0] != "user":
        yield "the first item is not the user's"
    if roles and roles[-1] != "user" and not _kind(items[-1]).endswith("_output"):
        yield "the last item is the model's"


def _item_problems(item: Json) -> Iterator[str]:
    match _kind(item):
        case "message":
            yield from _content_problems(item)
        case "function_call":
            if not isinstance(json.loads(item["arguments"]), dict):
                yield "arguments that are no object"
        case "custom_tool_call":
            if not isinstance(item["input"], str):
                yield "input that is no text"
        case "function_call_output" | "custom_tool_call_output":
            if not item["output"]:
                yield "a result that says nothing"
        case _:
            if not item.get("id"):
                yield "an item without an id"


def _content_problems(item: Json) -> Iterator[str]:
    content = item["content"]
    if not content or (isinstance(content, str) and not content.strip()):
        yield "no content"
    elif not isinstance(content, str):
        if item["role"] == "assistant":
            yield "parts of an answer"
        for part in content:
            if part["type"] not in PARTS or not part.get(PARTS[part["type"]] or "type"):
                yield f"a part of the type {part['type']}"
            elif part["type"] == "input_file" and not part.keys() & {"file_data", "file_url", "file_id"}:
                yield "a file that is nowhere"


def _call_problems(items: Sequence[Json]) -> Iterator[str]:
    waiting: dict[str, str] = {}
    programs: set[str] = set()
    used = Counter(item["call_id"] for item in items if _kind(item) in RESULTS)
    yield from (f"the id {id} is used {times} times" for id, times in used.items() if times > 1)
    for item in items:
        kind = _kind(item)
        caller = (item.get("caller") or {}).get("caller_id")
        if caller is not None and caller not in programs:
            yield f"{kind} of a program {caller} that is not there"
        if kind == "program":
            programs.add(item["call_id"])
        if kind in RESULTS:
            waiting[item["call_id"]] = RESULTS[kind]
            if not (1 <= len(item["call_id"]) <= 64 and NAME.fullmatch(item["name"])):
                yield f"a call {item['call_id']!r} of {item['name']!r}"
        elif kind in PAIRS:
            waiting[item["call_id"]] = PAIRS[kind]
        elif kind in {*RESULTS.values(), *PAIRS.values()} and waiting.pop(item["call_id"], None) != kind:
            yield f"a result of {item['call_id']} that nobody called for"
        elif item.get("role") == "user" and waiting:
            yield f"no result of {sorted(waiting)}"
            waiting = {}
    if set(waiting.values()) - {"program_output"}:
        yield f"no result of {sorted(waiting)}"


def _thought_problems(body: Json) -> Iterator[str]:
    for item, following in pairwise([*body["input"], {"role": "user"}]):
        if _kind(item) != "reasoning":
            continue
        if following.get("role") == "user" or _kind(following) in {"reasoning", *RESULTS.values()}:
            yield "a thought without the item that followed it"
        if not (body.get("store") or item.get("encrypted_content") or item.get("content")):
            yield f"the thought {item['id']} is not stored"
