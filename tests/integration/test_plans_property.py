"""Whatever owners request, however small their plans are and whichever replicas die, nobody spends more than the plan
and one reservation. The ledger, the accounts and the rounds have the same figures.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from tests.support.harness import POLICY, Harness, with_model
from tests.support.sweeping import swept
from turnstream.domain.blocks import Block
from turnstream.domain.chats import Chat
from turnstream.domain.errors import TransientError
from turnstream.domain.kinds import TEXT
from turnstream.domain.plans import Plan, Plans
from turnstream.domain.rounds import billed_tokens
from turnstream.domain.turns import Turn, TurnRequest
from turnstream.kit.ids import new_id
from turnstream.llm.provider import ModelRequest
from turnstream.scripted import Pause, Reply, ScriptedProvider, message_of, text, tool_use
from turnstream.storage.chats.exchanges import Exchanges
from turnstream.storage.chats.turns import Turns
from turnstream.storage.database import Statement
from turnstream.storage.owners.accounts import Accounts
from turnstream.tools.tool import tool

OPEN = Statement("SELECT count(*) AS number FROM turns WHERE ended_at IS NULL")
CHARGED = Statement(
    """
    SELECT coalesce(sum(input_tokens + cache_read_tokens + cache_write_tokens + output_tokens), 0) AS tokens,
        coalesce(sum(input_tokens) FILTER (WHERE NOT EXISTS (
            SELECT FROM rounds WHERE rounds.turn_id = charges.turn_id AND number || '.' || attempt = call
        )), 0) AS without_reply
    FROM charges WHERE owner = :owner
    """
)
COUNTED = Statement("SELECT tokens_per_day, calls_per_day FROM accounts WHERE owner = :owner")
HELD = Statement("SELECT count(*) AS number FROM reservations")
AGE = Statement("UPDATE reservations SET reserved_at = reserved_at - interval '3 minutes'")
LONGEST_REPLY = 100
MOST_CRASHES = 4


@tool(read_only=True)
async def look(at: str = "sea") -> str:
    """Look at a place that lies in the neighbourhood of the harbour, from the tower or from the pier."""
    return f"seen {at}"


class Play:
    """Random replies of a model, each within its reservation. The replica may die after a reply."""

    def __init__(self, random: Random) -> None:
        self.crashes = 0
        self._random = random

    def provider(self, crash: Pause) -> ScriptedProvider:
        return ScriptedProvider(lambda request: self._reply(request, crash))

    def _reply(self, request: ModelRequest, crash: Pause) -> Reply:
        usage = {"input_tokens": 10, "output_tokens": self._random.randrange(1, LONGEST_REPLY)}
        start, *rest = message_of(text("Here is ", "the harbour."), usage=usage)
        match self._random.randrange(10):
            case 0 if self.crashes < MOST_CRASHES:
                return [start, *rest[:2], crash]
            case 1 if self.crashes < MOST_CRASHES:
                return [crash]
            case 2:
                return [start, *rest[:2], TransientError("overloaded_error", "Later.")]
            case 3:
                return [TransientError("overloaded_error", "Later.")]
            case 4 | 5 | 6 if request.may_use_tools:
                return message_of(tool_use("look", {}, f"toolu_{self._random.random()}"), usage=usage)
            case _:
                return [start, *rest]


async def _ask(harness: Harness, owner: str) -> Turn:
    now = datetime.now(UTC)
    chat = Chat(new_id(), owner, None, None, {}, created_at=now, updated_at=now)
    async with Exchanges(harness.database).in_new_chat(chat, None) as draft:
        request = TurnRequest("scripted", tools=(look.spec,))
        return (await draft.create([Block(0, 0, 0, TEXT, "Hello")], request, None)).assistant_turn


@pytest.mark.parametrize("seed", range(6))
async def test_no_owner_spends_more_than_the_plan_and_one_reservation(
    harness: Harness, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    rates = {"tokens_per_day": (30, 900), "calls_per_day": (1, 8)}
    named = {
        f"owner {n}": Plan(str(n), {rate: random.randrange(*bounds) for rate, bounds in rates.items()})
        for n in range(3)
    }
    reserved = dict.fromkeys(named, 0)
    reserve, release = Accounts.reserve, Accounts.release
    dying = set[Accounts]()  # accounts of replicas that are being killed, whose reservations the other replica releases

    async def watched(self: Accounts, owner: str, plan: Plan, *rest: Any) -> Any:
        reserved[owner] = max(reserved[owner], rest[2])
        return await reserve(self, owner, plan, *rest)

    async def unless_dying(self: Accounts, *which: Any) -> None:
        if self not in dying:
            await release(self, *which)

    monkeypatch.setattr(Accounts, "reserve", watched)
    monkeypatch.setattr(Accounts, "release", unless_dying)
    plans = Plans(plan_of=named.get)
    policy = replace(with_model(POLICY, longest_reply=lambda _: LONGEST_REPLY), plans=plans)
    turns = [(owner, await _ask(harness, owner)) for owner in random.choices(sorted(named), k=14)]
    play, done = Play(random), asyncio.Event()

    async def lives(address: str) -> None:
        """Runs one replica after another, until all turns have ended."""
        while not done.is_set():
            crash = Pause()
            async with harness.replica(play.provider(crash), [look], policy=policy, address=address) as replica:
                replica.worker.wake()
                ends = [asyncio.create_task(event.wait()) for event in (crash.reached, done)]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                for end in ends:
                    end.cancel()
                if crash.reached.is_set():
                    play.crashes += 1
                    dying.add(replica.worker.accounts)
                    await replica.kill()

    replicas = [asyncio.create_task(lives(address)) for address in ("a", "b")]
    while (row := await harness.database.row(OPEN)) and row["number"]:
        if any(task.done() for task in replicas):
            break
        await asyncio.sleep(0.01)
    done.set()
    await asyncio.gather(*replicas)
    await _check(harness, named, reserved, turns)


async def _check(
    harness: Harness, plans: dict[str, Plan], reserved: dict[str, int], turns: Sequence[tuple[str, Turn]]
) -> None:
    await harness.database.rows(AGE)
    await swept(Accounts(harness.database).sweep())
    row = await harness.database.row(HELD)
    assert row is not None
    assert row["number"] == 0
    for owner, plan in plans.items():
        own = [await Turns(harness.database).get(owner, turn.chat_id, turn.id) for of, turn in turns if of == owner]
        assert all(turn.ended for turn in own)
        spent = sum(billed_tokens(round.spent).total for turn in own for round in turn.rounds)
        charged = await harness.database.row(CHARGED, owner=owner)
        counted = await harness.database.row(COUNTED, owner=owner)
        assert charged is not None
        assert charged["tokens"] == spent + charged["without_reply"]
        assert spent <= plan.rates["tokens_per_day"] + reserved[owner]
        if own:
            assert counted is not None
            assert counted["tokens_per_day"] == charged["tokens"]
            assert counted["calls_per_day"] <= plan.rates["calls_per_day"]
