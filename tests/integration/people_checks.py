"""The invariants that a chat satisfies when all its turns have ended, for every history."""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from tests.integration.people_model import Model, Said
from tests.integration.people_talk import Talk
from tests.integration.people_tools import SPECS, Run, needs_leave
from tests.support.harness import OWNER, assert_is_whole
from tests.support.legal.anthropic import message_problems
from tests.support.model_requests import flattened, rendered
from turnstream.domain.asks import Ask
from turnstream.domain.blocks import Block
from turnstream.domain.history import without_withdrawn
from turnstream.domain.kinds import TEXT, TOOL_RESULT, USER_TEXT
from turnstream.domain.turns import Turn
from turnstream.kit.ids import new_id
from turnstream.llm.conversation.messages import GIVEN_UP, GO_ON, build_messages
from turnstream.storage.chats.turns import Turns
from turnstream.storage.database import Statement

REPEATABLE = {spec.name for spec in SPECS if spec.read_only or spec.retry_safe}
HERE = {spec.name for spec in SPECS if not spec.client}
STOPPED = (
    "This call has no result: the turn ended",
    "This call was not run: the limit",
    "This call was not run: the reply was refused",
    "This call was not run: the turn",
)
UNFINISHED_CALLS = Statement(
    """
    SELECT tool_calls.* FROM tool_calls JOIN turns ON turns.id = turn_id
    WHERE state = 'started' AND status IN ('complete', 'cancelled', 'error')
    """
)
STAND_INS = [
    ("user", json.dumps({"type": "text", "text": words}, separators=(",", ":"))) for words in (GO_ON, GIVEN_UP)
]


class Checks:
    def __init__(self, talk: Talk, model: Model) -> None:
        self.talk = talk
        self.model = model
        self.events = talk.events
        self._runs: defaultdict[str, list[Run]] = defaultdict(list)
        for run in talk.fleet.workshop.runs:
            self._runs[run.key].append(run)

    async def assert_all(self) -> None:
        turns = await self.talk.turns()
        for turn, spoken in zip(turns, self.talk.spoken, strict=True):
            try:
                self._assert_turn(turn)
                await self.talk.readers[turn.id].assert_holds(turn)
                await self._assert_requests(turn, self.model.requests[spoken.label])
            except AssertionError as error:
                error.add_note(f"{_dump(turn)}\nread: {self.talk.readers[turn.id].watcher}")
                raise
        self._assert_order()

    # --- calls -------------------------------------------------------------------------------------------------------

    def _assert_turn(self, turn: Turn) -> None:
        assert_is_whole(_from_round_1(turn))
        self.events[f"ended: {turn.status}"] += 1
        self.events["a round was voided"] += sum(round.voided for round in turn.rounds)
        self.events["a round was kept as it was"] += sum(round.stop_reason == "interrupted" for round in turn.rounds)
        asks = {(ask.round, ask.tool_use_id): ask for ask in turn.asks}
        results = {(block.round, block.tool_use_id): block for block in turn.blocks if block.type == TOOL_RESULT}
        calls = [block for block in turn.blocks if block.is_call]
        assert asks.keys() <= {(call.round, call.tool_use_id) for call in calls}
        self.events["an id was used again"] += len(calls) - len({call.tool_use_id for call in calls})
        for call in calls:
            result = results[call.round, call.tool_use_id]
            assert result.index > call.index
            self._assert_call(turn, call, result, asks.get((call.round, call.tool_use_id or "")))
        self._assert_answers(turn)
        self._assert_steers(turn)

    def _assert_call(self, turn: Turn, call: Block, result: Block, ask: Ask | None) -> None:
        key = f"{turn.id}:{call.round}:{call.tool_use_id}"
        runs, about = self._runs[key], f"{call} {ask} {result}"
        if call.name not in REPEATABLE:
            assert len(runs) <= 1, f"run {len(runs)} times: {about}"
        if call.name not in HERE:
            assert not runs, f"run here: {about}"
        if needs_leave(call.name or "", call.text):
            assert all(run.allowed for run in runs), f"run before somebody had allowed it: {about}"
        decision = ask.answer.kind if ask is not None and ask.answer is not None else None
        assert not runs or decision == "approve" or not (ask or needs_leave(call.name or "", call.text)), about
        edited = ask.answer.input if ask is not None and ask.answer is not None else None
        effective = edited or call.text.strip() or "{}"
        assert {run.input for run in runs} <= {effective}, f"run with another input: {about}"
        self._assert_told(turn, call, result, ask, effective)

    def _assert_told(self, turn: Turn, call: Block, result: Block, ask: Ask | None, effective: str) -> None:
        answer = ask.answer if ask is not None else None
        notes = json.loads(result.notes or "{}")
        about = f"{call} {ask} {result}"
        runs = self._runs[f"{turn.id}:{call.round}:{call.tool_use_id}"]
        told = [run for runs in self._runs.values() for run in runs if run.said and result.text.endswith(run.said)]
        if "memo" in notes:
            self.events["a call was answered from memory"] += 1
            assert told, about
        else:
            assert all(run in runs for run in told), f"told of another call: {about}"
        assert all(run.input == effective for run in told), f"told of another input: {about}"
        if "effect before you call again" in result.text:
            self.events["an outcome is unknown"] += 1
            assert call.name not in REPEATABLE
        elif result.text.startswith(STOPPED):
            self.events["a call was stopped or not run"] += 1
        elif answer is None:
            assert ask is None, f"nobody answered: {about}"
        elif answer.kind == "result":
            assert result.text == (answer.text or "The call succeeded and returned nothing."), about
            assert result.is_error == answer.is_error
        elif answer.kind == "approve":
            self.events["an approved call was run"] += 1
            assert runs or _is_broken(effective) or "memo" in notes, f"allowed and not run: {about}"
        else:
            self.events[f"a result says: {answer.kind}"] += 1
            assert result.is_error
            assert notes["approval"]["decision"] in {"denied", answer.kind}

    def _assert_answers(self, turn: Turn) -> None:
        """Checks that the stored answers are exactly the accepted answers."""
        for id in {ask.tool_use_id for ask in turn.asks}:
            given = [ask.answer for ask in turn.asks if ask.tool_use_id == id and ask.answer]
            people = Counter(answer for answer in given if answer.kind in {"result", "approve", "deny"})
            assert people == Counter(self.talk.accepted[turn.id, id])

    # --- words -------------------------------------------------------------------------------------------------------

    def _assert_steers(self, turn: Turn) -> None:
        """Checks that no steer is lost or repeated, and that all steers are in the order of their posts."""
        said = [block.text for block in turn.blocks if block.type == USER_TEXT]
        assert said == self.talk.steers[turn.id], f"{said} of {self.talk.steers[turn.id]}"
        assert turn.steers == ()
        for block in turn.blocks:
            if block.type == USER_TEXT:
                later = [other for other in turn.blocks[block.index :] if other.round == block.round]
                assert all(other.type == USER_TEXT for other in later), "words come after the results of their round"

    def _assert_order(self) -> None:
        followed: Counter[object] = Counter()
        for spoken in self.talk.spoken:
            if spoken.before is None or spoken.on_busy in {None, "branch"}:
                continue
            followed[spoken.before.id] += 1
        assert set(followed.values()) <= {1}, "two were put behind one"

    # --- requests ----------------------------------------------------------------------------------------------------

    async def _assert_requests(self, turn: Turn, requests: Sequence[Said]) -> None:
        """Checks that each request is legal, and begins with the content of the earlier requests."""
        path = await Turns(self.talk.fleet.harness.database).path(OWNER, self.talk.chat, turn.id)
        user = replace(path[0], id=new_id(), parent_id=turn.id, blocks=(Block(0, 0, 0, TEXT, "And?"),))
        answer = replace(turn, id=new_id(), parent_id=user.id, rounds=(), blocks=(), asks=())
        messages = build_messages([*without_withdrawn([*path, user]), answer])
        problems = message_problems(rendered(messages))
        assert not problems, problems
        whole = flattened(messages)
        for request in requests:
            if request[-1] in [(role, words.encode()) for role, words in STAND_INS]:
                self.events["a request ended in our own words"] += 1
                request = request[:-1] if whole[: len(request)] != request else request  # noqa: PLW2901
            assert whole[: len(request)] == request, _difference(whole, request)


def _dump(turn: Turn) -> str:
    things: list[object] = [*turn.rounds, *turn.blocks, *turn.asks, *turn.steers]
    return "\n".join([f"turn {turn.id}: {turn.status}, attempt {turn.attempt}, {turn.error}", *map(str, things)])


def _from_round_1(turn: Turn) -> Turn:
    """Returns the turn without the messages that it received before its first round."""
    early = [block for block in turn.blocks if block.round == 0]
    assert [block.index for block in early] == list(range(len(early)))
    assert {block.type for block in early} <= {USER_TEXT}
    rest = [replace(block, index=block.index - len(early)) for block in turn.blocks if block.round > 0]
    return replace(turn, blocks=tuple(rest))


def _is_broken(input_json: str) -> bool:
    try:
        json.loads(input_json)
    except ValueError:
        return True
    return False


def _difference(whole: Said, request: Said) -> str:
    place = next(n for n, pair in enumerate(request) if n >= len(whole) or whole[n] != pair)
    return f"block {place}:\nwas  {request[place:]}\nnow  {whole[place:]}"
