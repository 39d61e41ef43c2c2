"""The module turnstream.js alone, as documented in docs/frontends.md."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import SitDown
from tests.browser.scenes import Harbour, three_calls
from tests.browser.test_talk import use
from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from turnstream.scripted import Pause, Step, message_of, text, thinking

pytestmark = pytest.mark.asyncio(loop_scope="session")

PAGE = (Path(__file__).parents[2] / "docs/frontends.md").read_text(encoding="utf-8")

_FOLLOW = """async ([chat, after, cuts]) => {
  const { apply, Client, hasEnded } = await import('/static/turnstream.js')
  const client = new Client()
  const { assistant_turn: turn } = await client.say(chat, 'Talk')
  const log = []
  for (let cut = 0; !hasEnded(turn); cut++) {
    let left = cut < cuts ? after : Infinity
    const connection = (state) => log.push(state)
    for await (const event of client.follow(chat, turn.id, { cursor: turn.cursor, connection })) {
      if (event.id) apply(turn, event)
      if (event.id) turn.cursor = event.id
      if (--left === 0) break
    }
  }
  return { turn, log }
}"""


async def test_the_example_of_the_documentation_works_unchanged(people: SitDown, site: Server, api: Client) -> None:
    (example,) = re.findall(r"```js\n(import .*?)```", PAGE, re.DOTALL)
    script = re.sub(r"import (\{.*?\}) from ('.*?')", r"const \1 = await import(\2)", example)
    ada = await people(site.url)
    turn = await ada.page.evaluate(f"async () => {{ {script}; return turn }}")
    await _is_what_is_stored(api, turn)


async def test_leaving_after_every_third_event_and_resuming_gives_the_same_turn(
    people: SitDown, site: Server, api: Client, harbour: Harbour
) -> None:
    harbour.open.set()
    replies = [three_calls(), message_of(thinking("So."), text(*(f"word {n} " for n in range(50)), "🌊 end"))]
    chat = await use(api, site.scripts.model(*replies))
    ada = await people(site.url)
    found = await ada.page.evaluate(_FOLLOW, [chat, 3, 10])
    await _is_what_is_stored(api, found["turn"])


@pytest.mark.full
async def test_a_server_that_ends_its_streams_is_come_back_to(people: SitDown, site: Server, database_url: str) -> None:
    pauses = [Pause(), Pause(), Pause()]
    first, *others = message_of(text(*(f"word {n} " for n in range(40))))
    steps: list[Step] = [
        first,
        *others[:5],
        pauses[0],
        *others[5:20],
        pauses[1],
        *others[20:30],
        pauses[2],
        *others[30:],
    ]
    async with serving(database_url, stream_life=0.05) as hasty, Client(hasty.url) as api:
        chat = await use(api, hasty.scripts.model(steps))
        ada = await people(hasty.url)
        ada.expects("ERR_CONNECTION_REFUSED")  # the server exits before the browser
        following = asyncio.create_task(ada.page.evaluate(_FOLLOW, [chat, 0, 0]))
        for pause in pauses:
            await pause.reached.wait()
            async with ada.page.expect_request("**/turns/*/stream"):
                pass  # waits until the client reconnects
            pause.go.set()
        found = await following
        assert "lost" not in found["log"]
        await _is_what_is_stored(api, found["turn"])
        await ada.page.close()


async def _is_what_is_stored(api: Client, turn: dict[str, Any]) -> None:
    stored = await api.json("GET", f"/api/chats/{turn['chat_id']}/turns/{turn['id']}")
    assert turn["blocks"] == stored["blocks"]
    for member in ("status", "stop_reason", "usage", "actions", "error"):
        assert turn[member] == stored[member]
