"""Background tools: their calls run apart from turns, which wait without memory. No call is run twice or lost."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import asyncpg
import pytest

from tests.support.harness import OWNER, POLICY, Asked, Harness, Replica, results_of
from turnstream.domain.asks import AskAnswer
from turnstream.domain.blocks import CUT_SHORT, Block
from turnstream.domain.errors import ClaimLost
from turnstream.domain.jobs import JobChild
from turnstream.domain.kinds import USER_TEXT
from turnstream.domain.turns import Turn
from turnstream.engine.hooks import AfterTool, BeforeTool, Hooks
from turnstream.engine.tool_gate import OUTCOME_UNKNOWN, JobEnd
from turnstream.extensions.jobs.result_rows import JobResults, PutResult
from turnstream.extensions.jobs.rows import Detachment, Jobs
from turnstream.extensions.jobs.tokens import digest_of_token
from turnstream.kit.ids import new_id
from turnstream.libraries.explanations.reasons import reasons
from turnstream.libraries.explanations.rows import TurnStates
from turnstream.libraries.extension_metrics import JOBS_SETTLED
from turnstream.libraries.turn_counts import JobCounts, TurnCounts
from turnstream.scripted import Pause, Reply, ScriptedProvider, message_of, text, tool_use
from turnstream.storage.chats.actions import Actions, Decision
from turnstream.storage.chats.exchanges import Exchanges, Target
from turnstream.storage.runs.queue import Queue
from turnstream.tools.tool import Detached, File, Outcome, ResultAddress, ToolContext, ToolResult, tool, tools_of

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


@dataclass
class Works:
    """Background tools. `done` has their effects. A call of `dig` or `survey` continues after its pause."""

    done: list[str] = field(default_factory=list)
    pause: Pause = field(default_factory=Pause)
    contexts: list[ToolContext] = field(default_factory=list)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    addresses: list[ResultAddress] = field(default_factory=list)

    async def _wait(self, context: ToolContext) -> None:
        self.contexts.append(context)
        self.pause.reached.set()
        try:
            await self.pause.go.wait()
        except asyncio.CancelledError:
            self.stopped.set()
            raise

    @tool(background=True)
    async def dig(self, where: str, context: ToolContext) -> str:
        """Dig, once."""
        self.done.append(where)
        await self._wait(context)
        return f"a hole in {where}"

    @tool(background=True, retry_safe=True)
    async def survey(self, context: ToolContext) -> str:
        """Survey, in steps."""
        begin = context.checkpointed or 0
        self.done.append(f"from {begin}")
        await context.checkpoint(begin + 1)
        context.progress(f"step {begin + 1}")
        context.preliminary(ToolResult("So far.", {"step": begin + 1}))
        await self._wait(context)
        return f"surveyed in {begin + 1} steps"

    @tool(background=True, approval="always")
    async def pay(self, euros: int) -> str:
        """Pay, with leave."""
        self.done.append(f"paid {euros}")
        return f"paid {euros}"

    @tool(background=True)
    async def draw(self) -> list[str | File]:
        """Draw."""
        return ["A picture:", File(PNG)]

    @tool(background=True)
    async def send(self, after: float | None, context: ToolContext) -> str | Detached:
        """Send something away, and ask after it."""
        if context.handle is None:
            self.done.append("sent")
            self.addresses.append(await context.result_address())
            await self._wait(context)
            return Detached({"asked": 0}, after, "on its way")
        asked = context.handle["asked"] + 1
        self.done.append(f"asked {asked}")
        if asked == 1:
            return Detached({"asked": asked}, after=0)
        await self._wait(context)
        return "arrived"

    @tool(background=True)
    async def send_wrongly(self, handle: Any) -> Detached:
        """Send with this handle."""
        return Detached(handle)

    @tool()
    async def send_at_once(self) -> Detached:
        """Send something away from inside of the turn."""
        return Detached(1)

    @tool(background=True, timeout=0.05)
    async def sleep(self) -> str:
        """Sleep for too long."""
        await asyncio.Event().wait()
        return "never"

    @tool()
    async def look(self) -> str:
        """Look."""
        self.done.append("looked")
        return "seen"


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


def provider(*first: Any, more: int = 0) -> ScriptedProvider:
    return ScriptedProvider([calls(*first), *(message_of(text("There.")) for _ in range(1 + more))])


def answers() -> ScriptedProvider:
    return ScriptedProvider([message_of(text("There."))])


DIG = ("dig", "a", {"where": "Rome"})
SURVEY = ("survey", "a")


async def until(harness: Harness, asked: Asked, status: str) -> Turn:
    while (turn := await harness.turn(asked)).status != status:  # noqa: ASYNC110, rows have no event
        await asyncio.sleep(0.01)
    return turn


async def waiting(harness: Harness, replica: Replica, works: Works, **request: Any) -> Asked:
    """Starts a turn. Returns it when it waits only for a job, which is running."""
    asked = await harness.ask(tools=tools_of(works), **request)
    replica.worker.wake()
    await works.pause.reached.wait()
    await until(harness, asked, "waiting")
    await replica.idle(asked)
    return asked


# --- the way of a call -----------------------------------------------------------------------------------------------


async def test_a_turn_waits_for_a_background_tool_and_continues_with_its_result(harness: Harness, works: Works) -> None:
    async with harness.replica(provider(DIG, ("look", "b")), tools_of(works), listens=True) as replica:
        asked = await waiting(harness, replica, works)
        turn = await harness.turn(asked)
        assert [(job.name, job.settled) for job in turn.jobs] == [("dig", False)]
        assert (list(results_of(turn)), sorted(works.done)) == (["b"], ["Rome", "looked"])
        works.pause.go.set()
        turn = await harness.finish(replica, asked)
    assert (turn.status, results_of(turn)["a"].text) == ("complete", "a hole in Rome")
    assert (sorted(works.done), turn.jobs) == (["Rome", "looked"], ())
    assert works.contexts[0].idempotency_key == f"{turn.id}:1:a"


async def test_the_turn_continues_on_one_replica_while_the_job_runs_on_another(harness: Harness, works: Works) -> None:
    elsewhere = Works()
    async with harness.replica(provider(DIG, more=1), tools_of(works), listens=True, most_jobs=0) as first:
        asked = await harness.ask(tools=tools_of(works))
        first.worker.wake()
        await until(harness, asked, "waiting")
        async with harness.replica(answers(), tools_of(elsewhere), listens=True) as second:
            await elsewhere.pause.reached.wait()
            elsewhere.pause.go.set()
            turn = await harness.finish(second, asked)
    assert (results_of(turn)["a"].text, works.done, elsewhere.done) == ("a hole in Rome", [], ["Rome"])


async def test_an_approval_comes_before_the_job_and_its_input_counts(harness: Harness, works: Works) -> None:
    async with harness.replica(provider(("pay", "a", {"euros": 9})), tools_of(works), listens=True) as replica:
        asked = await harness.ask(tools=tools_of(works))
        replica.worker.wake()
        turn = await until(harness, asked, "waiting")
        assert (turn.jobs, works.done, turn.waits_for_person) == ((), [], True)
        answer = AskAnswer("approve", input='{"euros":1}')
        decision = Decision("a", turn.asks[0].digest, answer, "decisions.0")
        await Actions(harness.database).answer(OWNER, asked.chat, asked.turn, [decision], None)
        turn = await harness.finish(replica, asked)
    assert works.done == ["paid 1"]
    assert results_of(turn)["a"].text.endswith("paid 1")


async def test_results_are_fitted_and_files_are_uploads_as_for_other_tools(harness: Harness, works: Works) -> None:
    async with harness.replica(provider(("draw", "a")), tools_of(works), listens=True) as replica:
        asked = await harness.ask(tools=tools_of(works))
        turn = await harness.finish(replica, asked)
    assert '"image"' in (results_of(turn)["a"].data or "")


class Noted(Hooks):
    def __init__(self) -> None:
        self.seen: list[str] = []

    async def before_tool(self, event: BeforeTool) -> None:
        self.seen.append(f"before {event.call.name}")

    async def after_tool(self, event: AfterTool) -> None:
        self.seen.append(f"after {event.call.name}: {event.outcome.text}")


async def test_a_call_that_takes_too_long_is_stopped_at_its_deadline(harness: Harness, works: Works) -> None:
    hooks = Noted()
    async with harness.replica(provider(("sleep", "a")), tools_of(works), listens=True, hooks=[hooks]) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=tools_of(works)))
    assert results_of(turn)["a"].text.startswith("The tool sleep was stopped: it did not finish within 0.05 s.")
    assert [seen.partition(":")[0] for seen in hooks.seen] == ["before sleep", "after sleep"]


async def test_a_job_of_a_tool_that_is_gone_ends_at_its_deadline(
    harness: Harness, works: Works, rows: "asyncpg.Connection[Any]"
) -> None:
    async with harness.replica(provider(DIG, more=1), tools_of(works), listens=True, most_jobs=0) as first:
        asked = await harness.ask(tools=tools_of(works))
        first.worker.wake()
        await until(harness, asked, "waiting")
    async with harness.replica(
        provider(DIG), [works.look], listens=True, policy=replace(POLICY, declines=False)
    ) as second:
        await asyncio.sleep(0)
        assert not (await harness.turn(asked)).jobs[0].settled
        await rows.execute("UPDATE jobs SET deadline = now()")
        second.jobs.receive("jobs")
        turn = await until(harness, asked, "complete")
    assert (results_of(turn)["a"].text, works.done) == ("The tool dig is not available at the moment.", [])


# --- crashes ---------------------------------------------------------------------------------------------------------


async def die(harness: Harness, replica: Replica, other: Replica) -> None:
    await replica.kill()
    await other.queue.take_over([replica.queue.replica])
    other.jobs.receive("jobs")


@pytest.mark.parametrize(
    ("call", "text", "done"),
    [(DIG, OUTCOME_UNKNOWN, ["Rome"]), (SURVEY, "surveyed in 2 steps", ["from 0", "from 1"])],
)
async def test_after_a_crash_a_job_is_run_again_with_its_checkpoint_where_that_does_no_harm(
    harness: Harness, works: Works, call: Any, text: str, done: Sequence[str]
) -> None:
    async with (
        harness.replica(provider(call, more=1), tools_of(works), listens=True) as first,
        AsyncExitStack() as stack,
    ):
        asked = await waiting(harness, first, works)
        second = await stack.enter_async_context(harness.replica(answers(), tools_of(works), listens=True))
        works.pause.go.clear()
        await die(harness, first, second)
        works.pause.go.set()
        turn = await harness.finish(second, asked)
    assert (results_of(turn)["a"].text, works.done) == (text, done)


async def test_a_shutdown_gives_a_job_back(harness: Harness, works: Works) -> None:
    async with harness.replica(provider(SURVEY), tools_of(works), listens=True) as first:
        asked = await waiting(harness, first, works)
    assert works.stopped.is_set()
    works.pause.go.set()
    async with harness.replica(answers(), tools_of(works), listens=True) as second:
        turn = await harness.finish(second, asked)
    assert results_of(turn)["a"].text == "surveyed in 2 steps"


async def test_late_and_double_outcomes_are_not_applied(harness: Harness, works: Works) -> None:
    async with harness.replica(provider(DIG), tools_of(works), listens=True, most_jobs=0) as replica:
        asked = await harness.ask(tools=tools_of(works))
        replica.worker.wake()
        await until(harness, asked, "waiting")
        jobs = Jobs(harness.database, replica.queue.replica)
        (job,) = (await jobs.claim(10, ["dig"])).jobs
        late = replace(job, attempt=job.attempt - 1)
        assert not await jobs.settle(late, JobEnd(Outcome("late")))
        assert not await jobs.checkpoint(late, "1")
        assert await jobs.settle(job, JobEnd(Outcome("first")))
        assert not await jobs.settle(job, JobEnd(Outcome("second")))
        turn = await harness.finish(replica, asked)
    assert results_of(turn)["a"].text == "first"


async def test_an_open_job_has_the_owner_of_its_chat_also_of_a_replica_that_does_not_write_it(
    harness: Harness, works: Works, rows: "asyncpg.Connection[Any]"
) -> None:
    async with harness.replica(provider(DIG), tools_of(works), listens=True, most_jobs=0) as replica:
        asked = await harness.ask(tools=tools_of(works))
        replica.worker.wake()
        await until(harness, asked, "waiting")
        assert await rows.fetchval("SELECT queue_owner FROM jobs") == OWNER, "set by a trigger"
        await rows.execute("UPDATE chats SET owner = 'moved' WHERE id = $1", asked.chat)
        assert await rows.fetchval("SELECT queue_owner FROM jobs") == "moved"
        (job,) = (await Jobs(harness.database, replica.queue.replica).claim(1, ["dig"])).jobs
        assert job.owner == "moved"


# --- calls that go on elsewhere --------------------------------------------------------------------------------------


def send(after: float | None = None) -> tuple[str, str, dict[str, Any]]:
    return "send", "a", {"after": after}


async def detached(harness: Harness, asked: Asked) -> None:
    while [job.state for job in (await harness.turn(asked)).jobs] != ["detached"]:  # noqa: ASYNC110, rows have no event
        await asyncio.sleep(0.01)


async def sent(harness: Harness, replica: Replica, works: Works) -> Asked:
    """Starts a turn that waits for a call which continues outside of the server."""
    asked = await waiting(harness, replica, works)
    works.pause.go.set()
    await detached(harness, asked)
    return asked


async def test_a_detached_job_is_run_again_with_its_handle_until_it_has_an_outcome(
    harness: Harness, works: Works
) -> None:
    async with harness.replica(provider(send(after=0.01)), tools_of(works), listens=True) as replica:
        works.pause.go.set()
        turn = await harness.finish(replica, await harness.ask(tools=tools_of(works)))
    assert (results_of(turn)["a"].text, works.done) == ("arrived", ["sent", "asked 1", "asked 2"])


async def test_a_detached_job_holds_no_slot_and_is_due_when_it_is_woken(harness: Harness, works: Works) -> None:
    async with harness.replica(provider(send(), more=1), tools_of(works), listens=True, most_jobs=1) as replica:
        asked = await sent(harness, replica, works)
        (job,) = (await harness.turn(asked)).jobs
        assert job.progress == "on its way"
        jobs = Jobs(harness.database, replica.queue.replica)
        assert await jobs.claim(10, ["send"]) == ([], False, False)
        await jobs.wake([job.id])
        turn = await harness.finish(replica, asked)
        await jobs.wake([job.id])
    assert (results_of(turn)["a"].text, works.done) == ("arrived", ["sent", "asked 1", "asked 2"])


async def test_a_job_that_is_woken_while_it_runs_is_due_at_once_when_it_detaches(
    harness: Harness, works: Works
) -> None:
    async with harness.replica(provider(send()), tools_of(works), listens=True, most_jobs=0) as replica:
        asked = await harness.ask(tools=tools_of(works))
        replica.worker.wake()
        await until(harness, asked, "waiting")
        jobs = Jobs(harness.database, replica.queue.replica)
        (job,) = (await jobs.claim(10, ["send"])).jobs
        await jobs.wake([job.id])
        assert await jobs.detach(job, Detachment("1"))
        assert not await jobs.detach(job, Detachment("2")), "it was given up"
        (again,) = (await jobs.claim(10, ["send"])).jobs
        assert (again.id, again.handle, again.attempt) == (job.id, 1, 2)
        assert await jobs.detach(again, Detachment("2", after=1000.0))
        assert await jobs.claim(10, ["send"]) == ([], False, False)


@pytest.mark.parametrize(
    ("edge", "text", "done"),
    [
        ("before the handle", OUTCOME_UNKNOWN, ["sent"]),
        ("between two looks", "arrived", ["sent", "asked 1", "asked 2"]),
        ("in a look", "arrived", ["sent", "asked 1", "asked 2", "asked 2"]),
    ],
)
async def test_after_a_crash_a_detached_job_is_taken_up_by_its_handle_and_never_begun_again(
    harness: Harness, works: Works, edge: str, text: str, done: Sequence[str]
) -> None:
    async with (
        harness.replica(provider(send(), more=1), tools_of(works), listens=True) as first,
        AsyncExitStack() as stack,
    ):
        asked = await waiting(harness, first, works)
        (job,) = (await harness.turn(asked)).jobs
        jobs = Jobs(harness.database, first.queue.replica)
        if edge != "before the handle":
            works.pause.go.set()
            await detached(harness, asked)
        if edge == "in a look":
            works.pause.go.clear()
            works.pause.reached.clear()
            await jobs.wake([job.id])
            await works.pause.reached.wait()
        second = await stack.enter_async_context(harness.replica(answers(), tools_of(works), listens=True))
        await die(harness, first, second)
        works.pause.go.set()
        if edge == "between two looks":
            await jobs.wake([job.id])
        turn = await harness.finish(second, asked)
    assert (results_of(turn)["a"].text, works.done) == (text, done)


async def test_a_detached_job_ends_at_its_deadline(
    harness: Harness, works: Works, rows: "asyncpg.Connection[Any]"
) -> None:
    async with harness.replica(provider(send()), tools_of(works), listens=True) as replica:
        asked = await sent(harness, replica, works)
        await rows.execute("UPDATE jobs SET deadline = now()")
        replica.jobs.receive("jobs")
        turn = await harness.finish(replica, asked)
    assert results_of(turn)["a"].text.startswith("The tool send was stopped: it did not finish within 3600 s.")
    assert works.done == ["sent"]


@pytest.mark.parametrize("handle", [None, "x" * 100_001], ids=["none", "long"])
async def test_a_wrong_handle_is_a_failure_of_the_tool(harness: Harness, works: Works, handle: Any) -> None:
    wrong = ("send_wrongly", "a", {"handle": handle})
    async with harness.replica(provider(wrong), tools_of(works), listens=True) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=tools_of(works)))
    assert results_of(turn)["a"].is_error


async def test_only_a_background_tool_can_detach(harness: Harness, works: Works) -> None:
    async with harness.replica(provider(("send_at_once", "a")), tools_of(works), listens=True) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=tools_of(works)))
    assert (turn.status, results_of(turn)["a"].is_error) == ("complete", True)


async def test_of_the_results_from_elsewhere_the_first_one_counts(harness: Harness, works: Works) -> None:
    results = JobResults(harness.database)
    async with harness.replica(provider(send()), tools_of(works), listens=True) as replica:
        asked = await sent(harness, replica, works)
        (job,) = (await harness.turn(asked)).jobs
        digest = digest_of_token(works.addresses[0].token)
        end = {"outcome": Outcome("It is there."), "from_elsewhere": True}
        assert await results.put(job.id, digest_of_token("another"), end) is None
        assert await results.put(new_id(), digest, end) is None
        put = await asyncio.gather(*(results.put(job.id, digest, end) for _ in range(5)))
        assert sorted(each.reason or "applied" for each in put if each) == ["applied", *["settled"] * 4]
        turn = await harness.finish(replica, asked)
        again = await results.put(job.id, digest, end)
    assert (results_of(turn)["a"].text, works.done) == ("It is there.", ["sent"])
    assert again == PutResult(asked.turn, "settled")


async def test_a_result_from_elsewhere_stops_the_run_that_looks(harness: Harness, works: Works) -> None:
    results = JobResults(harness.database)
    async with harness.replica(provider(send()), tools_of(works), listens=True) as replica:
        asked = await waiting(harness, replica, works)
        (job,) = (await harness.turn(asked)).jobs
        digest = digest_of_token(works.addresses[0].token)
        put = await results.put(job.id, digest, {"outcome": Outcome("It is there."), "from_elsewhere": True})
        assert put == PutResult(asked.turn, owner=OWNER)
        replica.jobs.receive("jobs")
        await works.stopped.wait()
        turn = await harness.finish(replica, asked)
    assert results_of(turn)["a"].text == "It is there."


async def test_a_result_for_a_turn_that_has_ended_is_reported(harness: Harness, works: Works) -> None:
    async with harness.replica(provider(send()), tools_of(works), listens=True) as replica:
        asked = await sent(harness, replica, works)
        (job,) = (await harness.turn(asked)).jobs
        await replica.cancel(asked)
        turn = await harness.finish(replica, asked)
        put = await JobResults(harness.database).put(
            job.id, digest_of_token(works.addresses[0].token), {"outcome": Outcome("Late.")}
        )
    assert (turn.status, put) == ("cancelled", PutResult(asked.turn, "turn_ended"))


# --- the end of the turn ---------------------------------------------------------------------------------------------


async def test_a_cancelled_turn_stops_its_job(harness: Harness, works: Works) -> None:
    async with harness.replica(provider(DIG), tools_of(works), listens=True) as replica:
        asked = await waiting(harness, replica, works)
        await replica.cancel(asked)
        turn = await harness.finish(replica, asked)
        await works.stopped.wait()
        with pytest.raises(ClaimLost):
            await works.contexts[0].checkpoint(1)
    assert (turn.status, results_of(turn)["a"].text) == ("cancelled", CUT_SHORT.format("cancelled"))


async def test_a_deleted_chat_stops_its_jobs(harness: Harness, works: Works, rows: "asyncpg.Connection[Any]") -> None:
    async with harness.replica(provider(DIG), tools_of(works), listens=True) as replica:
        await waiting(harness, replica, works)
        await rows.execute("DELETE FROM chats")
        await works.stopped.wait()
    assert await rows.fetchval("SELECT count(*) FROM jobs") == 0


async def steer(harness: Harness, replica: Replica, asked: Asked, words: str) -> None:
    target = Target(OWNER, asked.chat, "newest", "steer")
    async with Exchanges(harness.database).after(target, None) as draft:
        await draft.steer([Block(0, 0, 0, "text", words)])
    await replica.worker.refresh(asked.turn)


async def test_a_steer_stops_no_job_and_is_applied_after_its_end(harness: Harness, works: Works) -> None:
    async with harness.replica(provider(DIG), tools_of(works), listens=True) as replica:
        asked = await waiting(harness, replica, works)
        await steer(harness, replica, asked, "Deeper.")
        await asyncio.sleep(0.1)
        turn = await until(harness, asked, "waiting")
        assert len(turn.steers) == 1
        works.pause.go.set()
        turn = await harness.finish(replica, asked)
    assert results_of(turn)["a"].text == "a hole in Rome"
    assert [block.text for block in turn.blocks if block.type == USER_TEXT] == ["Deeper."]


# --- limits and fairness ---------------------------------------------------------------------------------------------


async def test_a_turn_that_waits_for_a_job_holds_no_slot(harness: Harness, works: Works) -> None:
    policy = replace(POLICY, concurrent_turns=1)
    async with harness.replica(provider(DIG, more=1), tools_of(works), listens=True, policy=policy) as replica:
        asked = await waiting(harness, replica, works)
        other = await harness.finish(replica, await harness.ask())
        assert other.status == "complete"
        works.pause.go.set()
        await harness.finish(replica, asked)


async def test_an_owner_with_many_jobs_leaves_slots_for_another_one(
    harness: Harness, works: Works, rows: "asyncpg.Connection[Any]"
) -> None:
    async with harness.replica(provider(DIG, more=1), tools_of(works), listens=True, most_jobs=0) as replica:
        asked = await harness.ask(tools=tools_of(works))
        replica.worker.wake()
        await until(harness, asked, "waiting")
        await rows.execute(
            "INSERT INTO jobs (id, turn_id, round, tool_use_id, name, kind, input, deadline)"
            " SELECT gen_random_uuid(), turn_id, 1, number::text, name, kind, input, deadline"
            " FROM jobs, generate_series(1, 40) AS number"
        )
        jobs, taken = Jobs(harness.database, replica.queue.replica), 0
        while claimed := (await jobs.claim(8 - taken, ["dig"]))[0]:
            taken += len(claimed)
        assert taken == 4
        await rows.execute("UPDATE turns SET queue_owner = 'bob' WHERE id = $1", asked.turn)
        await rows.execute("UPDATE jobs SET replica = NULL")
        assert len((await jobs.claim(1, ["dig"]))[0]) == 1


# --- what others see -------------------------------------------------------------------------------------------------


async def test_progress_is_shown_to_readers_who_come_later_and_is_in_the_turn(harness: Harness, works: Works) -> None:
    async with harness.replica(provider(SURVEY), tools_of(works), listens=True) as replica:
        asked = await waiting(harness, replica, works)
        while not (turn := await harness.turn(asked)).preliminary:  # noqa: ASYNC110, rows have no event
            await asyncio.sleep(0.01)
        assert [job.progress for job in turn.jobs] == ["step 1"]
        assert [(output.text, output.data) for output in turn.preliminary] == [("So far.", {"step": 1})]
        works.pause.go.set()
        await harness.finish(replica, asked)


async def test_a_turn_that_waits_for_a_job_waits_for_no_person(
    harness: Harness, works: Works, rows: "asyncpg.Connection[Any]"
) -> None:
    harness = replace(harness, webhooks=["waiting"])
    async with harness.replica(provider(DIG), tools_of(works), listens=True) as replica:
        asked = await waiting(harness, replica, works)
        assert not (await harness.turn(asked)).waits_for_person
        assert await rows.fetchval("SELECT count(*) FROM waiting_webhooks") == 0
        state = await TurnStates(harness.database).of(asked.turn)
        (sentence,) = reasons(state)
        assert sentence.startswith(
            f"The turn waits for the job {state.jobs[0].id} of the tool dig, which has been running"
        )
        assert state.jobs[0].replica is not None
        works.pause.go.set()
        await harness.finish(replica, asked)


async def test_a_turn_that_waits_for_an_agent_names_the_wait_of_the_agent(
    harness: Harness, works: Works, rows: "asyncpg.Connection[Any]"
) -> None:
    replies = [calls(("dig", "a", {"where": "here"})), calls(("pay", "b", {"euros": 3}))]
    async with harness.replica(ScriptedProvider(replies), tools_of(works), listens=True) as replica:
        parent = await waiting(harness, replica, works)
        child = await harness.ask(tools=tools_of(works))
        replica.worker.wake()
        await until(harness, child, "waiting")
        await rows.execute("UPDATE jobs SET replica = NULL, handle = '{}', due_at = 'infinity'")
        await rows.execute("UPDATE jobs SET deadline = now() + interval '2 hours'")
        state = await TurnStates(harness.database).of(parent.turn)
        (sentence,) = reasons(state)
        assert "which has been detached for" in sentence
        assert sentence.endswith("it is settled from outside, or ended by its deadline in 2 hours.")
        (job,) = (await harness.turn(parent)).jobs
        assert (job.state, job.child) == ("detached", None)
        handle = f'{{"chat": "{child.chat}", "turn": "{child.turn}"}}'
        await rows.execute("UPDATE jobs SET kind = 'child', handle = $1", handle)
        (sentence,) = reasons(await TurnStates(harness.database).of(parent.turn))
        assert (
            f"on which the turn {child.turn} works, which is waiting: The turn waits for an approval of pay" in sentence
        )
        (job,) = (await harness.turn(parent)).jobs
        assert job.child == JobChild(child.chat, child.turn, "waiting")
        await rows.execute('UPDATE jobs SET handle = \'{"turn": "elsewhere"}\'')
        (job,) = (await harness.turn(parent)).jobs
        assert job.child is None
        life = [event.what for event in await TurnStates(harness.database).life(parent.turn)]
        assert f"tool dig runs as the job {job.id}" in life


async def test_jobs_are_counted_by_where_they_are_and_by_how_they_ended(
    harness: Harness, works: Works, rows: "asyncpg.Connection[Any]"
) -> None:
    counts = TurnCounts(harness.database, keep=0)
    settled = JOBS_SETTLED.labels("ok")._value
    before = settled.get()

    async def counted() -> JobCounts:
        turns = await counts.open_turns()
        assert turns is not None
        return turns.jobs

    async with harness.replica(provider(DIG), tools_of(works), listens=True) as replica:
        asked = await waiting(harness, replica, works)
        assert await counted() == JobCounts(0, 1, 0, 0)
        await rows.execute("UPDATE jobs SET deadline = now() - interval '1 minute'")
        assert (await counted()).overdue >= 60
        moved = "replica = NULL, deadline = now() + interval '1 hour'"
        await rows.execute(f"UPDATE jobs SET {moved}, due_at = now() - interval '1 hour', name = 'of nobody'")
        late = await counted()
        assert (late.due, late.running, late.detached, 3600 <= late.overdue < 7200) == (1, 0, 0, True)
        await rows.execute("UPDATE jobs SET handle = '{}', due_at = 'infinity'")
        assert await counted() == JobCounts(0, 0, 1, 0)
        await works.stopped.wait()
        await rows.execute("UPDATE jobs SET handle = NULL, due_at = now(), name = 'dig', attempt = 0")
        works.pause.go.set()
        replica.jobs.receive("jobs")
        await harness.finish(replica, asked)
        while replica.jobs._running:  # noqa: ASYNC110, its turn may end before the runner has counted it
            await asyncio.sleep(0)
    assert await counted() == JobCounts(0, 0, 0, 0)
    assert settled.get() == before + 1


async def test_replicas_of_the_version_before_do_not_claim_a_turn_with_jobs(
    harness: Harness, works: Works, rows: "asyncpg.Connection[Any]"
) -> None:
    before = Queue(harness.database, new_id(), "before", 7)
    await before.renew_lease(60)
    await rows.execute("UPDATE replicas SET runs_jobs = false WHERE id = $1", before.replica)
    async with harness.replica(provider(DIG), tools_of(works), listens=True) as replica:
        asked = await waiting(harness, replica, works)
        await rows.execute("UPDATE turns SET status = 'queued' WHERE id = $1", asked.turn)
        assert await before.claim(10) == []
        works.pause.go.set()
        await harness.finish(replica, asked)
