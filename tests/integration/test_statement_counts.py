"""The number of statements of a turn: each statement is a round trip, and each write is a commit. The module also
follows a turn from its message to its first model call, for each kind of start.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence, Set
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce
from operator import and_
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.support.harness import OWNER, Asked, Harness, texts_of
from tests.support.http_server import serving
from turnstream.api.caller import CALLER
from turnstream.api.exchange import post_in_new_chat, post_message
from turnstream.api.schemas.requests import NewTurn
from turnstream.api.services import Services
from turnstream.config import Settings
from turnstream.domain import membership
from turnstream.domain.blocks import Block
from turnstream.domain.chats import Chat
from turnstream.domain.errors import Conflict, NotFound, RequestRefused, StatementRefused, StorageUnavailable
from turnstream.domain.identity import Identity
from turnstream.domain.kinds import TEXT
from turnstream.domain.turns import Limits, Turn, TurnRequest
from turnstream.extensions.admin.statement_list import statements
from turnstream.kit.ids import new_id
from turnstream.libraries.dialects.branch_rows import Branches
from turnstream.llm.models.catalog import Models, ProviderModels
from turnstream.main import running
from turnstream.scripted import Pause, ScriptedProvider, message_of, text, thinking, tool_use
from turnstream.setup.parts import Given
from turnstream.storage.chats import chats, exchanges, turns
from turnstream.storage.chats.exchanges import Exchange, Exchanges, IdempotencyKey, NewExchange, Position, Target
from turnstream.storage.database import Database, Row, Statement, Transaction
from turnstream.storage.owners import accounts
from turnstream.storage.rows import to_json
from turnstream.storage.runs import queue, record
from turnstream.tools.tool import tool
from turnstream.tools.toolset import Toolset

NAMES = {
    statement: name
    for module in (chats, exchanges, queue, record, turns)
    for name, statement in vars(module).items()
    if isinstance(statement, Statement)
}
OF_REPLICAS = {"NOTIFY", "BEGIN_ROUNDS", "RENEW_LEASE", "GET_PEERS", "LEAVE", "TAKE_OVER", "GET_CLAIMED"}
HELLO = NewTurn.model_validate({"blocks": [{"type": "text", "text": "Hello"}]})


@tool(read_only=True)
async def look(what: str = "it") -> str:
    """Look at something."""
    return f"seen {what}"


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the names of the statements about turns, in their order."""
    names: list[str] = []
    rows = Database.rows

    async def noted(database: Database, statement: Statement, **values: Any) -> Sequence[Row]:
        if NAMES.get(statement, "NOTIFY") not in OF_REPLICAS:
            names.append(NAMES[statement])
        return await rows(database, statement, **values)

    monkeypatch.setattr(Database, "rows", noted)
    return names


@asynccontextmanager
async def server(harness: Harness, *replies: Any, **settings: Any) -> AsyncIterator[Services]:
    """A server without its socket. Unless a test sets an interval, the server never polls."""
    given = {"database_url": harness.url, "model": "scripted", "port": 0, "poll_interval": 60, **settings}
    models = Models([ProviderModels(ScriptedProvider(replies), ["scripted"])])
    CALLER.set(Identity(OWNER))
    async with running(Settings(_env_file=None, **given), Given(models, Toolset(()))) as services:
        for _ in range(10):
            await asyncio.sleep(0)  # lets the worker begin
        yield services


def new_chat() -> Chat:
    now = datetime.now(UTC)
    return Chat(new_id(), OWNER, None, None, {}, created_at=now, updated_at=now)


def answer(words: str = "Ahoy!") -> Any:
    return message_of(text(words))


async def ended(harness: Harness, services: Services, exchange: Exchange) -> Turn:
    asked = Asked(exchange.assistant_turn.chat_id, exchange.assistant_turn.id)
    while not (turn := await harness.turn(asked)).ended:
        if view := services.live.directory.running(asked.turn):
            await view.wakeup.wait()
        else:
            await asyncio.sleep(0.01)
    while services.live.directory.running(asked.turn):  # noqa: ASYNC110, its path is kept after its end
        await asyncio.sleep(0)
    return turn


def writes(names: Sequence[str]) -> list[str]:
    return [name for name in names if not name.startswith("GET_")]


def without_claims(names: Sequence[str]) -> list[str]:
    """Leaves out claims that a replica makes by polling. They do not belong to a turn that starts on the replica of its
    message.
    """
    return [name for name in names if name not in {"CLAIM_TURNS", "CLAIM_TURNS_FAIRLY"}]


# --- runs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shares", [False, True])
async def test_a_budget_that_no_family_shares_costs_no_statement(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, shares: bool
) -> None:
    """For comparison, a turn with a shared budget reads the family's use before each step, and reserves each
    request.
    """
    seen: list[Statement] = []
    rows = Database.rows

    async def noted(database: Database, statement: Statement, **values: Any) -> Sequence[Row]:
        seen.append(statement)
        return await rows(database, statement, **values)

    monkeypatch.setattr(Database, "rows", noted)
    replies = [message_of(tool_use("look", {}, "a")), answer()]
    async with harness.replica(ScriptedProvider(replies), [look]) as replica:
        limits, root = Limits(budget_tokens=1_000), new_id() if shares else None
        turn = await harness.finish(replica, await harness.ask(tools=[look], limits=limits, root_turn=root))
    assert turn.status == "complete"
    (held,) = await harness.database.rows(Statement("SELECT count(*) AS left FROM reservations"))
    assert (accounts.GET_FAMILY_USE in seen, held["left"]) == (shares, 0)


async def test_a_plain_turn_is_written_twice_its_beginning_and_its_end(harness: Harness, done: list[str]) -> None:
    async with harness.replica(ScriptedProvider([answer()])) as replica:
        turn = await harness.finish(replica, await harness.ask())
    assert turn.status == "complete"
    assert writes(done)[-2:] == ["CLAIM_TURNS", "SEAL_AND_END"]


async def test_a_round_of_tools_and_an_answer(harness: Harness, done: list[str]) -> None:
    provider = ScriptedProvider([message_of(text("Hm."), tool_use("look", {}, "1")), answer()])
    async with harness.replica(provider, [look]) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[look]))
    assert turn.status == "complete"
    first = ["CLOSE_BLOCKS", "CLOSE_BLOCKS", "SEAL_ROUND", "SETTLE_CALLS"]
    assert writes(done)[-6:] == ["CLAIM_TURNS", *first, "SEAL_AND_END"]


async def test_blocks_that_one_read_has_closed_are_written_together_and_shown_in_their_order(
    harness: Harness, done: list[str]
) -> None:
    words = [f"{number} sheep" for number in range(1201)]
    blocks = [thinking(each) for each in words]
    whole = [part for batch in message_of(*blocks) for part in batch]
    async with harness.replica(ScriptedProvider([[whole]])) as replica:
        turn = await harness.finish(replica, await harness.ask())  # the reader in `finish` checks the order
    assert [block.text for block in turn.blocks] == words
    assert writes(done)[-5:] == ["CLAIM_TURNS", *["CLOSE_BLOCKS"] * 3, "SEAL_AND_END"]


async def test_results_that_are_there_together_are_written_together_and_none_waits_for_a_slow_one(
    harness: Harness, done: list[str]
) -> None:
    ready = asyncio.Event()

    @tool(read_only=True)
    async def dig() -> str:
        """Dig until the others have their results."""
        await ready.wait()
        return "gold"

    calls = [tool_use("look", {"what": what}, what) for what in "abc"]
    provider = ScriptedProvider([message_of(tool_use("dig", {}, "slow"), *calls), answer()])
    async with harness.replica(provider, [look, dig]) as replica:
        asked = await harness.ask(tools=[look, dig])
        running = asyncio.create_task(harness.finish(replica, asked))
        while len(results := (await harness.turn(asked)).blocks) < 7:  # noqa: ASYNC110, rows have no event
            await asyncio.sleep(0.01)
        assert {block.tool_use_id for block in results[4:]} == {*"abc"}
        ready.set()
        turn = await running
    assert turn.status == "complete"
    assert writes(done).count("SETTLE_CALLS") == 2


async def test_a_result_that_postgres_refuses_takes_no_other_with_it(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle_calls = record.Records.settle_calls

    async def refuse_b(records: record.Records, calls: Sequence[record.SettledCall]) -> None:
        if any(call.result.tool_use_id == "b" and "seen" in call.result.text for call in calls):
            raise StatementRefused("Postgres refuses a statement: not this one")
        await settle_calls(records, calls)

    monkeypatch.setattr(record.Records, "settle_calls", refuse_b)
    provider = ScriptedProvider([message_of(*(tool_use("look", {"what": what}, what) for what in "abc"))])
    async with harness.replica(provider, [look]) as replica:
        turn = await harness.finish(replica, await harness.ask(tools=[look]))
    assert (turn.status, turn.error and turn.error.type) == ("error", "internal_error")
    results = {block.tool_use_id: block.is_error for block in turn.blocks if block.type == "tool_result"}
    assert results == {"a": False, "b": True, "c": False}


async def test_the_turn_behind_one_that_has_ended_here_reads_nothing_that_is_known(
    harness: Harness, done: list[str]
) -> None:
    provider = ScriptedProvider([message_of(text("Hm."), tool_use("look", {}, "1")), *(answer() for _ in range(5))])
    async with harness.replica(provider, [look]) as replica:
        first = await harness.ask(tools=[look])
        await harness.finish(replica, first)
        second = await harness.ask(after=first)
        done.clear()
        await harness.finish(replica, second)
        assert "GET_PATH_TO" not in done
        warm = replica.worker._services.warm_paths.find(second.turn)
        assert warm is not None
        assert [*warm.turns] == await turns.Turns(harness.database).path_to(second.turn), "it is what the rows hold"
    async with harness.replica(provider, [look]) as other:
        await harness.finish(other, third := await harness.ask(after=second))
        assert done.count("GET_PATH_TO") == 2  # the test itself reads the path once
        await harness.finish(other, await harness.ask(after=third))
        assert done.count("GET_PATH_TO") == 2
    *_, cold, kept = provider.requests
    assert [message.role for message in kept.messages[: len(cold.messages)]] == [each.role for each in cold.messages]
    assert kept.messages[: len(cold.messages)] == cold.messages


# --- beginnings ------------------------------------------------------------------------------------------------------


async def test_a_turn_begins_where_its_message_is_written(harness: Harness, done: list[str]) -> None:
    async with server(harness, answer("One."), answer("Two.")) as services:
        while not done:  # noqa: ASYNC110, the worker's first claim
            await asyncio.sleep(0)
        done.clear()
        chat = new_chat()
        first = await ended(harness, services, await post_in_new_chat(services, HELLO, chat, None))
        assert without_claims(done)[0] == "BEGIN_CHAT"
        assert without_claims(writes(done)) == ["BEGIN_CHAT", "SEAL_AND_END"]
        done.clear()
        second = await ended(harness, services, await post_message(services, HELLO, Target(OWNER, chat.id), None))
    assert without_claims(done)[0] == "BEGIN_EXCHANGE"
    assert without_claims(writes(done)) == ["BEGIN_EXCHANGE", "SEAL_AND_END"]
    assert [(turn.status, turn.attempt, *texts_of(turn)) for turn in (first, second)] == [
        ("complete", 1, "One."),
        ("complete", 1, "Two."),
    ]


async def changed(services: Services, first: Exchange) -> None:
    await services.storage.chats.change(OWNER, first.assistant_turn.chat_id, lambda _chat: {"system_prompt": "Rhyme."})


async def without_model(services: Services, first: Exchange) -> None:
    """Removes the model only in the memory of the replica, as if another replica had changed the row."""
    chat = await services.storage.chats.get(OWNER, first.user_turn.chat_id)
    services.recent_chats.keep(replace(chat, settings={"model": "gone"}), first)


async def deleted(services: Services, first: Exchange) -> None:
    async for _ in Branches(services.storage.of_owner).delete(OWNER, first.user_turn.chat_id, first.user_turn.id):
        pass


@pytest.mark.parametrize("change", [changed, deleted, without_model])
async def test_the_place_that_a_replica_knows_is_read_where_the_chat_has_changed_since(
    harness: Harness, done: list[str], change: Callable[[Services, Exchange], Awaitable[None]]
) -> None:
    async with server(harness, answer("One."), answer("Two.")) as services:
        chat = new_chat()
        first = await post_in_new_chat(services, HELLO, chat, None)
        await ended(harness, services, first)
        await change(services, first)
        done.clear()
        second = await post_message(services, HELLO, Target(OWNER, chat.id), None)
        turn = await ended(harness, services, second)
    tried = [] if change is without_model else ["BEGIN_EXCHANGE"]
    assert without_claims(done)[: len(tried) + 2] == [*tried, "GET_CHAT_AND_NEWEST", "BEGIN_EXCHANGE"]
    assert second.user_turn.parent_id == (None if change is deleted else first.assistant_turn.id)
    assert turn.request is not None
    assert turn.request.system == ("Rhyme." if change is changed else None)
    assert texts_of(turn) == ["Two."]


async def test_no_message_follows_an_answer_whose_end_is_lost(harness: Harness) -> None:
    async with server(harness, answer("One.")) as services:
        first = await post_in_new_chat(services, HELLO, new_chat(), None)
        turn = await ended(harness, services, first)
        async with harness.locker() as locker:  # like a failover to a standby that lacks the last commit
            await locker.connection.execute(
                "UPDATE turns SET status = 'running', replica = (SELECT id FROM replicas), ended_at = NULL"
                " WHERE id = $1",
                turn.id,
            )
        with pytest.raises(Conflict, match="is still running"):
            await post_message(services, HELLO, Target(OWNER, turn.chat_id), None)


async def test_a_known_place_is_no_place_while_its_answer_runs_or_for_another_owner(
    harness: Harness, done: list[str]
) -> None:
    pause = Pause()
    async with server(harness, [pause, *answer()]) as services:
        chat = await services.storage.chats.create(OWNER, None, None, {})
        services.recent_chats.keep(chat)
        with pytest.raises(NotFound):
            await post_message(services, HELLO, Target("eve", chat.id), None)
        assert "BEGIN_EXCHANGE" not in done
        first = await post_message(services, HELLO, Target(OWNER, chat.id), None)
        done.clear()
        with pytest.raises(Conflict):
            await post_message(services, HELLO, Target(OWNER, chat.id), None)
        assert "BEGIN_EXCHANGE" not in done
        pause.go.set()
        await ended(harness, services, first)


async def test_with_few_free_slots_a_turn_goes_through_the_queue(harness: Harness, done: list[str]) -> None:
    async with server(harness, answer(), concurrent_turns=50) as services:
        exchange = await post_in_new_chat(services, HELLO, new_chat(), None)
        assert exchange.assistant_turn.status == "queued"
        await ended(harness, services, exchange)
    assert "CLAIM_TURNS_FAIRLY" in done
    assert "BEGIN_CHAT" not in done


async def test_a_turn_beyond_those_that_its_owner_may_run_goes_through_the_queue(harness: Harness) -> None:
    pause = Pause()
    async with server(harness, [pause, *answer()], answer(), owner_running_turns=1) as services:
        first, second = [await post_in_new_chat(services, HELLO, new_chat(), None) for _ in range(2)]
        assert [each.assistant_turn.status for each in (first, second)] == ["running", "queued"]
        pause.go.set()
        for each in (first, second):
            assert (await ended(harness, services, each)).status == "complete"


async def test_a_replica_that_is_taken_out_of_service_begins_no_turn(harness: Harness, done: list[str]) -> None:
    async with server(harness, answer()) as services:
        await services.drain()
        exchange = await post_in_new_chat(services, HELLO, new_chat(), None)
    assert exchange.assistant_turn.status == "queued"
    assert "BEGIN_CHAT" not in done


async def test_a_message_whose_chat_has_changed_since_it_was_read_takes_the_careful_way(
    harness: Harness, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    position = Exchanges.position

    async def then_changed(repository: Exchanges, target: Target) -> Any:
        read = await position(repository, target)
        await services.storage.chats.change(OWNER, target.chat, lambda _chat: {"system_prompt": "Rhyme."})
        return read

    async with server(harness, answer("One.")) as services:
        chat = await services.storage.chats.create(OWNER, None, None, {})
        monkeypatch.setattr(Exchanges, "position", then_changed)
        exchange = await post_message(services, HELLO, Target(OWNER, chat.id), None)
        assert (await ended(harness, services, exchange)).status == "complete"
    assert "CLAIM_TURNS_FAIRLY" in done
    request = exchange.assistant_turn.request
    assert request is not None
    assert request.system == "Rhyme.", "the answer follows the chat as it was locked"


async def test_a_key_that_is_taken_begins_nothing(harness: Harness) -> None:
    key, other = IdempotencyKey("k", b"1" * 32), IdempotencyKey("k", b"2" * 32)
    async with server(harness, answer()) as services:
        first = await post_in_new_chat(services, HELLO, new_chat(), key)
        await ended(harness, services, first)
        again = await post_in_new_chat(services, HELLO, new_chat(), key)
        assert again.assistant_turn.id == first.assistant_turn.id
        with pytest.raises(RequestRefused, match="`Idempotency-Key` was used for a different request"):
            await post_in_new_chat(services, HELLO, new_chat(), other)
        assert len(await harness.database.rows(Statement("SELECT FROM chats"))) == 1


async def test_a_turn_whose_beginning_lost_its_answer_is_found_and_run(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Exchanges.begin
    lost: list[Exchange] = []

    async def lose_the_answer(repository: Exchanges, *arguments: Any) -> None:
        if exchange := await begin(repository, *arguments):
            lost.append(exchange)
        raise StorageUnavailable("the connection was lost")

    monkeypatch.setattr(Exchanges, "begin", lose_the_answer)
    async with server(harness, answer(), poll_interval=0.01) as services:
        with pytest.raises(StorageUnavailable):
            await post_in_new_chat(services, HELLO, new_chat(), None)
        turn = await ended(harness, services, lost[0])
    assert (turn.status, turn.attempt) == ("complete", 2)


async def test_a_turn_that_was_found_in_the_rows_first_is_run_once(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, pause = Exchanges.begin, Pause()

    async def dawdle(repository: Exchanges, *arguments: Any) -> Exchange | None:
        exchange = await begin(repository, *arguments)
        await pause.reached.wait()  # the turn runs already
        return exchange

    monkeypatch.setattr(Exchanges, "begin", dawdle)
    async with server(harness, [pause, *answer()], poll_interval=0.01) as services:
        exchange = await post_in_new_chat(services, HELLO, new_chat(), None)
        pause.go.set()
        turn = await ended(harness, services, exchange)
    assert (turn.status, turn.attempt) == ("complete", 2)


async def test_a_turn_whose_replica_died_between_its_message_and_its_run_is_taken_over(harness: Harness) -> None:
    message = NewExchange([Block(0, 0, 0, TEXT, "Hello")], TurnRequest("scripted"), None)
    exchange = await Exchanges(harness.database).begin(Position(new_chat(), new=True), message, new_id())
    assert exchange is not None
    async with server(harness, answer()) as services:
        turn = await ended(harness, services, exchange)
    assert (turn.status, turn.attempt, turn.recoveries) == ("complete", 2, 0)


# --- what a turn costs -----------------------------------------------------------------------------------------------

TURNS = 8
_ENDS = {"SEAL_AND_END": 1, "CLAIM_TURNS_FAIRLY": 1}
# For each case: the replies of the model, the statements of a turn, and the limit of function calls in the thread of
# the event loop. The limit is the number of calls in CPython 3.11 plus an eighth. A change that makes a turn cheaper
# lowers these numbers.
COSTS: Mapping[str, tuple[Callable[[], Sequence[Any]], Mapping[str, int], int]] = {
    "an answer": (lambda: [answer()], {"BEGIN_CHAT": 1} | _ENDS, 6_500),
    "a round of tools": (
        lambda: [message_of(text("Hm."), tool_use("look", {}, "1")), answer()],
        {"BEGIN_CHAT": 1, "CLOSE_BLOCKS": 2, "SEAL_ROUND": 1, "SETTLE_CALLS": 1} | _ENDS,
        14_000,
    ),
}


def _posted(url: str, body: bytes) -> bytes:
    """Posts a message that begins a chat, and reads the stream of its answer."""
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
    with urlopen(Request(f"{url}/api/turns", body, headers)) as response:
        stream: bytes = response.read()
    return stream


@pytest.mark.parametrize("kind", COSTS)
async def test_a_turn_costs_no_more_statements_and_calls_than_before(
    database_url: str, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None], kind: str
) -> None:
    replies, statements_of_turn, most_calls = COSTS[kind]
    names = {id(statement): name.rpartition(".")[2] for name, statement in statements().items()}
    sent: Counter[str] = Counter()
    background: Set[asyncio.Task[Any]] = set()
    calls = 0

    def count(method: Any) -> Any:
        async def counted(self: Any, statement: Statement, **values: Any) -> Sequence[Row]:
            sent[names[id(statement)]] += 1
            found: Sequence[Row] = await method(self, statement, **values)
            return found

        return counted

    def profile(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"} and asyncio.current_task() not in background

    for owner in (Database, Transaction):
        monkeypatch.setattr(owner, "rows", count(owner.rows))
    provider = ScriptedProvider([reply for _ in range(TURNS + 2) for reply in replies()])
    body = to_json({"blocks": [{"type": "text", "text": "Hello"}], "model": "counted"}).encode()
    each: list[tuple[Counter[str], int]] = []
    offers = [ProviderModels(provider, ["counted"])]
    async with serving(database_url, Toolset([look]), offers, poll_interval=60) as server:
        for number in range(TURNS + 2):
            background = asyncio.all_tasks()
            sent.clear()
            calls = 0
            sys.setprofile(profile)
            try:
                stream = await asyncio.to_thread(_posted, server.url, body)
                with suppress(TimeoutError):
                    async with asyncio.timeout(5):  # includes the work after the end of the stream
                        while not sent >= Counter(statements_of_turn):  # noqa: ASYNC110, the claim has no event
                            await asyncio.sleep(0.01)
                await asyncio.sleep(0.05)
            finally:
                sys.setprofile(None)
            assert b"Ahoy!" in stream
            if number >= 2:  # the first turns load code and plan statements
                each.append((sent.copy(), calls))
    # Background tasks do not write in every turn. The statements that all measured turns have in common are the
    # statements of a turn.
    assert reduce(and_, (counted for counted, _ in each)) == statements_of_turn
    fewest = min(counted for _, counted in each)
    assert fewest <= most_calls, "see `What a turn costs` in tests/bench/README.md"
    record_property(f"calls of functions in {kind}", fewest)


# --- notifications ---------------------------------------------------------------------------------------------------


async def test_nobody_is_notified_while_no_other_replica_lives(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    looked, met = asyncio.Event(), asyncio.Event()
    rows = Database.rows

    async def noted(database: Database, statement: Statement, **values: Any) -> Sequence[Row]:
        if statement is queue.NOTIFY:
            sent.append(values["payload"].split(" ")[0])
        found = await rows(database, statement, **values)
        if statement is queue.GET_PEERS:
            asyncio.get_running_loop().call_soon((met if found else looked).set)
        return found

    async def kinds_of_a_turn(services: Services) -> set[str]:
        sent.clear()
        exchange = await post_in_new_chat(services, HELLO, new_chat(), None)
        await ended(harness, services, exchange)
        await asyncio.sleep(0.2)  # both senders have finished their pause
        return {*sent} & {"chat", "owner"}

    monkeypatch.setattr(membership, "LOOK", 0.01)
    async with server(harness, answer(), answer()) as services:
        monkeypatch.setattr(Database, "rows", noted)
        await looked.wait()
        assert await kinds_of_a_turn(services) == set()
        async with harness.replica(ScriptedProvider([])):
            await met.wait()
            assert await kinds_of_a_turn(services) == {"chat", "owner"}
