"""The commands `turnstream owners export` and `turnstream owners import`."""

import asyncio
import os
import sys
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast
from uuid import UUID

import click

from turnstream.api.schemas.requests import NewChat
from turnstream.config import Settings
from turnstream.domain.errors import ConfigError, NotFound
from turnstream.extension import read_settings, recordings_of, selected
from turnstream.extensions.archives import archives
from turnstream.extensions.archives.archives import NIL, ArchivePart, ImportCounts, OwnerExport, OwnerImport, Section
from turnstream.extensions.archives.owner_list import owners_of
from turnstream.extensions.archives.tar import END, tar_member, tar_members, tar_places
from turnstream.libraries.command_values import checked_owner
from turnstream.setup.databases import database_name, open_database, open_present_database
from turnstream.storage.owners.audit import AuditTrail

# --- export ----------------------------------------------------------------------------------------------------------


@click.command("export")
@click.argument("owner")
@click.argument("archive", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--chat", type=click.UUID, help="This chat alone, with its uploads.")
def export(owner: str, archive: Path, chat: UUID | None) -> None:
    """Write what OWNER has into the file ARCHIVE.

    The file is a tar archive; `-` is the standard output. If ARCHIVE was left unfinished by an earlier export, the
    export continues it. Tokens are not exported.
    """
    settings = read_settings()
    asyncio.run(_export(settings, owner, archive, chat))
    click.echo(f"Exported {owner} from {database_name(settings)}.", err=True)


async def _export(settings: Settings, owner: str, archive: Path, chat: UUID | None) -> None:
    async with open_present_database(settings) as database:
        if not any(each.owner == owner for each in await owners_of(database)):
            raise NotFound(f"There is no owner {owner}; `turnstream owners list` shows all owners.")
        source = OwnerExport(database, owner, chat, recordings_of(settings, selected(settings)).files)
        scope = {"chat": str(chat)} if chat else {}
        await AuditTrail(database).note("owner.exported", owner, scope)  # noted before the first byte is written
        if str(archive) == "-":
            await _write(source, sys.stdout.buffer, "documents", NIL, from_start=True)
            return
        try:
            with os.fdopen(os.open(archive, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
                section, begin, offset = _place_to_continue(file, archive, tar_member(*source.head))
                file.seek(offset)
                file.truncate()
                await _write(source, file, section, begin, from_start=not offset)
        except OSError as error:
            raise ConfigError(f"{archive} cannot be written: {error}") from error


async def _write(source: OwnerExport, file: IO[bytes], section: Section, begin: UUID, *, from_start: bool) -> None:
    if from_start:
        file.write(tar_member(*source.head))
    async for part in source.parts(section, begin):
        file.write(tar_member(*part))
    file.write(END)
    file.flush()


def _place_to_continue(file: IO[bytes], archive: Path, head: bytes) -> tuple[Section, UUID, int]:
    """Returns where an export continues: at the last group of files, which may be incomplete. The values are the
    section, the id of the upload or chat, and the offset in the file. Raises ConfigError for a file that must not be
    overwritten.
    """
    group, offset = ("documents", ""), 0
    beginning = file.read(len(head))
    if not head.startswith(beginning):
        raise ConfigError(f"{archive} exists, and is no archive of this owner; name another file")
    end = tar_member(archives.END, archives.END_CONTENT) + END
    file.seek(max(0, file.seek(0, os.SEEK_END) - len(end)))
    if file.read() == end:
        raise ConfigError(f"{archive} is a whole archive; name another file")
    for name, place in tar_places(file):
        section, _, rest = name.partition("/")
        if name in {archives.HEAD, archives.END}:
            continue
        now = (section, "") if section == "documents" else (section.replace("recordings", "chats"), rest.split("/")[0])
        if now != group or not offset:
            group, offset = now, place
    return cast("Section", group[0]), UUID(group[1]) if group[1] else NIL, offset


# --- import ----------------------------------------------------------------------------------------------------------


@click.command("import")
@click.argument("archive", type=click.Path(dir_okay=False, exists=True, allow_dash=True, path_type=Path))
@click.option("--owner", callback=checked_owner, help="Owner of what is imported.  [default: that of the archive]")
@click.option("--trusted", is_flag=True, help="Nobody has changed the archive: import its approvals and grants too.")
def import_archive(archive: Path, owner: str | None, trusted: bool) -> None:
    """Import the file ARCHIVE of `owners export`.

    `-` is the standard input. Ids do not change, unless another owner has one of them: then the chat or upload gets a
    new id, and the new ids of chats are listed. Existing rows do not change, so an interrupted import can be repeated.
    Turns that were queued or running when the archive was written end as cancelled.
    """
    settings = read_settings()
    counts = asyncio.run(_import(settings, archive, owner, trusted=trusted))
    for before, now in counts.moved.items():
        click.echo(f"chat {before} is now {now}")
    for kind, number in counts.made.items():
        present = f" ({counts.present[kind]} were there)" if counts.present.get(kind) else ""
        click.echo(f"{kind}: {number}{present}")
    click.echo(f"Imported {counts.owner} into {database_name(settings)}.", err=True)
    if not counts.whole:
        raise ConfigError(f"{archive} ends too early: the export was cut off; continue the export, and import again")


async def _import(settings: Settings, archive: Path, owner: str | None, *, trusted: bool = False) -> ImportCounts:
    keep = recordings_of(settings, selected(settings)).keep
    with click.open_file(str(archive), "rb") as file:
        async with open_database(settings) as database:
            counts = await OwnerImport(database, owner, keep, _check_chat, trusted=trusted).run(_parts_in(file))
            detail = {**counts.made, "whole": counts.whole, "trusted": trusted}
            await AuditTrail(database).note("owner.imported", counts.owner, detail)
            return counts


def _parts_in(file: IO[bytes]) -> Iterator[ArchivePart]:
    """Yields the files of an archive up to its end or truncation. The import reports an archive that lacks its end."""
    with suppress(tarfile.TarError):
        try:
            for name, content in tar_members(file):
                yield ArchivePart(name, content)
        except ValueError as error:
            raise ConfigError(f"The archive cannot be imported: {error}.") from None


def _check_chat(row: Mapping[str, Any]) -> None:
    """Raises ValueError for options of a chat that the API would refuse."""
    NewChat.model_validate({name: row[name] for name in NewChat.model_fields if row.get(name)})
