"""Retention: the deletion of unused uploads, and of chats and uploads after some days."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from pydantic import Field

from turnstream.config import Section, Settings
from turnstream.extension import Context, Extension, Work

if TYPE_CHECKING:
    from turnstream.engine.upkeep.sweeps import Sweep
    from turnstream.storage.database import Database


class RetentionSettings(Section):
    retain_chats_days: float | None = Field(
        None, gt=0, le=36_500, description="days without a change after which a chat is deleted; by default never"
    )
    retain_uploads_days: float | None = Field(
        None,
        gt=0,
        le=36_500,
        description="days after which an upload is deleted, also from chats; by default never",
    )


def sweeps_of(settings: Settings, database: "Database") -> "Sequence[Sweep]":
    from turnstream.engine.upkeep.sweeps import HOURS, Sweep
    from turnstream.extensions.retention.aged import AGED_UPLOADS, old_chats
    from turnstream.extensions.retention.unused import KEPT, unused_uploads
    from turnstream.storage.retention import aged_rows

    given = settings.section(RetentionSettings)
    sweeps = [Sweep("unused uploads", 6 * HOURS, partial(unused_uploads, database, KEPT))]
    if given.retain_chats_days is not None:
        sweeps.append(Sweep("old chats", HOURS, partial(old_chats, database, given.retain_chats_days)))
    if given.retain_uploads_days is not None:
        old = partial(aged_rows, database, AGED_UPLOADS, given.retain_uploads_days)
        sweeps.append(Sweep("old uploads", HOURS, old))
    return sweeps


def _work(context: Context) -> Work:
    return Work(sweeps=sweeps_of(context.settings, context.database))


EXTENSION = Extension(
    "retention",
    "the deletion of unused uploads, and of chats and uploads by their age",
    settings=RetentionSettings,
    work=_work,
)
