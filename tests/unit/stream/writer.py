"""Simulates replicas that change their live views as an executor, a journal and a mirror do, over several attempts."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from turnstream.domain.asks import Ask, AskAnswer
from turnstream.domain.blocks import Block
from turnstream.domain.events import BlockStart, Notice
from turnstream.domain.kinds import TEXT, THINKING, TOOL_RESULT, TOOL_USE, USER_TEXT
from turnstream.domain.rounds import Round
from turnstream.domain.steps import unanswered_calls
from turnstream.domain.turns import Turn
from turnstream.storage.runs.attempts import next_attempt
from turnstream.stream.directory import Directory
from turnstream.stream.live import LiveView

OWNER = "ada"
_TYPES = (TEXT, THINKING, TOOL_USE, "server_tool_use")


class Writer:
    """Changes one turn at random. `rows` and `journal` are the content of a database. A method that would be illegal in
    the present state does nothing.
    """

    def __init__(self, directories: Sequence[Directory], turn: Turn) -> None:
        self.directories = directories
        self.rows = turn
        self.journal: Block | None = None
        self.view: LiveView | None = None
        self._dumped: tuple[Turn, Block | None] = turn, None
        self._hosting = ExitStack()
        self._zombies: list[tuple[LiveView, ExitStack]] = []

    def write(self, number: int, text: str) -> None:
        """Performs a random step. A step that is in the list several times is more likely."""
        if self.view is None:
            may: list[Callable[[], None]] = [lambda: self.claim(number), self.bury_the_zombies, self.respond]
        elif self._unsealed() is None:
            may = self._with_calls(number, text) if unanswered_calls(self.rows.blocks) else self._between(number, text)
        elif self._open() is None:
            may = [*[partial(self.open, number)] * 7, *[self.call] * 4, partial(self.add_whole, text)]
            may += self._endings(number, text)
        else:
            may = [*[partial(self.append, text)] * 12, *[self.close] * 4, *self._endings(number, text)]
        may[number % len(may)]()

    def _with_calls(self, number: int, text: str) -> list[Callable[[], None]]:
        ask, answer = partial(self.ask, number), partial(self.answer, text, number % 2 == 0)
        return [*[ask] * 6, *[answer] * 4, *[self.wait] * 3, *[self.respond] * 4, *self._rare(number, text)]

    def _between(self, number: int, text: str) -> list[Callable[[], None]]:
        say = partial(self.say, text)
        return [*[self.begin] * 6, *[say] * 2, *[self.end] * (number % 3 == 0), *self._rare(number, text)]

    def _endings(self, number: int, text: str) -> list[Callable[[], None]]:
        return [*[partial(self.seal, "tool_use")] * 3, self.void, *[self.flush] * 3, *self._rare(number, text)]

    def _rare(self, number: int, text: str) -> list[Callable[[], None]]:
        haunt, claim = partial(self.say_as_a_zombie, text), partial(self.claim, number)
        common = [haunt, claim] * 2 if not self._zombies else [haunt] * 3
        return [*common, self.crash, self.bury_the_zombies, self.lose_the_journal, self.notify]

    # --- steps of the replica that writes ----------------------------------------------------------------------------

    def claim(self, replica: int) -> None:
        """Claims the turn from the queue, or from a replica that does not yet know that it was declared dead."""
        if self.rows.ended:
            return
        if self.view is not None:
            self._zombies.append((self.view, self._hosting))
            self._hosting = ExitStack()
        turn = replace(self.rows, status="running").in_attempt(next_attempt(self.rows.attempt))
        directory = self.directories[replica % len(self.directories)]
        self.view = LiveView(turn)
        self.view.adopt(turn, self.journal)
        self._hosting.enter_context(directory.host(self.view, OWNER))
        self.rows = turn

    def crash(self) -> None:
        """Puts the turn back into the queue, as a takeover does."""
        if self.view is not None:
            self._leave()
            self.rows = replace(self.rows, status="queued")

    def say_as_a_zombie(self, text: str) -> None:
        for view, _ in self._zombies:
            if text and isinstance(view.marks[-1], BlockStart):
                view.append(text)

    def bury_the_zombies(self) -> None:
        """Lets the former owners of the turn notice that they have lost their claims."""
        for _, hosting in self._zombies:
            hosting.close()
        self._zombies.clear()

    def flush(self) -> None:
        """Simulates a tick of the journal."""
        if self.view is not None and (block := self.view.block_being_written()):
            self.journal = block

    def lose_the_journal(self) -> None:
        """Simulates a restart of Postgres, which loses the journal."""
        self.journal = None

    def dump(self) -> None:
        self._dumped = self.rows, self.journal

    def restore(self, replicas_live: bool) -> None:
        """Restores the rows of the dump, after the writing process has ended. With `replicas_live`, the mirrors still
        have the changes that the restore lost.
        """
        self.bury_the_zombies()
        self._leave()
        if not replicas_live:
            self.directories = [Directory() for _ in self.directories]
        self.rows, self.journal = self._dumped
        if self.rows.status == "running":
            self.rows = replace(self.rows, status="queued")

    def mirror(self) -> None:
        """Simulates a tick of every mirror."""
        for directory in self.directories:
            for view in directory.mirrored():
                known = view.open_length if view.turn == self.rows and isinstance(view.marks[-1], BlockStart) else 0
                rest = replace(self.journal, text=self.journal.text[known:]) if self.journal else None
                view.adopt(self.rows, rest, known if rest else 0)

    # --- changes of the turn -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        if self.view is not None and self._unsealed() is None and not unanswered_calls(self.rows.blocks):
            number = 1 + max((round.number for round in self.rows.rounds if round.sealed), default=0)
            self.view.begin_round(Round(number, self.rows.attempt, messages=number))
            self._wrote()

    def open(self, kind: int) -> None:
        round = self._unsealed()
        if self.view is not None and round is not None and self._open() is None:
            type = _TYPES[kind % len(_TYPES)]
            index = len(self.rows.blocks)
            name = "look" if type.endswith("use") else None
            identity = f"call-{index}" if name else None
            self.view.open_block(BlockStart(self.rows.attempt, index, round.number, type, identity, name))

    def append(self, text: str) -> None:
        if self.view is not None and text and self._open() is not None and not self._adopted():
            self.view.append(text)

    def close(self) -> None:
        if self.view is not None and (block := self._open()) and not self._adopted():
            self.view.close_blocks([replace(block, interrupted=False)])
            self._wrote()

    def add_whole(self, text: str) -> None:
        """Adds a complete block that was never open: blocks of some types arrive complete."""
        round = self._unsealed()
        if self.view is not None and round is not None and self._open() is None:
            index = len(self.rows.blocks)
            self.view.close_blocks(
                [Block(index, round.number, self.rows.attempt, "redacted_thinking", text, data="{}")]
            )
            self._wrote()

    def call(self) -> None:
        self.open(_TYPES.index(TOOL_USE))
        self.append("{}")
        self.close()

    def seal(self, stop_reason: str) -> None:
        round = self._unsealed()
        if self.view is None or round is None:
            return
        if block := self._open():
            self.view.close_blocks([block])
        sealed = replace(round, stop_reason=stop_reason, sealed_by=self.rows.attempt, usage={"output_tokens": 1})
        self.view.seal_round(sealed, replace(self.view.turn, usage={"output_tokens": 1}))
        self._wrote()

    def void(self) -> None:
        round = self._unsealed()
        if self.view is not None and round is not None:
            turn = self.rows.in_attempt(next_attempt(self.rows.attempt))
            self.view.void_round(replace(round, stop_reason="voided"), turn)
            self._wrote()

    def answer(self, text: str, is_error: bool) -> None:
        """Adds the result of the newest call without a result. So results come in another order than their calls."""
        if self.view is not None and self._unsealed() is None:
            for call in [call for call in unanswered_calls(self.rows.blocks) if not self._waits(call)][-1:]:
                index, attempt = len(self.rows.blocks), self.rows.attempt
                result = replace(call, index=index, attempt=attempt, type=TOOL_RESULT, text=text, is_error=is_error)
                self.view.close_blocks([result])
                self._wrote()

    def ask(self, number: int) -> None:
        """Asks about some calls of a round, if no call of the round has an ask or a result yet."""
        calls = unanswered_calls(self.rows.blocks)
        if self.view is None or self._unsealed() is not None or not calls:
            return
        round = calls[0].round
        known = {*(ask.round for ask in self.rows.asks), *(b.round for b in self.rows.blocks if b.type == TOOL_RESULT)}
        if round not in known:
            asked = [call for place, call in enumerate(calls) if place == 0 or number >> place & 1]
            self.view.ask(
                [Ask(round, call.tool_use_id or "", "look", "client", "", self.rows.attempt) for call in asked]
            )
            self._wrote()

    def wait(self) -> None:
        calls = unanswered_calls(self.rows.blocks)
        if self.view is not None and self._unsealed() is None and calls and all(map(self._waits, calls)):
            self._leave()
            self.rows = replace(self.rows, status="waiting")

    def respond(self) -> None:
        """Answers the newest ask, as a person does. A running turn receives the answer."""
        waiting = [ask for ask in self.rows.asks if ask.answer is None]
        if waiting:
            asks = tuple(replace(a, answer=AskAnswer("result")) if a is waiting[-1] else a for a in self.rows.asks)
            self.rows = replace(self.rows, asks=asks)
            if self.view is not None:
                self.view.turn = replace(self.view.turn, asks=asks)
            elif self.rows.status == "waiting":
                self.rows = replace(self.rows, status="queued")

    def say(self, text: str) -> None:
        """Applies a steer after the last sealed round."""
        if self.view is not None and self._unsealed() is None and not unanswered_calls(self.rows.blocks):
            round = max((round.number for round in self.rows.rounds if round.sealed), default=0)
            self.view.close_blocks([Block(len(self.rows.blocks), round, self.rows.attempt, USER_TEXT, text)])
            self._wrote()

    def _waits(self, call: Block) -> bool:
        waiting = {(ask.round, ask.tool_use_id) for ask in self.rows.asks if ask.answer is None}
        return (call.round, call.tool_use_id) in waiting

    def end(self) -> None:
        if self.view is not None:
            self.seal("cancelled")
            self.view.end(replace(self.rows, status="complete", stop_reason="end_turn"))
            self._wrote()
            self._leave()

    def notify(self) -> None:
        if self.view is not None:
            self.view.notify(Notice("status", {"a": 1}))

    def finish(self) -> None:
        self.claim(0)
        self.end()
        self.bury_the_zombies()

    def _unsealed(self) -> Round | None:
        rounds = self.rows.rounds
        return rounds[-1] if rounds and not rounds[-1].sealed and not rounds[-1].voided else None

    def _open(self) -> Block | None:
        return None if self.view is None else self.view.block_being_written()

    def _adopted(self) -> bool:
        """Returns whether the open block comes from an earlier attempt, so that it receives no more text."""
        block = self._open()
        return block is not None and block.attempt != self.rows.attempt

    def _wrote(self) -> None:
        assert self.view is not None
        self.rows, self.journal = self.view.turn, None

    def _leave(self) -> None:
        self.view = None
        self._hosting.close()
