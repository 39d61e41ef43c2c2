import re

import msgspec
import pytest

from tests.support.scripted_server import ScriptedServer, answer
from tests.support.server_process import free_port
from turnstream_client.errors import ConnectionLost, RequestRejected, ServerUnreachable
from turnstream_client.http import AsyncClient, Backoff
from turnstream_terminal.errors import explained

EXCHANGE = b'{"assistant_turn":{"id":"t","chat_id":"c"}}'
CHATS = ["01a2005f-4a6e-7307-afc2-3c133026f358", "01a2005f-4b00-7307-afc2-3c133026f358"]


def page(chats: list[str], next: str | None = None) -> bytes:
    return answer(msgspec.json.encode({"chats": [{"id": chat} for chat in chats], "next": next}))


async def test_a_turn_whose_response_was_lost_is_posted_again_with_the_same_key(
    client: AsyncClient, scripted: ScriptedServer
) -> None:
    scripted.answers = [b"", answer(status="503 Service Unavailable"), answer(EXCHANGE, "201 Created")]
    exchange = await client.post_turn(None, "Hello", "demo", "key-1")
    assert exchange["assistant_turn"]["id"] == "t"
    assert len(scripted.requests) == 3
    assert {request.headers["idempotency-key"] for request in scripted.requests} == {"key-1"}
    assert {request.body for request in scripted.requests} == {
        b'{"blocks":[{"type":"text","text":"Hello"}],"model":"demo"}'
    }


async def test_a_chat_is_found_by_the_beginning_of_its_id_on_any_page(
    client: AsyncClient, scripted: ScriptedServer
) -> None:
    scripted.answers = [page(CHATS[:1], next="more"), page(CHATS[1:])]
    assert (await client.find_chat("01A2005F-4b"))["id"] == CHATS[1]
    assert scripted.requests[1].path.endswith("before=more")


@pytest.mark.parametrize(
    ("prefix", "sentence"),
    [("01a2", "2 chats have an id that begins with 01a2"), ("02", "no chat has an id that begins with 02")],
)
async def test_an_unknown_or_ambiguous_beginning_of_an_id_is_rejected(
    client: AsyncClient, scripted: ScriptedServer, prefix: str, sentence: str
) -> None:
    scripted.answers = [page(CHATS)]
    with pytest.raises(RequestRejected, match=sentence):
        await client.find_chat(prefix)


async def test_no_more_chats_are_requested_than_the_limit(client: AsyncClient, scripted: ScriptedServer) -> None:
    scripted.answers = [page(CHATS, next="more")]
    assert len(await client.chats(1)) == 1
    assert scripted.requests[0].path == "/api/chats?limit=1"


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        ("422 Unprocessable", b'{"title":"Wrong","detail":"model: there is no x"}', "^model: there is no x$"),
        ("409 Conflict", b'{"title":"Conflict with the present state"}', "^Conflict with the present state$"),
        ("403 Forbidden", b"<html>", "^the server answered 403 Forbidden$"),
        (
            "401 Unauthorized",
            b'{"detail":"send a token"}',
            "^the server needs a token: send a token. Make.*tokens create",
        ),
        ("200 OK", b"<html>", "does not answer like a turnstream server; check --server"),
    ],
)
async def test_a_refusal_is_a_sentence(
    client: AsyncClient, scripted: ScriptedServer, status: str, body: bytes, sentence: str
) -> None:
    scripted.answers = [answer(body, status)]
    with pytest.raises(RequestRejected) as raised:
        await client.path("c", 1)
    assert re.search(sentence, explained(raised.value))


async def test_a_refusal_has_the_words_of_the_server_for_programs(
    client: AsyncClient, scripted: ScriptedServer
) -> None:
    body = b'{"title":"Conflict","detail":"wait","code":"turn_running","request_id":"r-1"}'
    scripted.answers = [answer(body, "409 Conflict")]
    with pytest.raises(RequestRejected) as raised:
        await client.path("c", 1)
    assert (raised.value.code, raised.value.request_id) == ("turn_running", "r-1")


async def test_the_error_of_an_unreachable_server_tells_how_to_start_one() -> None:
    client = AsyncClient(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(ServerUnreachable) as raised:
        await client.post_turn(None, "Hello", None, "key-1")
    assert raised.value.key == "key-1", "a program can send it again"
    assert re.search(r"no server answers at .* start one with `turnstream serve`", explained(raised.value))
    await client.aclose()


@pytest.mark.parametrize("url", ["ftp://127.0.0.1", "127.0.0.1:8000", "http://127.0.0.1:port"])
async def test_an_invalid_url_is_rejected(url: str) -> None:
    with pytest.raises(RequestRejected, match="is not the URL of a server"):
        await AsyncClient(url).chats(1)


async def test_a_connection_that_breaks_is_lost(client: AsyncClient, scripted: ScriptedServer) -> None:
    scripted.answers = [b""]
    with pytest.raises(ConnectionLost, match="was lost"):
        await client.chats(1)


def test_pauses_grow_up_to_a_limit_and_restart_after_a_success() -> None:
    backoff = Backoff(1.0)
    pauses = [backoff.next() for _ in range(20)]
    assert 1.0 <= pauses[0] <= 1.5
    assert 5.0 <= pauses[-1] <= 7.5
    backoff.reset()
    assert backoff.next() <= 1.5
    assert backoff.next(at_least=30.0) >= 30.0
