"""Documents: texts that an owner stores, and that tools and messages can read."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from turnstream.config import Settings
from turnstream.domain.identity import LOCAL_OWNER
from turnstream.extension import Context, Extension, Work

if TYPE_CHECKING:
    from turnstream.api.http.call_group import CallGroup
    from turnstream.storage.database import Database
    from turnstream.tools.tool import Tool


def _calls() -> "Sequence[CallGroup]":
    from turnstream.extensions.documents.calls import CALLS

    return [CALLS]


def _tools(_: Settings, database: "Database") -> "Sequence[Tool]":
    from turnstream.extensions.documents.store import Documents
    from turnstream.extensions.documents.tools import document_tools

    return document_tools(Documents(database))


def _work(context: Context) -> Work:
    """Offers sample documents if the scripted model answers, because this model can answer only questions about
    documents.
    """
    if "demo" not in context.models.listed():
        return Work()

    async def offer() -> None:
        from turnstream.extensions.documents.samples import offer_samples
        from turnstream.extensions.documents.store import Documents

        await offer_samples(Documents(context.database), LOCAL_OWNER)
        await asyncio.Event().wait()  # keeps the task running until the server stops

    return Work(tasks=(offer,))


EXTENSION = Extension(
    "documents",
    "texts of owners, and tools that read them",
    calls=_calls,
    work=_work,
    tools=_tools,
    commands={"docs": "turnstream.extensions.documents.commands"},
)
