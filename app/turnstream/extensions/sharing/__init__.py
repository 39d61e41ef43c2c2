"""Sharing: links that show a chat to people without a credential, and members of a chat."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from turnstream.config import Section, Settings
from turnstream.extension import Context, Extension, Work

if TYPE_CHECKING:
    from turnstream.api.http.call_group import CallGroup
    from turnstream.llm.models.catalog import Models
    from turnstream.storage.database import Database


class SharingSettings(Section):
    sharing: bool = Field(False, description="whether owners may share chats, by links and with members")
    share_life: float | None = Field(None, gt=0, description="longest life of a link, in seconds; by default no limit")


def _calls() -> "Sequence[CallGroup]":
    from turnstream.extensions.sharing.calls import CALLS

    return [CALLS]


def _work(context: Context) -> Work:
    given = context.settings.section(SharingSettings)
    if not given.sharing:
        return Work()
    from turnstream.extensions.sharing.members import Members
    from turnstream.extensions.sharing.shares import Shares, Sharing

    members = Members(context.database)
    return Work(state=Sharing(Shares(context.database, given.share_life), members), find_member=members.find)


async def _before_erasure(_: Settings, database: "Database", owner: str) -> None:
    from turnstream.extensions.sharing.members import DELETE_MEMBERSHIPS

    await database.rows(DELETE_MEMBERSHIPS, person=owner)


async def _check(settings: Settings, _: "Models", __: bool) -> str:
    given = settings.section(SharingSettings)
    if not given.sharing:
        return "off"
    return "on; links expire " + (f"after {given.share_life / 3600:,.1f} hours" if given.share_life else "on request")


EXTENSION = Extension(
    "sharing",
    "links that show a chat, and members of a chat",
    settings=SharingSettings,
    checks={"sharing": _check},
    calls=_calls,
    work=_work,
    before_erasure=_before_erasure,
)
