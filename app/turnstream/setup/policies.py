"""Converts settings into values for tools and engine."""

from collections.abc import Sequence, Set

from turnstream.api.resolve import Allowances
from turnstream.config import Settings
from turnstream.domain.errors import ConfigError
from turnstream.domain.plans import Plans
from turnstream.domain.turns import Limits
from turnstream.engine.model_route import ModelPolicy
from turnstream.engine.retries import RetryPolicy
from turnstream.engine.worker import WorkerPolicy
from turnstream.llm.models.api import ModelApi, guarded_names
from turnstream.llm.models.catalog import Models
from turnstream.llm.parameters import AllowedParams
from turnstream.setup.toolset import ToolLimits


def worker_policy(settings: Settings, models: Models, plans: Plans) -> WorkerPolicy:
    retries = RetryPolicy(most=settings.max_retries, max_retry_after=settings.max_retry_after)
    return WorkerPolicy(
        concurrent_turns=settings.concurrent_turns,
        plans=plans,
        poll_interval=settings.poll_interval,
        grace_period=settings.grace_period,
        warm_bytes=settings.warm_paths_mb * 1_000_000,
        model=ModelPolicy(
            retries=retries,
            stall_timeout=settings.stall_timeout,
            fallbacks=models.fallbacks,
            fitting=models.fitting,
            breaker=settings.model_breaker or None,
            summary_model=settings.summary_model,
            max_reply_chars=settings.max_reply_chars,
            prices=models.prices,
            longest_reply=models.longest_reply,
            label=models.label,
        ),
    )


def turn_limits(settings: Settings) -> Limits:
    return Limits(
        max_rounds=settings.max_rounds,
        hard_max_rounds=settings.hard_max_rounds,
        recovery=settings.recovery,
        on_provider_failure=settings.on_provider_failure,
        compaction=settings.compaction,
        earlier_results=settings.earlier_results,
        max_calls=settings.max_calls,
        budget_tokens=settings.budget_tokens,
        budget_cost=settings.budget_cost,
        budget_seconds=settings.budget_seconds,
    )


def most_rounds(settings: Settings) -> int | None:
    """Returns the most tool rounds that a turn may request, if the operator has set a limit."""
    return settings.max_rounds if "max_rounds" in settings.model_fields_set else None


def allowances(settings: Settings, apis: Sequence[ModelApi]) -> Allowances:
    return Allowances(
        _allowed_params(settings, guarded_names(apis)),
        None if settings.provider_tools_allow is None else frozenset(_listed(settings.provider_tools_allow)),
        None if settings.models_allow is None else _listed(settings.models_allow),
        settings.max_tokens,
    )


def _listed(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _allowed_params(settings: Settings, guarded: Set[str]) -> AllowedParams:
    allowed = AllowedParams.of(settings.params_allow or "")
    for name in allowed.values:
        if name not in guarded:
            known = ", ".join(sorted(guarded))
            raise ConfigError(f"TURNSTREAM_PARAMS_ALLOW must name parameters of {known}, not {name!r}.")
    return allowed


def tool_limits(settings: Settings) -> ToolLimits:
    return ToolLimits(
        max_parallel=settings.parallel_tools,
        max_request_tools=settings.parallel_tools,
        max_result_chars=settings.max_result_chars,
        max_file_bytes=settings.max_upload_bytes,
    )
