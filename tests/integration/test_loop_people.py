"""Turns that wait for people, and messages to running turns: nothing is lost, and nothing happens twice."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.harness import OWNER, Asked, Harness, Replica, assert_is_whole, results_of
from tests.support.stream_client import Client
from turnstream.domain.asks import Ask, AskAnswer, AskKind
from turnstream.domain.blocks import Block
from turnstream.domain.degraded import degraded
from turnstream.domain.errors import Conflict
from turnstream.domain.kinds import TEXT, USER_TEXT
from turnstream.domain.log import open_actions_of
from turnstream.domain.turns import Limits, ToolSpec, Turn
from turnstream.engine.hooks import AfterRound, Hooks
from turnstream.engine.tool_gate import OUTCOME_UNKNOWN
from turnstream.engine.upkeep.recovery import ReplicaMonitor
from turnstream.kit.signals import Signals
from turnstream.llm.conversation.messages import GIVEN_UP
from turnstream.llm.provider import ModelRequest
from turnstream.scripted import Pause, Reply, ScriptedProvider, message_of, text, tool_use
from turnstream.storage.chats.actions import Actions, Decision
from turnstream.storage.chats.exchanges import Exchanges, Target
from turnstream.storage.runs.record import Records
from turnstream.tools.tool import PersonQuestion, ToolContext, ToolError, tool, tools_of

HERE = "this machine:8000"
FIND = ToolSpec("find", "Finds what the user sees.", '{"type":"object"}', client=True)


@dataclass
class Office:
    """Tools that people approve. `done` has their effects. `dig` continues until it is cancelled."""

    done: list[str] = field(default_factory=list)
    digging: Pause = field(default_factory=Pause)

    @tool()
    async def dig(self) -> str:
        """Dig."""
        self.digging.reached.set()
        await self.digging.go.wait()
        self.done.append("dug")
        return "a hole"

    @tool(approval="always")
    async def pay(self, euros: int) -> str:
        """Pay."""
        self.done.append(f"paid {euros}")
        return f"paid {euros}"

    @tool(approval="always")
    async def launch(self) -> str:
        """Launch slowly."""
        self.done.append("launched")
        await asyncio.Event().wait()
        return "never"

    @tool(read_only=True, memo=True, approval="always")
    async def look(self, what: str) -> str:
        """Look with leave."""
        self.done.append(f"looked at {what}")
        return f"seen {what}"

    @tool(approval="always", approval_expiry=0.001)
    async def wire(self) -> str:
        """Wire, with leave that is given soon."""
        self.done.append("wired")
        return "wired"

    @tool(approval="always", calls_per_turn=1)
    async def once(self) -> str:
        """May be done once."""
        self.done.append("once")
        return "done"


@pytest.fixture
def office() -> Office:
    return Office()


def calls(*named: tuple[str, str] | tuple[str, str, dict[str, Any]]) -> Reply:
    """Returns a message that calls tools by name and id."""
    return message_of(*(tool_use(name, dict(*given), id) for name, id, *given in named))


def answer(content: str = "There.") -> Reply:
    return message_of(text(content))


def words_to(request: ModelRequest) -> list[str]:
    return [block.text for block in request.messages[-1].blocks]


# --- what people do, as the API has it done --------------------------------------------------------------------------


def ask_of(turn: Turn, call: str) -> Ask:
    return next(ask for ask in reversed(turn.asks) if ask.tool_use_id == call)


async def decide(harness: Harness, asked: Asked, **answers: AskAnswer) -> None:
    """Answers calls by their ids. No worker is notified."""
    turn = await harness.turn(asked)
    decisions = [Decision(call, ask_of(turn, call).digest, answer, "actions") for call, answer in answers.items()]
    await Actions(harness.database).answer(OWNER, asked.chat, asked.turn, decisions, None)


async def steer(harness: Harness, asked: Asked, words: str) -> bool:
    """Stores a steer without a notification. Returns False if the turn accepts no more steers."""
    async with Exchanges(harness.database).after(Target(OWNER, asked.chat, on_busy="steer"), None) as draft:
        if draft.steered is not None:
            assert draft.steered.id == asked.turn
            await draft.steer([Block(0, 0, 0, TEXT, words)])
        return draft.steered is not None


async def waits(harness: Harness, replica: Replica, asked: Asked) -> Turn:
    """Returns the turn once it waits and no replica runs it."""
    replica.worker.wake()
    while not replica.directory.running(asked.turn):  # noqa: ASYNC110, a directory has no event for it
        await asyncio.sleep(0.001)
    await replica.idle(asked)
    turn = await harness.turn(asked)
    assert turn.status == "waiting"
    return turn


async def ends(harness: Harness, replica: Replica, asked: Asked) -> Turn:
    """Returns the turn when it has ended, without the help of a notification."""
    client = await harness.follow(replica, asked)
    await replica.idle(asked)
    turn = await harness.turn(asked)
    client.assert_holds(turn)
    assert_is_whole(turn)
    return turn


def approval_of(turn: Turn, call: str) -> Any:
    return json.loads(results_of(turn)[call].notes or "{}").get("approval")


# --- what is asked for -----------------------------------------------------------------------------------------------


async def test_calls_that_need_no_person_run_at_once_and_the_turn_waits_for_the_rest_without_a_task(
    harness: Harness, office: Office
) -> None:
    office.digging.go.set()
    provider = ScriptedProvider([calls(("find", "a"), ("dig", "b"), ("pay", "c", {"euros": 5})), answer()])
    async with harness.replica(provider, tools_of(office)) as replica:
        asked = await harness.ask(tools=[*tools_of(office), FIND])
        waiting = await waits(harness, replica, asked)
        kinds: dict[str, AskKind] = {ask.tool_use_id: ask.kind for ask in waiting.asks}
        assert (kinds, office.done) == ({"a": "client", "c": "approval"}, ["dug"])
        assert results_of(waiting).keys() == {"b"}
        assert replica.worker._runs == {}
        await decide(harness, asked, a=AskAnswer("result", "3 cats"))
        await replica.worker.refresh(asked.turn)
        await waits(harness, replica, asked)
        await decide(harness, asked, c=AskAnswer("approve"))
        await replica.worker.refresh(asked.turn)
        turn = await ends(harness, replica, asked)
    assert office.done == ["dug", "paid 5"]
    assert [block.tool_use_id for block in provider.requests[-1].messages[-1].blocks] == ["a", "b", "c"]
    assert (turn.status, turn.attempt, len(provider.requests)) == ("complete", 3, 2)
    assert degraded(turn) == ()


async def test_a_waiting_turn_continues_elsewhere_after_the_death_of_its_replica(
    harness: Harness, office: Office
) -> None:
    asked = await harness.ask(tools=tools_of(office))
    reply = calls(("pay", "a", {"euros": 5}))
    async with harness.replica(ScriptedProvider([reply]), tools_of(office), address=HERE) as replica:
        client = Client()
        watching = asyncio.create_task(harness.follow(replica, asked, client))
        await waits(harness, replica, asked)
        while not client.asked:  # noqa: ASYNC110, a client has no event for it
            await asyncio.sleep(0.001)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await replica.kill()
    await decide(harness, asked, a=AskAnswer("approve"))
    async with harness.replica(ScriptedProvider([answer()]), tools_of(office), address=HERE) as replica:
        watching = asyncio.create_task(harness.follow(replica, asked, client))
        turn = await harness.finish(replica, asked)
        (await watching).assert_holds(turn)
    assert (office.done, turn.recoveries, client.resets) == (["paid 5"], 0, [])


async def test_readers_at_both_replicas_see_the_same_of_a_turn_that_waits_and_changes_hands(
    harness: Harness, office: Office
) -> None:
    provider = ScriptedProvider([calls(("find", "a"), ("pay", "b", {"euros": 5})), answer()])
    async with (
        harness.replica(provider, tools_of(office)) as here,
        harness.replica(provider, tools_of(office)) as there,
    ):
        asked = await harness.ask(tools=[*tools_of(office), FIND])
        watching = [asyncio.create_task(harness.follow(replica, asked)) for replica in (here, there)]
        await waits(harness, here, asked)
        await decide(harness, asked, a=AskAnswer("result", "3 cats"), b=AskAnswer("deny", "too dear"))
        await there.worker.refresh(asked.turn)
        turn = await ends(harness, there, asked)
        for reader in watching:
            client = await reader
            client.assert_holds(turn)
            assert [len(required.actions) for required in client.asked] == [2]
            assert client.resets == []
    assert (turn.attempt, office.done) == (2, [])


async def test_an_approved_call_that_was_running_at_a_crash_is_not_run_again(harness: Harness, office: Office) -> None:
    asked = await harness.ask(tools=tools_of(office))
    async with harness.replica(ScriptedProvider([calls(("launch", "a"))]), tools_of(office), address=HERE) as replica:
        await waits(harness, replica, asked)
        await decide(harness, asked, a=AskAnswer("approve"))
        await replica.worker.refresh(asked.turn)
        while not office.done:  # noqa: ASYNC110, a list has no event for it
            await asyncio.sleep(0.001)
        await replica.kill()
    async with harness.replica(ScriptedProvider([answer()]), tools_of(office), address=HERE) as replica:
        turn = await harness.finish(replica, asked)
    assert (office.done, results_of(turn)["a"].text) == (["launched"], OUTCOME_UNKNOWN)


@tool()
async def register(context: ToolContext, ship: str) -> str:
    """Register a ship, after a question to its owner."""
    assert context.ask is not None
    answer = await context.ask(PersonQuestion(f"Who sails the {ship}?", 60, '{"type":"object"}'))
    return f"{answer}"


async def until_questioned(harness: Harness, asked: Asked) -> Turn:
    while not open_actions_of(turn := await harness.turn(asked)):  # noqa: ASYNC110, a row has no event for it
        await asyncio.sleep(0.001)
    return turn


async def test_a_question_of_a_tool_dies_with_its_replica_and_takes_no_answer_any_more(harness: Harness) -> None:
    asked = await harness.ask(tools=[register])
    reply = calls(("register", "a", {"ship": "Swan"}))
    async with harness.replica(ScriptedProvider([reply]), [register], address=HERE) as replica:
        replica.worker.wake()
        (question,) = (await until_questioned(harness, asked)).asks
        await replica.kill()
    pause = Pause()
    async with harness.replica(ScriptedProvider([[pause, *answer()]]), [register], address=HERE) as replica:
        replica.worker.wake()
        await pause.reached.wait()
        assert open_actions_of(await harness.turn(asked)) == ()
        late = Decision(question.tool_use_id, None, AskAnswer("result", "{}"), "actions.0", elicited=True)
        with pytest.raises(Conflict, match="Call a does not wait for this answer any more"):
            await Actions(harness.database).answer(OWNER, asked.chat, asked.turn, [late], None)
        pause.go.set()
        turn = await harness.finish(replica, asked)
    assert results_of(turn)["a"].text == OUTCOME_UNKNOWN


async def test_an_answer_to_a_question_reaches_the_replica_that_runs_the_call(harness: Harness) -> None:
    asked = await harness.ask(tools=[register])
    provider = ScriptedProvider([calls(("register", "a", {"ship": "Swan"})), answer()])
    async with harness.replica(provider, [register]) as replica:
        replica.worker.wake()
        (question,) = (await until_questioned(harness, asked)).asks
        said = AskAnswer("result", '{"action":"accept","content":{"captain":"Ada"}}')
        decision = Decision(question.tool_use_id, None, said, "actions.0", elicited=True)
        await Actions(harness.database).answer(OWNER, asked.chat, asked.turn, [decision], None)
        await replica.worker.refresh(asked.turn)
        turn = await harness.finish(replica, asked)
    assert results_of(turn)["a"].text == "PersonAnswer(action='accept', content={'captain': 'Ada'})"
    assert (turn.status, turn.attempt) == ("complete", 1)


async def test_a_call_over_its_limit_is_refused_and_makes_no_ask(harness: Harness, office: Office) -> None:
    provider = ScriptedProvider([calls(("once", "a"), ("once", "b")), answer()])
    async with harness.replica(provider, tools_of(office)) as replica:
        asked = await harness.ask(tools=tools_of(office))
        waiting = await waits(harness, replica, asked)
        assert [ask.tool_use_id for ask in waiting.asks] == ["a"]
        await decide(harness, asked, a=AskAnswer("approve"))
        await replica.worker.refresh(asked.turn)
        turn = await ends(harness, replica, asked)
    assert office.done == ["once"]
    assert "has reached its limit of 1 calls" in results_of(turn)["b"].text


async def test_an_id_that_is_used_again_is_asked_about_again(harness: Harness, office: Office) -> None:
    provider = ScriptedProvider([calls(("pay", "a", {"euros": 1})), calls(("pay", "a", {"euros": 2})), answer()])
    async with harness.replica(provider, tools_of(office)) as replica:
        asked = await harness.ask(tools=tools_of(office))
        first = await waits(harness, replica, asked)
        await decide(harness, asked, a=AskAnswer("approve"))
        await replica.worker.refresh(asked.turn)
        await waits(harness, replica, asked)
        old = Decision("a", first.asks[0].digest, AskAnswer("approve"), "actions")
        with pytest.raises(Conflict, match="does not match the input"):
            await Actions(harness.database).answer(OWNER, asked.chat, asked.turn, [old], None)
        await decide(harness, asked, a=AskAnswer("deny"))
        await replica.worker.refresh(asked.turn)
        turn = await ends(harness, replica, asked)
    assert [ask.answer and ask.answer.kind for ask in turn.asks] == ["approve", "deny"]
    assert office.done == ["paid 1"]


# --- memory and people -----------------------------------------------------------------------------------------------


async def test_a_result_of_another_input_than_the_models_is_not_remembered_for_it(
    harness: Harness, office: Office
) -> None:
    seas = {"what": "sea"}
    provider = ScriptedProvider(
        [calls(("look", "a", seas)), calls(("look", "b", seas)), calls(("look", "c", seas)), answer()]
    )
    async with harness.replica(provider, tools_of(office)) as replica:
        asked = await harness.ask(tools=tools_of(office))
        for call, edited in (("a", '{"what":"sky"}'), ("b", None), ("c", '{"what":"sun"}')):
            await waits(harness, replica, asked)
            await decide(harness, asked, **{call: AskAnswer("approve", input=edited)})
            await replica.worker.refresh(asked.turn)
        turn = await ends(harness, replica, asked)
    assert office.done == ["looked at sky", "looked at sea", "looked at sun"]
    assert results_of(turn)["b"].text == "seen sea"
    assert approval_of(turn, "c") == {"decision": "approve", "input": '{"what":"sun"}'}


async def test_identical_calls_that_were_edited_are_run_each_with_its_own_input(
    harness: Harness, office: Office
) -> None:
    sea = {"what": "sea"}
    provider = ScriptedProvider([calls(("look", "a", sea), ("look", "b", sea), ("look", "c", sea)), answer()])
    async with harness.replica(provider, tools_of(office)) as replica:
        asked = await harness.ask(tools=tools_of(office))
        await waits(harness, replica, asked)
        sky, sun = AskAnswer("approve", input='{"what":"sky"}'), AskAnswer("approve", input='{"what":"sun"}')
        await decide(harness, asked, a=sky, b=sun, c=AskAnswer("approve"))
        await replica.worker.refresh(asked.turn)
        turn = await ends(harness, replica, asked)
    assert sorted(office.done) == ["looked at sea", "looked at sky", "looked at sun"]
    assert results_of(turn)["c"].text == "seen sea"


# --- answers that race -----------------------------------------------------------------------------------------------


def _slowly(patch: pytest.MonkeyPatch, name: str, pause: Pause) -> None:
    """Delays the first write of this name until the test releases it."""
    write = getattr(Records, name)

    async def stop_first(records: Records, *args: Any) -> Any:
        if not pause.reached.is_set():
            pause.reached.set()
            await pause.go.wait()
        return await write(records, *args)

    patch.setattr(Records, name, stop_first)


LOCK = "SELECT FROM turns WHERE id = $1 FOR UPDATE"


@asynccontextmanager
async def in_this_order(
    harness: Harness, asked: Asked, *deeds: Callable[[], Awaitable[Any]]
) -> AsyncIterator[Sequence["asyncio.Future[Any]"]]:
    """Makes all writes wait for the turn's row, which they then lock one after another."""
    async with harness.locker() as locker:
        async with locker.holding(LOCK, asked.turn):
            futures = []
            for count, deed in enumerate(deeds, 1):
                futures.append(asyncio.ensure_future(deed()))
                await locker.waiting(count)
        yield futures


async def test_of_two_answers_at_once_one_is_taken(harness: Harness, office: Office) -> None:
    provider = ScriptedProvider([calls(("find", "a")), answer()])
    async with harness.replica(provider) as replica:
        asked = await harness.ask(tools=[FIND])
        await waits(harness, replica, asked)
        first = lambda: decide(harness, asked, a=AskAnswer("result", "first"))  # noqa: E731
        second = lambda: decide(harness, asked, a=AskAnswer("result", "second"))  # noqa: E731
        async with in_this_order(harness, asked, first, second) as (one, other):
            await one
            with pytest.raises(Conflict, match="already has an answer"):
                await other
        await replica.worker.refresh(asked.turn)
        turn = await ends(harness, replica, asked)
    assert (results_of(turn)["a"].text, turn.arrivals) == ("first", 1)


@pytest.mark.parametrize("notified", [True, False])
async def test_an_answer_to_a_turn_that_is_busy_with_other_calls_is_taken_up_after_them(
    harness: Harness, office: Office, notified: bool
) -> None:
    """A steer arrives with a notification to the same run, or without a notification when the turn is about to wait."""
    provider = ScriptedProvider([calls(("find", "a"), ("dig", "b")), answer()])
    async with harness.replica(provider, tools_of(office)) as replica:
        asked = await harness.ask(tools=[*tools_of(office), FIND])
        replica.worker.wake()
        await office.digging.reached.wait()
        await decide(harness, asked, a=AskAnswer("result", "3 cats"))
        assert (await harness.turn(asked)).status == "running"
        if notified:
            await replica.worker.refresh(asked.turn)
        office.digging.go.set()
        turn = await ends(harness, replica, asked)
    assert {id: result.text for id, result in results_of(turn).items()} == {"a": "3 cats", "b": "a hole"}
    assert turn.attempt == (1 if notified else 2)


@pytest.mark.parametrize("order", ["the answer first", "the wait first"])
async def test_an_answer_at_the_moment_when_the_turn_begins_to_wait_is_not_lost(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    pause = Pause()
    _slowly(monkeypatch, "wait", pause)
    provider = ScriptedProvider([calls(("find", "a")), answer()])

    async def wait() -> None:
        pause.go.set()

    async with harness.replica(provider) as replica:
        asked = await harness.ask(tools=[FIND])
        replica.worker.wake()
        await pause.reached.wait()
        given = lambda: decide(harness, asked, a=AskAnswer("result", "3 cats"))  # noqa: E731
        deeds = [given, wait] if order == "the answer first" else [wait, given]
        async with in_this_order(harness, asked, *deeds) as done:
            await asyncio.gather(*done)
        if order == "the wait first":
            await replica.worker.refresh(asked.turn)
        turn = await ends(harness, replica, asked)
    assert (results_of(turn)["a"].text, turn.attempt) == ("3 cats", 2)


# --- words that race -------------------------------------------------------------------------------------------------


class WatchesRounds(Hooks):
    """A hook that separates the seal of a round from the end of the turn, so that these are two writes."""

    async def after_round(self, event: AfterRound) -> None:
        pass


@pytest.mark.parametrize(("write", "hooks"), [("seal_and_end", []), ("end", [WatchesRounds()])])
@pytest.mark.parametrize("order", ["the words first", "the end first"])
async def test_words_at_the_moment_when_the_turn_ends_are_taken_in_or_refused_and_never_lost(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, order: str, write: str, hooks: Sequence[Hooks]
) -> None:
    pause = Pause()
    _slowly(monkeypatch, write, pause)
    provider = ScriptedProvider([answer("All done."), answer("You are welcome.")])

    async def end() -> None:
        pause.go.set()

    async with harness.replica(provider, hooks=hooks) as replica:
        asked = await harness.ask()
        replica.worker.wake()
        await pause.reached.wait()
        say = lambda: steer(harness, asked, "Thanks")  # noqa: E731
        deeds: list[Callable[[], Awaitable[Any]]] = [say, end] if order == "the words first" else [end, say]
        async with in_this_order(harness, asked, *deeds) as done:
            taken = any(await asyncio.gather(*done))
        turn = await ends(harness, replica, asked)
    assert taken == (order == "the words first")
    assert [block.text for block in turn.blocks] == (
        ["All done.", "Thanks", "You are welcome."] if taken else ["All done."]
    )
    assert (turn.status, turn.attempt, turn.steers) == ("complete", 2 if taken else 1, ())


async def test_steers_that_were_announced_are_applied_without_another_claim(harness: Harness, office: Office) -> None:
    provider = ScriptedProvider([calls(("dig", "a")), answer()])
    async with harness.replica(provider, tools_of(office)) as replica:
        asked = await harness.ask(tools=tools_of(office))
        replica.worker.wake()
        await office.digging.reached.wait()
        for words in ("Faster", "And deeper"):
            await steer(harness, asked, words)
        await replica.worker.refresh(asked.turn)
        office.digging.go.set()
        turn = await ends(harness, replica, asked)
    assert words_to(provider.requests[-1]) == ["a hole", "Faster", "And deeper"]
    assert [(block.text, block.round) for block in turn.blocks if block.type == USER_TEXT] == [
        ("Faster", 1),
        ("And deeper", 1),
    ]
    assert turn.attempt == 1


async def test_a_message_to_a_waiting_turn_replaces_all_answers(harness: Harness, office: Office) -> None:
    provider = ScriptedProvider([calls(("find", "a"), ("pay", "b", {"euros": 5})), answer()])
    async with harness.replica(provider, tools_of(office)) as replica:
        asked = await harness.ask(tools=[*tools_of(office), FIND])
        await waits(harness, replica, asked)
        await steer(harness, asked, "Never mind")
        await replica.worker.refresh(asked.turn)
        turn = await ends(harness, replica, asked)
    superseded = "This call was not run: the user said something else instead of answering."
    assert words_to(provider.requests[-1]) == [superseded, superseded, "Never mind"]
    assert (office.done, approval_of(turn, "b")) == ([], {"decision": "superseded"})


@pytest.mark.parametrize("notified", [True, False])
async def test_a_message_before_an_ask_also_replaces_the_answer(
    harness: Harness, office: Office, notified: bool
) -> None:
    pause = Pause()
    reply = [pause, *calls(("find", "a"), ("dig", "b"), ("pay", "c", {"euros": 5}))]
    provider = ScriptedProvider([reply, answer()])
    office.digging.go.set()
    async with harness.replica(provider, tools_of(office)) as replica:
        asked = await harness.ask(tools=[*tools_of(office), FIND])
        replica.worker.wake()
        await pause.reached.wait()
        await steer(harness, asked, "But pay nobody")
        if notified:
            await replica.worker.refresh(asked.turn)
        pause.go.set()
        turn = await ends(harness, replica, asked)
    superseded = "This call was not run: the user said something else instead of answering."
    assert words_to(provider.requests[-1]) == [superseded, "a hole", superseded, "But pay nobody"]
    assert {ask.answer for ask in turn.asks} == {AskAnswer("superseded")}
    assert office.done == ["dug"]


async def test_words_to_a_turn_that_is_being_cancelled_stay_in_it(harness: Harness, office: Office) -> None:
    provider = ScriptedProvider([calls(("dig", "a"))])
    async with harness.replica(provider, tools_of(office)) as replica:
        asked = await harness.ask(tools=tools_of(office))
        replica.worker.wake()
        await office.digging.reached.wait()
        await steer(harness, asked, "Stop, stop")
        await replica.cancel(asked)
        turn = await ends(harness, replica, asked)
    assert (turn.status, turn.steers) == ("cancelled", ())
    assert [block.text for block in turn.blocks if block.type == USER_TEXT] == ["Stop, stop"]


async def test_a_message_resets_the_count_of_failures(harness: Harness) -> None:
    digging = Pause()

    @tool()
    async def fail() -> str:
        """Fail."""
        digging.reached.set()
        await digging.go.wait()
        raise ToolError("no")

    def stubborn(request: ModelRequest) -> Reply:
        return calls(("fail", f"call {len(request.messages)}")) if request.may_use_tools else answer("I could not.")

    provider, tools = ScriptedProvider(stubborn), [fail]
    async with harness.replica(provider, tools) as replica:
        asked = await harness.ask(tools=tools, limits=Limits(max_rounds=9, max_failed_rounds=1))
        replica.worker.wake()
        await digging.reached.wait()
        await steer(harness, asked, "Try again")
        await replica.worker.refresh(asked.turn)
        digging.go.set()
        await ends(harness, replica, asked)
    assert [request.may_use_tools for request in provider.requests] == [True, True, False]
    assert [words_to(request) for request in provider.requests[1:]] == [["no", "Try again"], ["no", GIVEN_UP]]


# --- without an answer -----------------------------------------------------------------------------------------------

EXPIRE = "UPDATE asks SET expires_at = now() WHERE turn_id = $1"


async def _expire(harness: Harness, asked: Asked) -> None:
    async with harness.locker() as locker:
        await locker.connection.execute(EXPIRE, asked.turn)


async def test_an_expired_ask_ends_the_wait_of_its_turn(harness: Harness, office: Office) -> None:
    provider = ScriptedProvider([calls(("find", "a"), ("pay", "b", {"euros": 5})), answer()])
    async with harness.replica(provider, tools_of(office)) as replica:
        asked = await harness.ask(tools=[*tools_of(office), FIND])
        await waits(harness, replica, asked)
        actions = Actions(harness.database)
        assert await actions.expire() == [], "it has all the time"
        await _expire(harness, asked)
        signals = Signals()
        replica.worker.follow(signals)
        await ReplicaMonitor(replica.queue, actions, 60, signals).look()
        turn = await ends(harness, replica, asked)
        assert await actions.expire() == []
    assert {result.text for result in results_of(turn).values()} == {"This call was not run: nobody answered in time."}
    assert [ask.answer for ask in turn.asks] == [AskAnswer("expired"), AskAnswer("expired")]
    assert (office.done, approval_of(turn, "b")) == ([], {"decision": "expired"})


async def test_a_turn_with_running_calls_continues_after_them_when_an_ask_expires(
    harness: Harness, office: Office
) -> None:
    provider = ScriptedProvider([calls(("wire", "a"), ("dig", "b")), answer()])
    async with harness.replica(provider, tools_of(office)) as replica:
        asked = await harness.ask(tools=tools_of(office))
        replica.worker.wake()
        await office.digging.reached.wait()
        while not (expired := await Actions(harness.database).expire()):
            pass
        assert expired == [asked.turn]
        assert (await harness.turn(asked)).status == "running"
        with pytest.raises(Conflict, match="the answer came too late") as late:
            await decide(harness, asked, a=AskAnswer("approve"))
        assert str(late.value.code) == "call_over"
        office.digging.go.set()
        turn = await ends(harness, replica, asked)
    assert results_of(turn)["a"].text == "This call was not run: nobody answered in time."
    assert (turn.status, office.done) == ("complete", ["dug"])


async def test_an_answer_in_time_is_taken_though_the_ask_expires_at_the_same_moment(
    harness: Harness, office: Office
) -> None:
    """Neither the answer nor the expiry may wait for the other, because they would wait for ever. The answer reaches
    the turn first.
    """
    provider = ScriptedProvider([calls(("find", "a")), answer()])
    actions = Actions(harness.database)
    async with harness.replica(provider) as replica, harness.locker() as other:
        asked = await harness.ask(tools=[FIND])
        await waits(harness, replica, asked)

        async with harness.locker() as locker:
            async with locker.holding(LOCK, asked.turn):
                answering = asyncio.ensure_future(decide(harness, asked, a=AskAnswer("result", "3 cats")))
                await locker.waiting()
                await other.connection.execute(EXPIRE, asked.turn)
                async with asyncio.timeout(60):
                    assert await actions.expire() == [], "it was right when the answer began"
            await answering
        assert (await harness.turn(asked)).asks[0].answer == AskAnswer("result", "3 cats")
        await replica.worker.refresh(asked.turn)
        turn = await ends(harness, replica, asked)
    assert results_of(turn)["a"].text == "3 cats"
