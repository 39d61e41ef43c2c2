"""The file of models: what the server knows of them, and what the operator says instead."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.domain.errors import ConfigError
from app.llm.models.catalog import Ability, Model, Prices
from app.llm.openai.quirks import QUIRKS

_OWN = Path(__file__).with_name("models.toml")
_NAME = re.compile(r"\$(\w+)|\$\{(\w+)\}")

Api = Literal["anthropic", "openai-chat", "openai-responses"]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ProviderTable(_Table):
    """`key` and `base_url` may name variables of the environment. One without a key needs none. `quirks` says in what a
    server that speaks OpenAI's language differs from OpenAI (docs/providers.md).
    """

    api: Api
    key: str | None = None
    base_url: str | None = None
    prefixes: list[str] = []
    quirks: str = "openai"
    headers: dict[str, str] = {}
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
    enabled: bool = True


class _File(_Table):
    providers: dict[str, ProviderTable] = {}
    models: dict[str, ModelTable] = {}


@dataclass(frozen=True, slots=True)
class ProviderSpec:
    """A provider that can be used, with what was said of its models."""

    name: str
    api: Api
    key: str | None
    base_url: str | None
    quirks: str
    headers: Mapping[str, str]
    prefixes: tuple[str, ...]
    models: tuple[Model, ...]


def read_registry(file: Path | None, environment: Mapping[str, str]) -> list[ProviderSpec]:
    """The providers that have what they need. Raises ConfigError, which names file, table and key."""
    read = _merged(_tables(_OWN), _tables(file) if file else {})
    try:
        found = _File.model_validate(read)
    except ValidationError as error:
        raise ConfigError(_sentence(file or _OWN, error)) from None
    models = _models_of(found)
    _check(file or _OWN, found, models)
    specs = (_provider(name, table, models, environment) for name, table in found.providers.items() if table.enabled)
    return [spec for spec in specs if spec is not None]


def _tables(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"TURNSTREAM_MODELS_FILE: {file} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from None


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Families are taken apart first, so that one of their models can be said more of."""
    return {kind: _merged_tables(_by_name(under, kind), _by_name(over, kind)) for kind in ("providers", "models")} | {
        name: value for name, value in over.items() if name not in {"providers", "models", "families"}
    }


def _by_name(tables: Mapping[str, Any], kind: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if kind == "models":
        for family in tables.get("families", {}).values():
            common = {name: value for name, value in family.items() if name != "models"}
            found |= {model: dict(common) for model in family.get("models", ())}
    for name, table in tables.get(kind, {}).items():
        found[name] = {**found.get(name, {}), **table}
    return found


def _merged_tables(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: {**under.get(name, {}), **over.get(name, {})} for name in (*under, *(n for n in over if n not in under))
    }


def _models_of(found: _File) -> dict[str, tuple[str, Model]]:
    """By id, with the provider."""
    return {id: (table.provider, _model(id, table)) for id, table in found.models.items() if table.enabled}


def _model(id: str, table: ModelTable) -> Model:
    return Model(
        id=id,
        upstream=table.upstream,
        context_window=table.context_window,
        max_output=table.max_output,
        can=None if table.can is None else frozenset(table.can),
        prices=Prices(**table.prices.model_dump()) if table.prices else None,
        aliases=tuple(table.aliases),
        fallbacks=tuple(table.fallbacks),
        think_tags=table.think_tags,
    )


def _check(file: Path, found: _File, models: Mapping[str, tuple[str, Model]]) -> None:
    for name, provider_table in found.providers.items():
        if provider_table.quirks not in QUIRKS:
            known = ", ".join(QUIRKS)
            raise ConfigError(
                f"{file}: [providers.{name}] quirks: there is no {provider_table.quirks!r}; there are: {known}"
            )
    names: dict[str, str] = {}
    for id, (provider, model) in models.items():
        if provider not in found.providers:
            raise ConfigError(f"{file}: [models.{id}] provider: there is no [providers.{provider}]")
        for name in (id, *model.aliases):
            if names.setdefault(name, id) != id:
                raise ConfigError(f"{file}: [models.{id}] aliases: {name} is [models.{names[name]}] already")
        for fallback in model.fallbacks:
            if fallback not in models:
                raise ConfigError(f"{file}: [models.{id}] fallbacks: there is no [models.{fallback}]")


def _provider(
    name: str, table: ProviderTable, models: Mapping[str, tuple[str, Model]], environment: Mapping[str, str]
) -> ProviderSpec | None:
    """None where its key is a variable that is not set."""
    key = None if table.key is None else _filled(table.key, environment)
    if table.key is not None and not key:
        return None
    return ProviderSpec(
        name=name,
        api=table.api,
        key=key,
        base_url=_filled(table.base_url, environment) or None if table.base_url else None,
        quirks=table.quirks,
        headers={header: _filled(value, environment) for header, value in table.headers.items()},
        prefixes=tuple(table.prefixes),
        models=tuple(model for provider, model in models.values() if provider == name),
    )


def _filled(text: str, environment: Mapping[str, str]) -> str:
    return _NAME.sub(lambda found: environment.get(found[1] or found[2], ""), text)


def _sentence(file: Path, error: ValidationError) -> str:
    first = error.errors()[0]
    *table, key = [str(step) for step in first["loc"]] or ["?"]
    where = f"[{'.'.join(table)}] {key}" if table else key
    return f"{file}: {where}: {first['msg'][0].lower()}{first['msg'][1:]}"
