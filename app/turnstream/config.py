"""Settings, read once from the environment (and a `.env` file) in the composition root."""

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, cast

from dotenv import dotenv_values
from pydantic import AliasChoices, AliasGenerator, Field, PrivateAttr, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from turnstream.domain.errors import ConfigError
from turnstream.kit.requirements import requirement

AnySection = TypeVar("AnySection", bound="Section")

_PREFIX = "TURNSTREAM_"
_MOST = 2**31 - 1  # the largest number that many columns can store; in seconds, 68 years
# The remedies for settings that no longer exist.
_REMOVED: Mapping[str, str] = {
    "PARALLEL_REQUEST_TOOLS": "is now TURNSTREAM_PARALLEL_TOOLS",
    "MAX_TURN_BYTES": "is now twice TURNSTREAM_MAX_BODY_BYTES",
    "MAX_EVENT_BYTES": "is now twice TURNSTREAM_MAX_REPLY_CHARS, and at least 8,000,000",
    "OWNER_QUEUED_TURNS": "is now ten times TURNSTREAM_OWNER_RUNNING_TURNS; `queued_turns` of a plan is another number",
    "MODEL_BREAKER_PAUSE": "is now 30 seconds; TURNSTREAM_MODEL_BREAKER=0 turns breakers off",
    "MAX_OUTPUT_CALLS": "is now 200",
    "STREAM_SENDER": "is gone: `turnstream serve` sends streams itself, other servers by sse-starlette",
    "RETAIN_IDEMPOTENCY_KEYS_DAYS": "is now 30 days",
    **{
        name.upper(): f"is gone: name `limits.{name}` in the settings of chats, in messages, or in `fixed` of a token"
        for name in (
            "on_max_rounds",
            "max_failed_rounds",
            "continue_after_tools",
            "max_recoveries",
            "compact_at",
            "tell_rounds",
        )
    },
}
# Settings of `turnstream chat`, a client.
OF_THE_CLIENT = frozenset({"TURNSTREAM_URL", "TURNSTREAM_TOKEN"})


def _alias(field: str) -> AliasChoices:
    return AliasChoices(f"{_PREFIX}{field.upper()}")


class Section(BaseSettings):
    """A part of the settings. Times are in seconds, sizes in bytes. `turnstream doctor --settings` prints the
    descriptions. If other software defines the name of a setting, this name is its `validation_alias`. `observed` are
    fields whose values turns can observe, with a name for operators; `turnstream doctor` reports live replicas that
    differ in such a value.
    """

    observed: ClassVar[Mapping[str, str]] = {}

    model_config = SettingsConfigDict(
        alias_generator=AliasGenerator(validation_alias=_alias),
        env_file=".env",
        env_ignore_empty=True,
        frozen=True,
        extra="ignore",
        populate_by_name=True,
        allow_inf_nan=False,
    )

    @field_validator("*")
    @classmethod
    def _check_number(cls, value: Any) -> Any:
        if isinstance(value, int | float) and value > _MOST:
            raise ValueError(f"must be at most {_MOST}")
        return value

    def __init__(self, _env_file: Any = ".env", **values: Any) -> None:
        """Raises ConfigError with a sentence for each value that is wrong."""
        try:
            super().__init__(_env_file=_env_file, **values)
        except ValidationError as error:
            names = variables(type(self))  # an error names an environment variable, or the field of a given value
            raise ConfigError(*(_sentence(each, names) for each in error.errors())) from None


class Settings(Section):
    """The settings of the core. The settings of an extension are a section: `settings.section(ITS_CLASS)`."""

    _env_file: Any = PrivateAttr()
    _values: Mapping[str, Any] = PrivateAttr()
    _sections: dict[type[Section], Section] = PrivateAttr()

    def __init__(self, _env_file: Any = ".env", **values: Any) -> None:
        super().__init__(_env_file=_env_file, **values)
        self._env_file, self._values, self._sections = _env_file, values, {}

    def section(self, section: type[AnySection]) -> AnySection:
        """Returns a section, read once from the sources of this object: `values`, the environment, the `.env` file."""
        found = self._sections.get(section)
        if found is None:
            values = {name: value for name, value in self._values.items() if name in section.model_fields}
            found = self._sections[section] = section(_env_file=self._env_file, **values)
        return cast("AnySection", found)

    @property
    def local_url(self) -> str:
        """The URL of the server for a client on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104, only compared with
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def on_loopback(self) -> bool:
        """True if only this machine can reach the server."""
        return self.host in {"127.0.0.1", "::1", "localhost"}

    database_url: SecretStr | None = Field(
        None,
        validation_alias=AliasChoices("DATABASE_URL"),
        description="URL of Postgres; without it an embedded one is used",
    )
    db_schema: str | None = Field(
        None,
        pattern=r"^[a-z_][a-z0-9_]{0,49}$",
        description="schema of the tables; by default the first of the user's search path (public)",
    )
    api_database_url: SecretStr | None = Field(
        None,
        description="URL of the same Postgres for the API, with a role that owns nothing (row-level security)",
    )
    extensions: str | None = Field(
        None,
        description="names of the active [extensions](extensions.md), separated by commas, or `none`; by"
        " default all installed ones",
    )
    models_file: Path | None = Field(None, description="TOML file that adds models and providers")
    params_allow: str | None = Field(
        None,
        description="allowed parameters that cost more or reach the account, such as `service_tier, betas=NAME`",
    )
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on")
    root_path: str = Field(
        "",
        pattern=r"^(/[\w.~-]+)*$",
        description="prefix of all addresses, behind a proxy or in a host program",
    )
    model: str | None = Field(None, description="default model (claude-sonnet-5-5 with a key, else demo)")
    system_prompt: str | None = Field(None, description="default system prompt")
    models_allow: str | None = Field(
        None, description="models that turns may name, separated by commas, * for any characters; by default all"
    )
    max_tokens: int | None = Field(None, ge=1, description="most tokens of an answer, or of its thinking")
    max_rounds: int = Field(5, ge=0, le=100, description="highest number of tool rounds in a turn")
    hard_max_rounds: int | None = Field(
        None, ge=0, le=1000, description="highest number of tool rounds while rounds make progress"
    )
    max_calls: int | None = Field(None, ge=0, description="highest number of tool calls in a turn")
    budget_tokens: int | None = Field(None, ge=1, description="tokens of all types that a turn may use")
    budget_cost: float | None = Field(None, gt=0, description="highest cost of a turn, by the prices of its models")
    budget_seconds: float | None = Field(None, gt=0, description="longest time of a turn, without waits for a person")
    recovery: Literal["retry", "continue"] = Field(
        "continue", description="an interrupted answer is continued (continue), or written again (retry)"
    )
    on_provider_failure: Literal["assemble", "fail"] = Field(
        "assemble",
        description="after the failure of every model: an answer from the results of tools (assemble), or an"
        " error (fail)",
    )
    compaction: Literal["own", "provider"] = Field(
        "own", description="compaction by this server (own), or by the provider if the model can"
    )
    earlier_results: Literal["whole", "short", "none"] = Field(
        "whole", description="results of tools in earlier turns are sent whole, shortened (short), or omitted (none)"
    )
    summary_model: str | None = Field(
        None,
        description="model that summarises long conversations and results; by default the model of the turn",
    )
    max_reply_chars: int = Field(4_000_000, ge=1000, description="longest answer of a model call, in characters")
    max_retries: int = Field(5, ge=0, description="retries of a model call before its first delta")
    max_retry_after: float = Field(60, ge=0, description="longest wait before a retry that a provider may request")
    stall_timeout: float = Field(120, gt=0, description="a model call that is silent for this long has failed")
    model_breaker: int = Field(
        10, ge=0, description="failed calls of a model in a row before its fallbacks are called at once; 0: never"
    )
    warm_paths_mb: int = Field(
        64,
        ge=0,
        description="memory for the histories of recent chats; 0: each turn reads its history",
    )
    concurrent_turns: int = Field(1000, ge=1, description="turns that this replica runs at once")
    parallel_tools: int = Field(64, ge=1, description="tool calls that this replica runs at once")
    max_result_chars: int = Field(100_000, ge=100, description="longest tool result for the model, in characters")
    toolset: str | None = Field(None, description="tools in Python, as package.module:attribute")
    provider_tools_allow: str | None = Field(
        None,
        description="types of the providers' own tools that turns may name, separated by commas; by default"
        " types that do not reach the account",
    )
    frames: Literal["by-load", "calm", "cheap"] = Field(
        "by-load", description="when deltas wait for further ones: see [frames](settings.md#frames)"
    )
    owner_running_turns: int = Field(
        100,
        ge=0,
        description="running turns of one owner, further turns wait in the queue; 0: any number",
    )
    owner_streams: int = Field(
        200,
        ge=0,
        description="SSE streams of one owner on one replica, further streams get 429; 0: any number",
    )
    metrics_token: SecretStr | None = Field(None, description="token for `GET /metrics`; by default /metrics is open")
    max_body_bytes: int = Field(4_000_000, ge=1000, description="largest request body")
    max_upload_bytes: int = Field(5_000_000, ge=1000, description="largest image or document of users and tools")
    session_url: SecretStr | None = Field(
        None,
        description="URL of Postgres without a pooler, for migrations and the session of a replica; by default"
        " DATABASE_URL",
    )
    statement_cache: int = Field(
        100, ge=0, description="prepared statements of a connection to Postgres; 0 for poolers that forbid them"
    )
    pool_size: int = Field(10, ge=2, description="connections to Postgres per replica")
    postgres_timeout: float = Field(5, gt=0, description="longest time of a statement; then the connection is replaced")
    journal_interval: float = Field(
        0.1,
        gt=0,
        description="pause between writes of the journal; readers on other replicas poll twice as often",
    )
    stream_life: float = Field(1800, gt=0, description="longest life of an SSE connection; then the client reconnects")
    heartbeat: float = Field(15, gt=0, description="pause between comments that keep an SSE stream open")
    lease: float = Field(10, gt=0, description="a replica that does not renew its lease for this long loses its turns")
    poll_interval: float = Field(1, gt=0, description="pause between polls of the queue without a notification")
    grace_period: float = Field(10, ge=0, description="time for running turns to end when the server stops")
    retain_audit_days: float = Field(
        365, gt=0, le=36_500, description="days for which the audit trail is kept; refused logins at most 30"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="lowest level of written log lines"
    )


def read_settings(sections: Sequence[type[Section]] = ()) -> Settings:
    """Reads the settings and checks `sections`. Raises ConfigError with a sentence for each setting that is wrong."""
    wrong = list(_unknown(sections))
    secrets: dict[str, Any] = {}
    try:
        secrets = _secrets_in_files(sections)
    except ConfigError as error:
        wrong += error.args
    settings, every = None, list[type[Section]]([Settings, *sections])
    for section in every:
        try:
            read = section(**secrets) if section is Settings else section()
        except ConfigError as error:
            wrong += error.args
        else:
            settings = read if isinstance(read, Settings) else settings
    if wrong or settings is None:
        raise ConfigError(*dict.fromkeys(wrong))  # sections may share fields
    return settings


def read_environment() -> Mapping[str, str]:
    """Returns the values for `$NAME` in the files of tools and models, from the environment, else the `.env` file."""
    found = dotenv_values(".env")
    return {**{name: value for name, value in found.items() if value is not None}, **os.environ}


def secret_files(sections: Sequence[type[Section]]) -> Mapping[str, str]:
    """Returns the fields that have secrets, by the variable that may name a file with the value."""
    every: Sequence[type[Section]] = (Settings, *sections)
    return {
        f"{variable}_FILE": name
        for section in every
        for name, variable in variables(section).items()
        if section.model_fields[name].annotation == SecretStr | None
    }


def _secrets_in_files(sections: Sequence[type[Section]]) -> dict[str, Any]:
    """Returns the values of secrets that are in files, by field. Raises ConfigError."""
    environment = read_environment()
    found: dict[str, Any] = {}
    for variable, field in secret_files(sections).items():
        if not (path := environment.get(variable)):
            continue
        name = variable.removesuffix("_FILE")
        if environment.get(name):
            raise ConfigError(f"{name} and {variable} are both set; set one of them.")
        try:
            found[field] = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{variable}: {path} cannot be read: {error}.") from None
        if not found[field]:
            raise ConfigError(f"{variable}: {path} is empty; it must hold the value of {name}.")
    return found


def _sentence(problem: Any, names: Mapping[str, str]) -> str:
    field = problem["loc"][0]
    return f"{names.get(field, field)} {requirement(problem['type'], problem.get('ctx'))}."


def variables(section: type[Section]) -> Mapping[str, str]:
    """Returns the environment variables of a section, by field."""
    aliases = {name: field.validation_alias for name, field in section.model_fields.items()}
    return {name: str(alias.choices[0]) for name, alias in aliases.items() if isinstance(alias, AliasChoices)}


def _unknown(sections: Sequence[type[Section]]) -> Iterator[str]:
    """Yields a sentence for each misspelt name, which would otherwise be a setting without an effect."""
    every: Sequence[type[Section]] = (Settings, *sections)
    known = [name for section in every for name in variables(section).values()]
    known += secret_files(sections)
    for name in read_environment():
        if name.startswith(_PREFIX) and name not in known and name not in OF_THE_CLIENT:
            where = "" if name in os.environ else ".env: "
            if remedy := _REMOVED.get(name.removeprefix(_PREFIX)):
                yield f"{where}{name} {remedy}; remove it."
                continue
            # Compares without the common prefix, which would make all names similar.
            bare = {each.removeprefix(_PREFIX): each for each in known}
            close = difflib.get_close_matches(name.removeprefix(_PREFIX), bare, n=1)
            remedy = (
                f"did you mean {bare[close[0]]}? Extensions add others."
                if close
                else "`turnstream doctor --settings` lists all; extensions add others."
            )
            yield f"{where}{name} is not a setting; {remedy}"


def unguessable(name: str, setting: SecretStr) -> str:
    """Returns the value of the setting `name`. Raises ConfigError if the value could be guessed."""
    value = setting.get_secret_value()
    if len(value) < 16:
        raise ConfigError(f"{name} must have at least 16 characters.")
    return value
