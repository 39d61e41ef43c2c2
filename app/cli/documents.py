"""`turnstream docs`."""

import asyncio
from pathlib import Path

import click

from app.api.auth import LOCAL_OWNER
from app.api.documents import checked_path
from app.config import Settings, read_settings
from app.domain.errors import RequestRefused
from app.domain.text import unstorable
from app.setup.databases import open_database
from app.storage.documents import Documents


@click.group()
def docs() -> None:
    """The documents that the document tools read."""


@docs.command("import")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--owner", default=LOCAL_OWNER, show_default=True, help="whose documents they become")
@click.option("--prefix", default="", help="put before every path")
def import_folder(folder: Path, owner: str, prefix: str) -> None:
    """Import every text file of FOLDER. Hidden files and what is no UTF-8 text are left out, and named."""
    written, left_out = asyncio.run(_import(read_settings(), folder, owner, prefix))
    click.echo(f"{written} documents imported for {owner}" + (f", {len(left_out)} left out:" if left_out else ""))
    for line in left_out:
        click.echo(f"  {line}")


async def _import(settings: Settings, folder: Path, owner: str, prefix: str) -> tuple[int, list[str]]:
    written, left_out = 0, []
    async with open_database(settings) as database:
        documents = Documents(database)
        for path in _files(folder):
            name = prefix + path.relative_to(folder).as_posix()
            content = _content(name, path, settings.max_body_bytes)
            if isinstance(content, Exception):
                left_out.append(f"{name}: {content}")
                continue
            await documents.put(owner, name, content)
            written += 1
    return written, left_out


def _files(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)]


def _content(name: str, path: Path, most: int) -> str | Exception:
    try:
        checked_path(name)
        if path.stat().st_size > most:
            return ValueError(f"larger than {most:,} bytes")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, RequestRefused) as error:
        return ValueError("not UTF-8 text") if isinstance(error, UnicodeDecodeError) else error
    problem = unstorable(text)
    return ValueError(problem) if problem else text
