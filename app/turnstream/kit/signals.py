"""Signals between the parts of one replica. A part that sends a signal does not know the parts that act on it."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Generic, ParamSpec
from uuid import UUID

P = ParamSpec("P")


class Signal(Generic[P]):
    """Calls every action at once when it is sent, in the order in which the actions were added. No action may raise."""

    def __init__(self) -> None:
        self._actions: list[Callable[P, None]] = []

    def act(self, action: Callable[P, None]) -> None:
        self._actions.append(action)

    def send(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for action in self._actions:
            action(*args, **kwargs)


class LaterSignal(Signal[P]):
    """The next iteration of the event loop calls the actions, so the sender, often a request, does not wait."""

    def send(self, *args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.get_running_loop().call_soon(lambda: super(LaterSignal, self).send(*args, **kwargs))


@dataclass(frozen=True, slots=True)
class Signals:
    """`notified`: a replica, perhaps this replica, has sent this payload. `missed`: notifications may have been lost
    until now, so every part that waits for a notification reads the rows. `wake`: there may be a turn to claim.
    `drain`: an operator has ordered a drain. `suspect`: Postgres was unreachable, so the end of the latest turns may be
    lost, and these turns may run again elsewhere. `release`: running turns of these owners return to the queue.
    `changed`: a change in a chat of an owner is committed. `owner_changed`: a change of an owner's data is committed,
    but readers of the chat do not see the change.
    """

    notified: Signal[[str]] = field(default_factory=Signal)
    missed: Signal[[]] = field(default_factory=Signal)
    wake: Signal[[]] = field(default_factory=Signal)
    drain: Signal[[]] = field(default_factory=Signal)
    suspect: Signal[[]] = field(default_factory=Signal)
    release: Signal[[Collection[str]]] = field(default_factory=Signal)
    changed: LaterSignal[[str, UUID]] = field(default_factory=LaterSignal)
    owner_changed: LaterSignal[[str]] = field(default_factory=LaterSignal)
