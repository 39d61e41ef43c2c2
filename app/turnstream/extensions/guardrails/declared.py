"""Reads the tables of a guardrails file, and makes a guard from each."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from turnstream.config import read_environment
from turnstream.domain.errors import ConfigError, RequestRefused
from turnstream.domain.guards import Place
from turnstream.extension import Context, Work
from turnstream.extensions.guardrails.model_check import ModelCheck
from turnstream.extensions.guardrails.patterns import CONTEXT, PatternKind, Patterns
from turnstream.extensions.guardrails.remote import CheckSession, HttpCheck, ModerationCheck
from turnstream.kit.requirements import requirement
from turnstream.libraries.guards.guard import EndTurn, Guard, OnFailure, Replace, Ruling, TakeBack
from turnstream.libraries.outgoing.signature import key_of
from turnstream.libraries.side_calls import SideCalls
from turnstream.llm.models.catalog import Models

_KINDS = ("patterns", "url", "rule", "moderation")
_OVERLAP = 200  # characters


class _GuardTable(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModerationTable(_GuardTable):
    key: Annotated[str, Field(min_length=1)]
    url: str | None = None
    model: str | None = None
    categories: list[str] = []
    threshold: Annotated[float, Field(gt=0, le=1)] | None = None


class GuardTable(_GuardTable):
    """The keys of `[guardrails.NAME]`. Exactly one of `patterns`, `url`, `rule` and `moderation` defines the check."""

    on: Annotated[list[Place], Field(min_length=1)]
    patterns: Annotated[list[PatternKind], Field(min_length=1)] | None = None
    url: str | None = None
    secret: str | None = None
    headers: dict[str, str] = {}
    rule: Annotated[str, Field(min_length=1)] | None = None
    model: str | None = None
    moderation: ModerationTable | None = None
    action: Literal["mask", "replace", "retract", "end"] | None = None
    text: str = ""
    reason: str = ""
    window: Annotated[int, Field(ge=0)] | None = None
    overlap: Annotated[int, Field(ge=0, le=10_000)] | None = None
    timeout: Annotated[float, Field(gt=0, le=600)] = 10.0
    on_failure: OnFailure = "closed"
    plans: list[str] = []

    @model_validator(mode="after")
    def _is_one_check(self) -> Self:
        kinds = [kind for kind in _KINDS if getattr(self, kind) is not None]
        if len(kinds) != 1:
            raise ValueError(f"must have one of {', '.join(_KINDS)}, and has {' and '.join(kinds) or 'none'}")
        allowed = {"patterns": (None, "mask", "end"), "url": (None,)}.get(kinds[0], (None, "replace", "retract", "end"))
        if self.action not in allowed:
            words = " or ".join(str(each) for each in allowed if each) or "left out: the server that checks decides"
            raise ValueError(f"has an `action` that a check by {kinds[0]} does not have: it must be {words}")
        if (self.rule is None) != (self.model is None):
            raise ValueError("must have both `rule` and `model`, or neither: the model judges by the rule")
        if self.secret is not None and self.url is None:
            raise ValueError("must have `secret` with `url` only: it signs the requests")
        return self

    @property
    def then(self) -> Ruling:
        """The ruling about a text that fails the check, according to `action`."""
        match self.action:
            case "replace":
                return Replace(self.text)
            case "retract":
                return TakeBack(self.text)
            case _:
                return EndTurn(self.reason, take_back=True)


class _GuardFile(_GuardTable):
    guardrails: dict[str, GuardTable] = {}


class Declared:
    """One table of the file, in which each `$NAME` is replaced by the value of that environment variable."""

    def __init__(self, file: Path, name: str, table: GuardTable, environment: Mapping[str, str]) -> None:
        self.name = name
        self.table = table
        self._place = f"TURNSTREAM_GUARDRAILS_FILE: {file}: [guardrails.{name}]"
        self._environment = environment
        self.url = self._filled("url", table.url)
        self.secret = self._filled("secret", table.secret)
        self.headers = {key: self._filled("headers", value) or "" for key, value in table.headers.items()}
        self.key = self._filled("moderation.key", table.moderation.key if table.moderation else None)
        if self.secret is not None:
            try:
                key_of(self.secret)
            except ValueError as error:
                raise ConfigError(f"{self._place} `secret`: {error}.") from None

    def check_model(self, models: Models) -> None:
        """Raises ConfigError if the server does not have the model."""
        if self.table.model is not None:
            try:
                models.check(self.table.model)
            except RequestRefused as error:
                raise ConfigError(f"{self._place} {error.detail}") from None

    def _filled(self, key: str, text: str | None) -> str | None:
        if text is None:
            return None
        try:
            return Template(text).substitute(self._environment)
        except KeyError as error:
            raise ConfigError(f"{self._place} `{key}` names ${error.args[0]}, which is not set.") from None
        except ValueError:
            raise ConfigError(
                f"{self._place} `{key}` has a $ without the name of a variable: write $$ for a dollar."
            ) from None


def read_guardrails(file: Path | None) -> Sequence[Declared]:
    """Returns the tables of the file, in the order of the file. Raises ConfigError, which names the file, the table and
    the key.
    """
    if file is None:
        return ()
    try:
        found = _GuardFile.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    except ValidationError as error:
        raise ConfigError(
            *(f"TURNSTREAM_GUARDRAILS_FILE: {file}: {_sentence(each)}" for each in error.errors())
        ) from None
    except (OSError, ValueError) as error:  # invalid TOML is a ValueError too
        raise ConfigError(f"TURNSTREAM_GUARDRAILS_FILE: {file}: {error}.") from None
    environment = read_environment()
    return [Declared(file, name, table, environment) for name, table in found.guardrails.items()]


def _sentence(problem: Any) -> str:
    place = [str(part) for part in problem["loc"]]
    if problem["type"] == "extra_forbidden":
        table = f"[{'.'.join(place[:-1])}]" if place[1:] else "the file"
        keys = ", ".join(ModerationTable.model_fields if place[2:3] == ["moderation"] else GuardTable.model_fields)
        return f"{table} has no key `{place[-1]}`; " + (
            f"the keys are {keys}." if place[1:] else "write [guardrails.NAME]."
        )
    return f"{'.'.join(place)} {requirement(problem['type'], problem.get('ctx'))}."


def guards_of(declared: Sequence[Declared], context: Context) -> Work:
    """Returns the guards, and the task that owns their connections."""
    connection = CheckSession()
    guards = [_guard_of(each, context, connection) for each in declared]
    is_remote = any(each.url is not None or each.key is not None for each in declared)
    return Work(guards=guards, tasks=[connection.run] if is_remote else ())


def _guard_of(declared: Declared, context: Context, connection: CheckSession) -> Guard:
    table = declared.table
    check: Patterns | HttpCheck | ModerationCheck | ModelCheck
    window, overlap = table.window, _OVERLAP if table.overlap is None else table.overlap
    if table.patterns is not None:
        reason = table.reason or f"The guardrail {declared.name} does not allow this."
        check = Patterns(table.patterns, reason if table.action == "end" else None)
        window, overlap = window or 0, CONTEXT
    elif declared.url is not None:
        check = HttpCheck(connection, declared.name, declared.url, declared.secret, declared.headers)
    elif table.moderation is not None and declared.key is not None:
        options = table.moderation.model_dump(exclude={"key"}, exclude_unset=True)
        check = ModerationCheck(connection, declared.key, table.then, **options)
    else:
        assert table.model is not None
        assert table.rule is not None
        check = ModelCheck(SideCalls.of(context), context.models.provider_for, table.model, table.rule, table.then)
    return Guard(
        declared.name,
        check,
        frozenset(table.on),
        window,
        overlap,
        table.timeout,
        table.on_failure,
        frozenset(table.plans),
        continues=table.patterns is not None,
    )
