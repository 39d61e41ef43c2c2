"""Settings, read once from the environment (and a `.env` file) in the composition root."""

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from dotenv import dotenv_values
from pydantic import AliasChoices, Field, HttpUrl, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsConfigDict

from app.domain.errors import ConfigError

# Settings of `turnstream chat`, which stands in for any client.
OF_THE_CLIENT = frozenset({"TURNSTREAM_URL", "TURNSTREAM_TOKEN"})


def _ours(name: str) -> AliasChoices:
    return AliasChoices(f"TURNSTREAM_{name}")


def _theirs(name: str) -> AliasChoices:
    return AliasChoices(name)


class Settings(BaseSettings):
    """Times are seconds, sizes bytes. The description of each field is what `turnstream doctor` prints."""

    model_config = SettingsConfigDict(
        env_file=".env", env_ignore_empty=True, frozen=True, extra="ignore", populate_by_name=True
    )

    database_url: SecretStr | None = Field(
        None, validation_alias=_theirs("DATABASE_URL"), description="Postgres; without it one is embedded"
    )
    anthropic_api_key: SecretStr | None = Field(
        None, validation_alias=_theirs("ANTHROPIC_API_KEY"), description="without it the model is the scripted demo"
    )
    anthropic_base_url: str | None = Field(
        None, validation_alias=_theirs("ANTHROPIC_BASE_URL"), description="another address of the Anthropic API"
    )
    openai_api_key: SecretStr | None = Field(
        None, validation_alias=_theirs("OPENAI_API_KEY"), description="for OpenAI's models"
    )
    openai_base_url: str | None = Field(
        None, validation_alias=_theirs("OPENAI_BASE_URL"), description="another server that speaks OpenAI's API"
    )
    models_file: Path | None = Field(
        None, validation_alias=_ours("MODELS_FILE"), description="TOML file of models and providers, beside our own"
    )
    host: str = Field("127.0.0.1", validation_alias=_ours("HOST"), description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, validation_alias=_ours("PORT"), description="port to listen on")
    data_dir: Path = Field(
        Path(".data"), validation_alias=_ours("DATA_DIR"), description="folder of the embedded database"
    )
    model: str | None = Field(
        None, validation_alias=_ours("MODEL"), description="default model (with a key claude-sonnet-5-5, else demo)"
    )
    system_prompt: str | None = Field(
        None, validation_alias=_ours("SYSTEM_PROMPT"), description="for turns and chats that have none of their own"
    )
    max_rounds: int = Field(
        5, ge=0, le=100, validation_alias=_ours("MAX_ROUNDS"), description="tool rounds a turn may take"
    )
    on_max_rounds: Literal["answer", "stop"] = Field(
        "answer",
        validation_alias=_ours("ON_MAX_ROUNDS"),
        description="after the last tool round: one more answer without tools, or stop",
    )
    max_failed_rounds: int = Field(
        3,
        ge=1,
        validation_alias=_ours("MAX_FAILED_ROUNDS"),
        description="rounds in a row with nothing but failing tools before the model must answer without",
    )
    continue_after_tools: bool = Field(
        True,
        validation_alias=_ours("CONTINUE_AFTER_TOOLS"),
        description="false: a turn ends as tool_use once its tools have run",
    )
    recovery: Literal["retry", "continue"] = Field(
        "retry",
        validation_alias=_ours("RECOVERY"),
        description="an interrupted answer is written anew, or kept and continued",
    )
    max_recoveries: int = Field(
        3, ge=0, validation_alias=_ours("MAX_RECOVERIES"), description="interruptions without progress before error"
    )
    compact_at: float = Field(
        0.8,
        gt=0,
        le=1,
        validation_alias=_ours("COMPACT_AT"),
        description="share of a model's context window at which a conversation is made shorter",
    )
    compaction: Literal["own", "provider"] = Field(
        "own",
        validation_alias=_ours("COMPACTION"),
        description="who makes it shorter: this server, or the provider where it offers that for the model",
    )
    max_retries: int = Field(
        5, ge=0, validation_alias=_ours("MAX_RETRIES"), description="provider retries before the first delta"
    )
    max_retry_after: float = Field(
        60, ge=0, validation_alias=_ours("MAX_RETRY_AFTER"), description="longest wait a provider may ask for"
    )
    stall_timeout: float = Field(
        120, gt=0, validation_alias=_ours("STALL_TIMEOUT"), description="a provider silent for so long has failed"
    )
    concurrent_turns: int = Field(
        1000, ge=1, validation_alias=_ours("CONCURRENT_TURNS"), description="turns this replica runs at once"
    )
    parallel_tools: int = Field(
        64, ge=1, validation_alias=_ours("PARALLEL_TOOLS"), description="tool calls this replica runs at once"
    )
    max_result_chars: int = Field(
        100_000, ge=100, validation_alias=_ours("MAX_RESULT_CHARS"), description="longest tool result for the model"
    )
    tools_file: Path | None = Field(
        None,
        validation_alias=_ours("TOOLS_FILE"),
        description="TOML that declares HTTP tools, MCP servers and policies",
    )
    toolset: str | None = Field(
        None, validation_alias=_ours("TOOLSET"), description="tools of a Python module, as package.module:attribute"
    )
    signing_secret: SecretStr | None = Field(
        None,
        validation_alias=_ours("SIGNING_SECRET"),
        description="signs calls of HTTP tools: base64, after whsec_ or alone",
    )
    http_tools_allow: str | None = Field(
        None,
        validation_alias=_ours("HTTP_TOOLS_ALLOW"),
        description="hosts and networks that HTTP tools may call though they are internal or without TLS, by comma",
    )
    max_body_bytes: int = Field(
        4_000_000, ge=1000, validation_alias=_ours("MAX_BODY_BYTES"), description="largest request body"
    )
    max_upload_bytes: int = Field(
        5_000_000, ge=1000, validation_alias=_ours("MAX_UPLOAD_BYTES"), description="largest image or document"
    )
    pool_size: int = Field(
        10, ge=2, validation_alias=_ours("POOL_SIZE"), description="connections to Postgres per replica"
    )
    journal_interval: float = Field(
        0.1,
        gt=0,
        validation_alias=_ours("JOURNAL_INTERVAL"),
        description="tick of the journal; remote readers are told twice as often",
    )
    stream_life: float = Field(
        1800, gt=0, validation_alias=_ours("STREAM_LIFE"), description="an SSE connection is ended after so long"
    )
    heartbeat: float = Field(
        15, gt=0, validation_alias=_ours("HEARTBEAT"), description="a comment on each SSE stream, so often"
    )
    lease: float = Field(
        10, gt=0, validation_alias=_ours("LEASE"), description="a replica silent for so long has lost its turns"
    )
    poll_interval: float = Field(
        1, gt=0, validation_alias=_ours("POLL_INTERVAL"), description="how often the queue is looked at without a ring"
    )
    grace_period: float = Field(
        10, ge=0, validation_alias=_ours("GRACE_PERIOD"), description="time running turns get to finish at a stop"
    )
    webhook_url: HttpUrl | None = Field(
        None, validation_alias=_ours("WEBHOOK_URL"), description="is told of every turn that ends"
    )
    webhook_secret: SecretStr | None = Field(
        None, validation_alias=_ours("WEBHOOK_SECRET"), description="signs what is told: base64, after whsec_ or alone"
    )
    demo_delay: float = Field(
        0.015, ge=0, validation_alias=_ours("DEMO_DELAY"), description="pause between two deltas of the demo model"
    )
    record: Path | None = Field(
        None, validation_alias=_ours("RECORD"), description="folder for recordings of model calls (docs/replay.md)"
    )
    record_turns: Literal["all", "asked"] = Field(
        "all", validation_alias=_ours("RECORD_TURNS"), description="which turns are recorded: all, or those that ask"
    )
    chaos: float = Field(
        0, ge=0, le=1, validation_alias=_ours("CHAOS"), description="share of model calls that fail on purpose; staging"
    )
    chaos_seed: int = Field(1, validation_alias=_ours("CHAOS_SEED"), description="the same seed makes the same faults")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", validation_alias=_ours("LOG_LEVEL"), description="least severe log line that is written"
    )


def read_settings() -> Settings:
    """Raises ConfigError with a sentence for every setting that is wrong."""
    _refuse_unknown()
    try:
        return Settings()
    except ValidationError as error:
        raise ConfigError("; ".join(_sentence(problem["loc"], problem["msg"]) for problem in error.errors())) from None


def read_environment() -> Mapping[str, str]:
    """What `$NAME` stands for in the files of tools and models: the environment's variables, and the `.env` file's."""
    found = dotenv_values(".env")
    return {**{name: value for name, value in found.items() if value is not None}, **os.environ}


def _refuse_unknown() -> None:
    """A misspelt name would be a setting that silently does nothing."""
    known = [str(choice) for field in Settings.model_fields.values() for choice in _choices(field)]
    for name in os.environ:
        if name.startswith("TURNSTREAM_") and name not in known and name not in OF_THE_CLIENT:
            close = difflib.get_close_matches(name, known, n=1)
            raise ConfigError(f"{name} is no setting" + (f"; is {close[0]} meant?" if close else ""))


def _choices(field: FieldInfo) -> Sequence[object]:
    return field.validation_alias.choices if isinstance(field.validation_alias, AliasChoices) else ()


def _sentence(location: tuple[int | str, ...], message: str) -> str:
    return f"{location[0]}: {message[0].lower()}{message[1:]}"
