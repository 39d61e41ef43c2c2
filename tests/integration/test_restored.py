"""A turn runs again, with another text, after an earlier state of the database was restored. Every kind of cursor from
the lost past leads to the text of the restored database.
"""

from collections.abc import Sequence

import pytest

from tests.support.harness import Asked, Harness, texts_of
from tests.support.stream_client import Client, encode
from turnstream.domain.cursor import START, Cursor
from turnstream.domain.log import next_event, resume
from turnstream.domain.turns import Turn
from turnstream.extensions.chat_stream.rows import ChatNews
from turnstream.extensions.openai_api.events import ResponseEvents
from turnstream.scripted import Pause, ScriptedProvider, message_of, text
from turnstream.storage.chats.chat_changes import place_of
from turnstream.stream.live import LiveView

OLD, NEW = "These words are lost.", "These words are those that stay."
COLUMNS = """
    SELECT string_agg(quote_ident(column_name), ', ') FROM information_schema.columns
    WHERE table_schema = current_schema() AND table_name = $1 AND is_generated = 'NEVER'
"""
TABLES = ("turns", "rounds", "blocks", "open_text", "charges", "reservations")


@pytest.fixture(autouse=True)
def _attempts_are_drawn(attempts_are_counted: pytest.MonkeyPatch) -> None:
    attempts_are_counted.undo()


async def dump(harness: Harness) -> None:
    async with harness.locker() as locker:
        for table in TABLES:
            await locker.connection.execute(f"CREATE TABLE dump_of_{table} AS SELECT * FROM {table}")


async def restore(harness: Harness) -> None:
    """Restores the database. The processes of the lost past have ended, so the turns that they ran are taken over."""
    async with harness.locker() as locker, locker.connection.transaction():
        await locker.connection.execute("SET LOCAL session_replication_role = replica")
        for table in TABLES:
            await locker.connection.execute(f"DELETE FROM {table}")
            columns = await locker.connection.fetchval(COLUMNS, table)
            await locker.connection.execute(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM dump_of_{table}")
        await locker.connection.execute(
            "UPDATE turns SET status = 'queued', replica = NULL, recoveries = 1 WHERE status = 'running'"
        )


def clients_of(turn: Turn) -> Sequence[Client]:
    """Returns clients of a turn that has ended: one client stopped after each event, and one within each text."""
    view, client, clients = LiveView(turn), Client(), [Client()]
    cursor, _ = resume(view, START)
    while step := next_event(view, cursor):
        event, cursor = step
        client.take(encode(event, cursor))
        clients.append(client.copy())
    return clients


def read_on(client: Client, turn: Turn) -> Client:
    view, client = LiveView(turn), client.copy()
    cursor, reset = resume(view, client.cursor)
    if reset is not None:
        client.take(encode(reset, cursor))
    while step := next_event(view, cursor):
        event, cursor = step
        client.take(encode(event, cursor))
    return client


def numbers_of(turn: Turn, after: int = -1) -> bytes:
    events, view = ResponseEvents(turn, 0, after), LiveView(turn)
    cursor, _ = resume(view, START)
    frames = events.begin()
    while step := next_event(view, cursor):
        event, cursor = step
        frames += events(event, cursor)
    return frames


@pytest.fixture(params=["queued", "running"])
async def pasts(harness: Harness, request: pytest.FixtureRequest) -> tuple[Asked, Turn, Turn]:
    """Returns the turn as it ended in the lost past, with the database in the state before: the turn was queued or
    running.
    """
    pause = Pause()
    old = list(message_of(text(OLD)))
    half = len(old) // 2
    asked = await harness.ask()
    if request.param == "queued":
        await dump(harness)
        async with harness.replica(ScriptedProvider([old])) as replica:
            lost = await harness.finish(replica, asked)
    else:
        async with harness.replica(ScriptedProvider([[*old[:half], pause, *old[half:]]])) as replica:
            replica.worker.wake()
            await pause.reached.wait()
            await replica.store_open()
            await dump(harness)
            pause.go.set()
            lost = await harness.finish(replica, asked)
    await restore(harness)
    async with harness.replica(ScriptedProvider([message_of(text(NEW))])) as replica:
        stays = await harness.finish(replica, asked)
    assert (texts_of(lost), texts_of(stays)[-1]) == ([OLD], NEW)
    return asked, lost, stays


async def test_a_cursor_of_the_lost_past_leads_to_the_words_that_stay(pasts: tuple[Asked, Turn, Turn]) -> None:
    _, lost, stays = pasts
    for client in clients_of(lost):
        read_on(client, stays).assert_holds(stays)


async def test_a_cursor_within_a_text_of_the_lost_past_leads_to_the_words_that_stay(
    pasts: tuple[Asked, Turn, Turn],
) -> None:
    _, lost, stays = pasts
    cursor, reset = resume(LiveView(stays), Cursor(lost.attempt, 3, len(OLD) - 2))
    assert reset is not None
    assert cursor.offset == 0


async def test_old_cursors_of_the_common_past_are_good(pasts: tuple[Asked, Turn, Turn]) -> None:
    _, _, stays = pasts
    for client in clients_of(stays):
        read_on(client, stays).assert_holds(stays)
        assert read_on(client, stays).resets == []


async def test_a_number_of_the_lost_past_gets_the_response_as_it_is(pasts: tuple[Asked, Turn, Turn]) -> None:
    _, lost, stays = pasts
    numbers = [int(line.partition(b",")[0]) for line in numbers_of(lost).split(b'"sequence_number":')[3:]]
    assert numbers
    for number in numbers:
        frames = numbers_of(stays, number)
        assert frames.startswith(b"event: response.in_progress")
        assert NEW.encode() in frames


async def test_a_cursor_of_a_chat_with_a_turn_of_the_lost_past_is_refused(
    harness: Harness, pasts: tuple[Asked, Turn, Turn]
) -> None:
    asked, _, stays = pasts
    changes, place = ChatNews(harness.database), place_of(stays)
    assert await changes.turns_known(asked.chat, place, []) == {}
    assert await changes.turns_known(asked.chat, place, [place]) == {place: asked.turn}
    assert await changes.turns_known(asked.chat, place - 4, []) is None
    assert await changes.turns_known(asked.chat, place + 4, [place]) is None


async def test_a_cursor_of_a_chat_that_has_the_end_of_a_turn_that_is_open_is_refused(harness: Harness) -> None:
    asked = await harness.ask()
    changes, place = ChatNews(harness.database), place_of(await harness.turn(asked))
    assert await changes.turns_known(asked.chat, place, []) is None
    assert await changes.turns_known(asked.chat, place, [place]) == {place: asked.turn}
