"""What a new turn is asked to do: the turn's own words first, then the chat's, then its past, then the server's."""

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from app.api.schemas.requests import ChatSettings, LimitsIn, Params, TurnOptions
from app.api.toolbox import Chosen, choose
from app.domain.compaction import EDITS
from app.domain.errors import RequestRefused
from app.domain.turns import Limits, OutputSpec, TurnRequest
from app.kit.strict_schema import is_strict
from app.llm.models.catalog import Model, Models
from app.storage.chats import Chat
from app.tools.outputs import output_tools
from app.tools.toolset import Toolset


@dataclass(frozen=True, slots=True)
class Defaults:
    """The server's own: used where neither turn nor chat says anything."""

    model: str
    system_prompt: str | None
    limits: Limits


def resolve(
    options: TurnOptions,
    chat: Chat,
    before: TurnRequest | None,
    defaults: Defaults,
    models: Models,
    toolset: Toolset,
) -> TurnRequest:
    """The frozen request of a new turn. `before` is that of the answer it follows.

    What was frozen in `before` stays unless the turn or the chat says otherwise: system prompt and tools are part of
    what the provider cached and signed, so a deploy that changes the server's defaults leaves a chat as it is.
    Raises RequestRefused.
    """
    settings = ChatSettings.model_validate(chat.settings)
    model = models.check(options.model or settings.model or (before.model if before else defaults.model))
    tools = _tools(options, settings, before, toolset)
    if not model.does("tools") and options.tools is None and settings.tools is None:
        tools = Chosen()  # nobody asked for them
    return _within(
        model,
        TurnRequest(
            model=model.id,
            system=_system(options, chat, before, defaults),
            params=_checked(_params(settings.params) | _params(options.params), tools),
            tools=tools.specs,
            limits=_limits(defaults.limits, settings.limits, options.limits),
            provider_tools=tools.provider,
            record=bool(options.record),
        ),
        _output_spec(options, toolset),
        models,
    )


def _system(options: TurnOptions, chat: Chat, before: TurnRequest | None, defaults: Defaults) -> str | None:
    if options.system_prompt is not None:
        return options.system_prompt or None
    if chat.system_prompt is not None:
        return chat.system_prompt or None
    return before.system if before else defaults.system_prompt


def _params(params: Params | None) -> dict[str, Any]:
    return params.model_dump(exclude_none=True) if params else {}


def _output_spec(options: TurnOptions, toolset: Toolset) -> OutputSpec | None:
    """Raises RequestRefused for a schema that is none, or a name that nobody registered."""
    wanted = options.output
    if wanted is None:
        return None
    schema = msgspec.json.encode(wanted.json_schema).decode()
    spec = OutputSpec(schema, wanted.validator, wanted.handler, wanted.max_attempts, wanted.max_iterations)
    try:
        toolset.outputs.check(spec)
    except ValueError as error:
        raise RequestRefused(str(error), field="output") from None
    return spec


def _structured(asked: TurnRequest, output: OutputSpec | None, models: Models) -> TurnRequest:
    """With the tools by which the model puts out, if it needs any. Its attempts are counted instead of its tool rounds.
    Half an output is worth nothing, so one that is written as text is begun anew when it was interrupted.
    """
    if output is None:
        return asked
    output = replace(output, native=_is_native(asked, output, models))
    tools = output_tools(output)
    if taken := {spec.name for spec in tools} & {spec.name for spec in asked.tools}:
        raise RequestRefused(f"a structured turn has a tool {taken.pop()} of its own", field="tools")
    most = output.max_attempts * output.max_iterations
    limits = replace(asked.limits, max_rounds=most, recovery="retry" if output.native else asked.limits.recovery)
    return replace(asked, tools=(*asked.tools, *tools), output=output, limits=limits)


def _is_native(asked: TurnRequest, output: OutputSpec, models: Models) -> bool:
    """Drafts are for tools; the provider's own tools cite their sources, for which no JSON has a place."""
    own_format = (asked.params.get("output_config") or {}).get("format") or asked.params.get("response_format")
    if output.handler is not None or asked.provider_tools or own_format:
        return False
    return is_strict(msgspec.json.decode(output.schema)) and models.surely(asked.model, "structured_output")


def _within(model: Model, asked: TurnRequest, output: OutputSpec | None, models: Models) -> TurnRequest:
    """The request with its output. Raises RequestRefused for what the model cannot do, before anything is spent."""
    asked = _structured(asked, output, models)
    edits = _provider_edits(model, asked.limits)
    asked = replace(asked, limits=replace(asked.limits, context_window=model.context_window, provider_edits=edits))
    params = asked.params
    if (asked.tools or asked.provider_tools) and not model.does("tools"):
        raise RequestRefused(f"{model.id} cannot use tools", field="tools")
    if (params.get("thinking") or {}).get("type") not in {None, "disabled"} and not model.does("thinking"):
        raise RequestRefused(f"{model.id} cannot think aloud", field="params.thinking")
    if (params.get("output_config") or {}).get("format") and not model.does("structured_output"):
        raise RequestRefused(f"{model.id} has no structured output", field="params.output_config.format")
    most, wanted = model.max_output, params.get("max_tokens")
    if most is not None and wanted is not None and wanted > most:
        raise RequestRefused(f"{model.id} writes at most {most:,} tokens", field="params.max_tokens")
    return asked


def _provider_edits(model: Model, limits: Limits) -> tuple[str, ...]:
    """Those that the registry names: of a model that it knows nothing of they are not taken for granted."""
    known = model.can or ()
    return tuple(edit for edit in EDITS if edit in known) if limits.compaction == "provider" else ()


def _checked(params: dict[str, Any], tools: Chosen) -> dict[str, Any]:
    """Raises RequestRefused where a tool must be called that the turn does not have."""
    choice = params.get("tool_choice") or {}
    named = {spec.name for spec in tools.specs} | {msgspec.json.decode(tool).get("name") for tool in tools.provider}
    if choice.get("type") == "tool" and choice.get("name") not in named:
        raise RequestRefused(f"this turn has no tool {choice.get('name')!r}", field="params.tool_choice.name")
    return params


def _tools(options: TurnOptions, settings: ChatSettings, before: TurnRequest | None, toolset: Toolset) -> Chosen:
    names = options.tools if options.tools is not None else settings.tools
    if names is None and before is not None:
        return Chosen(tuple(spec for spec in before.tools if spec.role is None), before.provider_tools)
    return choose(names, toolset, before.tools if before else (), "tools")


def _limits(limits: Limits, *layers: LimitsIn | None) -> Limits:
    for layer in layers:
        if layer is not None:
            limits = replace(limits, **layer.model_dump(exclude_none=True))
    return limits


def again(options: TurnOptions, asked: TurnRequest, models: Models, toolset: Toolset) -> TurnRequest:
    """The request of a regeneration: that of the answer it stands beside, but for what `options` say."""
    model = models.check(options.model or asked.model)
    tools = _tools(options, ChatSettings(), asked, toolset)
    return _within(
        model,
        TurnRequest(
            model=model.id,
            system=asked.system if options.system_prompt is None else options.system_prompt or None,
            params=_checked({**asked.params, **_params(options.params)}, tools),
            tools=tools.specs,
            limits=_limits(asked.limits, options.limits),
            provider_tools=tools.provider,
            record=asked.record if options.record is None else options.record,
        ),
        _output_spec(options, toolset) or asked.output,
        models,
    )
