"""A turn that waits for a person, brought on: each call is asked about, the server is told, the rest is shown."""

from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from app.cli.assembler import Assembler, Json
from app.cli.client import Refused
from app.cli.dialogue import Dialogue
from app.cli.session import Asked, Session, asked

T = TypeVar("T")


class Do(Protocol):
    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


class Attendant:
    """`do` carries out what has to do with the server."""

    def __init__(self, session: Session, dialogue: Dialogue, do: Do) -> None:
        self._session = session
        self._dialogue = dialogue
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
                action = self._dialogue.ask(calls[0], len(calls) - 1)
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
            self._dialogue.say(str(error))
