"""OpenAI's Responses API, called through the package `openai` over a real socket."""

import asyncio
from base64 import b64encode
from typing import Any
from uuid import uuid4

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response
from pydantic import BaseModel

from tests.support.http_server import Server, pausing, serving
from tests.support.pictures import PIXEL
from turnstream.domain.errors import AccountRefused, PermanentError, TooLong, TransientError
from turnstream.domain.plans import Plan
from turnstream.extensions.openai.parameters import chat_parameters
from turnstream.extensions.openai.quirks import QUIRKS
from turnstream.extensions.openai_api.members import HINTS
from turnstream.kit.clock import CLOCK
from turnstream.libraries.outgoing.signature import headers_of
from turnstream.llm.models.catalog import ProviderModels
from turnstream.scripted import Pause, ScriptedProvider, message_of, text, thinking, tool_use
from turnstream.tools.tool import tool
from turnstream.tools.toolset import Toolset

pytestmark = pytest.mark.asyncio(loop_scope="session")


def user(content: str) -> Any:
    return {"role": "user", "content": content}


LOOK: Any = {
    "type": "function",
    "name": "look",
    "description": "Looks.",
    "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    "strict": False,
}


async def test_a_response_is_created_and_found_again(client: AsyncOpenAI) -> None:
    made = await client.responses.create(input="Hi", metadata={"topic": "ships"})
    assert (made.status, made.output_text, made.model) == ("completed", "Hello.", "plain")
    assert made.usage is not None
    assert (made.usage.input_tokens, made.usage.output_tokens, made.usage.total_tokens) == (10, 5, 15)
    assert made.metadata == {"topic": "ships"}
    assert (await client.responses.retrieve(made.id)).to_dict() == made.to_dict()
    items = await client.responses.input_items.list(made.id)
    assert [item.to_dict()["content"] for item in items.data] == [[{"type": "input_text", "text": "Hi"}]]


async def test_a_response_follows_another_one_or_its_conversation(server: Server, client: AsyncOpenAI) -> None:
    model, provider = server.scripts.provider(*(message_of(text(word)) for word in ("One.", "Two.", "Three.")))
    first = await client.responses.create(model=model, input="1", instructions="Be brief.")
    second = await client.responses.create(model=model, input="2", previous_response_id=first.id)
    assert second.conversation is not None
    third = await client.responses.create(model=model, input="3", conversation=second.conversation.id)
    assert [len(request.messages) for request in provider.requests] == [1, 3, 5]
    assert [first.instructions, second.instructions] == ["Be brief.", None]
    assert (await client.responses.retrieve(second.id)).previous_response_id == first.id
    assert third.conversation == second.conversation


async def test_a_stream_is_assembled_by_the_sdk(server: Server, client: AsyncOpenAI) -> None:
    model = server.scripts.model(message_of(thinking("Let me ", "see."), text("Hel", "lo.")))
    async with client.responses.stream(model=model, input="Hi") as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    assert final.output_text == "Hello."
    assert [item.type for item in final.output] == ["reasoning", "message"]
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    assert [event.type for event in events][:3] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
    ]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Hello."
    again = [event async for event in await client.responses.retrieve(final.id, stream=True, starting_after=7)]
    assert [event.sequence_number for event in again] == sorted(event.sequence_number for event in again)
    assert again[0].sequence_number > 7
    assert (again[-1].type, again[-1].sequence_number) == ("response.completed", numbers[-1])


async def test_a_response_in_the_background_is_resumed_and_cancelled(server: Server, client: AsyncOpenAI) -> None:
    pause = Pause()
    model = server.scripts.model(pausing(pause, "One ", "two."), pausing(Pause(), "Never ", "ends."))
    made = await client.responses.create(model=model, input="Hi", background=True)
    assert made.status in {"queued", "in_progress"}
    await pause.reached.wait()
    half = await client.responses.retrieve(made.id)
    assert (half.status, half.output_text) == ("in_progress", "One ")
    seen = []
    async for event in await client.responses.retrieve(made.id, stream=True):
        seen.append(event.sequence_number)
        if event.type == "response.output_text.delta":
            break
    pause.go.set()
    rest = [event async for event in await client.responses.retrieve(made.id, stream=True, starting_after=seen[-1])]
    assert rest[0].sequence_number > seen[-1]
    assert "".join(event.delta for event in rest if event.type == "response.output_text.delta") == "two."
    async with client.responses.stream(response_id=made.id, starting_after=seen[-1]) as stream:
        assert (await stream.get_final_response()).output_text == "One two."
    endless = await client.responses.create(model=model, input="Hi", background=True, previous_response_id=made.id)
    assert (await client.responses.cancel(endless.id)).status == "cancelled"
    ended = [event async for event in await client.responses.retrieve(endless.id, stream=True)]
    assert ended[-1].type == "response.incomplete"


@pytest.mark.parametrize(
    ("block", "so_far"),
    [
        (thinking("Let me ", "see."), {"summary": [{"type": "summary_text", "text": "Let me "}]}),
        (tool_use("look", {"at": "it"}, "l1"), {"arguments": '{"at"'}),
    ],
)
async def test_an_unfinished_item_has_its_content_so_far(
    server: Server, client: AsyncOpenAI, block: Any, so_far: Any
) -> None:
    pause, parts = Pause(), list(message_of(block))
    model = server.scripts.model([*parts[:3], pause, *parts[3:]])
    made = await client.responses.create(model=model, input="Hi", background=True, tools=[LOOK])
    await pause.reached.wait()
    (item,) = (await client.responses.retrieve(made.id)).output
    assert item.to_dict().items() >= so_far.items()
    pause.go.set()


async def test_functions_are_run_by_the_client_and_their_outputs_come_back(server: Server, client: AsyncOpenAI) -> None:
    calls = [tool_use("look", {"at": "sea"}, "c1"), tool_use("look", {"at": "sky"}, "c2")]
    model = server.scripts.model(message_of(text("Wait."), *calls), message_of(text("Blue.")))
    asked = await client.responses.create(model=model, input="Colour?", tools=[LOOK])
    assert asked.status == "completed"
    found = [item for item in asked.output if item.type == "function_call"]
    assert [(item.call_id, item.name, item.arguments) for item in found] == [
        ("c1", "look", '{"at":"sea"}'),
        ("c2", "look", '{"at":"sky"}'),
    ]
    outputs: Any = [{"type": "function_call_output", "call_id": id, "output": "blue"} for id in ("c1", "c2")]
    with pytest.raises(openai.BadRequestError, match="No tool output found for function call c2"):
        await client.responses.create(model=model, input=outputs[:1], previous_response_id=asked.id)
    answered = await client.responses.create(model=model, input=outputs, previous_response_id=asked.id)
    assert (answered.output_text, answered.previous_response_id) == ("Blue.", asked.id)
    assert answered.id != asked.id
    assert (await client.responses.retrieve(asked.id)).output == asked.output
    again = await client.responses.create(model=model, input=outputs, previous_response_id=asked.id)
    assert again.id == answered.id
    items = (await client.responses.input_items.list(answered.id, order="asc")).data
    assert [item.to_dict()["output"] for item in items] == ["blue", "blue"]


async def test_files_in_the_output_of_a_function_are_files_for_the_model(server: Server, client: AsyncOpenAI) -> None:
    model, provider = server.scripts.provider(message_of(tool_use("look", {}, "c1")), message_of(text("Sea.")))
    asked = await client.responses.create(model=model, input="Look.", tools=[LOOK])
    picture = f"data:image/png;base64,{b64encode(PIXEL).decode()}"
    parts = [{"type": "input_text", "text": "The view:"}, {"type": "input_image", "image_url": picture}]
    output: Any = {"type": "function_call_output", "call_id": "c1", "output": parts}
    broken: Any = [{"type": "input_text", "text": "Hm."}, {"type": "input_image", "image_url": f"{picture[:30]}!"}]
    with pytest.raises(openai.BadRequestError, match=r"`input` \(block 2 of the new message: `source\.data`\) must be"):
        await client.responses.create(model=model, input=[{"role": "user", "content": broken}])
    many: Any = {**output, "output": parts * 11}
    with pytest.raises(openai.BadRequestError, match="must hold at most 20 items"):
        await client.responses.create(model=model, input=[many], previous_response_id=asked.id)
    answered = await client.responses.create(model=model, input=[output], previous_response_id=asked.id)
    assert answered.output_text == "Sea."
    sent = str(provider.requests[1].messages[2])
    assert [words in sent for words in ("The view:", "image/png", picture)] == [True, True, False]
    again = await client.responses.create(model=model, input=[output], previous_response_id=asked.id)
    whole: Any = [{"role": "user", "content": "Look."}, *(item.to_dict() for item in asked.output), output]
    for repeated in (again, await client.responses.create(model=model, input=whole, tools=[LOOK])):
        assert repeated.id == answered.id


async def test_a_cancelled_response_accepts_no_outputs_and_a_message_continues_behind_it(
    server: Server, client: AsyncOpenAI
) -> None:
    model = server.scripts.model(message_of(tool_use("look", {}, "c1")), message_of(text("Well.")))
    asked = await client.responses.create(model=model, input="Colour?", tools=[LOOK])
    await client.responses.cancel(asked.id)
    output: Any = {"type": "function_call_output", "call_id": "c1", "output": "blue"}
    with pytest.raises(openai.BadRequestError, match="it has ended"):
        await client.responses.create(model=model, input=[output], previous_response_id=asked.id)
    gone_on = await client.responses.create(model=model, input="Never mind.", previous_response_id=asked.id)
    assert (gone_on.output_text, gone_on.previous_response_id) == ("Well.", asked.id)


async def test_two_messages_at_once_behind_one_response_are_two_branches(server: Server, client: AsyncOpenAI) -> None:
    model, provider = server.scripts.provider(*(message_of(text("Yes.")) for _ in range(3)))
    first = await client.responses.create(model=model, input="1")
    left, right = await asyncio.gather(
        *(client.responses.create(model=model, input=words, previous_response_id=first.id) for words in ("2", "3"))
    )
    assert [left.output_text, right.output_text, left.conversation] == ["Yes.", "Yes.", right.conversation]
    assert [len(request.messages) for request in provider.requests] == [1, 3, 3]


async def test_a_history_that_is_sent_is_known_by_the_ids_of_its_items(server: Server, client: AsyncOpenAI) -> None:
    model, provider = server.scripts.provider(
        message_of(tool_use("look", {}, "c1")), message_of(text("Blue.")), message_of(text("Bye."))
    )
    history: list[Any] = [{"role": "user", "content": "Colour?"}]
    asked = await client.responses.create(model=model, input=history, tools=[LOOK])
    history += [*(item.to_dict() for item in asked.output)]
    history.append({"type": "function_call_output", "call_id": "c1", "output": "blue"})
    answered = await client.responses.create(model=model, input=history, tools=[LOOK])
    history += [*(item.to_dict() for item in answered.output), {"role": "user", "content": "Thanks."}]
    last = await client.responses.create(model=model, input=history)
    assert last.conversation == asked.conversation
    assert len(provider.requests[2].messages) == 5


class Day(BaseModel):
    name: str
    month: int


async def test_structured_output_is_parsed_by_the_sdk(server: Server, client: AsyncOpenAI) -> None:
    call = tool_use("Day", {"name": "Labour Day", "month": 5}, "c1")
    model = server.scripts.model(message_of(call))
    made = await client.responses.parse(model=model, input="A day?", text_format=Day)
    assert made.output_parsed == Day(name="Labour Day", month=5)
    async with client.responses.stream(response_id=made.id, text_format=Day) as stream:
        assert (await stream.get_final_response()).output_parsed == made.output_parsed


@pytest.mark.parametrize(
    ("stop_reason", "reason", "error"),
    [
        ("refusal", "content_filter", openai.ContentFilterFinishReasonError),
        ("max_tokens", "max_output_tokens", openai.LengthFinishReasonError),
    ],
)
async def test_an_output_that_is_refused_or_cut_off_is_incomplete(
    server: Server, client: AsyncOpenAI, stop_reason: str, reason: str, error: type[Exception]
) -> None:
    model = server.scripts.model(*(message_of(text('{"name"'), stop_reason=stop_reason) for _ in range(4)))
    found = await client.responses.parse(model=model, input="A day?", text_format=Day)
    assert (found.status, found.output_parsed, found.error) == ("incomplete", None, None)
    assert found.incomplete_details is not None
    assert found.incomplete_details.reason == reason
    plain = await client.responses.create(model=model, input="A day?")
    assert [plain.status, *(item.to_dict()["status"] for item in plain.output)] == ["incomplete", "incomplete"]
    assert (await client.responses.retrieve(plain.id)).output == plain.output
    async with client.responses.stream(model=model, input="A day?", text_format=Day) as stream:
        assert [event.type async for event in stream][-1] == "response.incomplete"
    with pytest.raises(error):
        await client.chat.completions.parse(
            model=model, messages=[{"role": "user", "content": "A day?"}], response_format=Day
        )


async def test_images_and_files_reach_the_model(server: Server, client: AsyncOpenAI) -> None:
    model, provider = server.scripts.provider(message_of(text("Seen.")))
    content: Any = [
        {"type": "input_text", "text": "What is it?"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{b64encode(PIXEL).decode()}", "detail": "auto"},
        {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,SGVsbG8="},
    ]
    made = await client.responses.create(model=model, input=[{"role": "user", "content": content}])
    assert [block.type for block in provider.requests[0].messages[0].blocks] == ["text", "image", "document"]
    (item,) = (await client.responses.input_items.list(made.id)).data
    assert [part["type"] for part in item.to_dict()["content"]] == ["input_text", "input_image", "input_file"]  # type: ignore[attr-defined]


async def test_a_response_is_deleted_and_one_that_is_not_stored_is_gone(client: AsyncOpenAI) -> None:
    made = await client.responses.create(input="Hi")
    await client.responses.delete(made.id)
    unstored = await client.responses.create(input="Hi", store=False)
    for id in (made.id, unstored.id, "resp_1"):
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(id)


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"input": "Hi", "top_logprobs": 3}, "top_logprobs"),
        ({"input": "Hi", "seed": 3}, "seed"),
        ({"input": "Hi", "temperature": 0.5}, "temperature"),
        ({"input": "Hi", "truncation": "never"}, "truncation"),
        ({"input": "Hi", "include": ["file_search_call.results"]}, "include[0]"),
        ({"input": "Hi", "tool_choice": "perhaps"}, "tool_choice"),
        ({"input": "Hi", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "audio"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x/y"}]}]}, None),
        ({"input": ""}, "input"),
        ({}, "input"),
    ],
)
async def test_a_parameter_that_has_no_place_is_refused_by_name(
    client: AsyncOpenAI, members: Any, param: str | None
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.post("/responses", body=members, cast_to=Response)
    assert refused.value.type == "invalid_request_error"
    assert refused.value.param == (param or "input[0].content[0].image_url")
    assert f"`{refused.value.param}`" in str(refused.value)


async def test_members_added_by_the_sdks_are_accepted(client: AsyncOpenAI) -> None:
    included: Any = ["reasoning.encrypted_content", "message.input_image.image_url"]
    made = await client.responses.create(input="Hi", include=included, truncation="disabled")
    assert (made.output_text, made.truncation) == ("Hello.", "auto")
    assert (await client.responses.retrieve(made.id, include=included)).to_dict() == made.to_dict()


async def test_a_parameter_of_a_query_that_has_no_place_is_refused_by_name(client: AsyncOpenAI) -> None:
    made = await client.responses.create(input="Hi")
    with pytest.raises(openai.BadRequestError, match="include"):
        await client.responses.retrieve(made.id, include=["file_search_call.results"])
    for number in ("x", "²", "--1", "9" * 18):
        with pytest.raises(openai.BadRequestError, match="starting_after"):
            await client.responses.retrieve(made.id, stream=True, extra_query={"starting_after": number})
    with pytest.raises(openai.BadRequestError, match="order"):
        await client.responses.input_items.list(made.id, extra_query={"order": "up"})


async def test_a_message_that_comes_with_outputs_goes_into_the_turn(server: Server, client: AsyncOpenAI) -> None:
    model, provider = server.scripts.provider(
        message_of(tool_use("look", {}, "c1")), message_of(text("Blue.")), message_of(text("Indeed."))
    )
    asked = await client.responses.create(model=model, input="Colour?", tools=[LOOK])
    output = {"type": "function_call_output", "call_id": "c1", "output": "blue"}
    input: Any = [output, {"role": "user", "content": "Be quick."}]
    answered = await client.responses.create(model=model, input=input, previous_response_id=asked.id)
    assert answered.output_text in {"Blue.", "Blue.Indeed.", "Indeed."}
    sent = [block.text for message in provider.requests[-1].messages for block in message.blocks]
    assert "Be quick." in sent


async def test_errors_have_the_classes_of_the_sdk(server: Server, client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.responses.create(model="none", input="Hi")
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.AuthenticationError) as nobody:
        await client.with_options(api_key="wrong").responses.create(input="Hi")
    assert nobody.value.code == "invalid_api_key"
    reader = client.with_options(api_key=await server.token(f"owner {uuid4()}", "read"))
    with pytest.raises(openai.PermissionDeniedError):
        await reader.responses.create(input="Hi")
    pause = Pause()
    model = server.scripts.model(pausing(pause, "One ", "two."))
    running = await client.responses.create(model=model, input="Hi", background=True)
    with pytest.raises(openai.ConflictError):
        await client.responses.create(model=model, input="Hi", previous_response_id=running.id)
    pause.go.set()


async def test_calls_of_the_sdk_that_have_no_place_are_not_found_in_a_sentence(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="This server has no call GET /v1/batches"):
        await client.batches.list()
    with pytest.raises(openai.NotFoundError, match="This server has no call POST /v1/images/generations"):
        await client.images.generate(prompt="A ship")


async def test_the_sdk_verifies_the_webhook_of_a_response(client: AsyncOpenAI) -> None:
    secret, body = "whsec_c2VjcmV0", b'{"type": "turn.ended"}'
    signed = headers_of(secret, "msg_1", int(CLOCK.seconds()), body)
    client.webhooks.verify_signature(body, signed, secret=secret)
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.verify_signature(body + b" ", signed, secret=secret)


async def test_a_repeated_request_makes_one_response(client: AsyncOpenAI) -> None:
    headers = {"Idempotency-Key": str(uuid4())}
    first, second = [await client.responses.create(input="Hi", extra_headers=headers) for _ in range(2)]
    assert first.id == second.id


async def test_the_models_are_listed(client: AsyncOpenAI) -> None:
    assert "plain" in [model.id async for model in client.models.list()]
    assert (await client.models.retrieve("plain")).owned_by == "scripted"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("none")


async def test_a_round_that_is_taken_back_survives_the_assembling_of_the_sdk(
    server: Server, client: AsyncOpenAI
) -> None:
    started = list(message_of(thinking("Hm.", " Well.")))[:4]
    pause = Pause()  # pauses until the client has seen the thought that a retry will discard
    model = server.scripts.model([*started, pause, TransientError("overloaded", "Busy.")], message_of(text("Hello.")))
    events: list[Any] = []
    async with client.responses.stream(model=model, input="Hi") as stream:
        async for event in stream:
            events.append(event)
            if event.type == "response.output_item.added":
                pause.go.set()
        final = await stream.get_final_response()
    assert [item.type for item in final.output] == ["message"]
    assert final.output_text == "Hello."
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(numbers)
    ended = [event.item.to_dict()["status"] for event in events if event.type == "response.output_item.done"]
    assert ended == ["incomplete", "completed"]
    assert (await client.responses.retrieve(final.id)).output_text == "Hello."


async def test_the_sdk_tries_again_while_the_response_before_runs(server: Server, client: AsyncOpenAI) -> None:
    pause, statuses = Pause(), []
    model = server.scripts.model(pausing(pause, "One ", "two."), message_of(text("Next.")))
    running = await client.responses.create(model=model, input="Hi", background=True)

    async def note(response: Any) -> None:
        statuses.append(response.status_code)
        pause.go.set()

    hooks: Any = {"response": [note]}
    async with openai.DefaultAsyncHttpxClient(event_hooks=hooks) as http:
        patient = client.with_options(http_client=http, max_retries=10)
        made = await patient.responses.create(model=model, input="And?", previous_response_id=running.id)
    assert made.output_text == "Next."
    assert set(statuses) == {409, 200}


@tool(approval="always")
async def send_mail(to: str) -> str:
    """Sends a mail."""
    return f"sent to {to}"


async def test_approvals_and_limits_of_a_plan(database_url: str) -> None:
    plan = Plan("small", {"requests_per_day": 3})
    async with serving(database_url, Toolset([send_mail], max_result_chars=1000), plan_of=lambda _: plan) as server:
        token = await server.token("ada")
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key=token, max_retries=0) as client:
            model = server.scripts.model(
                message_of(tool_use("send_mail", {"to": "bob"}, "m1")),
                message_of(text("Sent.")),
                message_of(tool_use("send_mail", {"to": "eve"}, "m2")),
                message_of(text("Not sent.")),
            )
            for approve, said in ((True, "Sent."), (False, "Not sent.")):
                asked = await client.responses.create(model=model, input="Mail!")
                assert [item.type for item in asked.output] == ["mcp_call", "mcp_approval_request"]
                decision = {"approval_request_id": asked.output[1].id, "approve": approve}
                input: Any = [{"type": "mcp_approval_response", **decision}]
                answered = await client.responses.create(model=model, input=input, previous_response_id=asked.id)
                assert answered.output_text == said
                call = answered.output[0]
                assert call.to_dict()["approval_request_id"] == asked.output[1].id
                assert call.to_dict()["status"] == ("completed" if approve else "failed")
            await client.responses.create(input="Hi")
            with pytest.raises(openai.RateLimitError) as refused:
                await client.responses.create(input="Hi")
            assert int(refused.value.response.headers["retry-after"]) > 0
            assert refused.value.code == "rate_limit_exceeded"


# --- unsupported members ---------------------------------------------------------------------------------------------


async def ignored_by(client: AsyncOpenAI, path: str, body: Any) -> str | None:
    raw: Any = {"headers": {"X-Stainless-Raw-Response": "true"}}
    answer: Any = await client.post(path, body=body, cast_to=Response, options=raw)
    found: str | None = answer.headers.get("turnstream-ignored")
    return found


@pytest.mark.parametrize("path", ["/responses", "/chat/completions"])
@pytest.mark.parametrize("name", HINTS)
async def test_a_hint_is_accepted_and_named_and_a_member_that_changes_the_answer_is_refused(
    client: AsyncOpenAI, path: str, name: str
) -> None:
    values = HINTS[name]
    body = {"model": "plain", **({"input": "Hi"} if path == "/responses" else {"messages": [user("Hi")]})}
    for value in values if values is not None else ("x",):
        assert await ignored_by(client, path, {**body, name: value}) == name
    if values is not None:
        other: Any = {"modalities": ["audio"], "parallel_tool_calls": False, "service_tier": "flex"}.get(name, 0.5)
        with pytest.raises(openai.BadRequestError) as refused:
            await client.post(path, body={**body, name: other}, cast_to=Response)
        assert refused.value.param == name


@pytest.mark.parametrize(
    ("members", "ignored"),
    [
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"reasoning": {"generate_summary": "auto"}}, "reasoning.generate_summary"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({}, None),
    ],
)
async def test_members_inside_of_others_are_named_by_their_path(
    client: AsyncOpenAI, members: Any, ignored: str | None
) -> None:
    assert await ignored_by(client, "/responses", {"input": "Hi", **members}) == ignored


async def test_a_model_gets_its_parameters_by_their_own_names(server: Server, client: AsyncOpenAI) -> None:
    provider, model = ScriptedProvider(lambda _: message_of(text("Hi."))), f"open-{uuid4().hex}"
    parameters = chat_parameters(QUIRKS["compatible"])
    server.scripts.offers.append(ProviderModels(provider, [model], parameters=parameters))
    own: Any = {
        "top_k": 20,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    await client.responses.create(model=model, input="Hi", extra_body=own, user="u1", reasoning={"effort": "low"})
    await client.chat.completions.create(
        model=model, messages=[user("Hello")], extra_body=own, user="u1", reasoning_effort="low", seed=4
    )
    wanted = {**own, "reasoning_effort": "low"}
    for request, more in zip(provider.requests, ({}, {"seed": 4}), strict=True):
        assert request.params == {**wanted, **more}


# --- tools of programs -----------------------------------------------------------------------------------------------


async def test_custom_tools_and_those_of_a_namespace_come_back_as_they_were_sent(
    server: Server, client: AsyncOpenAI
) -> None:
    tools: Any = [
        {"type": "custom", "name": "patch", "description": "Patches.", "format": {"type": "text"}},
        {"type": "namespace", "name": "sea", "description": "Sea.", "tools": [LOOK]},
    ]
    calls = [tool_use("patch", {"input": "*** A\n+b"}, "c1"), tool_use("look--in--sea", {"at": "x"}, "c2")]
    model, provider = server.scripts.provider(message_of(*calls), message_of(text("Done.")))
    async with client.responses.stream(model=model, input="Go", tools=tools) as stream:
        events = [event async for event in stream]
        asked = await stream.get_final_response()
    assert "".join(e.delta for e in events if e.type == "response.custom_tool_call_input.delta") == "*** A\n+b"
    custom, function = asked.output
    assert (custom.type, function.type) == ("custom_tool_call", "function_call")
    assert (custom.to_dict()["name"], custom.to_dict()["input"]) == ("patch", "*** A\n+b")
    assert (function.to_dict()["name"], function.to_dict()["namespace"]) == ("look", "sea")
    again = await client.responses.retrieve(asked.id)
    assert [item.to_dict()["id"] for item in again.output] == [item.to_dict()["id"] for item in asked.output]
    outputs: Any = [
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"},
        {"type": "function_call_output", "call_id": "c2", "output": "blue"},
    ]
    answered = await client.responses.create(model=model, input=outputs, previous_response_id=asked.id)
    assert answered.output_text == "Done."
    items = (await client.responses.input_items.list(answered.id, order="asc")).data
    assert [item.type for item in items] == ["custom_tool_call_output", "function_call_output"]
    blocks = [block for message in provider.requests[1].messages for block in message.blocks]
    assert [block.text for block in blocks if block.type == "tool_result"] == ["ok", "blue"]


FAILURES: Any = {
    "the account": (AccountRefused("invalid_api_key", "key sk-123"), 502, openai.InternalServerError, "server_error"),
    "a rate limit": (PermanentError("rate_limit_error", "Slow."), 429, openai.RateLimitError, "rate_limit_exceeded"),
    "an overload": (
        PermanentError("overloaded_error", "Busy."),
        503,
        openai.InternalServerError,
        "server_is_overloaded",
    ),
    "a long context": (
        TooLong("context_length_exceeded", "Too long."),
        400,
        openai.BadRequestError,
        "context_length_exceeded",
    ),
    "a filter": (PermanentError("content_filter", "Not this."), 400, openai.BadRequestError, "content_filter"),
    "a request": (PermanentError("invalid_request_error", "No."), 400, openai.BadRequestError, "invalid_request_error"),
    "the provider": (PermanentError("api_error", "Broken."), 500, openai.InternalServerError, "server_error"),
}


@pytest.mark.parametrize("failure", FAILURES)
async def test_failures_of_the_model_have_the_classes_of_the_sdk(
    server: Server, client: AsyncOpenAI, failure: str
) -> None:
    error, status, expected, code = FAILURES[failure]
    model = server.scripts.model([error], [error], [error])
    with pytest.raises(expected) as caught:
        await client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Hi"}])
    assert (caught.value.status_code, caught.value.code) == (status, code)
    assert "sk-123" not in str(caught.value)
    made = await client.responses.create(model=model, input="Hi")
    assert made.error is not None
    assert (made.status, made.error.code) == ("failed", code)
    assert made.error.to_dict().keys() == {"code", "message", "type", "param"}
    stream = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Hi"}], stream=True
    )
    with pytest.raises(openai.APIError) as streamed:
        [chunk async for chunk in stream]
    assert streamed.value.code == code
