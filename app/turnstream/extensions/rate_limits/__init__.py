"""Rate limits of providers: calls wait in a queue, and are divided among keys and replicas."""

from typing import TYPE_CHECKING

from pydantic import Field

from turnstream.config import Section, Settings
from turnstream.extension import Context, Extension, Work

if TYPE_CHECKING:
    from turnstream.llm.models.api import MakePool
    from turnstream.llm.models.catalog import Models


class RateLimitSettings(Section):
    rate_limit_wait: float = Field(
        300.0, gt=0, description="longest wait of a model call for the rate limit of its provider"
    )


def _pool(settings: Settings) -> "MakePool":
    from turnstream.extensions.rate_limits.pool import pool_of

    return pool_of(settings.section(RateLimitSettings).rate_limit_wait)


async def _check(_: Settings, models: "Models", _ping: bool) -> str:
    from turnstream.extensions.rate_limits.work import described, pools_in

    return described(pools_in(models))


def _work(context: Context) -> Work:
    from turnstream.extensions.rate_limits.work import work

    return work(context)


EXTENSION = Extension(
    "rate_limits",
    "rate limits of providers, and several keys of one",
    settings=RateLimitSettings,
    checks={"rate limits": _check},
    pool=_pool,
    work=_work,
)
