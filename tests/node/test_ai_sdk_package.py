"""The transport of `@turnstream/ai-sdk` as an installed package, in `useChat` against the real server."""

from pathlib import Path
from uuid import uuid4

import pytest

from tests.node.conftest import Page, ScriptServer

pytestmark = [
    pytest.mark.extensions("ai_sdk"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(180),
]  # npm may need time for the installation


@pytest.mark.parametrize("before", ["", "tools, "])
async def test_the_transport_reconnects_by_itself_after_a_cut(
    page: Page, server: ScriptServer, packages: Path, before: str
) -> None:
    await page.open(packages=packages)
    await page("begin", text=f"{before}hang once {uuid4()}")
    await page("until", says="That ")
    await server.kill()
    await server.start()
    state = await page("settled")
    assert (state["status"], state["seen"]["errors"], state["seen"]["finished"]) == ("ready", 0, 1)
    await page.assert_shows_what_is_stored()


async def test_the_transport_resumes_an_answer_that_continues_after_an_approval(
    page: Page, server: ScriptServer, packages: Path
) -> None:
    await page.open(packages=packages)
    await page("send", text=f"mail, hang once {uuid4()}")
    await page("approve", approved=True)
    await page("until", says="That ")
    await server.kill()
    await server.start()
    state = await page("idle")
    assert (state["status"], state["seen"]["errors"]) == ("ready", 0)
    await page.assert_shows_what_is_stored()


async def test_a_message_is_sent_again_until_the_server_is_there(
    page: Page, server: ScriptServer, packages: Path
) -> None:
    await page.open(packages=packages)
    await server.kill()
    await page("begin", text="plain")
    await server.start()
    state = await page("settled")
    assert (state["status"], state["seen"]["errors"]) == ("ready", 0)
    await page.assert_shows_what_is_stored()
    state = await page("send", text="plain")
    assert [message["role"] for message in state["messages"]] == ["user", "assistant"] * 2
    await page.assert_shows_what_is_stored()


async def test_stop_of_the_page_reaches_the_server(page: Page, packages: Path) -> None:
    await page.open(packages=packages)
    await page("begin", text="hang")
    await page("until", says="That ")
    await page("stop")
    await page.until_stored("cancelled")


async def test_a_resumed_stream_that_another_replaces_stops_nothing(page: Page, packages: Path) -> None:
    await page.open(packages=packages)
    await page("begin", text="hang")
    await page("until", says="That ")
    await page.open(messages=await page.stored(), resume=True, packages=packages)
    await page("until", says="That ")
    assert (await page("replace"))["seen"]["stops"] == 0
    await page("stop")
    await page.until_stored("cancelled")
