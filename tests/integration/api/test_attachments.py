"""Images and documents in user turns: accepted files, stored files, and the request to the model."""

import json
from base64 import b64encode
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.integration.api.conftest import NewOwner
from tests.support.http_client import Client, Said
from tests.support.http_server import Server
from tests.support.locks import Locker
from tests.support.sweeping import swept
from turnstream.extensions.retention.unused import unused_uploads
from turnstream.llm.conversation.attachments import GONE
from turnstream.llm.models.catalog import Model, ProviderModels
from turnstream.scripted import ScriptedProvider, message_of, text

pytestmark = pytest.mark.asyncio(loop_scope="session")

PNG = b"\x89PNG\r\n\x1a\n" + b"not really"
PDF = b"%PDF-1.7 not really"


def inline(content: bytes, **more: Any) -> dict[str, Any]:
    return {"type": "base64", "data": b64encode(content).decode(), **more}


def image(source: dict[str, Any]) -> dict[str, Any]:
    return {"type": "image", "source": source}


def document(source: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "document", "source": source, **more}


async def told(api: Client, server: Server, *blocks: dict[str, Any]) -> tuple[Said, list[dict[str, Any]]]:
    """Returns the exchange, and the user's blocks as the provider received them."""
    model, provider = server.scripts.provider(message_of(text("I see.")), message_of(text("Still.")))
    chat = await api.chat()
    answer = await api.json("POST", f"{chat}/turns", 201, json={"role": "user", "blocks": list(blocks), "model": model})
    turn = Said(answer["user_turn"], answer["assistant_turn"], answer["stream_url"])
    await api.events(turn.stream_url)
    sent = provider.requests[0].messages[0].blocks
    return turn, [json.loads(block.data) if block.data else {"text": block.text} for block in sent]


async def test_an_image_goes_to_the_model_and_the_row_says_which_upload_it_is(api: Client, server: Server) -> None:
    turn, sent = await told(api, server, {"type": "text", "text": "What is this?"}, image(inline(PNG)))
    assert sent == [{"text": "What is this?"}, image({**inline(PNG), "media_type": "image/png"})]
    kept = turn.user["blocks"][1]["data"]["source"]
    assert (kept["type"], kept["media_type"]) == ("upload", "image/png")
    response = await api.get(f"/api/uploads/{kept['id']}")
    assert (response.content, response.headers["content-type"]) == (PNG, "image/png")
    assert response.headers["x-content-type-options"] == "nosniff"


async def test_the_same_bytes_are_the_same_upload(api: Client, server: Server) -> None:
    content = PNG + uuid4().bytes
    first = await api.json("POST", "/api/uploads", 201, content=content)
    assert await api.json("POST", "/api/uploads", 200, content=content) == {**first, "created": False}
    assert (first["media_type"], first["size"]) == ("image/png", len(content))
    _, sent = await told(api, server, image({"type": "upload", "id": first["id"]}))
    assert sent[0]["source"]["data"] == b64encode(content).decode()


async def test_the_wish_for_citations_is_kept_and_reaches_the_model(api: Client, server: Server) -> None:
    turn, sent = await told(
        api, server, document(inline(b"High at noon."), cite=True), document(inline(b"Low at six."))
    )
    assert [block.get("cite") for block in sent] == [True, None]
    assert [block["data"].get("cite") for block in turn.user["blocks"]] == [True, None]


@pytest.mark.extensions("documents")
async def test_a_document_of_the_library_keeps_the_text_it_had_when_it_was_sent(api: Client, server: Server) -> None:
    await api.put("/api/documents/notes/tide.md", content="High at noon.")
    turn, sent = await told(api, server, document({"type": "path", "path": "notes/tide.md"}))
    source = {"type": "text", "media_type": "text/plain", "data": "High at noon."}
    assert sent == [{"type": "document", "title": "notes/tide.md", "source": source}]
    await api.put("/api/documents/notes/tide.md", content="Low at noon.")
    assert (await api.json("GET", turn.user_url))["blocks"][0]["text"] == "High at noon."


@pytest.mark.parametrize(
    ("content", "source"),
    [
        (PDF, {"type": "base64", "media_type": "application/pdf", "data": b64encode(PDF).decode()}),
        ("Zwölf".encode(), {"type": "text", "media_type": "text/plain", "data": "Zwölf"}),
    ],
)
async def test_documents_are_pdfs_and_texts(api: Client, server: Server, content: bytes, source: Any) -> None:
    _, sent = await told(api, server, document(inline(content), title="Paper"))
    assert sent == [{"type": "document", "title": "Paper", "source": source}]


async def test_a_deleted_upload_is_shown_as_gone(api: Client, server: Server) -> None:
    model, provider = server.scripts.provider(message_of(text("I see.")), message_of(text("Still.")))
    upload = await api.json("POST", "/api/uploads", 201, content=PNG + uuid4().bytes)
    chat = await api.chat()
    block = image({"type": "upload", "id": upload["id"]})
    await api.json("POST", f"{chat}/turns", 201, json={"role": "user", "blocks": [block], "model": model})
    await api.events((await api.json("GET", f"{chat}/turns"))["turns"][-1]["id"].join([f"{chat}/turns/", "/stream"]))
    await api.json("DELETE", f"/api/uploads/{upload['id']}")
    await api.ask(chat, "And now?", model=model)
    assert provider.requests[1].messages[0].blocks[0].text == GONE


async def test_a_browser_revalidates_a_cached_upload(api: Client) -> None:
    upload = await api.json("POST", "/api/uploads", 201, content=PNG + uuid4().bytes)
    url = f"/api/uploads/{upload['id']}"
    first = await api.get(url)
    assert (first.headers["cache-control"], first.headers["vary"]) == ("private, no-cache", "Authorization")
    known = {"If-None-Match": f'"x", W/{first.headers["etag"]}'}
    again = await api.get(url, headers=known)
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    await api.json("DELETE", url)
    assert (await api.get(url, headers=known)).status_code == 404


async def test_an_upload_without_a_turn_is_deleted_after_a_while(api: Client, server: Server, database: Locker) -> None:
    contents = {name: PNG + uuid4().bytes for name in ("said", "never said", "put again", "new")}
    ids = {name: (await api.json("POST", "/api/uploads", 201, content=each))["id"] for name, each in contents.items()}
    chat = await api.chat()
    await api.say(chat, blocks=[image({"type": "upload", "id": ids["said"]})])
    await database.connection.execute(
        "UPDATE uploads SET created_at = created_at - interval '2 days' WHERE id::text <> $1 AND owner = $2",
        *(ids["new"], api.owner),
    )
    await api.json("POST", "/api/uploads", 200, content=contents["put again"])
    uploads = server.services.storage.uploads
    await swept(unused_uploads(server.services.storage.database, 86_400))
    assert {UUID(ids[name]) for name in ("said", "put again", "new")} == (
        await uploads.describe(api.owner, [UUID(id) for id in ids.values()])
    ).keys()
    await api.json("DELETE", chat)
    assert await swept(unused_uploads(server.services.storage.database, 86_400)) == 1
    await api.json("GET", f"/api/uploads/{ids['said']}", 404)


async def test_an_upload_may_be_removed_only_if_no_turn_says_it(api: Client) -> None:
    upload = await api.json("POST", "/api/uploads", 201, content=PNG + uuid4().bytes)
    url = f"/api/uploads/{upload['id']}"
    chat = await api.chat()
    await api.say(chat, blocks=[image({"type": "upload", "id": upload["id"]})])
    for condition in ("", "true", "Unused", "unused "):
        refusal = await api.json("DELETE", url, 422, params={"if": condition})
        assert refusal["errors"][0]["field"] == "if"
    await api.json("DELETE", url, 409, params={"if": "unused"})
    await api.json("DELETE", chat)
    await api.json("DELETE", url, params={"if": "unused"})
    await api.json("DELETE", url, 404, params={"if": "unused"})


SEES_NOTHING = Model("blind", can=frozenset({"tools"}))


@pytest.mark.parametrize(
    ("block", "field"),
    [
        (image({"type": "base64", "data": "no base64!"}), "blocks.0.source.data"),
        (image(inline(b"\x00\x01\xff")), "blocks.0.source"),
        (image(inline(PDF)), "blocks.0.source"),
        (image(inline(PNG, media_type="image/jpeg")), "blocks.0.source.media_type"),
        (image({"type": "upload", "id": str(uuid4())}), "blocks.0.source.id"),
        (image({"type": "path", "path": "x"}), "blocks.0.source.type"),
        (document({"type": "path", "path": "nowhere.md"}), "blocks.0.source.path"),
        (document({"type": "path", "path": "a//b"}), "blocks.0.source.path"),
        (document(inline(PNG)), "blocks.0.source"),
        ({"type": "film"}, "blocks.0.type"),
    ],
)
async def test_a_block_that_no_model_takes_is_refused_by_field(api: Client, block: dict[str, Any], field: str) -> None:
    chat = await api.chat()
    refused = await api.json("POST", f"{chat}/turns", 422, json={"role": "user", "blocks": [block]})
    assert [error["field"] for error in refused["errors"]] == [field]
    assert (await api.json("GET", f"{chat}/turns"))["turns"] == []


async def test_a_model_that_cannot_see_is_sent_no_image(api: Client, server: Server) -> None:
    server.scripts.offers.append(ProviderModels(ScriptedProvider(lambda _: message_of(text("?"))), [SEES_NOTHING]))
    chat = await api.chat()
    for block in (image(inline(PNG)), document(inline(PDF))):
        body = {"role": "user", "blocks": [block], "model": "blind"}
        refused = await api.json("POST", f"{chat}/turns", 422, json=body)
        assert refused["errors"][0]["field"] == "blocks.0.type"


async def test_an_upload_of_another_owner_is_not_there(new_owner: NewOwner) -> None:
    ada, bob = await new_owner(), await new_owner()
    upload = await ada.json("POST", "/api/uploads", 201, content=PNG + uuid4().bytes)
    await bob.json("GET", f"/api/uploads/{upload['id']}", 404)
    await bob.json("DELETE", f"/api/uploads/{upload['id']}", 404)
    block = image({"type": "upload", "id": upload["id"]})
    await bob.json("POST", f"{await bob.chat()}/turns", 422, json={"role": "user", "blocks": [block]})
