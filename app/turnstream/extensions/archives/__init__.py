"""Archives: the data of an owner, or of one chat, in a file that another server can import."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from turnstream.config import Section
from turnstream.extension import Context, Extension, Work

if TYPE_CHECKING:
    from turnstream.api.http.call_group import CallGroup


class ArchiveSettings(Section):
    archive_downloads: bool = Field(
        False,
        description="whether owners may download their archive. Archives contain system prompts of the server",
    )


def _calls() -> "Sequence[CallGroup]":
    from turnstream.extensions.archives.download import CALLS

    return [CALLS]


def _work(context: Context) -> Work:
    from turnstream.extensions.archives.download import Downloads

    is_on = context.settings.section(ArchiveSettings).archive_downloads
    return Work(state=Downloads(context.database) if is_on else None)


EXTENSION = Extension(
    "archives",
    "the list of owners; export and import of what an owner has",
    settings=ArchiveSettings,
    calls=_calls,
    work=_work,
    commands={
        "owners export": "turnstream.extensions.archives.commands",
        "owners import": "turnstream.extensions.archives.commands",
        "owners list": "turnstream.extensions.archives.owner_list",
    },
)
