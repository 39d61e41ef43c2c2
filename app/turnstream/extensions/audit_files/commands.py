"""The commands `turnstream audit export` and `turnstream audit verify`."""

import asyncio
import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import IO

import click

from turnstream.config import Settings, read_environment
from turnstream.domain.errors import ConfigError
from turnstream.engine.upkeep.refusals import REFUSALS_KEPT_DAYS
from turnstream.extension import read_settings
from turnstream.extensions.audit_files.chain import BEGIN, ChainedEntry, chained, hash_of, line_of, values_of
from turnstream.extensions.audit_files.collector import AuditLine, Collector, collector_at
from turnstream.libraries.audit_entries import AuditEntry, entries_of
from turnstream.setup.databases import database_name, open_present_database
from turnstream.storage.database import LONG, Database, Statement
from turnstream.storage.owners.audit import AuditTrail
from turnstream.storage.rows import from_json

EXPORTED = "audit.exported"
_PAGE = 500

SHORT_WAIT = Statement("SELECT set_config('lock_timeout', '5s', true)")
# An entry gets its id before its transaction commits. When this lock is granted, every smaller id is either committed
# or will never be committed.
AWAIT_WRITERS = Statement("LOCK TABLE audit IN SHARE MODE")
GET_LAST_ID = Statement("SELECT coalesce(max(id), 0) AS id FROM audit")
GET_ENTRIES = Statement(
    "SELECT id, created_at, kind, owner, actor, detail FROM audit"
    " WHERE id > :behind AND id <= :until ORDER BY id LIMIT :most",
    timeout=LONG,
)
GET_HEADS = Statement(f"SELECT detail FROM audit WHERE kind = '{EXPORTED}' ORDER BY id", timeout=LONG)


@click.command("export")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--otlp", metavar="URL", help="Also send them to a collector of OpenTelemetry, as to `…/v1/logs`.")
def export(file: Path, otlp: str | None) -> None:
    """Append the new entries of the audit trail to FILE.

    Each line has the hash of the line before it. The command prints the hash of the last line: keep this hash
    elsewhere. If a collector does not accept entries, they are not appended, and the next call sends them again.
    """
    added, head = asyncio.run(
        _export(read_settings(), file, None if otlp is None else collector_at(otlp, read_environment()))
    )
    click.echo(f"Added {added} entries to {file}.", err=True)
    click.echo(head)


@click.command("verify")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--head", help="A hash that an export has printed: the file must have the line.")
def verify(file: Path, head: str | None) -> None:
    """Compare FILE with itself and with the audit trail.

    A changed, missing or inserted entry is an error. An entry that retention has removed from the audit trail is no
    error.
    """
    entries = asyncio.run(_verify(read_settings(), file, head))
    click.echo(f"The {entries} entries of {file} are unchanged, and so are those of {database_name(read_settings())}.")


@contextmanager
def _opened(path: Path, mode: str) -> Iterator[IO[bytes]]:
    """Opens the file, and locks it against other exports."""
    try:
        flags = os.O_RDWR | os.O_CREAT if "+" in mode else os.O_RDONLY
        with os.fdopen(os.open(path, flags, 0o600), mode) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield file
    except BlockingIOError:
        raise ConfigError(f"Another export writes {path}: wait for its end.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be opened: {error}") from error


async def _export(settings: Settings, path: Path, collector: Collector | None) -> tuple[int, str]:
    with _opened(path, "r+b") as file:
        head, behind, end = BEGIN, 0, 0
        for each in chained(_whole_lines(file)):
            head, behind = each.head, each.entry["id"]
            end += each.size
        file.seek(end)
        file.truncate()  # removes the incomplete line of a killed export
        added = 0
        async with open_present_database(settings) as database:
            until = await _last_id(database)
            while entries := await _entries(database, behind, until):
                lines = list[AuditLine]()
                for entry in entries:
                    lines.append(AuditLine(entry, line_of(entry, head), head))
                    head, behind = hash_of(lines[-1].line), entry.id
                if collector is not None:
                    await collector.send(lines)
                file.writelines(each.line for each in lines)
                added += len(entries)
            file.flush()
            os.fsync(file.fileno())
            if added:
                await AuditTrail(database).note(EXPORTED, None, {"until": behind, "head": head})
    return added, head


def _whole_lines(file: IO[bytes]) -> Iterator[bytes]:
    return (line for line in file if line.endswith(b"\n"))


async def _last_id(database: Database) -> int:
    async with database.transaction() as transaction:
        await transaction.row(SHORT_WAIT)  # writers of the audit trail wait for this lock
        await transaction.rows(AWAIT_WRITERS)
        row = await transaction.row(GET_LAST_ID)
        assert row is not None
        id: int = row["id"]
        return id


async def _entries(database: Database, behind: int, until: int) -> Sequence[AuditEntry]:
    rows = await database.rows(GET_ENTRIES, behind=behind, until=until, most=_PAGE)
    return entries_of(rows)


async def _verify(settings: Settings, path: Path, head: str | None) -> int:
    """Compares the file with the audit trail, and returns the number of entries. Raises ConfigError at the first
    difference.
    """
    behind, count = 0, 0
    now = datetime.now(UTC)
    kept = now - timedelta(days=settings.retain_audit_days)
    refusals_kept = max(kept, now - timedelta(days=REFUSALS_KEPT_DAYS))
    with _opened(path, "rb") as file:
        async with open_present_database(settings) as database:
            noted = {from_json(row["detail"])["head"] for row in await database.rows(GET_HEADS)}
            wanted = noted if head is None else noted | {head}
            lines = chained(file)
            while page := list(islice(lines, _PAGE)):
                until = page[-1].entry["id"]
                stored = {each.id: each for each in await _between(database, behind, until)}
                for line in page:
                    limit = refusals_kept if line.entry.get("kind") == "login.refused" else kept
                    _compare(line, stored.pop(line.entry["id"], None), limit)
                    wanted.discard(line.head)
                if stored:
                    raise ConfigError(f"The trail has the entry {min(stored)}, which did not exist at the export.")
                behind, count = until, count + len(page)
    if wanted:
        raise ConfigError(
            f"The file has no line with the hash {min(wanted)}: the file is a different one, or was cut off."
        )
    return count


async def _between(database: Database, behind: int, until: int) -> Sequence[AuditEntry]:
    found: list[AuditEntry] = []
    while page := await _entries(database, found[-1].id if found else behind, until):
        found += page
    return found


def _compare(line: ChainedEntry, stored: AuditEntry | None, kept_since: datetime) -> None:
    """Compares a line with its stored entry. Raises ConfigError if they differ, or if an entry is missing that is newer
    than `kept_since`: retention may have removed older entries.
    """
    if stored is None:
        created_at = datetime.fromisoformat(line.entry["created_at"])
        if created_at >= kept_since:
            raise ConfigError(f"The trail lacks the entry {line.entry['id']} of line {line.number}.")
    elif values_of(stored) != line.entry:
        raise ConfigError(f"The entry {stored.id} of the trail differs from line {line.number}.")
