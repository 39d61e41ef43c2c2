"""Resolves the model, prompt, parameters and tools of a new turn from its options, chat, previous answer and server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from turnstream.api.parameters import ParamRules
from turnstream.api.request_secrets import AnyOptions, RequestSecrets
from turnstream.api.schemas.requests import ChatSettings, LimitsIn, Params, TurnOptions
from turnstream.api.schemas.tools import ClientToolIn, HttpToolIn, ProviderToolIn, ToolIn
from turnstream.domain.chats import Chat
from turnstream.domain.errors import RequestRefused
from turnstream.domain.output import is_of_an_object
from turnstream.domain.turns import HttpCall, Limits, OutputSpec, Preset, ToolSpec, TurnRequest
from turnstream.llm.models.abilities import prices_of, within_abilities
from turnstream.llm.models.catalog import Model, Models
from turnstream.llm.parameters import AllowedParams
from turnstream.tools.schemas import InputSchema, SchemaRoom
from turnstream.tools.toolset import Toolset
from turnstream.tracing import TRACING


@dataclass(frozen=True, slots=True)
class Defaults:
    """The server's values for options that neither the turn nor the chat sets. No turn may request more tool rounds
    than `most_rounds`, if the operator has set a maximum, or more than the limits that `_CEILINGS` names.
    """

    model: str
    system_prompt: str | None
    limits: Limits
    most_rounds: int | None = None


@dataclass(frozen=True, slots=True)
class Allowances:
    """The operator's permissions for turns. `params` are the allowed guarded parameters. `provider_tools` are the
    allowed types of tools that providers run; None allows the types without access to the operator's account. `models`
    are patterns of allowed names, with * for any characters; None allows all. A turn may request up to `max_tokens`.
    """

    params: AllowedParams = field(default_factory=AllowedParams)
    provider_tools: frozenset[str] | None = None
    models: Sequence[str] | None = None
    max_tokens: int | None = None

    def has_model(self, name: str) -> bool:
        return self.models is None or any(fnmatchcase(name, pattern) for pattern in self.models)

    def has_provider_tool(self, definition: Mapping[str, Any]) -> bool:
        type = definition.get("type")
        if self.provider_tools is not None:
            return isinstance(type, str) and type in self.provider_tools
        harmless = type is None or (isinstance(type, str) and type.startswith(_HARMLESS))
        return harmless and not _names_things(definition)


@dataclass(frozen=True, slots=True)
class _Tools:
    """The tools of one turn. `provider` has the definitions of tools that the provider runs, as JSON text."""

    specs: tuple[ToolSpec, ...] = ()
    provider: tuple[str, ...] = ()

    @property
    def names(self) -> set[str]:
        own = (msgspec.json.decode(tool).get("name") for tool in self.provider)
        return {spec.name for spec in self.specs} | {name for name in own if isinstance(name, str)}


# `_HARMLESS` has prefixes of types of provider tools that use only the conversation or the public web. `_OF_ACCOUNTS`
# has members of a definition that name resources of an account: files, stores, containers, connectors, keys.
_HARMLESS = (
    "web_search", "web_fetch", "browser_search", "tool_search", "custom", "function", "bash_", "text_editor_",
    "computer", "memory_",
)  # fmt: skip
_OF_ACCOUNTS = frozenset(
    {
        "vector_store_ids", "file_ids", "file_id", "container", "container_id", "skills", "connector_id",
        "mcp_server_name", "server_url", "authorization", "authorization_token", "environment",
    }
)  # fmt: skip

# Limits of a turn for which the operator's setting, if any, is the maximum.
_CEILINGS = ("hard_max_rounds", "max_calls", "budget_tokens", "budget_cost", "budget_seconds")

# Most model calls that a turn may request for its output: attempts times iterations.
_MOST_OUTPUT_CALLS = 200


@dataclass(frozen=True, slots=True)
class Resolver:
    """Resolves options into requests. Every method raises RequestRefused for options that this server cannot meet."""

    models: Models
    toolset: Toolset
    defaults: Defaults
    allowed: Allowances = field(default_factory=Allowances)
    secrets: RequestSecrets = field(default_factory=RequestSecrets)

    @property
    def params(self) -> ParamRules:
        return ParamRules(self.models, self.allowed.params, self.allowed.max_tokens)

    def held_by(self, model: str | None) -> frozenset[str]:
        """Returns the options that a turn with this model may not set: an agent has its own prompt and tools."""
        is_agent = model is not None and self.models.preset(model) is not None
        return frozenset({"system_prompt", "tools"}) if is_agent else frozenset()

    def _model(self, name: str) -> Model:
        model = self.models.check(name)
        if not self.allowed.has_model(model.id):
            detail = f"`model` must be a model that the operator of this server allows, not {name}."
            raise RequestRefused(detail, field="model")
        return model

    def resolve(self, options: TurnOptions, chat: Chat, before: TurnRequest | None) -> TurnRequest:
        """Returns the frozen request of a new turn. `before` is the request of the previous answer.

        The system prompt and the tools of `before` stay unless the turn or the chat sets others, because the provider
        has cached and signed them. So a deploy that changes the server's defaults does not change a chat.
        """
        settings = ChatSettings.model_validate(chat.settings)
        own_params = options.params and self.secrets.unmasked_params(options.params, _given(settings.params), "params")
        inherited = before.model if before else self.defaults.model
        model = self._model(options.model or settings.model or inherited)
        before = before and self._kept(model, before)
        if model.preset is not None:
            system, tools = self._of_agent(model, model.preset, options, before)
        else:
            system, tools = self._system(options, chat, before), self._own_tools(model, options, chat, settings, before)
        request = TurnRequest(
            model=model.id,
            system=system or None,
            params=self._params(model, own_params, _given(settings.params), tools),
            tools=tools.specs,
            limits=self._limits(self._usual_limits(model), settings.limits, options.limits),
            provider_tools=tools.provider,
            record=bool(options.record),
            labels=(settings.labels or {}) if options.labels is None else options.labels,
            trace=TRACING.traceparent,
        )
        return self._within(model, request, self._output_spec(options), _output_of(model))

    def _kept(self, model: Model, before: TurnRequest) -> TurnRequest | None:
        """Returns `before` if its prompt and tools still apply, or None after a change from, to or between agents."""
        is_kept = model.id == before.model or (model.preset is None and self.models.preset(before.model) is None)
        return before if is_kept else None

    def _of_agent(
        self, model: Model, preset: Preset, options: TurnOptions, kept: TurnRequest | None
    ) -> tuple[str | None, _Tools]:
        """Returns the prompt and the tools of a turn whose model is an agent. They do not depend on the chat."""
        own = {
            "system_prompt": "a system prompt",
            "tools": "tools",
            **({"output": "an output"} if preset.output else {}),
        }
        for name, what in own.items():
            if getattr(options, name) is not None:
                # Dialects replace `name` in this text by the name of their own member.
                detail = f"`{name}` must not set {what}: the model {model.id} is an agent, which has its own."
                raise RequestRefused(detail, field=name)
        if kept is not None:
            return kept.system, self._tools(None, kept)
        return preset.system, self._choose(preset.tools, (), "tools", room=None)

    def _usual_limits(self, model: Model) -> Limits:
        """Returns the limits that apply if neither the turn nor its chat sets others."""
        if model.preset is None or model.preset.max_rounds is None:
            return self.defaults.limits
        return replace(self.defaults.limits, max_rounds=model.preset.max_rounds, hard_max_rounds=None)

    def _own_tools(
        self, model: Model, options: TurnOptions, chat: Chat, settings: ChatSettings, before: TurnRequest | None
    ) -> _Tools:
        if options.tools is None and settings.tools is not None:
            # The schemas of a chat's tools were checked before the chat was stored.
            tools = self._choose(settings.tools, before.tools if before else (), "tools", room=None)
        else:
            own = options.tools and self.secrets.unmasked(options.tools, chat.settings.get("tools") or (), "tools")
            tools = self._tools(own, before)
        if not model.supports("tools") and options.tools is None and settings.tools is None:
            tools = _Tools()  # neither the turn nor the chat requests tools
        return tools

    def _system(self, options: TurnOptions, chat: Chat, before: TurnRequest | None) -> str | None:
        if options.system_prompt is not None:
            return options.system_prompt
        if chat.system_prompt is not None:
            return chat.system_prompt
        return before.system if before else self.defaults.system_prompt

    def again(self, options: TurnOptions, before: TurnRequest) -> TurnRequest:
        """Returns the request of a regeneration: the request of the earlier answer, changed by `options`."""
        own_params = options.params and self.secrets.unmasked_params(options.params, {}, "params")
        model = self._model(options.model or before.model)
        kept = self._kept(model, before)
        if model.preset is not None:
            system, tools = self._of_agent(model, model.preset, options, kept)
        else:
            tools = self._tools(options.tools and self.secrets.unmasked(options.tools, (), "tools"), kept)
            system = kept.system if kept else self.defaults.system_prompt
            system = system if options.system_prompt is None else options.system_prompt
        request = TurnRequest(
            model=model.id,
            system=system or None,
            params=self._params(model, own_params, before.params, tools),
            tools=tools.specs,
            limits=self._limits(kept.limits if kept else self._usual_limits(model), None, options.limits),
            provider_tools=tools.provider,
            record=before.record if options.record is None else options.record,
            labels=before.labels if options.labels is None else options.labels,
            trace=TRACING.traceparent,
        )
        usual = _output_of(model)
        output = self._output_spec(options) or (kept.output if kept and usual is None else None)
        return self._within(model, request, output, usual)

    def check_declared(self, item: HttpToolIn, field: str) -> None:
        """Raises RequestRefused for a declared tool that this server cannot call."""
        try:
            self.toolset.check(_declared(item, room=None))
        except ValueError as error:
            raise RequestRefused(str(error), field=field) from None

    async def sealed(self, owner: str, options: AnyOptions, field: str = "") -> AnyOptions:
        """Encrypts the secrets of tools in the options. Handlers call this before they store any part of a request."""
        return (
            await self.secrets.sealed(owner, options, field, self.check_declared) if self.secrets.encrypts else options
        )

    async def new_settings(self, owner: str, sent: ChatSettings | None, field: str) -> dict[str, Any]:
        """Returns the settings of a new chat, as they are stored."""
        return self.changed_settings({}, sent and await self.sealed(owner, sent, f"{field}."), field)

    def changed_settings(
        self, stored: Mapping[str, Any], changes: ChatSettings | None, field: str = "settings"
    ) -> dict[str, Any]:
        """Returns the new settings of a chat, to be stored. A member that `changes` omits stays; null removes a member.
        New parameters are checked for the chat's model, or for the server's default model if the chat has none. `field`
        is the name of `changes` in error texts.
        """
        if changes is None:
            return {}
        sent = changes.model_dump(exclude_unset=True)
        if changes.tools is not None:
            tools = self.secrets.unmasked(changes.tools, stored.get("tools") or (), f"{field}.tools")
            self._choose(tools, (), f"{field}.tools", SchemaRoom())
            sent["tools"] = [each if isinstance(each, str) else each.model_dump(exclude_none=True) for each in tools]
        merged = _without_nulls({**stored, **sent})
        if changes.model is not None or changes.params is not None:
            try:
                model = self._model(merged.get("model") or self.defaults.model)
            except RequestRefused as error:
                raise RequestRefused(error.detail, field=f"{field}.model") from None
            if changes.params is not None:
                params = self.secrets.unmasked_params(changes.params, stored.get("params") or {}, f"{field}.params")
                merged["params"] = self.params.checked(model, _given(params), f"{field}.params")
        self._check_limits(changes.limits, f"{field}.limits")
        for member in ("params", "limits"):
            if sent.get(member) is not None:
                merged[member] = _without_nulls({**stored.get(member, {}), **merged[member]})
        return merged

    def _params(self, model: Model, own: Params | None, inherited: Mapping[str, Any], tools: _Tools) -> dict[str, Any]:
        """Merges the turn's own parameters into those inherited parameters that fit the model."""
        fitting = self.params.fitting(model, inherited)
        if not _has_chosen(fitting, tools):
            del fitting["tool_choice"]
        params = {**fitting, **self.params.checked(model, _given(own))}
        if not _has_chosen(params, tools):
            known = ", ".join(sorted(tools.names)) or "none"
            place = "params.tool_choice.name"
            detail = f"`{place}` must be one of this turn's tools ({known}), not {params['tool_choice']['name']!r}."
            raise RequestRefused(detail, field=place)
        return _without_nulls(params)

    def _limits(self, limits: Limits, chat: LimitsIn | None, turn: LimitsIn | None) -> Limits:
        """Replaces limits by those that the chat and the turn set, and lowers them to the operator's maximums."""
        self._check_limits(turn, "limits")
        for layer in (chat, turn):
            if layer is not None:
                limits = replace(limits, **layer.model_dump(exclude_none=True))
        ceilings: Mapping[str, Any] = self._ceilings()
        for name, most in ceilings.items():
            asked = getattr(limits, name)
            limits = replace(limits, **{name: most if asked is None else min(asked, most)})
        return limits

    def _ceilings(self) -> Mapping[str, float]:
        own = {name: getattr(self.defaults.limits, name) for name in _CEILINGS}
        own["max_rounds"] = self.defaults.most_rounds
        return {name: most for name, most in own.items() if most is not None}

    def _check_limits(self, limits: LimitsIn | None, field: str) -> None:
        ceilings = dict(self._ceilings())
        if "hard_max_rounds" in ceilings:
            ceilings["max_rounds"] = ceilings["hard_max_rounds"]
        for name, most in ceilings.items():
            asked = None if limits is None else getattr(limits, name)
            if asked is not None and asked > most:
                detail = f"`{field}.{name}` must be at most {most:,}, the limit of this server."
                raise RequestRefused(detail, field=f"{field}.{name}")

    def _tools(self, items: Sequence[ToolIn] | None, before: TurnRequest | None) -> _Tools:
        if items is None and before is not None:
            has = self.allowed.has_provider_tool
            own = (tool for tool in before.provider_tools if has(msgspec.json.decode(tool)))
            return _Tools(tuple(spec for spec in before.tools if spec.role is None), tuple(own))
        named = self.toolset.names if items is None else items
        return self._choose(named, before.tools if before else (), "tools", SchemaRoom())

    def _choose(
        self, items: Sequence[ToolIn], frozen: Sequence[ToolSpec], field: str, room: SchemaRoom | None
    ) -> _Tools:
        """Returns the tools that `items` names or declares; `field` is the name of `items` in error texts. A tool of
        the server keeps its spec in `frozen`. `room` is None if the schemas have been checked before.
        """
        chosen: dict[str, ToolSpec] = {}
        provider: dict[str, None] = {}
        server = {spec.name: spec for spec in frozen if not spec.client and not spec.http}
        # One call returns all tools, because each call of `specs` iterates over the tools of all sources.
        known = {spec.name: spec for spec in self.toolset.specs()}
        for place, item in enumerate(items):
            if isinstance(item, ProviderToolIn):
                if not self.allowed.has_provider_tool(item.definition):
                    raise RequestRefused(
                        f"`{field}.{place}.definition.type` must be a type that the operator of this server allows"
                        " (TURNSTREAM_PROVIDER_TOOLS_ALLOW): such a tool can reach data of the operator's account.",
                        field=f"{field}.{place}.definition.type",
                    )
                provider[msgspec.json.encode(item.definition).decode()] = None
                continue
            try:
                if isinstance(item, str):
                    spec = known.get(item) or self.toolset.specs([item])[0]
                    spec = server.get(item, spec)
                else:
                    spec = _declared(item, room)
                self.toolset.check(spec)
            except ValueError as error:
                raise RequestRefused(str(error), field=f"{field}.{place}") from None
            if chosen.setdefault(spec.name, spec) != spec:
                raise RequestRefused(
                    f"`{field}.{place}` must have another name: two tools have the name {spec.name}.",
                    field=f"{field}.{place}",
                )
        return _Tools(tuple(chosen.values()), tuple(provider))

    def _output_spec(self, options: TurnOptions) -> OutputSpec | None:
        output = options.output
        if output is None:
            return None
        schema = msgspec.json.encode(output.json_schema).decode()
        spec = OutputSpec(
            schema,
            output.validator,
            output.handler,
            output.max_attempts,
            output.max_iterations,
            wrapped=not is_of_an_object(output.json_schema),
            name=output.name,
            description=output.description,
            submit_name=output.submit_name,
            submit_description=output.submit_description,
        )
        self.toolset.outputs.check(spec)
        return spec

    def _within(
        self, model: Model, request: TurnRequest, output: OutputSpec | None, usual: OutputSpec | None
    ) -> TurnRequest:
        """Adds the output (or an agent's `usual` output) to the request, within the limits of model and operator."""
        most = 0 if output is None else output.max_attempts * output.max_iterations
        if most > _MOST_OUTPUT_CALLS:
            detail = "`output.max_attempts` times `output.max_iterations` must be at most"
            raise RequestRefused(f"{detail} {_MOST_OUTPUT_CALLS:,} model calls.", field="output.max_attempts")
        budget = request.limits.budget_cost
        if budget is not None and budget != self.defaults.limits.budget_cost:
            for name, prices in prices_of(self.models, request.model).items():
                if prices is None:
                    detail = f"`limits.budget_cost` must be left out: model {name} has no prices here."
                    raise RequestRefused(detail, field="limits.budget_cost")
        return self.toolset.offered(within_abilities(self.models, model, request, output or usual))


def _output_of(model: Model) -> OutputSpec | None:
    return None if model.preset is None else model.preset.output


def _names_things(value: Any) -> bool:
    """Whether a definition names a resource that belongs to an account at the provider."""
    match value:
        case dict():
            return not _OF_ACCOUNTS.isdisjoint(value) or any(map(_names_things, value.values()))
        case list():
            return any(map(_names_things, value))
        case _:
            return False


def _given(params: Params | None) -> dict[str, Any]:
    return params.given if params else {}


def _without_nulls(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}


def _has_chosen(params: Mapping[str, Any], tools: _Tools) -> bool:
    """Whether the turn has the tool that the parameters force, if they force a tool."""
    choice = params.get("tool_choice") or {}
    return choice.get("type") != "tool" or choice["name"] in tools.names


def _declared(item: ClientToolIn | HttpToolIn, room: SchemaRoom | None) -> ToolSpec:
    """Makes the spec of a declared tool. Raises ValueError if its input schema is invalid, or exceeds the `room`."""
    schema = msgspec.json.encode(item.input_schema).decode()
    if room is not None:
        InputSchema.checked(schema, room)
    if isinstance(item, ClientToolIn):
        return ToolSpec(item.name, item.description, schema, client=True, expiry=item.expiry)
    http = HttpCall(item.url, item.timeout, item.headers)
    return ToolSpec(item.name, item.description, schema, item.read_only, item.retry_safe, http=http)
