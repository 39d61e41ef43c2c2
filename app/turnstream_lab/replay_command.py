"""The command `turnstream replay`."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import UUID

import click
import msgspec

from turnstream.api.codec import block_json
from turnstream.config import Settings
from turnstream.domain.assembly import ASSEMBLED
from turnstream.domain.blocks import Block
from turnstream.domain.errors import ConfigError
from turnstream.domain.kinds import TOOL_RESULT
from turnstream.domain.plans import Plans
from turnstream.domain.turns import Turn
from turnstream.extension import own_database, read_settings, selected
from turnstream.llm.models.catalog import Models
from turnstream.setup.databases import check_present, database_url
from turnstream.setup.policies import worker_policy
from turnstream.storage.database import Database, connect
from turnstream.storage.migrations import upgrade_in_thread
from turnstream.telemetry import configure_logging
from turnstream_lab.differences import difference, request_difference
from turnstream_lab.extension import LabSettings
from turnstream_lab.offline import offline_models
from turnstream_lab.recording import Recording
from turnstream_lab.recordings import Recordings
from turnstream_lab.rerun import Rerun, rerun
from turnstream_lab.transfer import find_turn

# Members of a block that vary from run to run and are not sent to providers.
_NOT_COMPARED = frozenset({"notes"})


@click.command()
@click.argument("turn", type=click.UUID)
@click.option(
    "--recordings",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the recordings.  [default: TURNSTREAM_RECORD]",
)
@click.option("--speed", type=click.FloatRange(min=0), default=0.0, help="1 repeats the recorded pauses, 0 skips them.")
def replay(turn: UUID, folder: Path | None, speed: float) -> None:
    """Run a recorded TURN again, offline.

    Every difference is reported. The model and the tools answer as recorded. The engine of this version does the rest,
    in a temporary database. The database of the settings is only read.

    \b
    Exit codes: 0  there is no difference
                1  there is a difference, or an error
    """
    settings = read_settings()
    folder = folder or settings.section(LabSettings).record
    if folder is None:
        raise ConfigError("TURNSTREAM_RECORD is not set; set it, or name the folder with --recordings")
    configure_logging("critical")
    original, recordings, repeated = asyncio.run(_replay(settings, turn, Recordings(folder), speed))
    differences = list(divergences(original, recordings, repeated))
    for line in differences:
        click.echo(line)
    if differences:
        sys.exit(1)
    requests, blocks = len(repeated.requests), len(repeated.turn.blocks)
    click.echo(f"all is as it was: {requests} requests, {blocks} blocks, {_end_of(repeated.turn)}")


async def _replay(
    settings: Settings, identity: UUID, recordings: Recordings, speed: float
) -> tuple[Turn, Sequence[Recording], Rerun]:
    check_present(settings)
    cache, schema = settings.statement_cache, settings.db_schema
    async with database_url(settings) as url, connect(url, size=2, statement_cache=cache, schema=schema) as source:
        owner, original = await find_turn(source, identity)
        found = recordings.read(identity)
        if original.role == "user" or not original.ended:
            raise ConfigError(
                f"turn {identity} is the user's or has not ended yet; name an assistant turn that has ended"
            )
        if not found:
            raise ConfigError(f"{recordings.folder} has no recording of turn {identity}; name another --recordings")
        async with _temporary_database(settings) as target:
            repeated = await rerun(
                source,
                target,
                owner,
                original,
                found,
                open_models=partial(offline_models, settings, selected(settings)),
                policy=worker_policy(settings, Models(), Plans()),
                speed=speed,
            )
            return original, found, repeated


@asynccontextmanager
async def _temporary_database(settings: Settings) -> AsyncIterator[Database]:
    async with own_database(settings).temporary() as url:
        await upgrade_in_thread(url)
        async with connect(url, size=4) as database:
            yield database


def divergences(original: Turn, recordings: Sequence[Recording], repeated: Rerun) -> Iterator[str]:
    """Describes the differences between the recorded turn and its rerun, in the order in which they occur."""
    recorded = {(recording.call.round, recording.call.attempt) for recording in recordings if recording.call}
    for round in original.rounds:
        if (round.number, round.attempt) not in recorded:
            yield (
                f"round {round.number} of attempt {round.attempt} has no recording: the server was killed, or did not"
                " record yet"
            )
    for number, (recording, request) in enumerate(zip(recordings, repeated.requests, strict=False), 1):
        if change := request_difference(recording.request, request):
            call = recording.call
            place = f" (round {call.round}, attempt {call.attempt})" if call else ""
            yield f"request {number}{place}: {change}"
    if len(repeated.requests) != len(recordings):
        yield f"{len(recordings)} requests were recorded, now there were {len(repeated.requests)}"
    if change := difference(_blocks_of(original), _blocks_of(repeated.turn), ("blocks",)):
        yield f"the turn: {change}"
    if _end_of(original) != _end_of(repeated.turn):
        yield f"the turn was {_end_of(original)}, now it is {_end_of(repeated.turn)}"


def _blocks_of(turn: Turn) -> object:
    # The text of an assembled answer contains times.
    assembled = {round.number for round in turn.rounds if round.stop_reason == ASSEMBLED}
    blocks = [block_json(block) for block in _in_call_order(turn.blocks) if block.round not in assembled]
    compared = [{name: value for name, value in block.items() if name not in _NOT_COMPARED} for block in blocks]
    return msgspec.json.decode(msgspec.json.encode(compared))


def _in_call_order(blocks: Sequence[Block]) -> Iterator[Block]:
    """Sorts results by the order of their calls, as for the model, because tools finish in a random order."""
    call_index = {block.key: block.index for block in blocks if block.is_call}
    results = [block for block in blocks if block.type == TOOL_RESULT]
    results.sort(key=lambda block: (block.round, call_index.get(block.key, 0)))
    sorted_results = iter(results)
    for block in blocks:
        yield replace(next(sorted_results), index=block.index) if block.type == TOOL_RESULT else block


def _end_of(turn: Turn) -> str:
    reason = turn.error.type if turn.error else turn.stop_reason
    if reason == ASSEMBLED:
        reason = f"{reason}, {json.loads(turn.blocks[-1].notes or '')[ASSEMBLED]['error']}"
    return f"{turn.status} ({reason})" if reason else turn.status
