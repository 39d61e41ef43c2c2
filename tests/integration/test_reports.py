"""Reports: outcomes of background calls for which their turn does not wait. Each report is delivered once, to one
turn.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import pytest
from structlog.testing import capture_logs

from tests.support.harness import OWNER, Asked, Harness, results_of
from turnstream.domain.blocks import Block
from turnstream.domain.kinds import REPORT, TEXT, TOOL_RESULT
from turnstream.domain.turns import Turn
from turnstream.engine.tool_runs import STARTED
from turnstream.extensions.jobs import rows as jobs
from turnstream.extensions.jobs.result_rows import JobResults, PutResult
from turnstream.extensions.jobs.stop_rows import JobStops
from turnstream.extensions.jobs.tokens import digest_of_token
from turnstream.extensions.queue.rows import QueuedMessages
from turnstream.extensions.tool_results.results import ToolResults
from turnstream.kit.ids import new_id
from turnstream.libraries.guards.guard import EndTurn, Guard, Mask, Pass, Passage, Ruling, TakeBack, TextSpan
from turnstream.llm.provider import ModelRequest
from turnstream.scripted import Pause, Reply, ScriptedProvider, message_of, text, tool_use
from turnstream.storage.chats import reports
from turnstream.storage.chats.exchanges import Exchanges, Target
from turnstream.storage.chats.turns import Turns
from turnstream.storage.database import Database, Row, Statement
from turnstream.storage.runs.queue import Queue
from turnstream.tools.tool import Detached, File, Outcome, ResultAddress, ToolContext, tool, tools_of

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


@dataclass
class Works:
    done: list[str] = field(default_factory=list)
    pause: Pause = field(default_factory=Pause)
    between: Pause = field(default_factory=Pause)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    addresses: list[ResultAddress] = field(default_factory=list)
    leave: asyncio.Queue[str] = field(default_factory=asyncio.Queue)

    @tool(background=True, reports=True)
    async def dig_on(self) -> str:
        """Dig on, when there is leave."""
        return await self.leave.get()

    @tool(background=True, reports=True)
    async def dig(self, where: str) -> str:
        """Dig, and report."""
        self.done.append(where)
        self.pause.reached.set()
        try:
            await self.pause.go.wait()
        except asyncio.CancelledError:
            self.stopped.set()
            raise
        return f"a hole in {where}"

    @tool(background=True, reports=True)
    async def send(self, context: ToolContext) -> Detached:
        """Send something away."""
        self.addresses.append(await context.result_address())
        self.pause.reached.set()
        return Detached("away")

    @tool(background=True, reports=True)
    async def draw(self) -> list[str | File]:
        """Draw."""
        await self.pause.go.wait()
        return ["A picture:", File(PNG)]

    @tool()
    async def look(self) -> str:
        """Look, for a while."""
        self.between.reached.set()
        await self.between.go.wait()
        return "seen"

    @tool(approval="always")
    async def pay(self, euros: int) -> str:
        """Pay, with leave."""
        return f"paid {euros}"


@pytest.fixture
def works() -> Works:
    return Works()


@pytest.fixture
async def rows(database_url: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


def calls(*named: tuple[str, str] | tuple[str, str, dict[str, Any]]) -> Reply:
    return message_of(*(tool_use(name, dict(*given), id) for name, id, *given in named))


def said(words: str) -> Reply:
    return message_of(text(words))


DIG = ("dig", "a", {"where": "Rome"})


async def newest(harness: Harness, asked: Asked, status: str, but: Asked | None = None) -> Turn:
    """Returns the newest answer of the chat, once it has this status."""
    turns = Turns(harness.database)
    while True:
        async with harness.database.transaction() as connection:
            row = await connection.raw.fetchrow(
                "SELECT id, status FROM turns WHERE chat_id = $1 AND role = 'assistant'"
                " ORDER BY created_at DESC LIMIT 1",
                asked.chat,
            )
        if row["status"] == status and (but is None or row["id"] != but.turn):
            return await turns.get(OWNER, asked.chat, row["id"])
        await asyncio.sleep(0.01)


async def queue_of(harness: Harness, asked: Asked) -> list[str]:
    entries = await QueuedMessages(harness.database, harness.database).of_chat(OWNER, asked.chat)
    return [block.text for entry in entries for block in entry.blocks]


def reports_of(turn: Turn) -> list[tuple[int, str]]:
    return [(block.round, block.text) for block in turn.blocks if block.type == REPORT]


def user_texts(request: ModelRequest) -> list[str]:
    return [
        block.text
        for message in request.messages
        if message.role == "user"
        for block in message.blocks
        if block.type == TEXT
    ]


async def test_an_idle_branch_gets_a_turn_that_begins_with_the_report(harness: Harness, works: Works) -> None:
    provider = ScriptedProvider([calls(DIG), said("It is under way."), said("There is a hole.")])
    async with harness.replica(provider, tools_of(works), listens=True) as replica:
        asked = await harness.ask(tools=tools_of(works))
        await harness.finish(replica, asked)
        await works.pause.reached.wait()
        first = await harness.turn(asked)
        assert (first.status, results_of(first)["a"].text) == ("complete", STARTED)
        assert [(job.state, job.delivery) for job in first.jobs] == [("running", None)]
        works.pause.go.set()
        second = await newest(harness, asked, "complete", asked)
        first = await harness.turn(asked)
    question = await Turns(harness.database).get(OWNER, asked.chat, second.parent_id or new_id())
    assert (question.blocks, question.parent_id) == ((), first.id)
    assert reports_of(second) == [(0, "a hole in Rome")]
    (job,) = first.jobs
    assert (job.settled, job.delivery, job.delivered_to, job.delivered_round) == (True, "started", second.id, 0)
    head = "[Result of the call a of the tool dig, which ran in the background."
    assert user_texts(provider.requests[2])[-1].startswith(head)
    assert user_texts(provider.requests[2])[-1].endswith("\n\na hole in Rome")
    assert not any("cut off" in words for words in user_texts(provider.requests[2]))
    assert works.done == ["Rome"]


async def test_a_turn_that_runs_gets_the_report_as_a_steer(harness: Harness, works: Works) -> None:
    provider = ScriptedProvider([calls(DIG), calls(("look", "b")), said("Both.")])
    async with harness.replica(provider, tools_of(works), listens=True) as replica:
        asked = await harness.ask(tools=tools_of(works))
        replica.worker.wake()
        await works.between.reached.wait()
        works.pause.go.set()
        while not (await harness.turn(asked)).steers:  # noqa: ASYNC110, rows have no event
            await asyncio.sleep(0.01)
        works.between.go.set()
        turn = await harness.finish(replica, asked)
    assert reports_of(turn) == [(2, "a hole in Rome")]
    assert [(job.delivery, job.delivered_to, job.delivered_round) for job in turn.jobs] == [("steered", turn.id, 2)]
    assert [block.type for block in turn.blocks] == ["tool_use", "tool_result"] * 2 + [REPORT, "text"]


async def test_a_report_answers_no_ask_and_waits_for_its_answer(
    harness: Harness, works: Works, rows: "asyncpg.Connection[Any]"
) -> None:
    provider = ScriptedProvider([calls(DIG), calls(("pay", "b", {"euros": 3})), said("Paid.")])
    async with harness.replica(provider, tools_of(works), listens=True) as replica:
        asked = await harness.ask(tools=tools_of(works))
        replica.worker.wake()
        await newest(harness, asked, "waiting")
        works.pause.go.set()
        while not (turn := await harness.turn(asked)).steers:  # noqa: ASYNC110, rows have no event
            await asyncio.sleep(0.01)
        assert (turn.status, [ask.answer for ask in turn.asks]) == ("waiting", [None])
        # If another arrival has started the run, the turn waits again, and supersedes nothing.
        await rows.execute("UPDATE turns SET status = 'queued', arrivals = arrivals + 1 WHERE id = $1", asked.turn)
        replica.worker.wake()
        turn = await newest(harness, asked, "waiting")
        assert ([ask.answer for ask in turn.asks], len(turn.steers)) == ([None], 1)
        assert await queue_of(harness, asked) == []
        await replica.cancel(asked)
        turn = await harness.finish(replica, asked)
    assert reports_of(turn) == [(2, "a hole in Rome")]


async def test_a_cancelled_turn_takes_its_calls_with_it(harness: Harness, works: Works) -> None:
    provider = ScriptedProvider([calls(DIG, ("look", "b")), said("never")])
    async with harness.replica(provider, tools_of(works), listens=True) as replica:
        asked = await harness.ask(tools=tools_of(works))
        replica.worker.wake()
        await works.pause.reached.wait()
        await works.between.reached.wait()
        await replica.cancel(asked)
        await harness.finish(replica, asked)
        replica.jobs.receive("jobs")
        await works.stopped.wait()
        while not (turn := await harness.turn(asked)).jobs[0].delivery:
            replica.jobs.receive("jobs")
            await asyncio.sleep(0.01)
    assert (turn.status, turn.jobs[0].delivery, turn.jobs[0].settled) == ("cancelled", "discarded", True)


async def test_a_result_from_elsewhere_is_delivered_after_the_end_of_the_turn(harness: Harness, works: Works) -> None:
    provider = ScriptedProvider([calls(("send", "a")), said("Sent."), said("It is there.")])
    async with harness.replica(provider, tools_of(works), listens=True) as replica:
        asked = await harness.ask(tools=tools_of(works))
        first = await harness.finish(replica, asked)
        await works.pause.reached.wait()
        digest = digest_of_token(works.addresses[0].token)
        end = {"outcome": Outcome("x" * 5000, data={"way": 1}), "from_elsewhere": True}
        put = await JobResults(harness.database).put(first.jobs[0].id, digest, end)
        assert put == PutResult(asked.turn, owner=OWNER)
        again = await JobResults(harness.database).put(first.jobs[0].id, digest, end)
        assert again == PutResult(asked.turn, "settled")
        second = await newest(harness, asked, "complete", asked)
    (block,) = (block for block in second.blocks if block.type == REPORT)
    assert block.text.startswith("x" * 1000 + "\n\n[The result was cut here")
    assert '"data":{"way":1}' in (block.data or "")
    results = ToolResults(harness.database)  # the text names the id of the call, with which the model reads the rest
    assert await results.whole(second.id, "a") == "x" * 5000
    assert await results.of_turn(OWNER, asked.chat, asked.turn, "a") == "x" * 5000


async def test_the_owner_stops_a_call_of_a_turn_that_has_ended(harness: Harness, works: Works) -> None:
    provider = ScriptedProvider([calls(DIG), said("It is under way."), said("It was stopped.")])
    async with harness.replica(provider, tools_of(works), listens=True) as replica:
        asked = await harness.ask(tools=tools_of(works))
        await harness.finish(replica, asked)
        await works.pause.reached.wait()
        ends = {"unrun": {"outcome": Outcome("Not run.")}, "stopped": {"outcome": Outcome("Stopped.", is_error=True)}}
        stops = JobStops(harness.database)
        assert not await stops.stop("another", asked.turn, "a", **ends)
        assert await stops.stop(OWNER, asked.turn, "a", **ends)
        assert not await stops.stop(OWNER, asked.turn, "a", **ends)
        second = await newest(harness, asked, "complete", asked)
        await works.stopped.wait()
    assert reports_of(second) == [(0, "Stopped.")]
    assert " as an error;" in user_texts(provider.requests[2])[-1]


async def test_a_report_follows_the_newest_answer_of_its_branch(harness: Harness, works: Works) -> None:
    provider = ScriptedProvider([calls(DIG), said("It is under way."), said("Lovely."), said("There is a hole.")])
    async with harness.replica(provider, tools_of(works), listens=True) as replica:
        asked = await harness.ask(tools=tools_of(works))
        await harness.finish(replica, asked)
        later = await harness.ask("How is the weather?", after=asked)
        weather = await harness.finish(replica, later)
        works.pause.go.set()
        third = await newest(harness, asked, "complete", later)
    question = await Turns(harness.database).get(OWNER, asked.chat, third.parent_id or new_id())
    assert (question.parent_id, reports_of(third)) == (weather.id, [(0, "a hole in Rome")])


async def test_a_report_is_delivered_behind_a_message_that_has_not_begun(harness: Harness, works: Works) -> None:
    """The owner may withdraw that message, which would also delete a report inside it."""
    provider = ScriptedProvider([calls(DIG), said("It is under way."), said("Lovely."), said("There is a hole.")])
    async with harness.replica(provider, tools_of(works), listens=True) as replica:
        asked = await harness.ask(tools=tools_of(works))
        await harness.finish(replica, asked)
        async with harness.locker() as locker:
            later = await harness.ask("How is the weather?", after=asked)
            await locker.connection.execute(
                "UPDATE turns SET declined_until = 'infinity', declined = declined || $2::uuid WHERE id = $1",
                later.turn,
                replica.queue.replica,
            )
            works.pause.go.set()
            third = await newest(harness, asked, "queued", later)
            assert await queue_of(harness, asked) == ["How is the weather?"]
            await locker.connection.execute("UPDATE turns SET declined_until = NULL, declined = NULL")
        replica.worker.wake()
        third = await newest(harness, asked, "complete", later)
    assert reports_of(third) == [(0, "a hole in Rome")]


async def test_a_deleted_chat_takes_its_reports_with_it(
    harness: Harness, works: Works, rows: "asyncpg.Connection[Any]"
) -> None:
    provider = ScriptedProvider([calls(DIG), said("It is under way.")])
    async with harness.replica(provider, tools_of(works), listens=True) as replica:
        await harness.finish(replica, await harness.ask(tools=tools_of(works)))
        await works.pause.reached.wait()
        job = await rows.fetchval("SELECT id FROM jobs")
        await rows.execute("DELETE FROM chats")
        with capture_logs() as logs:
            replica.jobs.receive("jobs")
            while "report.discarded" not in [each["event"] for each in logs]:  # noqa: ASYNC110, a log has no event
                await asyncio.sleep(0.01)
    assert works.stopped.is_set()
    noted = [(each["job"], each["reason"]) for each in logs if each["event"] == "report.discarded"]
    assert noted == [(str(job), "deleted")]
    assert await rows.fetchval("SELECT count(*) FROM jobs") == 0


async def test_a_report_that_cannot_be_delivered_stops_no_other(
    harness: Harness, works: Works, rows: "asyncpg.Connection[Any]"
) -> None:
    provider = ScriptedProvider([calls(("send", "a"), ("dig_on", "b")), said("It is under way."), said("Dug.")])
    async with harness.replica(provider, tools_of(works), listens=True) as replica:
        asked = await harness.ask(tools=tools_of(works))
        await harness.finish(replica, asked)
        await works.pause.reached.wait()
        await rows.execute("UPDATE jobs SET outcome = '[]', settled_at = now(), replica = NULL WHERE name = 'send'")
        with capture_logs() as logs:
            works.leave.put_nowait("dug")
            second = await newest(harness, asked, "complete", asked)
    assert reports_of(second) == [(0, "dug")]
    assert [each["event"] for each in logs].count("report.failed") == 1


async def test_a_look_without_open_jobs_and_reports_sends_one_statement(
    harness: Harness, works: Works, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, rows = list[Statement](), Database.rows

    async def watched(database: Database, statement: Statement, **values: Any) -> Sequence[Row]:
        sent.append(statement)
        return await rows(database, statement, **values)

    monkeypatch.setattr(Database, "rows", watched)
    async with harness.replica(ScriptedProvider([]), tools_of(works)) as replica:
        while sent.count(jobs.GET_WAITING) < 3:
            replica.jobs.receive("jobs")
            await asyncio.sleep(0.01)
    of_jobs = [each for module in (jobs, reports) for each in vars(module).values() if isinstance(each, Statement)]
    assert {id(each) for each in sent} & {id(each) for each in of_jobs} == {id(jobs.GET_WAITING)}


async def test_files_of_a_report_are_named(harness: Harness, works: Works) -> None:
    provider = ScriptedProvider([calls(("draw", "a")), said("It is under way."), said("Lovely.")])
    async with harness.replica(provider, tools_of(works), listens=True) as replica:
        asked = await harness.ask(tools=tools_of(works))
        await harness.finish(replica, asked)
        works.pause.go.set()
        second = await newest(harness, asked, "complete", asked)
    assert reports_of(second)[0][1].startswith("A picture:\n[A file of the type image")


async def test_beside_a_replica_that_knows_no_reports_the_turn_waits(
    harness: Harness, works: Works, rows: "asyncpg.Connection[Any]"
) -> None:
    before = Queue(harness.database, new_id(), "before", 7)
    await before.renew_lease(60)
    await rows.execute("UPDATE replicas SET knows_reports = false WHERE id = $1", before.replica)
    provider = ScriptedProvider([calls(DIG), said("There is a hole.")])
    async with harness.replica(provider, tools_of(works), listens=True) as replica:
        asked = await harness.ask(tools=tools_of(works))
        replica.worker.wake()
        await newest(harness, asked, "waiting")
        works.pause.go.set()
        turn = await harness.finish(replica, asked)
    assert (results_of(turn)["a"].text, reports_of(turn)) == ("a hole in Rome", [])


async def test_after_ten_turns_in_a_row_that_reports_have_started_the_turn_waits(
    harness: Harness, works: Works
) -> None:
    def answer(request: ModelRequest) -> Reply:
        is_started = request.messages[-1].blocks[-1].type == TOOL_RESULT
        return said("Again.") if is_started else calls(("dig_on", "a"))

    async with harness.replica(ScriptedProvider(answer), tools_of(works), listens=True) as replica:
        last = asked = await harness.ask(tools=tools_of(works))
        replica.worker.wake()
        for _ in range(10):
            turn = await newest(harness, asked, "complete", None if last is asked else last)
            last = Asked(asked.chat, turn.id)
            works.leave.put_nowait("dug")
        await newest(harness, asked, "waiting", last)
        works.leave.put_nowait("dug")
        turn = await newest(harness, asked, "complete", last)
    assert (results_of(turn)["a"].text, reports_of(turn)) == ("dug", [(0, "dug")])


async def test_two_replicas_deliver_a_report_once(
    harness: Harness, works: Works, rows: "asyncpg.Connection[Any]"
) -> None:
    elsewhere = Works()
    provider = ScriptedProvider([calls(DIG), said("It is under way."), said("There is a hole."), said("Twice?")])
    async with (
        harness.replica(provider, tools_of(works), listens=True) as replica,
        harness.replica(provider, tools_of(elsewhere), listens=True, most_jobs=0),
        harness.locker() as locker,
    ):
        asked = await harness.ask(tools=tools_of(works))
        await harness.finish(replica, asked)
        await works.pause.reached.wait()
        async with locker.connection.transaction():
            await locker.connection.execute("SELECT FROM chats WHERE id = $1 FOR UPDATE", asked.chat)
            works.pause.go.set()
            waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
            while await rows.fetchval(waits) < 2:  # noqa: ASYNC110, both wait for the chat
                await asyncio.sleep(0.01)
        second = await newest(harness, asked, "complete", asked)
    assert reports_of(second) == [(0, "a hole in Rome")]
    assert await rows.fetchval("SELECT count(*) FROM turns WHERE role = 'assistant'") == 2


async def test_a_message_meanwhile_and_a_report_are_both_read(harness: Harness, works: Works) -> None:
    provider = ScriptedProvider([calls(DIG), calls(("look", "b")), said("Both.")])
    async with harness.replica(provider, tools_of(works), listens=True) as replica:
        asked = await harness.ask(tools=tools_of(works))
        replica.worker.wake()
        await works.between.reached.wait()
        async with Exchanges(harness.database).after(Target(OWNER, asked.chat, "newest", "steer"), None) as draft:
            await draft.steer([Block(0, 0, 0, TEXT, "Deeper.")])
        works.pause.go.set()
        while len((await harness.turn(asked)).steers) < 2:  # noqa: ASYNC110, rows have no event
            await asyncio.sleep(0.01)
        works.between.go.set()
        turn = await harness.finish(replica, asked)
    assert {block.type: block.text for block in turn.blocks if block.type in {REPORT, "user_text"}} == {
        "user_text": "Deeper.",
        REPORT: "a hole in Rome",
    }


@pytest.mark.parametrize("ruling", [Mask([TextSpan(0, 6)]), TakeBack("gone"), EndTurn("no holes")])
async def test_guards_check_a_report_and_the_stored_outcome_of_its_job(
    harness: Harness, works: Works, ruling: Ruling
) -> None:
    async def check(passage: Passage) -> Ruling:
        assert (passage.place, passage.tool, passage.turn) == ("tool_result", "dig", None)
        return ruling if "a hole" in passage.text else Pass()

    guard = Guard("digging", check, frozenset({"tool_result"}))
    provider = ScriptedProvider([calls(DIG), said("It is under way."), said("There is a hole.")])
    async with harness.replica(provider, tools_of(works), listens=True, guards=[guard]) as replica:
        asked = await harness.ask(tools=tools_of(works))
        await harness.finish(replica, asked)
        await works.pause.reached.wait()
        works.pause.go.set()
        second = await newest(harness, asked, "complete", asked)
    ((round, text),) = reports_of(second)
    assert (round, "a hole" in text) == (0, False)
    whole = await ToolResults(harness.database).whole(second.id, "a")
    assert whole is not None
    assert "a hole" not in whole
