"""Deletes answers that the client, or the operator, does not want to store."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from turnstream.api.services import Services
from turnstream.domain.turns import Turn
from turnstream.libraries.dialects.branch_rows import Branches
from turnstream.libraries.dialects.past_exchanges import histories_of


async def delete_turn(services: Services, owner: str, turn: Turn) -> None:
    """Deletes the turn and its descendants."""
    async for _, running in Branches(services.storage.of_owner).delete(owner, turn.chat_id, turn.id):
        for id in running:
            await services.live.cancel(id)
        services.live.notify(owner, turn.chat_id)


class Forgetting:
    """Deletes an unstored answer after its delivery. If the turn waits for its client, it is kept until a later
    request.
    """

    def __init__(self, services: Services, owner: str, turn: Turn, *, keeps_chat: bool) -> None:
        self._services, self._owner, self._turn, self._keeps_chat = services, owner, turn, keeps_chat

    async def __call__(self) -> None:
        storage, owner, chat = self._services.storage, self._owner, self._turn.chat_id
        if not (await storage.turns.get(owner, chat, self._turn.id)).ended:
            return
        is_unstored = await histories_of(self._services).is_unstored(owner, chat)
        await delete_turn(self._services, owner, self._turn)
        if not self._keeps_chat and (is_unstored or await storage.turns.newest(owner, chat) is None):
            await storage.chats.delete(owner, chat)
            self._services.live.notify(owner, chat)


async def delivered(frames: AsyncGenerator[bytes, None], forget: Forgetting | None) -> AsyncGenerator[bytes, None]:
    async with aclosing(frames):
        async for frame in frames:
            yield frame
    if forget is not None:
        await forget()
