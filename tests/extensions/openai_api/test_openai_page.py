"""The examples in docs/openai.md work."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response

from tests.support.http_server import Server
from tests.support.model_apis import providers_of
from turnstream.scripted import message_of, text

pytestmark = pytest.mark.asyncio(loop_scope="session")

PAGE = (Path(__file__).parents[3] / "docs/openai.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


async def run(server: Server, program: str, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNSTREAM_TOKEN", token)
    await asyncio.to_thread(exec, program.replace("http://127.0.0.1:8000", server.url), {})


async def test_the_first_program_prints_an_answer(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    await run(server, blocks("python")[0], await server.token("reader of the page"), monkeypatch)
    assert "Hello." in capsys.readouterr().out  # the output also contains log lines


async def test_the_choice_of_tools_is_accepted(server: Server) -> None:
    model, provider = server.scripts.provider(message_of(text("Hi.")))
    body = {"model": model, "input": "Hi", **json.loads(blocks("json")[0])}
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key=await server.token("chooser")) as client:
        await client.post("/responses", body=body, cast_to=Response)
    assert [tool.name for tool in provider.requests[0].tools] == ["doc_view"]


async def test_a_thread_is_brought_over(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, thread = blocks("python")
    program = first.partition("\nmade = ")[0] + thread
    await run(server, program, await server.token("mover"), monkeypatch)
    assert "Hello.\n" in capsys.readouterr().out


async def test_the_provider_of_embeddings_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text(blocks("toml")[0])
    found = {spec.name: spec for spec in providers_of(tmp_path / "models.toml", {"OPENAI_API_KEY": "a key"})}
    assert (found["vectors"].api.name, found["vectors"].key) == ("openai-embeddings", "a key")
    assert [model.id for model in found["vectors"].models] == ["text-embedding-3-small"]
