"""Reads the registry of models: the models that turnstream knows, changed and extended by the operator's file."""

import json
import re
import ssl
import tomllib
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from turnstream.domain.errors import ConfigError
from turnstream.domain.rounds import Prices
from turnstream.kit.requirements import requirement
from turnstream.llm.models.api import ModelApi, ProviderSpec
from turnstream.llm.models.catalog import Ability, Model

_VARIABLE = re.compile(r"\$(\w+)|\$\{(\w+)\}")
_URL = re.compile(r"https?://[^\s/]+(/\S*)?$")


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid")


class LimitsTable(_Table):
    """The limits per minute of each key for each model. `tokens` limits input and output together."""

    requests: Annotated[int | None, Field(ge=1)] = None
    input_tokens: Annotated[int | None, Field(ge=1)] = None
    output_tokens: Annotated[int | None, Field(ge=1)] = None
    tokens: Annotated[int | None, Field(ge=1)] = None


class ProviderTable(_Table):
    """A provider in the file of models. `key`, `keys`, `base_url`, `headers`, `options` and `client_certificate` may
    name environment variables. A provider without `key` and `keys` needs no key. `quirks` names the differences between
    a compatible server and its API. `params` names additional parameters that the server accepts. `options` contains
    other values that its API needs, such as a region (docs/providers.md). `limits` apply to each key.
    """

    api: str
    key: str | None = None
    keys: Annotated[list[str] | None, Field(min_length=1)] = None
    limits: LimitsTable | None = None
    base_url: str | None = None
    prefixes: list[str] = []
    quirks: str | None = None
    headers: dict[str, str] = {}
    client_certificate: str | None = None
    options: dict[str, str] = {}
    params: list[Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]{0,63}$")]] = []
    enabled: bool = True


class _PricesTable(_Table):
    input: Annotated[float, Field(ge=0)]
    output: Annotated[float, Field(ge=0)]
    cache_read: Annotated[float | None, Field(ge=0)] = None
    cache_write: Annotated[float | None, Field(ge=0)] = None


class ModelTable(_Table):
    provider: str
    upstream: str | None = None
    context_window: Annotated[int | None, Field(ge=1)] = None
    max_output: Annotated[int | None, Field(ge=1)] = None
    can: list[Ability] | None = None
    prices: _PricesTable | None = None
    aliases: list[str] = []
    fallbacks: list[str] = []
    think_tags: bool = False
    refuses: list[str] = []
    prefill: bool = False
    store: bool = True
    options: dict[str, Any] = {}
    enabled: bool = True

    def model(self, id: str, currency: str | None) -> Model:
        return Model(
            id=id,
            upstream=self.upstream,
            context_window=self.context_window,
            max_output=self.max_output,
            can=None if self.can is None else frozenset(self.can),
            prices=Prices(**self.prices.model_dump()) if self.prices else None,
            currency=currency if self.prices else None,
            aliases=tuple(self.aliases),
            fallbacks=tuple(self.fallbacks),
            think_tags=self.think_tags,
            refuses=frozenset(self.refuses),
            prefill=self.prefill,
            stores=self.store,
            options=self.options,
        )


class _File(_Table):
    currency: Annotated[str | None, Field(pattern="^[A-Z]{3}$")] = None
    providers: dict[str, ProviderTable] = {}
    models: dict[str, ModelTable] = {}


def read_registry(file: Path | None, environment: Mapping[str, str], apis: Sequence[ModelApi]) -> list[ProviderSpec]:
    """Returns the providers whose keys are set. Raises ConfigError, which names the file, the table and the key."""
    known = {api.name: api for api in apis}
    files = [*(api.catalog for api in apis if api.catalog), *([file] if file else [])]
    tables: Mapping[str, Any] = reduce(_merged, map(_read, files), {})
    try:
        found = _File.model_validate(tables)
        models = {
            id: (table.provider, table.model(id, found.currency)) for id, table in found.models.items() if table.enabled
        }
        for name, provider in found.providers.items():
            _check_provider(name, provider, known)
        _check_references(found, models, known)
    except ValidationError as error:
        raise ConfigError(f"{files[-1]}: {_sentence(error.errors()[0])}") from None
    except ConfigError as error:
        raise ConfigError(f"{files[-1]}: {error}") from None
    specs = (
        _spec(name, table, known[table.api], models, environment)
        for name, table in found.providers.items()
        if table.enabled
    )
    return [spec for spec in specs if spec is not None]


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"TURNSTREAM_MODELS_FILE: {file} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"TURNSTREAM_MODELS_FILE: {file} is not TOML: {error}.") from None


def _merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Merges tables key by key; keys of `own` take precedence. Unknown tables are kept, so that they can be rejected
    later.
    """
    merged = {name: value for name, value in own.items() if name not in {"providers", "models", "families"}}
    for kind in ("providers", "models"):
        under, over = _tables_by_name(base, kind), _tables_by_name(own, kind)
        names = dict.fromkeys((*under, *over))
        merged[kind] = {name: _merged_table(under.get(name, {}), over.get(name, {})) for name in names}
    return merged


def _merged_table(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Merges one table. `key` and `keys` replace each other."""
    replaced = {"key", "keys"} if own.keys() & {"key", "keys"} else set()
    return {**{name: value for name, value in base.items() if name not in replaced}, **own}


def _tables_by_name(tables: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Returns the tables [providers.*] or [models.*] by name. The keys of a family are first copied to each of its
    models, so that the operator can change a single model.
    """
    found: dict[str, Any] = {}
    if kind == "models":
        for family in tables.get("families", {}).values():
            common = {name: value for name, value in family.items() if name != "models"}
            found |= {model: dict(common) for model in family.get("models", ())}
    for name, table in tables.get(kind, {}).items():
        found[name] = {**found.get(name, {}), **table}
    return found


def _check_provider(name: str, table: ProviderTable, apis: Mapping[str, ModelApi]) -> None:
    api = apis.get(table.api)
    if api is None:
        known = ", ".join(apis)
        raise ConfigError(
            f"`api` of [providers.{name}] must be one of {known}, not {table.api!r}; extensions add others."
        )
    if table.quirks is not None and table.quirks not in api.quirks:
        known = f"one of {', '.join(api.quirks)}, not {table.quirks!r}" if api.quirks else "left out: this API has none"
        raise ConfigError(f"`quirks` of [providers.{name}] must be {known}.")
    for option in table.options:
        if option not in api.options:
            known = f"one of {', '.join(api.options)}" if api.options else "left out: this API has none"
            raise ConfigError(f"`options.{option}` of [providers.{name}] must be {known}.")
    if table.key is not None and table.keys is not None:
        raise ConfigError(f"`keys` of [providers.{name}] must be left out, or `key`: a provider has one of them.")
    if table.params and api.own_members is None:
        raise ConfigError(f"`params` of [providers.{name}] must be left out: this API accepts only its own parameters.")
    taken = {parameter.name for parameter in api.parameters_of(table.quirks)}
    for param in table.params:
        if param in taken or param in (api.own_members or ()):
            raise ConfigError(
                f"`params` of [providers.{name}] must be further parameters:"
                f" {param} is {'one already' if param in taken else 'set by this server'}."
            )


def _check_references(found: _File, models: Mapping[str, tuple[str, Model]], apis: Mapping[str, ModelApi]) -> None:
    names: dict[str, str] = {}
    for id, (provider, model) in models.items():
        if provider not in found.providers:
            known = ", ".join(found.providers)
            raise ConfigError(
                f"`provider` of [models.{id}] must be one of {known}: there is no [providers.{provider}]."
            )
        for name in (id, *model.aliases):
            if names.setdefault(name, id) != id:
                raise ConfigError(f"`aliases` of [models.{id}] must be new names: {name} is [models.{names[name]}].")
        table = found.providers[provider]
        known_params = [each.name for each in apis[table.api].parameters_of(table.quirks, table.params)]
        for name in sorted(model.refuses.difference(known_params)):
            raise ConfigError(
                f"`refuses` of [models.{id}] must name parameters of [providers.{provider}]"
                f" ({', '.join(known_params)}), not {name!r}."
            )
        if model.prefill and not apis[table.api].prefills:
            raise ConfigError(f"`prefill` of [models.{id}] must be left out: {table.api} does not continue an answer.")
        if model.think_tags and apis[table.api].without_tags is None:
            raise ConfigError(f"`think_tags` of [models.{id}] must be left out: {table.api} sends thoughts as blocks.")
        _check_options(id, model.options, apis[table.api])
        for fallback in model.fallbacks:
            if fallback not in models:
                raise ConfigError(
                    f"`fallbacks` of [models.{id}] must be ids of models: there is no [models.{fallback}]."
                )


def _check_options(model: str, options: Mapping[str, Any], api: ModelApi) -> None:
    for option, value in options.items():
        where, known = f"`options.{option}` of [models.{model}] must be", api.model_options
        if option not in known:
            names = f"one of {', '.join(known)}" if known else "left out: this API has none"
            raise ConfigError(f"{where} {names}.")
        if not any(value == each and type(value) is type(each) for each in known[option]):
            values = ", ".join(map(json.dumps, known[option]))
            raise ConfigError(f"{where} one of {values}, not {json.dumps(value, default=str)}.")


def _spec(
    name: str,
    table: ProviderTable,
    api: ModelApi,
    models: Mapping[str, tuple[str, Model]],
    environment: Mapping[str, str],
) -> ProviderSpec | None:
    """Returns the provider that a table describes, or None if the variable of its key is not set."""
    keys = [found for each in table.keys or () if (found := _filled(each, environment))]
    key = next(iter(keys), None) if table.key is None else _filled(table.key, environment)
    if (table.key is not None or table.keys is not None) and not key:
        return None
    return ProviderSpec(
        name=name,
        api=api,
        key=key,
        base_url=_address(name, table.base_url or "", environment),
        quirks=table.quirks,
        params=tuple(table.params),
        headers={header: _filled(value, environment) for header, value in table.headers.items()},
        prefixes=tuple(table.prefixes),
        client_certificate=_certificate(name, table, environment),
        models=tuple(model for provider, model in models.values() if provider == name),
        options={option: _filled(value, environment) for option, value in table.options.items()},
        keys=tuple(dict.fromkeys(keys)),
        limits={} if table.limits is None else table.limits.model_dump(exclude_none=True),
    )


def _address(name: str, base_url: str, environment: Mapping[str, str]) -> str | None:
    url = _filled(base_url, environment)
    if url and not _URL.match(url):
        variable = f" ({base_url})" if base_url != url else ""
        raise ConfigError(f"`base_url` of [providers.{name}]{variable} must be a URL, such as https://x.org/v1.")
    return url or None


def _certificate(name: str, table: ProviderTable, environment: Mapping[str, str]) -> str | None:
    if table.client_certificate is None:
        return None
    file = _filled(table.client_certificate, environment)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(file, password="")  # otherwise OpenSSL prompts
    except OSError:
        raise ConfigError(
            f"`client_certificate` of [providers.{name}] must be a PEM file with a certificate and its key, which needs"
            f" no password: {file!r} is none that can be read."
        ) from None
    return file


def _filled(text: str, environment: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda found: environment.get(found[1] or found[2], ""), text)


def _sentence(problem: ErrorDetails) -> str:
    """Returns a sentence that names the key, its table, and the allowed values. The location of a problem is
    `providers` or `models`, then a name, a key, and perhaps more.
    """
    location = [str(step) for step in problem["loc"]]
    table, key = location[:2], ".".join(location[2:])
    if len(location) == 1:
        return f"`{location[0]}` is not known here; known tables are [providers], [models] and [families]."
    where = f"`{key}` of [{'.'.join(table)}]"
    if problem["type"] == "extra_forbidden":
        kind = ProviderTable if table[0] == "providers" else ModelTable if len(location) == 3 else _PricesTable
        return f"{where} is not known; known keys are {', '.join(kind.model_fields)}."
    return f"{where} {requirement(problem['type'], problem.get('ctx'))}."
