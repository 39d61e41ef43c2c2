"""The tables of a file of tools, as they are written there."""

import difflib
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from app.domain.errors import ConfigError
from app.tools.policy import Breaker, PolicyOptions, ResultForm


class _Table(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class BreakerTable(_Table):
    failures: int = Breaker().failures
    pause: float = Breaker().pause

    def breaker(self) -> Breaker:
        return Breaker(self.failures, self.pause)


def _off(value: object) -> object:
    """TOML has no word for None."""
    return None if value is False else value


def _text(value: object) -> object:
    return json.dumps(value, default=str) if isinstance(value, dict) else value


class PolicyTable(_Table):
    """A key that is not there is a choice that was not made."""

    timeout: float = Field(30.0, gt=0)
    concurrency: Annotated[int | None, BeforeValidator(_off)] = None
    calls_per_turn: Annotated[int | None, BeforeValidator(_off)] = None
    max_result_chars: Annotated[int | None, BeforeValidator(_off)] = None
    retries: int = 1
    memo: bool = False
    results: ResultForm = "json"
    fallback: Annotated[str | None, BeforeValidator(_off)] = None
    breaker: Annotated[BreakerTable | None, BeforeValidator(_off)] = None
    approval: Literal["never", "always"] = "never"
    approval_expiry: Annotated[float | None, BeforeValidator(_off)] = None

    def options(self) -> PolicyOptions:
        chosen = {key: getattr(self, key) for key in PolicyTable.model_fields if key in self.model_fields_set}
        if self.breaker is not None:
            chosen["breaker"] = self.breaker.breaker()
        return cast("PolicyOptions", chosen)


class HttpTable(PolicyTable):
    url: str
    description: str = Field(min_length=1)
    input_schema: Annotated[str, BeforeValidator(_text)]
    headers: dict[str, str] = {}
    read_only: bool = False
    retry_safe: bool = False
    internal: bool = False


class McpTable(PolicyTable):
    command: str | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = {}
    prefix: str = ""
    tools: list[str] | None = None
    read_only: list[str] = []
    trusted: bool = False
    policy: dict[str, PolicyTable] = {}

    @model_validator(mode="after")
    def _one_way_to_it(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("it needs a command or a url, and not both")
        unused = {"headers"} if self.url is None else {"args", "env", "cwd"}
        for key in sorted(unused & self.model_fields_set):
            raise ValueError(f"{key} is not for a server with a {'command' if self.url is None else 'url'}")
        return self


class ToolsFile(_Table):
    http: dict[str, HttpTable] = {}
    mcp: dict[str, McpTable] = {}
    policy: dict[str, PolicyTable] = {}


def read_file(path: Path) -> ToolsFile:
    """Raises ConfigError with a sentence for everything that is wrong."""
    try:
        return ToolsFile.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"TURNSTREAM_TOOLS_FILE: {path} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    except ValidationError as error:
        raise ConfigError("; ".join(f"{path}: {_sentence(problem)}" for problem in error.errors())) from None


def _sentence(problem: Any) -> str:
    table, key = _place(problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"{table} has no key {key}{_meant(problem['loc'])}" if table else f"there is no table [{key}]"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":
        message = "is missing"
    return f"{table} {key}".strip() + f": {message[0].lower()}{message[1:]}"


def _place(loc: Sequence[str | int]) -> tuple[str, str]:
    """The table, which has two names or (of the policy of one tool of a server) four, and the key in it."""
    depth = 4 if len(loc) > 4 and loc[2] == "policy" else 2
    table = ".".join(map(str, loc[:depth]))
    return f"[{table}]" if len(loc) >= 2 else "", ".".join(map(str, loc[depth:] if len(loc) >= 2 else loc))


def _meant(loc: Sequence[str | int]) -> str:
    kinds: dict[str | int, type[_Table]] = {"http": HttpTable, "mcp": McpTable, "policy": PolicyTable}
    close = difflib.get_close_matches(str(loc[-1]), kinds[loc[0]].model_fields, n=1) if len(loc) == 3 else []
    return f"; is {close[0]} meant?" if close else ""
