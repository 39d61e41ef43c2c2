"""The objects that the parts of a run share."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from turnstream.domain.turns import Turn
from turnstream.engine.call_policies import CallPolicy
from turnstream.engine.hooks import HookEvent, HookRunner
from turnstream.engine.recorder import Recorder
from turnstream.engine.spending import Spending
from turnstream.engine.text_checks import TurnChecks
from turnstream.llm.conversation.messages import KnownEntries
from turnstream.storage.chats.grants import Grants
from turnstream.storage.chats.reports import Reports
from turnstream.storage.chats.turns import Turns
from turnstream.storage.owners.charges import Charges
from turnstream.storage.owners.uploads import Uploads
from turnstream.tools.secrets import ToolSecrets
from turnstream.tracing import Span


@dataclass(frozen=True, slots=True)
class TurnContext:
    """The objects that the parts of a run share. `recorder` has the claimed turn. `ancestors` are the turns before this
    turn on its path. `entries` are the messages that earlier requests made from the ancestors. `updated` is set when a
    user has written rows that the run has not read. `notify_owner` wakes the readers of the owner's feed. `span` traces
    the run. `secrets` decrypts the secrets of the request. `checks` are the text checks for the owner's plan.
    """

    owner: str
    ancestors: Sequence[Turn]
    entries: KnownEntries
    recorder: Recorder
    hooks: HookRunner
    turns: Turns
    uploads: Uploads
    grants: Grants
    reports: Reports
    call_policies: Sequence[CallPolicy]
    charges: Charges
    spending: Spending
    updated: asyncio.Event
    notify_owner: Callable[[str], None]
    span: Span
    secrets: ToolSecrets
    checks: TurnChecks

    async def call_hooks(self, event: HookEvent) -> None:
        """Calls the hooks for `event`, and adds their failures to the turn's count."""
        if failures := await self.hooks.call(event):
            await self.recorder.count_hook_failures(failures)
