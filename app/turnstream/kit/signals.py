"""Signals between the parts of one replica: a part that sends one does not know the parts that act on it."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Generic, ParamSpec
from uuid import UUID

P = ParamSpec("P")


class Signal(Generic[P]):
    """Every action is called at once, in the order in which they were added. None may raise."""

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
    """`notified`: a replica, perhaps this one, has sent this payload. `missed`: notifications may have been lost until
    now, so everything that waits for one looks at the rows. `wake`: there may be a turn to claim. `drain`: an operator
    has ordered it. `suspect`: Postgres was away, so what ended last may be lost, and run again elsewhere. `release`:
    running turns of these owners go back to the queue. `changed`: a change in a chat of an owner is committed.
    `owner_changed`: the same for a change that readers of the chat do not see.
    """

    notified: Signal[[str]] = field(default_factory=Signal)
    missed: Signal[[]] = field(default_factory=Signal)
    wake: Signal[[]] = field(default_factory=Signal)
    drain: Signal[[]] = field(default_factory=Signal)
    suspect: Signal[[]] = field(default_factory=Signal)
    release: Signal[[Collection[str]]] = field(default_factory=Signal)
    changed: LaterSignal[[str, UUID]] = field(default_factory=LaterSignal)
    owner_changed: LaterSignal[[str]] = field(default_factory=LaterSignal)
