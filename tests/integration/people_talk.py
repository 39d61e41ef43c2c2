"""A chat in which people answer, tamper with answers, repeat answers, interrupt and leave."""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from uuid import UUID

from tests.integration.people_fleet import Fleet
from tests.integration.people_reader import Reader
from tests.integration.people_tools import SPECS
from tests.support.harness import OWNER, Asked
from turnstream.domain.asks import Ask, AskAnswer
from turnstream.domain.blocks import Block
from turnstream.domain.chats import OnBusy
from turnstream.domain.errors import Conflict, RequestRefused
from turnstream.domain.kinds import TEXT
from turnstream.domain.turns import Limits, Turn, TurnRequest
from turnstream.kit.ids import new_id
from turnstream.storage.chats.actions import Actions, Decision
from turnstream.storage.chats.exchanges import Draft, Exchanges, IdempotencyKey, KeyTaken, Target
from turnstream.storage.chats.turns import Turns

WAYS: list[OnBusy] = ["reject", "enqueue", "enqueue", "interrupt", "steer", "steer", "branch"]
PEOPLE = 2
DEEDS = 20

Deed = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Spoken:
    """A stored exchange. If the message named no parent, the server placed it by `on_busy`, and `before` is the turn
    before it.
    """

    on_busy: OnBusy | None
    before: Turn | None
    turn: UUID
    label: str


@dataclass
class Talk:
    """The person of a chat. `accepted` has the answers that the server accepted, by turn and call. `steers` has the
    steers of each turn in their order.
    """

    random: Random
    fleet: Fleet
    group: asyncio.TaskGroup
    chat: UUID = field(default_factory=new_id)
    spoken: list[Spoken] = field(default_factory=list)
    readers: dict[UUID, Reader] = field(default_factory=dict)
    accepted: defaultdict[tuple[UUID, str], list[AskAnswer]] = field(default_factory=lambda: defaultdict(list))
    steers: defaultdict[UUID, list[str]] = field(default_factory=lambda: defaultdict(list))
    story: list[str] = field(default_factory=list)
    _seen: list[tuple[UUID, Ask]] = field(default_factory=list)
    _ended: set[UUID] = field(default_factory=set)
    _sent: list[tuple[UUID, int, Decision]] = field(default_factory=list)
    _numbers: "count[int]" = field(default_factory=count)

    @property
    def events(self) -> Counter[str]:
        return self.fleet.events

    async def live(self) -> None:
        await self._begin()
        async with asyncio.TaskGroup() as people:
            for _ in range(PEOPLE):
                people.create_task(self._person())

    async def finish(self) -> None:
        """Answers or cancels waiting turns, until every turn has ended."""
        while going := self._going():
            for turn in [await self._look_at(turn) for turn in going]:
                asks = [ask for ask in turn.asks if ask.answer is None]
                if asks and self.random.random() < 0.8:
                    await self._answer(turn, asks)
                elif turn.status == "waiting":
                    await self._cancel(turn.id)
            await asyncio.sleep(0.02)

    async def turns(self) -> list[Turn]:
        return [await self.turn(spoken.turn) for spoken in self.spoken]

    async def turn(self, turn: UUID) -> Turn:
        return await self.fleet.turn(Asked(self.chat, turn))

    async def _person(self) -> None:
        for _ in range(DEEDS):
            await asyncio.sleep(self.random.choice([0, 0.005, 0.02, 0.04]))
            await self.random.choice(self._deeds())()

    def _deeds(self) -> list[Deed]:
        often, rarely = [self._decide] * 6, [self._tamper, self._repeat, self._be_late, self._stop, self._ask_again]
        return [*often, self._say, self._say, self._interject, self._interject, *rarely]

    def tell(self, what: str, *about: object) -> None:
        self.events[what] += 1
        self.story.append(f"{what}: {' '.join(map(str, about))}")

    # --- what waits --------------------------------------------------------------------------------------------------

    async def _some_turn(self) -> Turn:
        """Chooses a turn, preferably one of which no end has been seen."""
        return await self._look_at(self.random.choice(self._going() or [spoken.turn for spoken in self.spoken]))

    def _going(self) -> list[UUID]:
        return [spoken.turn for spoken in self.spoken if spoken.turn not in self._ended]

    async def _look_at(self, turn: UUID) -> Turn:
        found = await self.turn(turn)
        if found.ended:
            self._ended.add(turn)
        if found.status == "waiting":
            assert any(ask.answer is None for ask in found.asks), f"{found} waits for nothing"
            assert not found.cancel_requested, f"{found} waits for its end"
            assert not found.steers, f"{found} waits though somebody has spoken"
        return found

    async def _decide(self) -> None:
        turn = await self._some_turn()
        if asks := [ask for ask in turn.asks if ask.answer is None]:
            self._seen += [(turn.id, ask) for ask in asks]
            await self._answer(turn, self.random.sample(asks, self.random.randint(1, len(asks))))

    async def _answer(self, turn: Turn, asks: Sequence[Ask]) -> None:
        decisions = [(ask.round, self._decision(ask)) for ask in asks]
        key = self._key() if self.random.random() < 0.3 else None
        if await self._send(turn.id, decisions, key) and key is not None:
            found = await Actions(self.fleet.harness.database).answer(
                OWNER, self.chat, turn.id, [decision for _, decision in decisions], key
            )
            assert found.id == turn.id
            self.events["an answer was sent twice with its key"] += 1

    def _decision(self, ask: Ask) -> Decision:
        number = next(self._numbers)
        if ask.kind == "client":
            words = self.random.choice(["", f"found {number}"])
            answer = AskAnswer("result", words, is_error=self.random.random() < 0.2)
            return Decision(ask.tool_use_id, None, answer, "actions.0")
        edited = json.dumps({"n": 1, "edited": number})
        answers = [AskAnswer("approve"), AskAnswer("approve", input=edited), AskAnswer("deny", f"no {number}")]
        return Decision(ask.tool_use_id, ask.digest, self.random.choice(answers), "actions.0")

    async def _send(
        self, turn: UUID, decisions: Sequence[tuple[int, Decision]], key: IdempotencyKey | None = None
    ) -> bool:
        """Sends the answers. Returns whether the server accepted them."""
        for round, decision in decisions:
            if decision.answer.kind == "approve":
                self.fleet.workshop.leaves.add(f"{turn}:{round}:{decision.tool_use_id}")
        plain = [decision for _, decision in decisions]
        try:
            await Actions(self.fleet.harness.database).answer(OWNER, self.chat, turn, plain, key)
        except RequestRefused as error:
            self.tell("a decision met a conflict", turn, error)
            return False
        for round, decision in decisions:
            edited = " with another input" if decision.answer.input else ""
            self.tell(f"{decision.answer.kind}{edited}", turn, round, decision.tool_use_id)
            self.accepted[turn, decision.tool_use_id].append(decision.answer)
            self._sent.append((turn, round, decision))
        await self._ring_for(turn)
        return True

    async def _ring_for(self, turn: UUID) -> None:
        if self.random.random() < 0.2:
            self.events["a ring was lost"] += 1
        else:
            await self.fleet.any(self.random).worker.refresh(turn)

    async def _tamper(self) -> None:
        """Sends forged decisions. The server must refuse each of them, and all other decisions in the same request."""
        turn = await self._some_turn()
        if not turn.asks:
            return
        right = [(ask.round, self._decision(ask)) for ask in turn.asks if ask.answer is None][:1]
        ask = self.random.choice(turn.asks)
        decision = self._decision(ask)
        if ask.kind == "client":
            wrong = replace(decision, answer=AskAnswer("approve"), digest=ask.digest)
        else:
            wrong = self.random.choice(
                [
                    replace(decision, digest="0" * 64),
                    replace(decision, answer=AskAnswer("result", "done")),
                    replace(decision, tool_use_id="call_x"),
                ]
            )
        plain = [decision for _, decision in right if decision.tool_use_id != wrong.tool_use_id]
        try:
            await Actions(self.fleet.harness.database).answer(OWNER, self.chat, turn.id, [*plain, wrong], None)
        except RequestRefused as error:
            self.tell("a tampered decision was refused", turn.id, error)
        else:
            raise AssertionError(f"{wrong} was taken")

    async def _repeat(self) -> None:
        """Sends a decision for a second time. The server must refuse it, even if a new call has the same id by now."""
        if self._sent:
            turn, round, decision = self.random.choice(self._sent)
            if not await self._send(turn, [(round, decision)]):
                self.events["a repeated decision was refused"] += 1

    async def _be_late(self) -> None:
        """Sends answers that are based on an outdated view of the turn."""
        if self._seen:
            turn, ask = self.random.choice(self._seen)
            if not await self._send(turn, [(ask.round, self._decision(ask))]):
                self.events["a late decision was refused"] += 1

    # --- words -------------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        label, words = self._label(), f"word {next(self._numbers)}."
        request = self._request(label)
        asked = await self.fleet.harness.ask(
            words, tools=request.tools, limits=request.limits, model=request.model, params=request.params
        )
        self.chat = asked.chat
        self._follow(Spoken(None, None, asked.turn, label))
        self.fleet.any(self.random).worker.wake()

    def _label(self) -> str:
        return f"{self.chat} {next(self._numbers)}"

    def _key(self) -> IdempotencyKey:
        return IdempotencyKey(str(new_id()), bytes(32))

    def _request(self, label: str) -> TurnRequest:
        random = self.random
        limits = Limits(
            max_rounds=random.choice([1, 4, 6]),
            on_max_rounds=random.choice(["answer", "stop"]),
            max_failed_rounds=random.choice([1, 3]),
            recovery=random.choice(["retry", "continue"]),
            max_recoveries=random.choice([1, 50, 50, 50]),
        )
        return TurnRequest("scripted", None, {"metadata": {"user_id": label}}, SPECS, limits)

    def _follow(self, spoken: Spoken) -> None:
        self.spoken.append(spoken)
        reader = Reader(Random(self.random.random()), self.fleet, Asked(self.chat, spoken.turn))
        self.readers[spoken.turn] = reader
        self.group.create_task(reader.read_to_the_end())

    async def _say(self) -> None:
        on_busy = self.random.choice(WAYS)
        exchanges = Exchanges(self.fleet.harness.database)
        key = self._key() if self.random.random() < 0.3 else None
        try:
            await self._say_in(exchanges.after(Target(OWNER, self.chat, on_busy=on_busy), key), on_busy)
        except Conflict:
            assert on_busy == "reject"
            self.tell("a word was rejected")
            return
        if key is not None:
            await self._say_again(exchanges, key)

    async def _interject(self) -> None:
        """Sends a steer to a turn that waits for an answer."""
        turn = await self._some_turn()
        if any(ask.answer is None for ask in turn.asks) and not turn.ended:
            exchanges = Exchanges(self.fleet.harness.database)
            await self._say_in(exchanges.after(Target(OWNER, self.chat, turn.id, "steer"), None), None)

    async def _say_in(self, drafting: AbstractAsyncContextManager[Draft], on_busy: OnBusy | None) -> None:
        label, words = self._label(), f"word {next(self._numbers)}."
        blocks = [Block(0, 0, 0, TEXT, words)]
        async with drafting as draft:
            busy = draft.before is not None and not draft.before.ended
            if draft.steered is None:
                exchange, waiting = await draft.create(blocks, self._request(label), None), None
            else:
                exchange, waiting = None, await self._waiting(draft.steered)
                await draft.steer(blocks)
                self.steers[draft.steered.id].append(words)
        if draft.steered is not None and waiting is not None:
            return await self._steered(draft.steered, waiting, words)
        assert exchange is not None
        for turn in draft.interrupted:
            self.tell("interrupted", turn)
            await self.fleet.any(self.random).worker.cancel(turn)
        what = f"{on_busy} on a busy branch" if on_busy and (busy or on_busy == "branch") else "said"
        self.tell(what, exchange.assistant_turn.id)
        self._follow(Spoken(on_busy, draft.before, exchange.assistant_turn.id, label))
        self.fleet.any(self.random).worker.wake()
        return None

    async def _waiting(self, turn: Turn) -> Sequence[Ask]:
        return [ask for ask in (await self.turn(turn.id)).asks if ask.answer is None]

    async def _steered(self, turn: Turn, waiting: Sequence[Ask], words: str) -> None:
        """Checks the asks that a steer has overtaken: the steer counts as their answer."""
        self.tell(f"steered one that was {turn.status}", turn.id, words)
        answers = {(ask.round, ask.tool_use_id): ask.answer for ask in (await self.turn(turn.id)).asks}
        for ask in waiting:
            answer = answers[ask.round, ask.tool_use_id]
            assert answer is not None, f"{ask} still waits"
            assert answer.kind in {"superseded", "expired"}
        await self._ring_for(turn.id)

    async def _say_again(self, exchanges: Exchanges, key: IdempotencyKey) -> None:
        try:
            await self._say_in(exchanges.after(Target(OWNER, self.chat, on_busy="branch"), key), "branch")
        except KeyTaken:
            found = await exchanges.find(OWNER, key)
            assert found is not None
            assert found.assistant_turn.id in self.readers
            self.events["a word was sent twice with its key"] += 1
        else:
            raise AssertionError("a key was taken twice")

    async def _stop(self) -> None:
        turn = self.random.choice(self.spoken).turn
        if self.random.random() < 0.3:
            await self._cancel(turn)

    async def _cancel(self, turn: UUID) -> None:
        found = await Turns(self.fleet.harness.database).cancel(OWNER, self.chat, turn)
        self.tell(f"cancelled one that was {found.status}", turn)
        if not found.ended:
            await self.fleet.any(self.random).worker.cancel(turn)

    async def _ask_again(self) -> None:
        """Asks for a sibling answer."""
        beside, label = self.random.choice(self.spoken).turn, self._label()
        try:
            exchanges = Exchanges(self.fleet.harness.database)
            async with exchanges.beside(OWNER, await exchanges.answer(OWNER, self.chat, beside), None) as draft:
                turn = await draft.create_sibling(self._request(label))
        except Conflict:
            return
        self.tell("asked again", turn.id)
        self._follow(Spoken(None, None, turn.id, label))
        self.fleet.any(self.random).worker.wake()
