"""Histories that clients of OpenAI's APIs send: known ids save work, but no history needs them."""

from abc import ABC, abstractmethod
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from tests.extensions.openai_api.test_openai_chat import FUNCTION
from tests.extensions.openai_api.test_openai_responses import LOOK
from tests.support.http_client import Client
from tests.support.http_server import Server
from turnstream.domain.kinds import TEXT, TOOL_RESULT, TOOL_USE
from turnstream.scripted import message_of, text, tool_use

pytestmark = pytest.mark.asyncio(loop_scope="session")

Items = list[Any]


class Talk(ABC):
    """A client that keeps the conversation and sends all of it in each request."""

    def __init__(self, client: AsyncOpenAI, model: str, store: bool) -> None:
        self.client, self.model, self.store = client, model, store
        self.items: Items = []

    def say(self, words: str) -> None:
        self.items.append({"role": "user", "content": words})

    @abstractmethod
    async def ask(self) -> tuple[str, list[str]]:
        """Asks the model, and appends the answer to the items. Returns the answer's text and the ids of its calls."""

    @abstractmethod
    def result(self, call: str, output: str) -> None: ...


class Responses(Talk):
    with_ids = True

    async def ask(self) -> tuple[str, list[str]]:
        made = await self.client.responses.create(model=self.model, input=self.items, tools=[LOOK], store=self.store)
        assert made.to_dict()["store"] is self.store
        answer = [item.to_dict() for item in made.output]
        self.items += answer if self.with_ids else [self._without_id(item) for item in answer]
        return made.output_text, [item.call_id for item in made.output if item.type == "function_call"]

    @staticmethod
    def _without_id(item: Any) -> Any:
        return {name: value for name, value in item.items() if name not in {"id", "status"}}

    def result(self, call: str, output: str) -> None:
        self.items.append({"type": "function_call_output", "call_id": call, "output": output})


class ResponsesWithoutIds(Responses):
    with_ids = False


class Completions(Talk):
    async def ask(self) -> tuple[str, list[str]]:
        made = await self.client.chat.completions.create(
            model=self.model, messages=self.items, tools=[FUNCTION], store=self.store
        )
        message = made.choices[0].message
        self.items.append(message.to_dict())
        return message.content or "", [call.id for call in message.tool_calls or ()]

    def result(self, call: str, output: str) -> None:
        self.items.append({"role": "tool", "tool_call_id": call, "content": output})


TALKS = pytest.mark.parametrize("kind", [Responses, ResponsesWithoutIds, Completions])
STORES = pytest.mark.parametrize("store", [True, False], ids=["stored", "not stored"])
LOOKS = tool_use("look", {"at": "sea"}, "c1")


async def chats_of(api: Client) -> int:
    return len((await api.json("GET", "/api/chats"))["chats"])


@TALKS
@STORES
async def test_a_continued_conversation_is_one_chat(
    server: Server, api: Client, client: AsyncOpenAI, kind: type[Talk], store: bool
) -> None:
    words = ["One.", "Two.", "Three.", "Four."]
    model, provider = server.scripts.provider(*(message_of(text(word)) for word in words))
    talk = kind(client, model, store)
    for number, word in enumerate(words):
        talk.say(str(number))
        assert await talk.ask() == (word, [])
    assert [len(request.messages) for request in provider.requests] == [1, 3, 5, 7]
    assert await chats_of(api) == (1 if store else 0)


@TALKS
@STORES
async def test_a_loop_of_tools_continues(
    server: Server, api: Client, client: AsyncOpenAI, kind: type[Talk], store: bool
) -> None:
    model, provider = server.scripts.provider(message_of(LOOKS), message_of(text("Blue.")), message_of(text("Yes.")))
    talk = kind(client, model, store)
    talk.say("Colour?")
    assert await talk.ask() == ("", ["c1"])
    talk.result("c1", "blue")
    assert await talk.ask() == ("Blue.", [])
    talk.say("Sure?")
    assert await talk.ask() == ("Yes.", [])
    types = [block.type for message in provider.requests[-1].messages for block in message.blocks]
    assert types == [TEXT, TOOL_USE, TOOL_RESULT, TEXT, TEXT]
    assert await chats_of(api) == (1 if store else 0)


@TALKS
@STORES
async def test_results_of_calls_for_which_no_turn_waits_are_recorded(
    server: Server, api: Client, client: AsyncOpenAI, kind: type[Talk], store: bool
) -> None:
    model, provider = server.scripts.provider(message_of(LOOKS), message_of(text("Blue.")), message_of(text("Green.")))
    talk = kind(client, model, store)
    talk.say("Colour?")
    await talk.ask()
    talk.result("c1", "blue")
    await talk.ask()
    talk.items[-2:] = []
    talk.result("c1", "green")  # this result differs from the stored result
    assert await talk.ask() == ("Green.", [])
    blocks = [block for message in provider.requests[-1].messages for block in message.blocks]
    assert [(block.type, block.text) for block in blocks][-1] == (TOOL_RESULT, "green"), (
        "no words but those of the client"
    )
    assert len(blocks) == 3


@TALKS
async def test_the_model_gets_the_compacted_history(server: Server, client: AsyncOpenAI, kind: type[Talk]) -> None:
    words = ["One.", "Two.", "Three.", "Four."]
    model, provider = server.scripts.provider(*(message_of(text(word)) for word in words))
    talk = kind(client, model, store=True)
    for number in range(3):
        talk.say(str(number))
        await talk.ask()
    talk.items[:4] = [{"role": "user", "content": "We counted."}]
    talk.say("And?")
    assert await talk.ask() == ("Four.", [])
    texts = [block.text for message in provider.requests[-1].messages for block in message.blocks]
    assert texts == ["We counted.", "2", "Three.", "And?"]


@TALKS
async def test_another_message_behind_the_same_answer_is_a_branch(
    server: Server, api: Client, client: AsyncOpenAI, kind: type[Talk]
) -> None:
    model, provider = server.scripts.provider(*(message_of(text(word)) for word in ["One.", "Two.", "Three."]))
    talk = kind(client, model, store=True)
    talk.say("1")
    await talk.ask()
    before = [*talk.items]
    for words in "2", "3":
        talk.items = [*before]
        talk.say(words)
        await talk.ask()
    texts = [block.text for message in provider.requests[-1].messages for block in message.blocks]
    assert texts == ["1", "One.", "3"]
    assert await chats_of(api) == 1


@TALKS
async def test_a_conversation_continues_after_the_deletion_of_its_rows(
    server: Server, api: Client, client: AsyncOpenAI, kind: type[Talk]
) -> None:
    replies = message_of(LOOKS), message_of(text("Blue.")), message_of(text("Yes."))
    model, provider = server.scripts.provider(*replies)
    talk = kind(client, model, store=True)
    talk.say("Colour?")
    await talk.ask()
    await _delete_all(api)
    talk.result("c1", "blue")
    assert await talk.ask() == ("Blue.", [])
    await _delete_all(api)
    talk.say("Sure?")
    assert await talk.ask() == ("Yes.", [])
    types = [block.type for message in provider.requests[-1].messages for block in message.blocks]
    assert types == [TEXT, TOOL_USE, TOOL_RESULT, TEXT, TEXT]
    assert await chats_of(api) == 1


async def _delete_all(api: Client) -> None:
    for chat in (await api.json("GET", "/api/chats"))["chats"]:
        await api.json("DELETE", f"/api/chats/{chat['id']}")


@TALKS
async def test_an_output_without_its_call_is_refused(server: Server, client: AsyncOpenAI, kind: type[Talk]) -> None:
    talk = kind(client, server.scripts.model(), store=True)
    talk.say("Colour?")
    talk.result("c1", "blue")
    with pytest.raises(openai.BadRequestError, match="No tool call found"):
        await talk.ask()


async def test_a_reference_to_an_item_that_is_not_here_is_refused(client: AsyncOpenAI) -> None:
    made = await client.responses.create(input="Hi", store=False)
    items: Items = [{"type": "item_reference", "id": made.output[0].id}, {"role": "user", "content": "And?"}]
    with pytest.raises(openai.BadRequestError, match="there is no item"):
        await client.responses.create(input=items)


async def test_references_are_replaced_by_their_items(server: Server, api: Client, client: AsyncOpenAI) -> None:
    words = ["One.", "Two.", "Three."]
    model, provider = server.scripts.provider(*(message_of(text(word)) for word in words))
    items: Items = []
    for number in range(3):
        items.append({"role": "user", "content": str(number)})
        made = await client.responses.create(model=model, input=items)
        items.append({"type": "item_reference", "id": made.output[0].id})
    texts = [block.text for message in provider.requests[-1].messages for block in message.blocks]
    assert texts == ["0", "One.", "1", "Two.", "2"]
    assert await chats_of(api) == 1


async def test_references_to_many_chats_are_refused(client: AsyncOpenAI) -> None:
    made = [await client.responses.create(input="Hi") for _ in range(21)]
    items: Items = [{"type": "item_reference", "id": each.output[0].id} for each in made]
    with pytest.raises(openai.BadRequestError, match="at most 20 branches"):
        await client.responses.create(input=[*items, {"role": "user", "content": "And?"}])
    answered = await client.responses.create(input=[*items[1:], {"role": "user", "content": "And?"}])
    assert answered.status == "completed"


@TALKS
async def test_a_message_beside_results_is_in_the_same_model_call(
    server: Server, client: AsyncOpenAI, kind: type[Talk]
) -> None:
    model, provider = server.scripts.provider(message_of(LOOKS), message_of(text("Blue.")), message_of(text("No.")))
    talk = kind(client, model, store=True)
    talk.say("Colour?")
    await talk.ask()
    talk.result("c1", "blue")
    talk.say("In one word.")
    assert await talk.ask() == ("Blue.", [])
    texts = [block.text for message in provider.requests[-1].messages for block in message.blocks]
    assert (len(provider.requests), texts[-1]) == (2, "In one word.")


async def test_a_token_for_messages_alone_may_send_a_greeting_and_no_other_history(server: Server, api: Client) -> None:
    greeting: Any = {"role": "assistant", "content": "How can I help?"}
    asked: Any = {"role": "user", "content": "Moin"}
    token = await server.token(api.owner, "send", "read")
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key=token, max_retries=0) as client:
        assert (await client.responses.create(input=[greeting, asked])).status == "completed"
        with pytest.raises(openai.PermissionDeniedError):
            await client.responses.create(input=[asked, greeting, asked])
