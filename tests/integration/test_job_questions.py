"""Questions that jobs ask: a background tool asks the person while its turn waits for the job. The job may hold a slot
during the question, or none.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import asyncpg
import pytest

from tests.support.harness import OWNER, Asked, Harness, Replica, results_of
from turnstream.domain.asks import Ask, AskAnswer
from turnstream.domain.blocks import Block
from turnstream.domain.errors import Conflict
from turnstream.domain.kinds import USER_TEXT
from turnstream.domain.limits import seconds_used
from turnstream.domain.log import open_actions_of
from turnstream.domain.turns import Turn
from turnstream.engine.tool_gate import OUTCOME_UNKNOWN
from turnstream.extensions.inbox.waiting_rows import WaitingCalls
from turnstream.extensions.jobs.stop_rows import JobStops
from turnstream.kit.clock import CLOCK
from turnstream.libraries.explanations.reasons import reasons
from turnstream.libraries.explanations.rows import TurnStates
from turnstream.scripted import ScriptedProvider, message_of, text, tool_use
from turnstream.storage.chats.actions import Actions, Decision
from turnstream.storage.chats.exchanges import Exchanges, Target
from turnstream.tools.tool import Detached, PersonQuestion, ToolContext, tool, tools_of

ACCEPT = AskAnswer("result", '{"action":"accept","content":{"name":"Ada"}}')
FORM = '{"type":"object","properties":{"name":{"type":"string"}}}'
ACCEPTED = "PersonAnswer(action='accept', content={'name': 'Ada'})"


@dataclass
class Harbour:
    """Tools that ask the person. `done` has their effects; `seconds` is the time limit of a question."""

    seconds: float = 60
    done: list[str] = field(default_factory=list)
    deadlines: list[Any] = field(default_factory=list)

    def question(self, text: str) -> PersonQuestion:
        return PersonQuestion(text, self.seconds, FORM)

    @tool(background=True)
    async def moor(self, context: ToolContext) -> str | Detached:
        """Moor, after two questions that hold no slot."""
        self.deadlines.append(context.deadline)
        if context.handle is None:
            self.done.append("moored")
            return Detached(1, question=self.question("Who is on board?"))
        self.done.append(f"{context.answer}")
        return Detached(2, question=self.question("Who else?")) if context.handle == 1 else "; ".join(self.done)

    @tool(background=True)
    async def register(self, context: ToolContext) -> str:
        """Register, after a question in the middle of the call."""
        assert context.ask is not None
        self.done.append("begun")
        return f"{await context.ask(self.question('Who sails it?'))}"

    @tool(background=True, reports=True)
    async def signal(self, context: ToolContext) -> str | Detached:
        """Ask while the turn continues."""
        assert context.ask is None
        return f"{context.answer}" if context.handle else Detached(1, question=self.question("Who?"))


@pytest.fixture
def harbour() -> Harbour:
    return Harbour()


@pytest.fixture
async def rows(database_url: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


def calling(name: str) -> ScriptedProvider:
    return ScriptedProvider([message_of(tool_use(name, {}, "a")), *(message_of(text("There.")) for _ in range(2))])


async def questioned(harness: Harness, asked: Asked, known: Sequence[Ask] = ()) -> Turn:
    """Returns the turn when it has an open question that is not in `known`."""
    while True:
        turn = await harness.turn(asked)
        if any(turn.waits_for(ask) for ask in turn.asks[len(known) :]):
            return turn
        await asyncio.sleep(0.01)


async def begun(harness: Harness, replica: Replica, harbour: Harbour) -> tuple[Asked, Turn]:
    """Starts a turn. Returns it when it waits and its job has asked a question."""
    asked = await harness.ask(tools=tools_of(harbour))
    replica.worker.wake()
    await questioned(harness, asked)
    while (await harness.turn(asked)).status != "waiting":  # noqa: ASYNC110, rows have no event
        await asyncio.sleep(0.01)
    await replica.idle(asked)
    return asked, await harness.turn(asked)


async def give(harness: Harness, asked: Asked, ask: Ask, answer: AskAnswer = ACCEPT) -> None:
    decision = Decision(ask.tool_use_id, None, answer, "actions.0", elicited=True)
    await Actions(harness.database).answer(OWNER, asked.chat, asked.turn, [decision], None)


async def test_answers_wake_a_job_that_has_detached_with_its_questions(
    harness: Harness, harbour: Harbour, rows: "asyncpg.Connection[Any]"
) -> None:
    harness = replace(harness, webhooks=["waiting"])
    async with harness.replica(calling("moor"), tools_of(harbour), listens=True, most_jobs=1) as replica:
        asked, turn = await begun(harness, replica, harbour)
        (first,) = turn.asks
        (action,) = open_actions_of(turn)
        assert (action.tool_use_id, action.name, action.kind) == ("a", "moor", "elicitation")
        assert json.loads(action.input) == {"message": "Who is on board?", "schema": json.loads(FORM)}
        assert turn.jobs[0].state == "detached"
        assert turn.waits_for_person
        assert [call.tool_use_id for call in await WaitingCalls(harness.database).page(OWNER, 10, None)] == ["a"]
        state = await TurnStates(harness.database).of(asked.turn)
        assert "for an answer to a question of moor" in " ".join(reasons(state))
        (webhook,) = await rows.fetch("SELECT calls FROM waiting_webhooks")
        assert json.loads(webhook["calls"])[0]["type"] == "elicitation"
        attempt = turn.attempt
        await give(harness, asked, first)
        (_, second) = (await questioned(harness, asked, [first])).asks
        await give(harness, asked, second, AskAnswer("result", '{"action":"decline","content":null}'))
        turn = await harness.finish(replica, asked)
        assert await WaitingCalls(harness.database).count(OWNER) == 0
    assert results_of(turn)["a"].text == f"moored; {ACCEPTED}; PersonAnswer(action='decline', content=None)"
    assert turn.attempt == attempt + 1, "the turn was claimed for the result alone"
    assert await rows.fetchval("SELECT count(*) FROM waiting_webhooks") == 2


async def test_a_question_in_the_middle_of_a_job_is_answered_there(harness: Harness, harbour: Harbour) -> None:
    async with harness.replica(calling("register"), tools_of(harbour), listens=True) as replica:
        asked, turn = await begun(harness, replica, harbour)
        assert turn.jobs[0].state == "running"
        await give(harness, asked, turn.asks[0])
        turn = await harness.finish(replica, asked)
    assert (results_of(turn)["a"].text, harbour.done) == (ACCEPTED, ["begun"])


@pytest.mark.parametrize("name", ["moor", "register"])
async def test_a_question_that_nobody_answers_in_time_has_no_answer(
    harness: Harness, harbour: Harbour, name: str
) -> None:
    harbour.seconds = 0.05
    async with harness.replica(calling(name), tools_of(harbour), listens=True) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=tools_of(harbour)))
    assert results_of(turn)["a"].text == {"moor": "moored; None; None", "register": "None"}[name]


@pytest.mark.parametrize("name", ["moor", "register"])
async def test_a_message_in_place_of_an_answer_cancels_the_question(
    harness: Harness, harbour: Harbour, name: str
) -> None:
    async with harness.replica(calling(name), tools_of(harbour), listens=True) as replica:
        asked, turn = await begun(harness, replica, harbour)
        (ask,) = turn.asks
        async with Exchanges(harness.database).after(Target(OWNER, asked.chat, "newest", "steer"), None) as draft:
            await draft.steer([Block(0, 0, 0, "text", "Never mind.")])
        await replica.worker.refresh(asked.turn)
        if name == "moor":
            (_, second) = (await questioned(harness, asked, [ask])).asks
            await give(harness, asked, second)
        turn = await harness.finish(replica, asked)
    cancelled = "PersonAnswer(action='cancel', content=None)"
    assert results_of(turn)["a"].text == (f"moored; {cancelled}; {ACCEPTED}" if name == "moor" else cancelled)
    assert [block.text for block in turn.blocks if block.type == USER_TEXT] == ["Never mind."]


async def test_an_answer_while_no_replica_runs_is_there_for_the_next_one(harness: Harness, harbour: Harbour) -> None:
    async with harness.replica(calling("moor"), tools_of(harbour), listens=True) as first:
        asked, turn = await begun(harness, first, harbour)
        await first.kill()
    await give(harness, asked, turn.asks[0])
    answers = ScriptedProvider([message_of(text("There."))])
    async with harness.replica(answers, tools_of(harbour), listens=True) as second:
        await second.queue.take_over([first.queue.replica])
        second.jobs.receive("jobs")
        (_, ask) = (await questioned(harness, asked, turn.asks)).asks
        await give(harness, asked, ask)
        await harness.finish(second, asked)
    assert harbour.done == ["moored", ACCEPTED, ACCEPTED]


async def test_a_question_of_a_run_that_is_gone_takes_no_answer(harness: Harness, harbour: Harbour) -> None:
    async with harness.replica(calling("register"), tools_of(harbour), listens=True) as first:
        asked, turn = await begun(harness, first, harbour)
        await first.kill()
    answers = ScriptedProvider([message_of(text("There."))])
    async with harness.replica(answers, tools_of(harbour), listens=True) as second:
        await second.queue.take_over([first.queue.replica])
        second.jobs.receive("jobs")
        ended = await harness.finish(second, asked)
        assert results_of(ended)["a"].text == OUTCOME_UNKNOWN
        with pytest.raises(Conflict, match="has ended"):
            await give(harness, asked, turn.asks[0])
    assert open_actions_of(ended) == ()
    assert not any(map(ended.waits_for, ended.asks))
    assert seconds_used(ended, CLOCK.now()) > 0


async def test_a_job_that_is_stopped_asks_no_more(harness: Harness, harbour: Harbour) -> None:
    async with harness.replica(calling("moor"), tools_of(harbour), listens=True, most_jobs=1) as replica:
        asked, turn = await begun(harness, replica, harbour)
        ends = {"unrun": {"outcome": {"text": "stopped"}}, "stopped": {"outcome": {"text": "stopped"}}}
        assert await JobStops(harness.database).stop(OWNER, asked.turn, "a", **ends)
        assert await WaitingCalls(harness.database).count(OWNER) == 0
        with pytest.raises(Conflict, match="Call a does not wait for this answer any more"):
            await give(harness, asked, turn.asks[0])
        replica.worker.wake()
        turn = await harness.finish(replica, asked)
    assert results_of(turn)["a"].text == "stopped"
    assert harbour.done == ["moored"]


async def test_the_time_of_a_job_does_not_run_while_a_person_is_asked(harness: Harness, harbour: Harbour) -> None:
    harbour.seconds = 100_000
    async with harness.replica(calling("moor"), tools_of(harbour), listens=True) as replica:
        asked, turn = await begun(harness, replica, harbour)
        await give(harness, asked, turn.asks[0])
        (_, second) = (await questioned(harness, asked, turn.asks)).asks
        await give(harness, asked, second)
        await harness.finish(replica, asked)
    first, *later = [(deadline - harbour.deadlines[0]).total_seconds() for deadline in harbour.deadlines]
    assert all(0 <= extended < 1000 for extended in later), "each deadline is later by the time that the answer took"
    assert later == sorted(later)
    assert first == 0


async def test_a_call_that_reports_asks_nobody(harness: Harness, harbour: Harbour) -> None:
    async with harness.replica(calling("signal"), tools_of(harbour), listens=True) as replica:
        asked = await harness.ask(tools=tools_of(harbour))
        replica.worker.wake()
        while (turn := await harness.turn(asked)).jobs == () or not turn.jobs[0].settled:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert turn.asks == ()
