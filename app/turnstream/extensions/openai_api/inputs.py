"""Decodes requests of OpenAI's API: inputs become blocks and answers, members become options of a turn."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
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
from turnstream.extensions.openai_api.members import IGNORED, effort_of, params_of, unheeded
from turnstream.extensions.openai_api.objects import Json, ResponseId, turn_of_item
from turnstream.extensions.openai_api.schemas import (
    ApprovalItem,
    ChatIn,
    ChatMessageIn,
    FileIn,
    FormatIn,
    FunctionOutputItem,
    ImageUrlIn,
    InputItem,
    MessageItem,
    OutputItem,
    PartIn,
    ResponseIn,
    ToolChoiceIn,
    ToolIn,
)
from turnstream.extensions.openai_api.tools import allowed, offered, tools_of
from turnstream.kit.offload import Portions
from turnstream.libraries.dialects.chats import checked_turn
from turnstream.libraries.dialects.results import result_with_files
from turnstream.libraries.dialects.schemas import source_of_url

_TEXTS = frozenset({"input_text", "output_text", "text"})
_FILES = frozenset({"input_image", "input_file"})
_CHOICES = {"auto": "auto", "required": "any", "none": "none"}


@dataclass(slots=True)
class Input:
    """The input of a request. It consists of a `history`, the `last_answer`, and a new part: `blocks` of the user in
    the form of NewTurn, `answers` to calls, and `instructions`. `origin` is the response that the ids of the last
    answer's items name.
    """

    items: Sequence[InputItem]
    origin: ResponseId | None = None
    instructions: list[str] = field(default_factory=list)
    blocks: list[Json] = field(default_factory=list)
    answers: list[FunctionOutputItem | ApprovalItem] = field(default_factory=list)
    history: Sequence[InputItem] = ()
    last_answer: Sequence[InputItem] = ()


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a request, without its input. `place` is the field that contains the format."""

    model: str | None
    instructions: str | None = None
    params: Json = field(default_factory=dict)
    tools: Sequence[ToolIn] | None = None
    format: FormatIn | None = None
    place: str = "text.format"
    labels: Mapping[str, str] | None = None
    max_calls: int | None = None
    ignored: Sequence[str] = ()

    @property
    def headers(self) -> Mapping[str, str]:
        """Returns response headers that name the ignored members."""
        return {IGNORED: ", ".join(self.ignored)} if self.ignored else {}


def items_of(given: str | Sequence[InputItem] | None) -> Sequence[InputItem]:
    """Returns the items of an input, which may be a single text."""
    return [MessageItem(role="user", content=given)] if isinstance(given, str) else given or []


async def split_input(items: Sequence[InputItem], places: Sequence[str] | None = None) -> Input:
    """Separates the new part of the input from the part that the server may have stored. `places` are the fields of the
    items. Raises RequestRefused.
    """
    found, portions = Input(items), Portions()
    places = places or [f"input.{number}" for number in range(len(items))]
    first = begin = max((n for n, item in enumerate(items, 1) if is_of_assistant(item)), default=0)
    while begin and is_of_assistant(items[begin - 1]):
        begin -= 1
    found.history, found.last_answer = items[:begin], items[begin:first]
    for item in found.last_answer[-1:]:
        known = turn_of_item(item.id) if isinstance(item, MessageItem | OutputItem) else None
        if known is not None and known[2] is not None:
            found.origin = ResponseId(known[0], known[1])
    for number, item in enumerate(items):
        await portions.pause()
        place = f"{places[number]}.content"
        match item:
            case MessageItem(role="system" | "developer", content=content):
                found.instructions.append(text_of(content, place))
            case MessageItem(role="user", content=content) if number >= first:
                found.blocks += blocks_of(content, place)
            case FunctionOutputItem() | ApprovalItem() if number >= first:
                found.answers.append(item)
            case _:
                pass
    return found


def is_of_assistant(item: InputItem) -> bool:
    return isinstance(item, OutputItem) or (isinstance(item, MessageItem) and item.role == "assistant")


def blocks_of(content: str | Sequence[PartIn], place: str) -> list[Json]:
    """Converts the content of a user's message to blocks in the form of NewTurn. Raises RequestRefused."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [_block(part, f"{place}.{number}") for number, part in enumerate(content)]


def text_of(content: str | Sequence[PartIn], place: str) -> str:
    """Returns the text of a message. Raises RequestRefused if its content is not only text."""
    if isinstance(content, str):
        return content
    for number, part in enumerate(content):
        if part.type not in _TEXTS | {"refusal"}:
            name = f"{place}.{number}.type"
            raise RequestRefused(f"`{name}` must be text: the content of this message cannot be a file.", field=name)
    return "\n".join(part.text or part.refusal or "" for part in content)


def _block(part: PartIn, place: str) -> Json:
    match part.type:
        case "input_text" | "text" | "output_text":
            return {"type": "text", "text": part.text or ""}
        case "input_image":
            field, image = ("file_id", part.file_id) if part.file_id else ("image_url", part.image_url)
            return {"type": "image", "source": _source(image, f"{place}.{field}")}
        case "image_url":
            return {"type": "image", "source": _source(part.image_url, f"{place}.image_url")}
        case "input_file":
            return _file(part, place)
        case "file" if part.file is not None:
            return _file(part.file, f"{place}.file")
        case _:
            known = "`input_text`, `input_image`, `input_file`, and in chat completions `text`, `image_url`, `file`"
            raise RequestRefused(f"`{place}.type` must be one of {known}.", field=f"{place}.type")


def _file(part: FileIn, place: str) -> Json:
    if part.file_url is not None:
        detail = f"`{place}.file_url` must be left out: this server fetches no files; send `file_data` or `file_id`."
        raise RequestRefused(detail, field=f"{place}.file_url")
    title = {"title": part.filename} if part.filename else {}
    field, file = ("file_id", part.file_id) if part.file_id else ("file_data", part.file_data)
    return {"type": "document", "source": _source(file, f"{place}.{field}"), **title}


def _source(given: str | ImageUrlIn | None, place: str) -> Json:
    """Returns the source of a file, which the client sends as a data: URL, in plain base64, or as an upload's id or
    path.
    """
    text = (given.url if isinstance(given, ImageUrlIn) else given) or ""
    if (source := source_of_url(text)) is not None:
        return source
    with suppress(ValueError):
        return {"type": "upload", "id": UUID(text)}
    if text and place.endswith("file_data"):
        return {"type": "base64", "data": text}
    detail = f"`{place}` must be a data: URL in base64, or an upload: its id or its path (/api/uploads/…)."
    raise RequestRefused(detail, field=place)


# --- messages of chat completions ------------------------------------------------------------------------------------


async def items_of_messages(messages: Sequence[ChatMessageIn]) -> tuple[list[InputItem], list[str]]:
    """Returns the messages as items of responses, and the field of each item. Raises RequestRefused."""
    items: list[InputItem] = []
    places: list[str] = []
    portions = Portions()
    for number, message in enumerate(messages):
        await portions.pause()
        place = f"messages.{number}"
        before = len(items)
        if message.role == "tool":
            if message.tool_call_id is None:
                detail = f"`{place}.tool_call_id` must be the id of a call."
                raise RequestRefused(detail, field=f"{place}.tool_call_id")
            call_id, output = message.tool_call_id, message.content or ""
            items.append(FunctionOutputItem(type="function_call_output", call_id=call_id, output=output))
        elif message.content or not message.tool_calls:
            items.append(MessageItem(role=message.role, content=message.content or ""))
        for call in message.tool_calls or ():
            name, arguments = call.function.name, call.function.arguments
            items.append(OutputItem(type="function_call", call_id=call.id, name=name, arguments=arguments))
        places += [place] * (len(items) - before)
    return items, places


# --- options ---------------------------------------------------------------------------------------------------------


def options_of(services: Services, sent: ResponseIn) -> Options:
    params, ignored = params_of(services, sent.model, sent)
    if sent.max_output_tokens is not None:
        params["max_tokens"] = sent.max_output_tokens
    if sent.reasoning and sent.reasoning.effort is not None:
        params |= effort_of(services, sent.model, sent.reasoning.effort)
    if sent.text and sent.text.verbosity is not None:
        params["verbosity"] = sent.text.verbosity
    tools, tools_ignored = offered(services, sent.model, sent.tools)
    if sent.tool_choice is not None:
        params["tool_choice"], tools = choice_of(sent.tool_choice, tools)
    return Options(
        sent.model,
        sent.instructions,
        params,
        tools,
        sent.text.format if sent.text else None,
        labels=sent.metadata,
        max_calls=sent.max_tool_calls,
        ignored=[*ignored, *unheeded(sent), *tools_ignored],
    )


def options_of_chat(services: Services, sent: ChatIn) -> Options:
    params, ignored = params_of(services, sent.model, sent)
    if (most := sent.max_completion_tokens or sent.max_tokens) is not None:
        params["max_tokens"] = most
    if sent.stop is not None:
        params["stop_sequences"] = [sent.stop] if isinstance(sent.stop, str) else sent.stop
    if sent.reasoning_effort is not None:
        params |= effort_of(services, sent.model, sent.reasoning_effort)
    tools, tools_ignored = offered(services, sent.model, sent.tools)
    if sent.tool_choice is not None:
        params["tool_choice"], tools = choice_of(sent.tool_choice, tools)
    format = None
    if sent.response_format is not None:
        members = {"type": sent.response_format.type, **(sent.response_format.json_schema or {})}
        try:
            format = FormatIn.model_validate(members)
        except ValidationError as error:
            raise Invalid(refusals(FormatIn, error, ("response_format", "json_schema"))) from None
    return Options(
        sent.model,
        None,
        params,
        tools,
        format,
        place="response_format.json_schema",
        labels=sent.metadata,
        ignored=[*ignored, *unheeded(sent), *tools_ignored],
    )


def new_turn(services: Services, options: Options, input: Input, *, follows: bool) -> NewTurn:
    """Creates the turn of a request. Raises RequestRefused."""
    texts = [*([options.instructions] if options.instructions else []), *input.instructions]
    prompt = "\n\n".join(texts) if texts or options.instructions == "" else None
    held = held_options() | services.resolver.held_by(options.model)
    # The instructions of the previous response do not apply.
    if prompt is None and follows and "system_prompt" not in held:
        prompt = services.resolver.defaults.system_prompt or ""
    held_tools = "tools" in held and options.tools is None
    output = output_of_format(options.format, options.place)
    members: Json = {
        "model": options.model,
        "system_prompt": prompt,
        "params": options.params or None,
        "tools": None
        if held_tools
        else tools_of(services, options.model, options.tools, structured=output is not None),
        "labels": options.labels,
        "limits": None if options.max_calls is None else {"max_calls": options.max_calls},
        "output": output,
        "blocks": input.blocks,
    }
    return checked_turn({name: value for name, value in members.items() if value is not None})


def choice_of(given: str | ToolChoiceIn, tools: Sequence[ToolIn] | None) -> tuple[Json, Sequence[ToolIn] | None]:
    """Returns the choice in the server's terms, and the tools that remain after it. Raises RequestRefused."""
    if isinstance(given, str) and given in _CHOICES:
        return {"type": _CHOICES[given]}, tools
    if isinstance(given, ToolChoiceIn) and given.type in ("function", "custom"):
        return {"type": "tool", "name": (given.function or given.custom or given).name}, tools
    if isinstance(given, ToolChoiceIn) and given.type == "allowed_tools":
        choice = given.allowed_tools or given
        return {"type": _CHOICES[choice.mode]}, allowed(tools, choice)
    known = "`function` or `custom` and a `name`, or with the type `allowed_tools`"
    detail = f"`tool_choice` must be `auto`, `required`, `none`, or an object with the type {known}."
    raise RequestRefused(detail, field="tool_choice")


def output_of_format(format: FormatIn | None, place: str) -> Json | None:
    """Converts a format to the output of a structured turn. Raises RequestRefused."""
    if format is None or format.type == "text":
        return None
    if format.type == "json_object":
        return {"schema": {"type": "object"}}
    if format.json_schema is None:
        raise RequestRefused(f"`{place}.schema` must be a JSON Schema.", field=f"{place}.schema")
    more = {"name": format.name, "description": format.description}
    return {"schema": format.json_schema, **{name: value for name, value in more.items() if value}}


def origin_of(sent: ResponseIn) -> ResponseId | None:
    """Returns the previous response, if the request names one. Raises RequestRefused."""
    if sent.previous_response_id is None:
        return None
    if sent.conversation is not None:
        detail = "`previous_response_id` must be left out if there is a `conversation`."
        raise RequestRefused(detail, field="previous_response_id")
    if (found := ResponseId.parse(sent.previous_response_id)) is None:
        raise unknown_previous(sent.previous_response_id)
    return found


def unknown_previous(id: str) -> RequestRefused:
    detail = f"`previous_response_id` must be the id of one of your responses; there is no response {id}."
    return RequestRefused(detail, field="previous_response_id")


def result_of(item: FunctionOutputItem, place: str) -> ResultIn:
    """Converts the output of a function: texts and files are kept, other content becomes JSON."""
    parts = item.output if isinstance(item.output, list) else []
    if any(part.type in _FILES for part in parts):
        try:
            return result_with_files(item.call_id, blocks_of(parts, place), place)
        except Invalid:
            raise
        except RequestRefused:  # such as a URL of another server: the model receives the URL
            pass
    return ResultIn(type="result", tool_use_id=item.call_id, output=result_text(item))


def result_text(item: FunctionOutputItem) -> str:
    """Returns the output of a function as one text, which is compared with stored histories."""
    if isinstance(item.output, str):
        return item.output
    texts = [part.text or "" for part in item.output if part.type in _TEXTS]
    return (
        "\n".join(texts) if len(texts) == len(item.output) else to_json([part.sent() for part in item.output]).decode()
    )
