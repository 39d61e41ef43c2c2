"""What a new turn is asked to do: the turn's own words first, then the chat's, then its past, then the server's."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.api.schemas import ChatSettings, LimitsIn, Params, TurnOptions
from app.domain.errors import RequestRefused
from app.domain.turns import Limits, ToolSpec, TurnRequest
from app.llm.models import Models
from app.storage.chats import Chat
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
    model = options.model or settings.model or (before.model if before else defaults.model)
    models.check(model)
    return TurnRequest(
        model=model,
        system=_system(options, chat, before, defaults),
        params=_params(settings.params) | _params(options.params),
        tools=_tools(options, settings, before, toolset),
        limits=_limits(defaults.limits, settings.limits, options.limits),
    )


def _system(options: TurnOptions, chat: Chat, before: TurnRequest | None, defaults: Defaults) -> str | None:
    if options.system_prompt is not None:
        return options.system_prompt or None
    if chat.system_prompt is not None:
        return chat.system_prompt or None
    return before.system if before else defaults.system_prompt


def _params(params: Params | None) -> dict[str, Any]:
    return params.model_dump(exclude_none=True) if params else {}


def _tools(
    options: TurnOptions, settings: ChatSettings, before: TurnRequest | None, toolset: Toolset
) -> tuple[ToolSpec, ...]:
    frozen: Mapping[str, ToolSpec] = {spec.name: spec for spec in before.tools} if before else {}
    names = options.tools if options.tools is not None else settings.tools
    if names is None and before is not None:
        return before.tools
    try:
        return tuple(frozen.get(spec.name, spec) for spec in toolset.specs(names))
    except ValueError as error:
        raise RequestRefused(str(error), field="tools") from None


def _limits(limits: Limits, *layers: LimitsIn | None) -> Limits:
    for layer in layers:
        if layer is not None:
            limits = replace(limits, **layer.model_dump(exclude_none=True))
    return limits


def again(options: TurnOptions, asked: TurnRequest, models: Models, toolset: Toolset) -> TurnRequest:
    """The request of a regeneration: that of the answer it stands beside, but for what `options` say."""
    model = options.model or asked.model
    models.check(model)
    return TurnRequest(
        model=model,
        system=asked.system if options.system_prompt is None else options.system_prompt or None,
        params={**asked.params, **_params(options.params)},
        tools=_tools(options, ChatSettings(), asked, toolset),
        limits=_limits(asked.limits, options.limits),
    )
