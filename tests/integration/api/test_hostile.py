"""Two owners: one attacks, the other watches a running answer. The attacker gets a defined answer, and the watcher gets
every word.
"""

import asyncio

import httpx2
import pytest

from tests.integration.api.conftest import NewOwner
from tests.support.attacks import ATTACKS, Attack
from tests.support.http_server import Server, pausing
from turnstream.scripted import Pause

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=list(ATTACKS))
async def test_attackers_are_answered_and_readers_get_all_events(
    server: Server, new_owner: NewOwner, attack: Attack
) -> None:
    bob, pause = await new_owner(), Pause()
    chat = await bob.chat()
    turn = await bob.say(chat, model=server.scripts.model(pausing(pause, "Before,", " and after.")))
    headers = {"Authorization": f"Bearer {await server.token('ada')}"}

    def attacked() -> set[int]:
        with httpx2.Client(base_url=server.url, headers=headers, trust_env=False, timeout=150) as ada:
            return set(attack.run(ada))

    async with bob.follow(f"{chat}/stream") as events:
        await pause.reached.wait()
        statuses = await asyncio.to_thread(attacked)
        assert statuses <= attack.answers
        pause.go.set()
        said = ""
        async for event in events:
            said += event.data["text"] if event.name == "block_delta" else ""
            if event.name == "turn_complete":
                break
    assert said == "Before, and after."
    assert (await bob.json("GET", turn.url))["status"] == "complete"
