"""Decodes requests of Anthropic's API: messages become items of a history, and members become options of a turn."""

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from pydantic import ValidationError

from turnstream.api.caller import held_options
from turnstream.api.codec import to_json
from turnstream.api.http.errors import Invalid
from turnstream.api.http.validation import refusals
from turnstream.api.schemas.requests import NewTurn
from turnstream.api.schemas.tools import ResultIn
from turnstream.api.services import Services
from turnstream.domain.errors import RequestRefused
from turnstream.domain.kinds import STREAMED_MEMBERS
from turnstream.extensions.anthropic_api.schemas import BlockIn, CountIn, Json, MessageIn, MessagesIn, SourceIn, ToolIn
from turnstream.kit.offload import Portions
from turnstream.libraries.dialects.chats import PROGRAM_EXPIRY, checked_turn
from turnstream.libraries.dialects.histories import PastBlock, PastCall, PastItem, PastMessage, PastResult, PastText
from turnstream.libraries.dialects.results import result_with_files
from turnstream.libraries.dialects.schemas import source_of_url

SERVER = "turnstream"  # the name by which a request selects the toolset of this server
_LONGEST_LABEL = 512
# Members that become model parameters of the same name. They change the answer, so a model that lacks the parameter
# refuses the request.
_PARAMS = (
    "max_tokens", "stop_sequences", "tool_choice", "temperature", "top_p", "top_k", "container", "fallbacks",
    "inference_geo", "mcp_servers", "speed",
)  # fmt: skip
# Members that become model parameters, too, but do not change the answer. A model that lacks the parameter does not get
# it.
_HINTS = ("thinking", "context_management", "diagnostics", "service_tier")
_LABELS = ("cache_control", "user_profile_id", "workspace_id")
_DEFAULTS: Mapping[str, object] = {"temperature": 1, "top_p": 1, "speed": "standard"}
# Clients insert a line with this prefix before their prompt, for Anthropic's accounting. The line changes with each
# request.
_BILLING = "x-anthropic-billing-header:"
# Prefixes of the types of tools that Anthropic defines and the client runs.
_RUN_BY_CLIENT = ("bash_", "text_editor_", "computer_", "memory_")
_OF_TOOL = frozenset({"type", "name", "description", "input_schema", "cache_control", "eager_input_streaming"})


@dataclass(slots=True)
class NewMessages:
    """The messages of a request, divided. `last_answer` is the last answer of the assistant, and `history` has the
    messages before it. The messages after it are `new`; their results of calls are also in `results`, and their other
    blocks in `blocks`, in the form of NewTurn.
    """

    history: list[PastItem] = field(default_factory=list)
    last_answer: list[PastItem] = field(default_factory=list)
    new: list[PastItem] = field(default_factory=list)
    results: list[ResultIn] = field(default_factory=list)
    blocks: list[Json] = field(default_factory=list)

    @property
    def items(self) -> Sequence[PastItem]:
        return [*self.history, *self.last_answer, *self.new]


async def input_of(messages: Sequence[MessageIn], *, continues: bool = False) -> NewMessages:
    """Divides the messages of a request. If `continues` is true, the messages are only the new part of a stored
    conversation. Raises RequestRefused.
    """
    found, portions = NewMessages(), Portions()
    last = max((place for place, message in enumerate(messages) if message.role == "assistant"), default=-1)
    first = last  # an answer may span several messages
    while first > 0 and messages[first - 1].role == "assistant":
        first -= 1
    for place, message in enumerate(messages):
        await portions.pause()
        name = f"messages.{place}.content"
        if place > last:
            found.new += _items(message, name, found)
        else:
            (found.history if place < first else found.last_answer).extend(_items(message, name))
    if not continues:
        _pair(found)
    if not found.results and not found.blocks:
        if messages and messages[-1].role != "assistant":
            empty = f"messages.{len(messages) - 1}.content"
            raise RequestRefused(f"`{empty}` must not be empty.", field=empty)
        if continues or not found.last_answer:
            reason = ": an answer of a thread is not continued" if continues else ""
            raise RequestRefused(f"`messages` must end with a message of the user{reason}.", field="messages")
    return found


async def items_of(messages: Sequence[MessageIn]) -> list[PastItem]:
    """Converts messages to items of a history. Raises RequestRefused."""
    items, portions = list[PastItem](), Portions()
    for place, message in enumerate(messages):
        await portions.pause()
        items += _items(message, f"messages.{place}.content")
    return items


def _pair(found: NewMessages) -> None:
    """Converts results that belong to no call of the last answer to texts of the user. Raises RequestRefused for a call
    without a result.
    """
    calls = [item.id for item in found.last_answer if isinstance(item, PastCall)]
    given = {result.tool_use_id for result in found.results}
    if missing := [str(call) for call in calls if call not in given]:
        detail = (
            f"`messages` must have a `tool_result` for each `tool_use` block; it has none for {', '.join(missing)}."
        )
        raise RequestRefused(detail, field="messages")
    orphans = [result for result in found.results if result.tool_use_id not in calls]
    found.results = [result for result in found.results if result.tool_use_id in calls]
    for result in reversed(orphans):
        if result.blocks:
            found.blocks[:0] = [block.model_dump() for block in result.blocks]
        elif result.output:
            found.blocks.insert(0, {"type": "text", "text": result.output})


def _items(message: MessageIn, place: str, found: NewMessages | None = None) -> Iterator[PastItem]:
    """Yields the items of a message. If `found` is given, adds the results and the blocks of a new message to it."""
    given = message.content
    parts = [_text_block(given)] if isinstance(given, str) else given
    blocks: list[Json] = []
    for number, part in enumerate(parts):
        where = f"{place}.{number}"
        if message.role == "assistant":
            yield from _of_answer(part)
        elif part.type == "tool_result" and message.role == "user":
            if part.tool_use_id is None:
                detail = f"`{where}.tool_use_id` must be the id of a call."
                raise RequestRefused(detail, field=f"{where}.tool_use_id")
            if not isinstance(part.content, str | list | None):
                raise RequestRefused(f"`{where}.content` must be a string or a list.", field=f"{where}.content")
            yield PastResult(part.tool_use_id, _text_of_result(part), part.is_error or False)
            if found is not None:
                found.results.append(_result(part, part.tool_use_id, where))
        elif part.type != "text" or part.text:
            blocks.append(_block(part, where))
            if message.role == "system":
                blocks[-1] = _reminder(blocks[-1], where)
    if blocks:
        yield PastMessage(blocks)
        if found is not None:
            found.blocks += blocks


def _of_answer(part: BlockIn) -> Iterator[PastItem]:
    match part.type:
        case "text":
            yield PastText(part.text or "")
        case "tool_use":
            yield PastCall(part.id, part.name, to_json(part.input or {}).decode())
        case type:
            members = part.sent()
            streamed = STREAMED_MEMBERS.get(type)
            text = ""
            if streamed in members:
                value = members[streamed]
                text = value if isinstance(value, str) else to_json(value).decode()
                members[streamed] = "" if isinstance(value, str) else {}
            yield PastBlock(type, to_json(members).decode(), text, part.id or part.tool_use_id, part.name)


def _reminder(block: Json, place: str) -> Json:
    """Converts a system message within a conversation to a text of the user, which takes its place, so that the
    provider's cache stays valid.
    """
    if block["type"] != "text":
        raise RequestRefused(f"`{place}.type` must be `text` in a message of the system.", field=f"{place}.type")
    return {"type": "text", "text": f"<system-reminder>\n{block['text']}\n</system-reminder>"}


# --- blocks of the user ----------------------------------------------------------------------------------------------


def _block(part: BlockIn, place: str) -> Json:
    """Converts a block of the user to the form of NewTurn. Raises RequestRefused."""
    match part.type:
        case "text":
            return {"type": "text", "text": part.text}
        case "image" if part.source is not None:
            return {"type": "image", "source": _source(part.source, f"{place}.source")}
        case "document" if part.source is not None and part.context is None:
            cite = isinstance(part.citations, dict) and part.citations.get("enabled") is True
            given = ({"title": part.title} if part.title else {}) | ({"cite": True} if cite else {})
            return {"type": "document", "source": _source(part.source, f"{place}.source"), **given}
        case "document" if part.source is not None:
            raise RequestRefused(f"`{place}.context` must be left out.", field=f"{place}.context")
        case _:
            detail = f"`{place}.type` must be `text`, or `image` or `document` with a `source`."
            raise RequestRefused(detail, field=f"{place}.type")


def _source(source: SourceIn, place: str) -> Json:
    match source.type:
        case "base64":
            type = {"media_type": source.media_type} if source.media_type else {}
            return {"type": "base64", "data": source.data or "", **type}
        case "text":
            return {"type": "base64", "data": b64encode((source.data or "").encode()).decode()}
        case "content":
            parts = source.content if isinstance(source.content, list) else [source.content]
            given = [part.get("text") if isinstance(part, dict) else part for part in parts]
            texts = [text for text in given if isinstance(text, str)]
            if len(texts) < len(parts):
                detail = f"`{place}.content` must hold only texts; send an image as a block of the message."
                raise RequestRefused(detail, field=f"{place}.content")
            return {"type": "base64", "data": b64encode("\n".join(map(str, texts)).encode()).decode()}
        case "url":
            if (found := source_of_url(source.url or "")) is not None:
                return found
            detail = f"`{place}.url` must be a data: URL, or the path of an upload (/api/uploads/…): this server"
            raise RequestRefused(f"{detail} fetches no files.", field=f"{place}.url")
        case "file":
            with suppress(ValueError):
                return {"type": "upload", "id": UUID(source.file_id)}
            detail = f"`{place}.file_id` must be the id of one of your uploads (POST /api/uploads)."
            raise RequestRefused(detail, field=f"{place}.file_id")
        case _:
            detail = f"`{place}.type` must be `base64`, `text`, `content`, `url` or `file`."
            raise RequestRefused(detail, field=f"{place}.type")


# --- results of calls ------------------------------------------------------------------------------------------------


def _parts_of(part: BlockIn) -> Sequence[Any]:
    return part.content if isinstance(part.content, list) else []


def _text_of_result(part: BlockIn) -> str:
    """Returns the result as one text, which is compared with stored histories."""
    if isinstance(part.content, str):
        return part.content
    texts = [each.get("text") for each in _parts_of(part) if isinstance(each, dict) and each.get("type") == "text"]
    if len(texts) == len(_parts_of(part)) and all(isinstance(text, str) for text in texts):
        return "\n".join(map(str, texts))
    return to_json(part.content).decode()


def _text_block(text: str) -> BlockIn:
    return BlockIn(type="text", text=text)


def _parsed(value: Json, place: str) -> BlockIn:
    try:
        return BlockIn.model_validate(value)
    except ValidationError as error:
        raise Invalid(refusals(BlockIn, error, place.split("."))) from None


def _result(part: BlockIn, call: str, place: str) -> ResultIn:
    """Converts the result of a call: texts and files are kept, other content becomes JSON. Raises RequestRefused."""
    error, blocks = part.is_error or False, _parts_of(part)
    if any(isinstance(each, dict) and each.get("type") in ("image", "document") for each in blocks):
        given = []
        for number, each in enumerate(blocks):
            where = f"{place}.content.{number}"
            if not isinstance(each, dict) or not isinstance(each.get("type"), str):
                raise RequestRefused(f"`{where}.type` must be the type of a block.", field=f"{where}.type")
            known = each["type"] in {"text", "image", "document"}
            given.append(_block(_parsed(each, where) if known else _text_block(to_json(each).decode()), where))
        return result_with_files(call, given, place, is_error=error)
    return ResultIn(type="result", tool_use_id=call, output=_text_of_result(part), is_error=error)


# --- options ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AskedOptions:
    """The options of a request, as members of NewTurn, and the names of members that are ignored."""

    members: Json
    ignored: Sequence[str] = ()


def options_of(services: Services, sent: CountIn, *, betas: bool, continues: bool = False) -> AskedOptions:
    """Converts the members of a request to options of a turn. If `continues` is true, `system` and `tools` default to
    the values of the answer that is continued. Raises RequestRefused.
    """
    resolver = services.resolver
    model = resolver.models.check(sent.model)
    params = {name: value for name in _PARAMS if (value := getattr(sent, name, None)) is not None}
    ignored = [name for name in _LABELS if getattr(sent, name, None) is not None]
    known = {parameter.name for parameter in resolver.params.listed(model)}
    ignored += [name for name, value in params.items() if name not in known and value == _DEFAULTS.get(name)]
    hints = {name: value for name in _HINTS if (value := getattr(sent, name, None)) is not None}
    if sent.output_config and sent.output_config.effort is not None:
        hints["output_config"] = {"effort": sent.output_config.effort}
    fitting = resolver.params.fitting(model, hints)
    ignored += sorted(hints.keys() - fitting.keys())
    if betas:
        ignored.append("anthropic-beta")
    if "cache_control" not in ignored and _has_cache_marks(sent):
        ignored.append("cache_control")
    members: Json = {
        "model": sent.model,
        "system_prompt": None if continues and sent.system is None else _system(services, sent),
        "params": {name: value for name, value in params.items() if name not in ignored} | fitting,
        "tools": None if continues and sent.tools is None else _tools(services, sent),
        "output": _output(sent),
    }
    if isinstance(sent, MessagesIn) and sent.metadata is not None and sent.metadata.user_id:
        members["labels"] = {"user_id": sent.metadata.user_id[:_LONGEST_LABEL]}
    if sent.tools or continues:
        members["limits"] = _limits(services)
    return AskedOptions({name: value for name, value in members.items() if value is not None}, ignored)


def new_turn(options: AskedOptions, blocks: Sequence[Json]) -> NewTurn:
    """Converts options and blocks to a new turn. Raises RequestRefused."""
    return checked_turn({**options.members, "blocks": blocks})


def _has_cache_marks(sent: CountIn) -> bool:
    contents = [sent.system, *(message.content for message in sent.messages)]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return any(part.cache_control is not None for part in (*parts, *(sent.tools or ())))


def _system(services: Services, sent: CountIn) -> str | None:
    """Returns the system prompt of the request, or the server's default. An earlier turn's prompt does not apply."""
    if sent.system is None:
        held = held_options() | services.resolver.held_by(sent.model)
        return None if "system_prompt" in held else services.resolver.defaults.system_prompt or ""
    if isinstance(sent.system, str):
        return sent.system
    for place, part in enumerate(sent.system):
        if part.type != "text":
            raise RequestRefused(f"`system.{place}.type` must be `text`.", field=f"system.{place}.type")
    texts = [part.text or "" for part in sent.system]
    return "\n\n".join(text for text in texts if text and not text.startswith(_BILLING))


def _limits(services: Services) -> Json | None:
    """Returns the limits of a turn. The client runs its own loop of tool calls, so only the operator's setting limits
    the rounds.
    """
    if "limits" in held_options():
        return None
    defaults = services.resolver.defaults
    most = defaults.most_rounds if defaults.limits.hard_max_rounds is None else defaults.limits.hard_max_rounds
    return {"max_rounds": 100, "hard_max_rounds": 1000} if most is None else {"max_rounds": min(100, most)}


def _tools(services: Services, sent: CountIn) -> list[Any] | None:
    """Returns the client's tools of the request and the server's tools that it selects. Without `tools` in the request,
    all tools of the server are selected.
    """
    resolver, given = services.resolver, sent.tools
    if given is None:
        if "tools" in held_options() | resolver.held_by(sent.model):
            return None
        with_tools = resolver.models.check(sent.model).supports("tools")
        return list(resolver.toolset.names) if with_tools and _output(sent) is None else []
    found: list[Any] = []
    for tool in given:
        match tool.type:
            case None | "custom":
                found.append(_client_tool(tool, tool.input_schema or {"type": "object", "properties": {}}))
                if more := {name: value for name, value in tool.sent().items() if name not in _OF_TOOL}:
                    found.append({"type": "provider", "definition": {"name": tool.name, **more}})
            case "mcp_toolset" if tool.mcp_server_name == SERVER:
                found += _chosen(tool, resolver.toolset.names)
            case type:
                definition = tool.sent()
                definition.pop("cache_control", None)
                if type.startswith(_RUN_BY_CLIENT):
                    found.append(_client_tool(tool, {"type": "object"}))
                found.append({"type": "provider", "definition": definition})
    return found


def _client_tool(tool: ToolIn, schema: Json) -> Json:
    name = tool.name or ""
    about = tool.description or name
    return {"type": "client", "name": name, "description": about, "input_schema": schema, "expiry": PROGRAM_EXPIRY}


def _chosen(toolset: ToolIn, names: Sequence[str]) -> list[str]:
    """Returns the names of the server's tools that a toolset enables, by the rules of the MCP connector in Anthropic's
    API.
    """
    members = toolset.sent()

    def enabled(config: object, default: bool) -> bool:
        return bool(config.get("enabled", default)) if isinstance(config, dict) else default

    usual, configs = enabled(members.get("default_config"), True), members.get("configs")
    return [name for name in names if enabled(configs.get(name) if isinstance(configs, dict) else None, usual)]


def _output(sent: CountIn) -> Json | None:
    """Returns the required output of a structured turn. Raises RequestRefused."""
    format = sent.output_config.format if sent.output_config else None
    if format is None:
        return None
    if format.get("type") != "json_schema" or not isinstance(format.get("schema"), dict):
        detail = "`output_config.format` must have the type `json_schema` and a `schema`."
        raise RequestRefused(detail, field="output_config.format")
    return {"schema": format["schema"]}
