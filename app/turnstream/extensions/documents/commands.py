"""The command `turnstream docs`."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import click

from turnstream.api.http.reading import check_path
from turnstream.config import Settings
from turnstream.domain.errors import RequestRefused
from turnstream.domain.identity import LOCAL_OWNER
from turnstream.extension import read_settings
from turnstream.extensions.documents.samples import drop_samples
from turnstream.extensions.documents.store import Documents
from turnstream.kit.text import storable, unstorable
from turnstream.libraries.command_values import checked_owner
from turnstream.setup.databases import database_name, open_present_database


@click.group()
def docs() -> None:
    """Manage the documents that the document tools read."""


@docs.command("import")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path))
@click.option("--owner", default=LOCAL_OWNER, show_default=True, callback=checked_owner, help="Owner of the documents.")
@click.option("--prefix", default="", help="Text to put before every path.")
def import_folder(folder: Path, owner: str, prefix: str) -> None:
    """Import every text file of FOLDER.

    Hidden files, links that lead out of FOLDER, and files that are not UTF-8 text are left out and listed. The first
    import deletes the demo's sample documents, except those that were changed.
    """
    settings = read_settings()
    written, removed, left_out = asyncio.run(_import(settings, folder, owner, prefix))
    documents = f"{written} document{'' if written == 1 else 's'}"
    click.echo(f"Imported {documents} for {owner} into {database_name(settings)}.")
    if removed:
        click.echo(f"Deleted the unchanged samples of the demo: {', '.join(removed)}.")
    if left_out:
        click.echo(f"Left out {len(left_out)}:")
    for line in left_out:
        click.echo(f"  {storable(line)}")


async def _import(settings: Settings, folder: Path, owner: str, prefix: str) -> tuple[int, list[str], list[str]]:
    written, removed, left_out = 0, list[str](), list[str]()
    async with open_present_database(settings) as database:
        documents = Documents(database)
        for path, reason in _files(folder, root=folder):
            name = prefix + path.relative_to(folder).as_posix()
            content = ValueError(reason) if reason else _content(name, path, settings.max_body_bytes)
            if isinstance(content, Exception):
                left_out.append(f"{name}: {content}")
                continue
            if not written:
                removed = await drop_samples(documents, owner)
            await documents.put(owner, name, content)
            written += 1
    return written, removed, left_out


def _files(folder: Path, root: Path) -> Iterator[tuple[Path, str | None]]:
    """Yields each file, with the reason why it is left out, or None. A folder that is left out is yielded itself,
    without its files.
    """
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        yield folder, str(error.strerror)
        return
    for path in paths:
        reason = _reason_to_leave_out(path, root)
        if reason is None and path.is_dir():
            yield from _files(path, root)
        else:
            yield path, reason


def _reason_to_leave_out(path: Path, root: Path) -> str | None:
    target = Path(os.path.realpath(path))
    if not target.is_relative_to(root):
        return "link out of the folder"
    if any(part.startswith(".") for part in (path.name, *target.relative_to(root).parts)):
        return "hidden"
    if path.is_dir():
        return "link to a folder" if path.is_symlink() else None
    return None if path.is_file() else "not a file"


def _content(name: str, path: Path, max_bytes: int) -> str | Exception:
    try:
        check_path(name)
        if path.stat().st_size > max_bytes:
            return ValueError(f"larger than {max_bytes:,} bytes")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, RequestRefused) as error:
        return ValueError("not UTF-8 text") if isinstance(error, UnicodeDecodeError) else error
    problem = unstorable(text)
    return ValueError(problem) if problem else text
