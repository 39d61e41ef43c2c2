"""`turnstream replay`."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import UUID

import click
import msgspec

from app.api.codec import block_json
from app.config import Settings, read_settings
from app.domain.blocks import Block
from app.domain.errors import ConfigError
from app.domain.kinds import TOOL_RESULT
from app.domain.turns import Turn
from app.lab.differences import difference, request_difference
from app.lab.recording import Recording
from app.lab.recordings import Recordings
from app.lab.rerun import Rerun, rerun
from app.setup.databases import check_present, database_url
from app.setup.models import offline_models
from app.setup.policies import worker_policy
from app.storage.copies import find_turn
from app.storage.database import Database, connect
from app.storage.embedded.server import embedded_postgres
from app.storage.migrations import upgrade_in_thread
from app.telemetry import configure_logging

# A database that is thrown away need not survive anything.
_CARELESS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
# They differ from run to run, and no provider sees them.
_OURS = frozenset({"notes"})


@click.command()
@click.argument("turn", type=click.UUID)
@click.option(
    "--recordings",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="folder of the recordings  [default: TURNSTREAM_RECORD]",
)
@click.option("--speed", type=click.FloatRange(min=0), default=0.0, help="1 takes the time it took then, 0 takes none")
def replay(turn: UUID, folder: Path | None, speed: float) -> None:
    """Run a recorded TURN once more, offline, and tell where it goes another way.

    Its model and its tools say what they said then; the engine of this version does the rest, in a database that is
    thrown away. The database of the settings is only read.

    \b
    Exit codes: 0  all is as it was
                1  something is not
    """
    settings = read_settings()
    folder = folder or settings.record
    if folder is None:
        raise ConfigError("TURNSTREAM_RECORD is not set: say with --recordings where the recordings are")
    configure_logging("critical")
    then, recordings, again = asyncio.run(_replay(settings, turn, Recordings(folder), speed))
    problems = list(divergences(then, recordings, again))
    for line in problems:
        click.echo(line)
    if problems:
        sys.exit(1)
    click.echo(f"all is as it was: {len(again.asked)} requests, {len(again.turn.blocks)} blocks, {_end_of(again.turn)}")


async def _replay(
    settings: Settings, identity: UUID, recordings: Recordings, speed: float
) -> tuple[Turn, Sequence[Recording], Rerun]:
    check_present(settings)
    async with database_url(settings) as url, connect(url, size=2) as source:
        owner, then = await find_turn(source, identity)
        found = recordings.of(identity)
        if then.role == "user" or not then.ended:
            raise ConfigError(f"turn {identity} is the user's, or has not ended yet: there is nothing to replay")
        if not found:
            raise ConfigError(f"{recordings.folder} has no recording of turn {identity}")
        async with _throwaway() as target:
            again = await rerun(
                source,
                target,
                owner,
                then,
                found,
                open_models=partial(offline_models, settings),
                policy=worker_policy(settings, lambda _: ()),
                speed=speed,
            )
            return then, found, again


@asynccontextmanager
async def _throwaway() -> AsyncIterator[Database]:
    with TemporaryDirectory(prefix="turnstream-replay-") as folder:
        async with embedded_postgres(Path(folder) / "data", _CARELESS) as url:
            await upgrade_in_thread(url)
            async with connect(url, size=4) as database:
                yield database


def divergences(then: Turn, recordings: Sequence[Recording], again: Rerun) -> Iterator[str]:
    """In words, in the order in which they came about; nothing where all is as it was."""
    yield from _missing(then, recordings)
    for number, (recording, asked) in enumerate(zip(recordings, again.asked, strict=False), 1):
        if words := request_difference(recording.request, asked):
            yield f"request {number}{_place_of(recording)}: {words}"
    if len(again.asked) != len(recordings):
        yield f"{len(recordings)} requests were recorded, now there were {len(again.asked)}"
    if words := difference(_blocks_of(then), _blocks_of(again.turn), ("blocks",)):
        yield f"the turn: {words}"
    if _end_of(then) != _end_of(again.turn):
        yield f"the turn was {_end_of(then)}, now it is {_end_of(again.turn)}"


def _missing(then: Turn, recordings: Sequence[Recording]) -> Iterator[str]:
    recorded = {(recording.call.round, recording.call.attempt) for recording in recordings if recording.call}
    for round in then.rounds:
        if (round.number, round.attempt) not in recorded:
            yield (
                f"round {round.number} of attempt {round.attempt} has no recording: the server was killed, or did not"
                " record yet"
            )


def _place_of(recording: Recording) -> str:
    call = recording.call
    return f" (round {call.round}, attempt {call.attempt})" if call else ""


def _blocks_of(turn: Turn) -> object:
    blocks = [block_json(block) for block in _in_call_order(turn.blocks)]
    shown = [{name: value for name, value in block.items() if name not in _OURS} for block in blocks]
    return msgspec.json.decode(msgspec.json.encode(shown))


def _in_call_order(blocks: Sequence[Block]) -> Iterator[Block]:
    """Which of several tools came back first is chance; the model is told in the order of its calls."""
    place_of = {(block.round, block.tool_use_id): block.index for block in blocks if block.is_call}
    results = [block for block in blocks if block.type == TOOL_RESULT]
    results.sort(key=lambda block: (block.round, place_of.get((block.round, block.tool_use_id), 0)))
    ordered = iter(results)
    for block in blocks:
        yield replace(next(ordered), index=block.index) if block.type == TOOL_RESULT else block


def _end_of(turn: Turn) -> str:
    why = turn.error.type if turn.error else turn.stop_reason
    return f"{turn.status} ({why})" if why else turn.status
