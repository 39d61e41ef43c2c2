"""The endpoint that counts the tokens of an input, called through the package `openai` over a real socket."""

from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from tests.extensions.openai_api.test_openai_responses import LOOK
from tests.support.http_server import serving
from turnstream.domain.errors import PermanentError
from turnstream.llm.models.catalog import ProviderModels
from turnstream.llm.provider import ModelRequest
from turnstream.scripted import ScriptedProvider, message_of, text

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_tokens_of_an_input_are_counted_by_the_provider(database_url: str) -> None:
    class Counting(ScriptedProvider):
        async def count(self, request: ModelRequest) -> int:
            asked.append(request)
            if len(asked) > 3:
                raise PermanentError("http_400", "The input is too odd.")
            return 42

    asked: list[ModelRequest] = []
    provider = Counting(lambda _: message_of(text("Blue.")))
    async with (
        serving(database_url, offers=[ProviderModels(provider, ["counted"])]) as server,
        AsyncOpenAI(base_url=f"{server.url}/v1", api_key=await server.token("ada"), max_retries=0) as client,
    ):
        note = await client.files.create(file=b"The tide.", purpose="user_data")
        content: Any = [{"type": "input_file", "file_id": note.id}, {"type": "input_text", "text": "Colour?"}]
        first = await client.responses.create(model="counted", input=[{"role": "user", "content": content}])
        options: Any = {"model": "counted", "instructions": "Be brief.", "tools": [LOOK]}
        made = await client.responses.input_tokens.count(
            previous_response_id=first.id, input=[{"role": "user", "content": "Sure?"}], **options
        )
        assert (made.input_tokens, made.object) == (42, "response.input_tokens")
        assert first.conversation is not None
        await client.responses.input_tokens.count(conversation=first.conversation.id, input="Sure?", **options)
        items: Any = [
            {"role": "user", "content": content},
            {"role": "assistant", "content": "Blue."},
            {"role": "user", "content": "Sure?"},
        ]
        await client.responses.input_tokens.count(input=items, **options)
        for request in asked:
            texts = [[block.text for block in message.blocks] for message in request.messages]
            assert texts == [["", "Colour?"], ["Blue."], ["Sure?"]]
            assert (request.system, [tool.name for tool in request.tools]) == ("Be brief.", ["look"])
        assert len(asked) == 3
        with pytest.raises(openai.BadRequestError, match="too odd"):
            await client.responses.input_tokens.count(input="Sure?", **options)
        with pytest.raises(openai.BadRequestError, match="previous_response_id"):
            await client.responses.input_tokens.count(previous_response_id=f"resp_{'0' * 64}", input="Hi")
        assert len((await client.conversations.items.list(first.conversation.id)).data) == 2


async def test_the_tokens_of_an_input_are_estimated_where_the_provider_does_not_count(client: AsyncOpenAI) -> None:
    short = await client.responses.input_tokens.count(model="plain", input="Hi")
    long = await client.responses.input_tokens.count(model="plain", input="Hi, " * 1000, tools=[LOOK])
    assert 0 < short.input_tokens < long.input_tokens
