"""The core without any extension: it posts, streams, runs tools and survives a kill."""

import httpx2
import pytest

from tests.acceptance.conftest import StartServer
from tests.support.calls import ENDPOINTS, OPENAI
from tests.support.http_client import Event, Parser, said
from turnstream.api.routes import CORE
from turnstream_client.assembler import Assembler


@pytest.mark.timeout(120)
async def test_the_core_alone_runs_tools_and_continues_after_a_kill(server: StartServer) -> None:
    running = await server(TURNSTREAM_EXTENSIONS="none", TURNSTREAM_DEMO_DELAY="0.01")
    async with httpx2.AsyncClient(base_url=running.url, timeout=60) as client:
        posted = (await client.post("/api/turns", json=said("How long does the battery last?"))).json()
        first: list[Event] = []
        async with client.stream("GET", posted["stream_url"]) as response:
            parser = Parser()
            async for chunk in response.aiter_bytes():
                first += parser.feed(chunk)
                if len(first) >= 30:
                    break
        await running.kill()
        await running.start()
        cursor = {"Last-Event-ID": str(first[-1].id)}
        rest = Parser().feed((await client.get(posted["stream_url"], headers=cursor)).content)
        turn = (await client.get(posted["stream_url"].removesuffix("/stream"))).json()
        assembler = Assembler()
        for event in (*first, *rest):
            assembler.apply(event.name, event.data)
        assert (assembler.end, assembler.blocks) == ("turn_complete", turn["blocks"])
        assert {"tool_use", "tool_result", "text"} <= {block["type"] for block in turn["blocks"]}


async def test_calls_of_extensions_are_not_there_without_them(server: StartServer) -> None:
    running = await server(TURNSTREAM_EXTENSIONS="none")
    left_out = [endpoint for endpoint in (*ENDPOINTS, *OPENAI) if endpoint not in CORE.endpoints]
    assert len(left_out) > 20
    async with httpx2.AsyncClient(base_url=running.url) as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
        for endpoint in left_out:
            path = endpoint.path.replace(":path", "")
            assert path not in paths
            response = await client.request(endpoint.method, path.replace("{", "").replace("}", ""))
            assert response.status_code == 404, endpoint.call
