"""A turn that waits for a person, brought on: each call is asked about, the server is told, the rest is shown."""

from collections.abc import Coroutine, Set
from typing import Any, Protocol, TypeVar

from app.terminal.assembler import Assembler, Json
from app.terminal.client import Refused
from app.terminal.session import Asked, asked

T = TypeVar("T")


class Do(Protocol):
    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


class Waiting(Protocol):
    """The turn that is watched, as a session has it."""

    async def waiting(self) -> list[Json]: ...
    async def act(self, call: Json, action: Json, /) -> None: ...
    async def go_on(self, passed: Set[Asked], /) -> Assembler: ...
    async def stop(self) -> Assembler: ...


class Person(Protocol):
    """Somebody who is asked; None leaves the call waiting, EOFError all of them, KeyboardInterrupt stops the turn."""

    def ask(self, call: Json, more: int, /) -> Json | None: ...
    def say(self, words: str, /) -> None: ...


class Attendant:
    """`do` carries out what has to do with the server."""

    def __init__(self, session: Waiting, person: Person, do: Do) -> None:
        self._session = session
        self._person = person
        self._do = do

    def attend(self, state: Assembler) -> Assembler:
        """Until the turn has ended, or waits for nothing but what the person has left waiting."""
        passed: set[Asked] = set()
        while state.end is None:
            try:
                self._ask_all(passed)
            except KeyboardInterrupt:
                print()
                return self._do(self._session.stop())
            if state.waits:
                break
            self._do(self._session.go_on(passed))
        return state

    def _ask_all(self, passed: set[Asked]) -> None:
        while calls := [call for call in self._do(self._session.waiting()) if asked(call) not in passed]:
            try:
                action = self._person.ask(calls[0], len(calls) - 1)
            except EOFError:
                print()
                passed.update(map(asked, calls))
                return
            if action is None:
                passed.add(asked(calls[0]))
            else:
                self._tell(calls[0], action)

    def _tell(self, call: Json, action: Json) -> None:
        try:
            self._do(self._session.act(call, action))
        except Refused as error:
            self._person.say(str(error))
