"""The request of a new turn: model, prompt, parameters and tools, from the turn, its chat, its past and the server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from turnstream.api.parameters import ParamRules
from turnstream.api.schemas.requests import ChatSettings, LimitsIn, Params, TurnOptions
from turnstream.api.schemas.tools import ClientToolIn, HttpToolIn, ProviderToolIn, ToolIn
from turnstream.api.secret_headers import unmasked
from turnstream.domain.chats import Chat
from turnstream.domain.compaction import EDITS
from turnstream.domain.errors import RequestRefused
from turnstream.domain.output import is_of_an_object, schema_for_model
from turnstream.domain.rounds import Prices
from turnstream.domain.turns import HttpCall, Limits, OutputSpec, ToolSpec, TurnRequest
from turnstream.kit.strict_schema import is_strict
from turnstream.llm.models.catalog import Model, Models
from turnstream.llm.parameters import AllowedParams
from turnstream.tools.outputs import output_tools
from turnstream.tools.schemas import InputSchema, SchemaRoom
from turnstream.tools.toolset import Toolset
from turnstream.tracing import TRACING


@dataclass(frozen=True, slots=True)
class Defaults:
    """The server's own values, used where neither turn nor chat has one. `ceilings` are the limits, by name, above
    which no turn may ask for more; those in `_CEILINGS` are ceilings in any case.
    """

    model: str
    system_prompt: str | None
    limits: Limits
    ceilings: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Allowances:
    """The operator's permissions for turns. `params` are the guarded parameters, `provider_tools` the types of the
    providers' own tools (None: those that reach nothing of the operator's account), `models` patterns of names, with *
    for any characters (None: all). A turn may ask for `max_tokens` of an answer, and for `output_calls` model calls for
    its output.
    """

    params: AllowedParams = field(default_factory=AllowedParams)
    provider_tools: frozenset[str] | None = None
    models: Sequence[str] | None = None
    max_tokens: int | None = None
    output_calls: int | None = None

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
    """`provider` are definitions of tools that run at the provider, as JSON text."""

    specs: tuple[ToolSpec, ...] = ()
    provider: tuple[str, ...] = ()

    @property
    def names(self) -> set[str]:
        own = (msgspec.json.decode(tool).get("name") for tool in self.provider)
        return {spec.name for spec in self.specs} | {name for name in own if isinstance(name, str)}


# Beginnings of the types of providers' tools that work with the conversation or the public web alone; and members by
# which a definition names what an account has: files, stores, containers, connectors with their keys.
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

# Limits that the operator's settings are the ceilings of, where they are set.
_CEILINGS = ("hard_max_rounds", "max_calls", "budget_tokens", "budget_cost", "budget_seconds")


@dataclass(frozen=True, slots=True)
class Resolver:
    """Resolves options into requests. Every method raises RequestRefused for options that cannot be met here."""

    models: Models
    toolset: Toolset
    defaults: Defaults
    allowed: Allowances = field(default_factory=Allowances)

    @property
    def params(self) -> ParamRules:
        return ParamRules(self.models, self.allowed.params, self.allowed.max_tokens)

    def _model(self, name: str) -> Model:
        model = self.models.check(name)
        if not self.allowed.has_model(model.id):
            detail = f"`model` must be one that the operator of this server has allowed, not {name}."
            raise RequestRefused(detail, field="model")
        return model

    def resolve(self, options: TurnOptions, chat: Chat, before: TurnRequest | None) -> TurnRequest:
        """The frozen request of a new turn. `before` is the request of the answer it follows.

        System prompt and tools of `before` stay unless the turn or the chat has others: they are part of the text that
        the provider cached and signed, so a deploy that changes the server's defaults leaves a chat as it is.
        """
        settings = ChatSettings.model_validate(chat.settings)
        inherited = before.model if before else self.defaults.model
        model = self._model(options.model or settings.model or inherited)
        if options.tools is None and settings.tools is not None:
            # Their schemas were checked when they were stored.
            tools = self._choose(settings.tools, before.tools if before else (), "tools", room=None)
        else:
            own = options.tools and unmasked(options.tools, chat.settings.get("tools") or (), "tools")
            tools = self._tools(own, before)
        if not model.supports("tools") and options.tools is None and settings.tools is None:
            tools = _Tools()  # neither turn nor chat requests them
        if options.system_prompt is not None:
            system: str | None = options.system_prompt
        elif chat.system_prompt is not None:
            system = chat.system_prompt
        else:
            system = before.system if before else self.defaults.system_prompt
        request = TurnRequest(
            model=model.id,
            system=system or None,
            params=self._params(model, options.params, _given(settings.params), tools),
            tools=tools.specs,
            limits=self._limits(self.defaults.limits, settings.limits, options.limits),
            provider_tools=tools.provider,
            record=bool(options.record),
            labels=(settings.labels or {}) if options.labels is None else options.labels,
            trace=TRACING.traceparent,
        )
        return self._within(model, request, self._output_spec(options))

    def again(self, options: TurnOptions, before: TurnRequest) -> TurnRequest:
        """The request of a regeneration: that of the answer it stands beside, changed by `options`."""
        model = self._model(options.model or before.model)
        tools = self._tools(options.tools and unmasked(options.tools, (), "tools"), before)
        request = TurnRequest(
            model=model.id,
            system=before.system if options.system_prompt is None else options.system_prompt or None,
            params=self._params(model, options.params, before.params, tools),
            tools=tools.specs,
            limits=self._limits(before.limits, None, options.limits),
            provider_tools=tools.provider,
            record=before.record if options.record is None else options.record,
            labels=before.labels if options.labels is None else options.labels,
            trace=TRACING.traceparent,
        )
        return self._within(model, request, self._output_spec(options) or before.output)

    def check_declared(self, item: HttpToolIn, field: str) -> None:
        """Raises RequestRefused for a tool that cannot be called from here."""
        try:
            self.toolset.check(_declared(item, room=None))
        except ValueError as error:
            raise RequestRefused(str(error), field=field) from None

    def changed_settings(
        self, stored: Mapping[str, Any], changes: ChatSettings | None, field: str = "settings"
    ) -> dict[str, Any]:
        """Returns the new settings of a chat, to be stored. A member that `changes` omit stays; null removes it. New
        parameters are checked for the chat's model, or for the server's default model if the chat has none. `field` is
        the name of `changes` in error texts.
        """
        if changes is None:
            return {}
        sent = changes.model_dump(exclude_unset=True)
        if changes.tools is not None:
            tools = unmasked(changes.tools, stored.get("tools") or (), f"{field}.tools")
            self._choose(tools, (), f"{field}.tools", SchemaRoom())
            sent["tools"] = [each if isinstance(each, str) else each.model_dump(exclude_none=True) for each in tools]
        merged = _without_nulls({**stored, **sent})
        if changes.model is not None or changes.params is not None:
            try:
                model = self._model(merged.get("model") or self.defaults.model)
            except RequestRefused as error:
                raise RequestRefused(error.detail, field=f"{field}.model") from None
            if changes.params is not None:
                merged["params"] = self.params.checked(model, changes.params.given, f"{field}.params")
        self._check_limits(changes.limits, f"{field}.limits")
        for member in ("params", "limits"):
            if sent.get(member) is not None:
                merged[member] = _without_nulls({**stored.get(member, {}), **merged[member]})
        return merged

    def _params(self, model: Model, own: Params | None, inherited: Mapping[str, Any], tools: _Tools) -> dict[str, Any]:
        """The turn's own parameters over those inherited. Of these, the ones that do not fit are omitted."""
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
        """The limits, with those of the chat and of the turn, within the operator's. A turn may not ask for more."""
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
        return {**self.defaults.ceilings, **{name: most for name, most in own.items() if most is not None}}

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
        """The tools of `items`, of which `field` is the list. A tool of the server stays as it was `frozen`. `room` is
        None for tools whose schemas were checked before.
        """
        chosen: dict[str, ToolSpec] = {}
        provider: dict[str, None] = {}
        server = {spec.name: spec for spec in frozen if not spec.client and not spec.http}
        # At once: each look goes over the tools of all sources.
        known = {spec.name: spec for spec in self.toolset.specs()}
        for place, item in enumerate(items):
            if isinstance(item, ProviderToolIn):
                if not self.allowed.has_provider_tool(item.definition):
                    raise RequestRefused(
                        f"`{field}.{place}.definition.type` must be one that the operator of this server has allowed"
                        " (TURNSTREAM_PROVIDER_TOOLS_ALLOW): this definition can reach what belongs to its account.",
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
                    f"`{field}.{place}` must have another name: two tools are called {spec.name}.",
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

    def _within(self, model: Model, request: TurnRequest, output: OutputSpec | None) -> TurnRequest:
        """The request with its output, within the abilities of the model: nothing is spent on a call that must fail."""
        if output is not None:
            request = self._structured(request, output)
        # An unknown model is not assumed to support edits by the provider.
        known = model.can or () if request.limits.compaction == "provider" else ()
        edits = tuple(edit for edit in EDITS if edit in known)
        prices = self._prices(request.model, request.limits)
        limits = replace(request.limits, context_window=model.context_window, provider_edits=edits, prices=prices)
        request = replace(request, limits=limits)
        if (request.tools or request.provider_tools) and not model.supports("tools"):
            raise RequestRefused(f"`tools` must be left out: model {model.id} does not support tools.", field="tools")
        return self.toolset.offered(request)

    def _prices(self, model: str, limits: Limits) -> Mapping[str, Prices]:
        """The prices of the models that the turn may use, frozen with its budget. A model without prices has none;
        where the turn itself asked for the budget, that is refused.
        """
        if limits.budget_cost is None:
            return {}
        known = {name: self.models.prices(name) for name in (model, *self.models.fallbacks(model))}
        if limits.budget_cost != self.defaults.limits.budget_cost:
            for name, prices in known.items():
                if prices is None:
                    detail = f"`limits.budget_cost` must be left out: model {name} has no prices here."
                    raise RequestRefused(detail, field="limits.budget_cost")
        return {name: prices for name, prices in known.items() if prices is not None}

    def _structured(self, request: TurnRequest, output: OutputSpec) -> TurnRequest:
        """Adds the tools by which the model submits its output, if it needs any. Attempts are counted instead of tool
        rounds. Half an output has no value, so an output in text is rewritten after an interruption.
        """
        output = replace(output, native=self._is_native(request, output))
        tools = output_tools(output)
        taken = {spec.name for spec in request.tools}
        taken |= {msgspec.json.decode(tool).get("name") for tool in request.provider_tools}
        for spec in tools:
            if spec.name in taken:
                field = "output.name" if spec.role == "output" else "output.submit_name"
                detail = f"`{field}` must be another name: this turn has another tool {spec.name}."
                raise RequestRefused(detail, field=field)
            taken.add(spec.name)
        most = output.max_attempts * output.max_iterations
        if self.allowed.output_calls is not None and most > self.allowed.output_calls:
            detail = "`output.max_attempts` times `output.max_iterations` must be at most"
            raise RequestRefused(f"{detail} {self.allowed.output_calls:,} model calls.", field="output.max_attempts")
        recovery = "retry" if output.native else request.limits.recovery
        limits = replace(request.limits, max_rounds=most, recovery=recovery)
        return replace(request, tools=(*request.tools, *tools), output=output, limits=limits)

    def _is_native(self, request: TurnRequest, output: OutputSpec) -> bool:
        """Drafts need tools, and the provider's own tools cite sources, which have no place in JSON."""
        own_format = (request.params.get("output_config") or {}).get("format") or request.params.get("response_format")
        if output.handler is not None or request.provider_tools or own_format:
            return False
        return is_strict(msgspec.json.decode(schema_for_model(output))) and self.models.all_support(
            request.model, "structured_output"
        )


def _names_things(value: Any) -> bool:
    """Whether a definition names something at the provider that belongs to an account."""
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
    """False if the parameters force a tool that the turn does not have."""
    choice = params.get("tool_choice") or {}
    return choice.get("type") != "tool" or choice["name"] in tools.names


def _declared(item: ClientToolIn | HttpToolIn, room: SchemaRoom | None) -> ToolSpec:
    """Raises ValueError for an input schema that is not valid, or for which there is no `room`."""
    schema = msgspec.json.encode(item.input_schema).decode()
    if room is not None:
        InputSchema.checked(schema, room)
    if isinstance(item, ClientToolIn):
        return ToolSpec(item.name, item.description, schema, client=True, expiry=item.expiry)
    http = HttpCall(item.url, item.timeout, item.headers)
    return ToolSpec(item.name, item.description, schema, item.read_only, item.retry_safe, http=http)
