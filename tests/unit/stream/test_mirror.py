import asyncio
from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

import pytest

from tests.support.turns import TURN, begun, text, turn_of
from turnstream.domain.errors import Conflict, StorageUnavailable, TurnstreamError
from turnstream.kit.ids import new_id
from turnstream.storage.runs.snapshots import MirrorPosition, Snapshot, Snapshots
from turnstream.stream.directory import Directory
from turnstream.stream.live import LiveView
from turnstream.stream.mirror import Mirror


class FakeSnapshots(Snapshots):
    """Returns prepared results of reads: a snapshot, nothing, or the error of an unavailable Postgres or of a missing
    key.
    """

    def __init__(self, *finds: Snapshot | TurnstreamError | None) -> None:
        self._finds = list(finds)
        self.asked: list[Mapping[UUID, MirrorPosition]] = []

    async def take(self, known: Mapping[UUID, MirrorPosition]) -> dict[UUID, Snapshot]:
        self.asked.append(known)
        find = self._finds.pop(0)
        if isinstance(find, TurnstreamError):
            raise find
        return {} if find is None else {TURN: find}


OPEN = Snapshot(turn_of(rounds=[begun()]), text(0, 1, "ahoy", interrupted=True))


async def test_a_look_updates_the_views_that_have_readers() -> None:
    directory, snapshots = Directory(), FakeSnapshots(OPEN)
    view = directory.view(turn_of())
    await Mirror(snapshots, directory, 1).look()
    assert view.open_text(0) == "ahoy"
    assert snapshots.asked == [{TURN: MirrorPosition(turn_of())}]


async def test_a_look_queries_only_for_new_text() -> None:
    directory = Directory()
    more = replace(OPEN, open_block=text(0, 1, "oy there", interrupted=True), start=2)
    snapshots = FakeSnapshots(OPEN, more)
    view, mirror = directory.view(turn_of()), Mirror(snapshots, directory, 1)
    await mirror.look()
    await mirror.look()
    assert view.open_text(0) == "ahoy there"
    assert snapshots.asked[1] == {TURN: MirrorPosition(OPEN.turn, attempt=1, length=4, complete=True)}


async def test_a_view_between_two_blocks_or_of_a_turn_that_does_not_run_has_no_open_text() -> None:
    directory = Directory()
    between, queued = turn_of(rounds=[begun()]), turn_of(status="queued", rounds=[begun()])
    snapshots = FakeSnapshots(Snapshot(between, None), Snapshot(queued, None), None)
    view, mirror = directory.view(turn_of()), Mirror(snapshots, directory, 1)
    for _ in range(3):
        await mirror.look()
    assert view.ended
    assert snapshots.asked[1:] == [{TURN: MirrorPosition(between, complete=True)}, {TURN: MirrorPosition(queued)}]


async def test_a_turn_that_was_deleted_vanishes() -> None:
    directory = Directory()
    view = directory.view(turn_of())
    await Mirror(FakeSnapshots(None), directory, 1).look()
    assert (view.turn.status, view.turn.stop_reason) == ("cancelled", "deleted")


async def test_turns_are_read_one_by_one_where_one_cannot_be_decrypted() -> None:
    directory = Directory()
    view, other = directory.view(turn_of()), directory.view(replace(turn_of(), id=new_id()))
    snapshots = FakeSnapshots(Conflict("It cannot be decrypted."), OPEN, Conflict("It cannot be decrypted."))
    await Mirror(snapshots, directory, 1).look()
    assert view.open_text(0) == "ahoy"
    assert other.turn.stop_reason == "deleted"
    assert [len(known) for known in snapshots.asked] == [2, 1, 1]


async def test_without_readers_there_is_no_query() -> None:
    directory, snapshots = Directory(), FakeSnapshots()
    with directory.host(LiveView(turn_of()), "ada"):
        await Mirror(snapshots, directory, 1).look()
    assert snapshots.asked == []


async def test_a_mirror_outlives_postgres() -> None:
    directory = Directory()
    snapshots = FakeSnapshots(StorageUnavailable("away"), OPEN)
    view = directory.view(turn_of())
    looking = asyncio.create_task(Mirror(snapshots, directory, 0.001).run())
    while not view.open_length:
        await view.wakeup.wait()
    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking
