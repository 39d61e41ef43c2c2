"""OpenAI's files, called through the package `openai` over a real socket."""

from base64 import b64encode
from typing import Any
from uuid import uuid4

import openai
import pytest
from openai import AsyncOpenAI

from tests.support.http_client import Client
from tests.support.http_server import Server, serving
from turnstream.domain.plans import Plan
from turnstream.scripted import message_of, text

pytestmark = pytest.mark.asyncio(loop_scope="session")

PNG = b"\x89PNG\r\n\x1a\n"


async def test_a_file_is_uploaded_listed_read_and_deleted(client: AsyncOpenAI) -> None:
    contents = [b"A note.\r\n\r\n--not a boundary\r\n", PNG + bytes(range(256)), b"%PDF-1.7 \xff\r\n--"]
    purposes: Any = ("user_data", "vision", "assistants")
    made = [
        await client.files.create(file=(name, content), purpose=purpose)
        for name, content, purpose in zip(('zwölf "note".txt', "a.png", "b.pdf"), contents, purposes, strict=True)
    ]
    assert [each.bytes for each in made] == [len(content) for content in contents]
    assert made[1].filename == "a.png"
    assert "zwölf" in made[0].filename
    assert [each.purpose for each in made] == list(purposes)
    assert [each.id async for each in client.files.list(limit=2)] == [each.id for each in reversed(made)]
    assert [each.id async for each in client.files.list(limit=1, order="asc")] == [each.id for each in made]
    for each in made:
        assert [listed async for listed in client.files.list(purpose=each.purpose)] == [each]
    assert [each async for each in client.files.list(purpose="batch")] == []
    for each, content in zip(made, contents, strict=True):
        assert (await client.files.content(each.id)).read() == content
        assert await client.files.retrieve(each.id) == each
    assert (await client.files.delete(made[0].id)).deleted
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError):
            await call(made[0].id)


async def test_a_file_is_input_of_a_response_and_of_a_completion(server: Server, client: AsyncOpenAI) -> None:
    model, provider = server.scripts.provider(*(message_of(text("Seen.")) for _ in range(2)))
    note = await client.files.create(file=b"The tide is high.", purpose="user_data")
    picture = await client.files.create(file=PNG + uuid4().bytes, purpose="vision")
    content: Any = [
        {"type": "input_file", "file_id": note.id},
        {"type": "input_image", "file_id": picture.id, "detail": "auto"},
    ]
    answer = await client.responses.create(model=model, input=[{"role": "user", "content": content}])
    assert answer.output_text == "Seen."
    message: Any = {"role": "user", "content": [{"type": "file", "file": {"file_id": note.id}}]}
    await client.chat.completions.create(model=model, messages=[message])
    first, second = (request.messages[0].blocks for request in provider.requests)
    assert [block.type for block in first] == ["document", "image"]
    assert [block.type for block in second] == ["document"]
    (sent,) = (await client.responses.input_items.list(answer.id)).data
    assert [part["file_id"] for part in sent.to_dict()["content"]] == [note.id, picture.id]  # type: ignore[attr-defined]


async def test_a_message_with_a_deleted_file_is_refused_and_an_earlier_one_continues(
    server: Server, client: AsyncOpenAI
) -> None:
    model = server.scripts.model(*(message_of(text("Seen.")) for _ in range(2)))
    note = await client.files.create(file=b"Soon to be gone.", purpose="user_data")
    content: Any = [{"type": "input_file", "file_id": note.id}]
    before = await client.responses.create(model=model, input=[{"role": "user", "content": content}])
    await client.files.delete(note.id)
    with pytest.raises(openai.BadRequestError, match="there is no upload"):
        await client.responses.create(model=model, input=[{"role": "user", "content": content}])
    after = await client.responses.create(model=model, input="And now?", previous_response_id=before.id)
    assert after.status == "completed"


async def test_a_file_is_its_owners_alone(server: Server, api: Client, client: AsyncOpenAI) -> None:
    note = await client.files.create(file=b"Private.", purpose="user_data")
    other = AsyncOpenAI(base_url=f"{server.url}/v1", api_key=await server.token(f"{api.owner}-other"), max_retries=0)
    async with other:
        for call in (other.files.retrieve, other.files.content, other.files.delete):
            with pytest.raises(openai.NotFoundError):
                await call(note.id)
        assert [each async for each in other.files.list()] == []
        content: Any = [{"type": "input_file", "file_id": note.id}]
        with pytest.raises(openai.BadRequestError, match="there is no upload"):
            await other.responses.create(model="plain", input=[{"role": "user", "content": content}])
    assert (await client.files.retrieve(note.id)).id == note.id


@pytest.mark.parametrize("purpose", ["batch", "fine-tune", "evals", ""])
async def test_a_purpose_that_begins_a_job_is_refused(client: AsyncOpenAI, purpose: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="must be one of `user_data`") as refused:
        await client.files.create(file=b"A note.", purpose=purpose)
    assert refused.value.param == "purpose"


async def test_bytes_of_no_known_type_and_members_without_a_place_are_refused(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="image/png") as refused:
        await client.files.create(file=b"\xff\x00", purpose="user_data")
    assert refused.value.param == "file"
    with pytest.raises(openai.BadRequestError) as refused:
        await client.files.create(
            file=b"A note.", purpose="user_data", expires_after={"anchor": "created_at", "seconds": 3600}
        )
    assert refused.value.param == "expires_after"
    assert [each async for each in client.files.list()] == []


async def test_an_upload_of_the_page_is_a_file_without_a_name(api: Client, client: AsyncOpenAI) -> None:
    id = (await api.json("POST", "/api/uploads", 201, content=b"From the page."))["id"]
    (listed,) = [each async for each in client.files.list(purpose="user_data")]
    assert (listed.id, listed.filename, listed.purpose) == (id, f"{id}.txt", "user_data")


@pytest.mark.parametrize(("name", "kept"), [("a" * 1_001, None), ("5.00\u202fPM.png", "5.00\u202fPM.png"), ("", None)])
async def test_a_name_is_kept_or_refused(client: AsyncOpenAI, name: str, kept: str | None) -> None:
    if len(name) > 1_000:
        with pytest.raises(openai.BadRequestError, match="a name of at most 1,000 characters") as refused:
            await client.files.create(file=(name, PNG), purpose="vision")
        assert refused.value.param == "file"
    else:
        made = await client.files.create(file=(name, PNG), purpose="vision")
        assert made.filename == (kept or f"{made.id}.png")


@pytest.mark.parametrize("name", ["filename*=utf-8''%00", "filename*=utf-8''%ff", 'filename="\udc80"'])
async def test_a_name_that_cannot_be_stored_has_a_defined_answer(server: Server, api: Client, name: str) -> None:
    head = f'--b\r\ncontent-disposition: form-data; name="file"; {name}\r\n\r\nx\r\n'
    body = head.encode(errors="surrogatepass") + b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nvision'
    async with Client(server.url, None, await server.token(api.owner)) as client:
        answer = await client.post("/v1/files", content=body + b"\r\n--b--", headers={"content-type": FORM})
    assert answer.status_code in {200, 400}, answer.text


FORM = "multipart/form-data; boundary=b"
BAD_FORMS = {
    "JSON": ("application/json", b"{}"),
    "no boundary": ("multipart/form-data", b"--b\r\n\r\nx\r\n--b--"),
    "no end": (FORM, b'--b\r\ncontent-disposition: form-data; name="file"\r\n\r\nx'),
    "nothing": (FORM, b""),
    "no part": (FORM, b"--b--"),
    "no header": (FORM, b"--b\r\n\r\nx\r\n--b--\r\n"),
    "no name": (FORM, b"--b\r\ncontent-disposition: form-data\r\n\r\nx\r\n--b--\r\n"),
    "bad header": (FORM, b"--b\r\n\xff: \xff\r\ncontent-disposition\r\n\r\nx\r\n--b--\r\n"),
    "many parts": (FORM, b"--b\r\n\r\nx\r\n" * 50 + b"--b--\r\n"),
    "odd type": ("multipart/form-data; boundary*=x'y", b"--b--"),
}


@pytest.mark.parametrize("kind", BAD_FORMS)
async def test_a_body_that_is_no_form_with_a_file_is_refused(server: Server, api: Client, kind: str) -> None:
    type, body = BAD_FORMS[kind]
    async with Client(server.url, None, await server.token(api.owner)) as client:
        answer = await client.post("/v1/files", content=body, headers={"content-type": type})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] in {"file", "purpose"}


async def test_a_file_has_the_limits_of_uploads(server: Server, client: AsyncOpenAI) -> None:
    most = server.services.http.max_upload_bytes
    for more in (1, 100_000):
        with pytest.raises(openai.APIStatusError) as refused:
            await client.files.create(file=b"a" * (most + more), purpose="user_data")
        assert refused.value.status_code == 413
    assert (await client.files.create(file=b"a" * most, purpose="user_data")).bytes == most


async def test_files_beyond_the_plan_of_the_owner_are_refused(database_url: str) -> None:
    plan = Plan("small", uploads=1)
    async with serving(database_url, plan_of=lambda _: plan) as server:
        token = await server.token("ada")
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key=token, max_retries=0) as client:
            note = await client.files.create(file=b"A note.", purpose="user_data")
            with pytest.raises(openai.RateLimitError, match="limit `uploads`"):
                await client.files.create(file=b"Another.", purpose="user_data")
            await client.files.delete(note.id)
            await client.files.create(file=b"Another.", purpose="user_data")


async def test_a_list_refuses_unknown_parameters(client: AsyncOpenAI) -> None:
    queries: Any = ({"after": "file-1"}, {"order": "up"}, {"limit": 0})
    for query in queries:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.files.list(**query)
        assert refused.value.param in query


async def test_the_same_bytes_are_the_same_file_with_the_last_name_and_purpose(
    api: Client, client: AsyncOpenAI
) -> None:
    note = await client.files.create(file=("a.txt", b"A note."), purpose="user_data")
    again = await client.files.create(file=("b.txt", b"A note."), purpose="vision")
    assert again.id == note.id
    assert (await api.json("POST", "/api/uploads", 200, content=b"A note."))["id"] == note.id
    kept = await client.files.retrieve(note.id)
    assert (kept.filename, kept.purpose) == ("b.txt", "vision")
    source: Any = {"role": "user", "content": [{"type": "input_file", "file_data": b64encode(b"A note.").decode()}]}
    await client.responses.create(model="plain", input=[source])
    assert [each.id async for each in client.files.list()] == [note.id]
