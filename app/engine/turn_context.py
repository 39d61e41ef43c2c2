"""The values that the parts of one turn's run share."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.domain.turns import Turn
from app.engine.hooks import HookEvent, HookRunner
from app.engine.recorder import Recorder
from app.engine.spending import Spending
from app.llm.conversation.messages import KnownEntries
from app.storage.chats.grants import Grants
from app.storage.chats.turns import Turns
from app.storage.owners.charges import Charges
from app.storage.owners.uploads import Uploads
from app.storage.tool_cache import ToolCache
from app.tracing import Span


@dataclass(frozen=True, slots=True)
class TurnContext:
    """The claimed turn is what `recorder` holds; `ancestors` is its path without itself, `entries` what requests before
    have made of them. `updated` is set when the rows have something from a user that the run does not know of yet.
    `notify_owner` wakes the readers of a feed. `span` is that of
    the run.
    """

    owner: str
    ancestors: Sequence[Turn]
    entries: KnownEntries
    recorder: Recorder
    hooks: HookRunner
    turns: Turns
    uploads: Uploads
    grants: Grants
    cache: ToolCache
    charges: Charges
    spending: Spending
    updated: asyncio.Event
    notify_owner: Callable[[str], None]
    span: Span

    async def call_hooks(self, event: HookEvent) -> None:
        """Calls the hooks for `event`, and counts those that fail on the turn."""
        if failures := await self.hooks.call(event):
            await self.recorder.count_hook_failures(failures)
