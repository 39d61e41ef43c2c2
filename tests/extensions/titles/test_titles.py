"""Titles that a model writes: a title is set after the first answer, unless the user has already set one."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import UUID

from structlog.testing import capture_logs

from tests.support.harness import OWNER, POLICY, Asked, Harness, Replica
from turnstream.domain.chats import title_from
from turnstream.domain.errors import TransientError
from turnstream.domain.plans import Plans
from turnstream.engine.hooks import TurnEnded
from turnstream.extensions.titles.writer import TitleWriter
from turnstream.libraries.side_calls import SideCalls
from turnstream.scripted import Pause, Reply, ScriptedProvider, message_of, text
from turnstream.storage.chats.chats import Chats
from turnstream.storage.chats.turns import Turns
from turnstream.storage.owners.accounts import Accounts
from turnstream.storage.owners.charges import Charges

QUESTION = "When is the tide high at Saint-Malo, and how high is it?"


@dataclass
class Titles:
    model: ScriptedProvider
    notified: asyncio.Queue[tuple[str, UUID]] = field(default_factory=asyncio.Queue)


@asynccontextmanager
async def titles(
    harness: Harness, *replies: Reply, answers: Iterable[Reply] = ()
) -> AsyncIterator[tuple[Titles, Replica]]:
    work = Titles(ScriptedProvider(replies))
    writer = TitleWriter(
        harness.database,
        lambda _: work.model,
        "small",
        SideCalls(Charges(harness.database), Accounts(harness.database), Plans(), POLICY.model),
        lambda *whom: work.notified.put_nowait(whom),
    )
    working = asyncio.create_task(writer.run())
    main = ScriptedProvider(answers or [message_of(text("At noon, 12 m.")) for _ in range(3)])
    async with harness.replica(main, hooks=[writer]) as replica:
        yield work, replica
    working.cancel()
    await asyncio.wait({working})


async def say(harness: Harness, replica: Replica, after: Asked | None = None) -> Asked:
    asked = await harness.ask(QUESTION, after=after)
    if after is None:  # the API sets this title with the first message
        await Chats(harness.database).change(OWNER, asked.chat, lambda _: {"title": title_from(QUESTION)})
    await harness.finish(replica, asked)
    return asked


async def title_of(harness: Harness, asked: Asked) -> str | None:
    return (await Chats(harness.database).get(OWNER, asked.chat)).title


async def test_the_first_answer_gives_the_chat_its_title_and_its_readers_are_woken(harness: Harness) -> None:
    async with titles(harness, message_of(text('"High tide\nat Saint-Malo."'))) as (work, replica):
        asked = await say(harness, replica)
        assert await work.notified.get() == (OWNER, asked.chat)
        assert await title_of(harness, asked) == "High tide at Saint-Malo"
        (prompt,) = work.model.requests[0].messages[0].blocks
        assert QUESTION in prompt.text
        assert "At noon, 12 m." in prompt.text
        second = await say(harness, replica, asked)
    assert await title_of(harness, second) == "High tide at Saint-Malo"
    assert len(work.model.requests) == 1, "later answers leave the title alone"


async def test_a_title_that_a_person_gave_is_never_overwritten(harness: Harness) -> None:
    pause = Pause()
    reply: Reply = [pause, *message_of(text("The model's"))]
    chats = Chats(harness.database)
    async with titles(harness, reply) as (work, replica):
        asked = await say(harness, replica)
        await pause.reached.wait()
        await chats.change(OWNER, asked.chat, lambda _: {"title": "Mine"})
        pause.go.set()
        await work.notified.get()
        assert await title_of(harness, asked) == "Mine"


async def test_a_model_that_fails_leaves_the_beginning_of_the_message(harness: Harness) -> None:
    pause = Pause()
    failing: Reply = [TransientError("overloaded_error", "Later.")]
    blank: Reply = [pause, *message_of(text(" '' "))]
    with capture_logs() as lines:
        async with titles(harness, failing, blank) as (_, replica):
            asked = await say(harness, replica)
            other = await say(harness, replica)
            await pause.reached.wait()
            pause.go.set()
    assert [await title_of(harness, each) for each in (asked, other)] == [title_from(QUESTION)] * 2
    assert [line["event"] for line in lines if line["event"].startswith("title")] == ["title.failed"]


async def test_a_later_answer_gives_the_title_that_the_first_one_could_not(harness: Harness) -> None:
    failing: Reply = [TransientError("overloaded_error", "Later.")]
    async with titles(harness, failing, message_of(text("**Title:** High tide at Saint-Malo"))) as (work, replica):
        asked = await say(harness, replica)
        await say(harness, replica, asked)
        await work.notified.get()
    assert await title_of(harness, asked) == "High tide at Saint-Malo"


async def test_a_chat_that_is_older_keeps_the_beginning_of_its_message(harness: Harness) -> None:
    failing: list[Reply] = [[TransientError("overloaded_error", "Later.")] for _ in range(3)]
    answers = [message_of(text("At noon, 12 m.")) for _ in range(4)]
    async with titles(harness, *failing, answers=answers) as (work, replica):
        asked = await say(harness, replica)
        for _ in range(3):
            asked = await say(harness, replica, asked)
    assert len(work.model.requests) <= 3
    assert await title_of(harness, asked) == title_from(QUESTION)


async def test_an_owner_whose_titles_take_long_keeps_no_other_owner_waiting(harness: Harness) -> None:
    slow: list[Reply] = [[Pause(), *message_of(text("Late"))] for _ in range(4)]
    prompt: Reply = message_of(text("At once"))
    work = Titles(ScriptedProvider([*slow[:2], prompt]))
    writer = TitleWriter(
        harness.database,
        lambda _: work.model,
        "small",
        SideCalls(Charges(harness.database), Accounts(harness.database), Plans(), POLICY.model),
        lambda *whom: work.notified.put_nowait(whom),
    )
    answers = ScriptedProvider([message_of(text("At noon.")) for _ in range(9)])
    async with harness.replica(answers) as replica:
        theirs = [await say(harness, replica) for _ in range(8)]
        mine = await say(harness, replica)
    async with harness.locker() as locker:
        await locker.connection.execute("UPDATE chats SET owner = 'ben' WHERE id = $1", mine.chat)
    for asked in theirs:
        await writer.turn_ended(TurnEnded(OWNER, await harness.turn(asked)))
    working = asyncio.create_task(writer.run())
    for pause in slow[:2]:
        assert isinstance(pause, list)
        assert isinstance(pause[0], Pause)
        await pause[0].reached.wait()
    turn = await Turns(harness.database).get("ben", mine.chat, mine.turn)
    await writer.turn_ended(TurnEnded("ben", turn))
    assert await work.notified.get() == ("ben", mine.chat), "all titles of the first owner still wait"
    working.cancel()
    await asyncio.wait({working})
