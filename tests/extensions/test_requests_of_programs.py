"""Requests that real programs sent to a server that accepted any request and recorded it. Long texts are replaced."""

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.http_client import Client
from tests.support.http_server import Server
from turnstream.extensions.openai.parameters import chat_parameters
from turnstream.extensions.openai.quirks import QUIRKS
from turnstream.llm.models.catalog import ProviderModels
from turnstream.scripted import ScriptedProvider, message_of, text, tool_use

pytestmark = [
    pytest.mark.extensions("openai_api", "anthropic_api"),
    pytest.mark.asyncio(loop_scope="session"),
]

RECORDED = sorted((Path(__file__).parents[1] / "fixtures/requests").glob("*.json"))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
@pytest.mark.parametrize("quirks", [None, *QUIRKS])
async def test_the_recorded_request_of_a_program_is_answered(
    server: Server, api: Client, path: Path, quirks: str | None
) -> None:
    recorded = json.loads(path.read_text(encoding="utf-8"))
    model = server.scripts.model(message_of(text("Hello.")))
    if quirks is not None:
        model = f"{model}-{quirks}"
        provider = ScriptedProvider([message_of(text("Hello."))])
        server.scripts.offers.append(ProviderModels(provider, [model], parameters=chat_parameters(QUIRKS[quirks])))
    answer = await send(server, api, recorded, model)
    if path.stem == "litellm_vllm" and quirks not in {"compatible", "openrouter"}:
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] in {"min_p", "top_k"}
    elif path.stem == "litellm_tools" and quirks is None:
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "temperature")
    else:
        assert answer.status_code == 200, answer.text
        assert "Hello." in answer.text


async def send(server: Server, api: Client, recorded: dict[str, Any], model: str) -> httpx2.Response:
    method, call = recorded["call"].split()
    headers = {**recorded["headers"], "Authorization": f"Bearer {await server.token(api.owner)}"}
    body = {**recorded["body"], "model": model}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers, trust_env=False) as client:
        return await client.request(method, call, json=body)


def _functions(path: Path) -> list[str]:
    tools = json.loads(path.read_text(encoding="utf-8"))["body"].get("tools", ())
    found = [each.get("function", each) for each in tools]
    return [each["name"] for each in found if {"parameters", "input_schema"} & each.keys()]


@pytest.mark.parametrize("path", [path for path in RECORDED if _functions(path)], ids=lambda path: path.stem)
async def test_a_recorded_request_with_tools_gets_their_calls(server: Server, api: Client, path: Path) -> None:
    recorded, name = json.loads(path.read_text(encoding="utf-8")), _functions(path)[0]
    recorded["body"].pop("temperature", None)
    answer = await send(server, api, recorded, server.scripts.model(message_of(tool_use(name, {}, "call_1"))))
    assert answer.status_code == 200, answer.text
    assert f'"name":"{name}"' in answer.text
