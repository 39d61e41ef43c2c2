"""Self-service: the owners' view of their own account, and its erasure."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from turnstream.config import Section, Settings
from turnstream.extension import Context, Extension, Work, before_erasure, recordings_of

if TYPE_CHECKING:
    from turnstream.api.http.call_group import CallGroup
    from turnstream.llm.models.catalog import Models


class SelfServiceSettings(Section):
    self_service: bool = Field(
        False,
        description="whether owners may manage their credentials, read their audit entries, and request their erasure",
    )
    erasure_delay: float = Field(
        604_800,
        ge=0,
        description="seconds from the request of an erasure to the erasure",
    )


def _calls() -> "Sequence[CallGroup]":
    from turnstream.extensions.self_service.calls import CALLS

    return [CALLS]


def _work(context: Context) -> Work:
    given = context.settings.section(SelfServiceSettings)
    if not given.self_service:
        return Work()
    from turnstream.extensions.self_service.account import OwnAccounts
    from turnstream.extensions.self_service.erasures import Erasures

    recordings = recordings_of(context.settings, context.extensions)
    before = before_erasure(context.settings, context.extensions, context.database)
    erasures = Erasures(context.database, recordings.delete, context.settings.lease, before)
    return Work(state=OwnAccounts(context.database, given.erasure_delay), tasks=[erasures.run])


async def _check(settings: Settings, _: "Models", __: bool) -> str:
    given = settings.section(SelfServiceSettings)
    if not given.self_service:
        return "off"
    return f"on; an erasure is due after {given.erasure_delay / 3600:,.1f} hours"


EXTENSION = Extension(
    "self_service",
    "what owners see of their own account, and its erasure",
    settings=SelfServiceSettings,
    checks={"self-service": _check},
    calls=_calls,
    work=_work,
)
