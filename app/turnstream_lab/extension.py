"""The extension of the lab: recordings and chaos. Commands load this module, so its imports are few."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from turnstream.config import Section, Settings
from turnstream.domain.errors import ConfigError
from turnstream.extension import Context, Extension, Work

if TYPE_CHECKING:
    from turnstream.llm.interceptor import Interceptor
    from turnstream.llm.models.catalog import Models
    from turnstream.llm.provider import ModelCall
    from turnstream_lab.recordings import Recordings


class LabSettings(Section):
    record: Path | None = Field(None, description="folder for recordings of model calls (app/turnstream_lab/README.md)")
    record_turns: Literal["all", "asked"] = Field(
        "all", description="turns that are recorded: all, or those with `record` set (asked)"
    )
    record_owners: str = Field(
        "local",
        description="owners who may ask for recordings, separated by commas; * for all",
    )
    retain_recordings_days: float | None = Field(
        None, gt=0, le=36_500, description="days after which a recording is deleted; by default with its turn"
    )
    chaos: float = Field(0, ge=0, le=1, description="share of model calls that fail on purpose, for staging")
    chaos_seed: int = Field(1, description="seed of the faults")


def _recordings(settings: Settings) -> "Recordings | None":
    from turnstream_lab.recordings import Recordings

    given = settings.section(LabSettings)
    if given.record is None:
        return None
    every_owner = given.record_turns == "all" or given.record_owners == "*"  # `all` records the turns of every owner
    names = (name.strip() for name in given.record_owners.split(","))
    return Recordings(given.record, owners=None if every_owner else frozenset(filter(None, names)))


async def _check(settings: Settings, _: "Models", __: bool) -> str:
    """Checks that recordings can be stored. Returns their folder for the report."""
    from tempfile import TemporaryFile

    folder = settings.section(LabSettings).record
    if folder is None:
        return "none"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return f"go to {folder}"
    except OSError as error:
        raise ConfigError(f"TURNSTREAM_RECORD: nothing can be written to {folder}: {error}.") from error


@contextmanager
def _interceptors(settings: Settings) -> "Iterator[Sequence[Interceptor]]":
    import structlog

    from turnstream_lab.chaos import ChaosInterceptor, ChaosPlan
    from turnstream_lab.recordings import RecordingInterceptor

    log = structlog.get_logger(__name__)
    given, found = settings.section(LabSettings), list["Interceptor"]()
    if given.chaos:
        note = "model calls are made to fail on purpose: never in production"
        log.critical("model.chaos", note=note, share=given.chaos, seed=given.chaos_seed)
        found.append(ChaosInterceptor(ChaosPlan(given.chaos_seed, given.chaos)))

    def is_recorded(call: "ModelCall | None") -> bool:
        return given.record_turns == "all" or (call is not None and call.record)

    with ExitStack() as stack:
        if (recordings := _recordings(settings)) is not None:
            # Comes after the chaos in this list, so that a recording has the bytes that the adapter received, with
            # faults.
            found.append(RecordingInterceptor(stack.enter_context(recordings), is_recorded))
        yield found


def _work(context: Context) -> Work:
    """Sweeps the recordings of this replica. They are files on its machine, so other replicas cannot delete them."""
    from turnstream.engine.upkeep.sweeps import HOURS
    from turnstream_lab.sweeping import present_turns, sweep_here

    if (recordings := _recordings(context.settings)) is None:
        return Work()
    days = context.settings.section(LabSettings).retain_recordings_days
    return Work(
        tasks=[partial(sweep_here, HOURS, partial(recordings.sweep, partial(present_turns, context.database), days))]
    )


EXTENSION = Extension(
    "lab",
    "recordings of model calls, chaos, replays, comparisons",
    settings=LabSettings,
    checks={"recordings": _check},
    work=_work,
    interceptors=_interceptors,
    recordings=_recordings,
    commands={"replay": "turnstream_lab.replay_command", "compare": "turnstream_lab.compare_command"},
)
