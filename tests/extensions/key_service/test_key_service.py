"""A key service wraps the keys of owners. The tests check its requests, and turns while the service is slow, down, or
refusing.

The service of these tests implements the API of `transit` over a real socket.
"""

import asyncio
import os
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
from aiohttp import web
from click.testing import CliRunner
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tests.support.harness import Harness
from tests.support.http_client import Client
from tests.support.http_server import Server, pausing, serving
from turnstream.cli import commands
from turnstream.config import Settings
from turnstream.domain.errors import CannotOpen, ConfigError, StorageUnavailable
from turnstream.extensions.key_service import EXTENSION, service_key
from turnstream.extensions.key_service.service_key import FRESH, STALE, KeyRefused, ServiceKey
from turnstream.libraries.secrets.master_keys import master_keys
from turnstream.libraries.secrets.owner_keys import OwnerKeys
from turnstream.libraries.secrets.sealing import MasterKeys, new_master_key, new_owner_key
from turnstream.llm.models.catalog import Models
from turnstream.scripted import Pause, message_of, text
from turnstream.storage.contents import TEXT_MARK
from turnstream.storage.database import Statement

pytestmark = [pytest.mark.extensions("encryption", "key_service", "keys"), pytest.mark.timeout(120)]

GET_KEYS = Statement("SELECT owner, wrapped FROM owner_keys ORDER BY owner")
GET_TEXTS = Statement("SELECT text FROM blocks WHERE text <> ''")
TOKEN = "s.vault"


class Service:
    """The key service. `state` decides its next answers. In the state `slow`, the service sets `asked` when it receives
    a request.
    """

    def __init__(self) -> None:
        self.state: Literal["up", "slow", "failing", "refusing", "odd"] = "up"
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.asked, self.go = asyncio.Event(), asyncio.Event()
        self.refused = asyncio.Queue[str]()
        self.url = ""
        self._cipher = AESGCM(AESGCM.generate_key(256))

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Service"]:
        app = web.Application()
        app.router.add_post("/v1/transit/{call}/{name}", self._answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/transit"
            yield self
        finally:
            self.go.set()
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.calls.append((request.match_info["call"], body))
        if self.state == "slow":
            self.asked.set()
            await self.go.wait()
        if self.state == "failing":
            return web.json_response({"errors": ["Vault is sealed"]}, status=503)
        if self.state == "odd":
            return web.Response(text="<html>a proxy</html>")
        if self.state == "refusing" or request.headers.get("x-vault-token") != TOKEN:
            self.refused.put_nowait(request.match_info["call"])
            return web.json_response({"errors": ["permission denied"]}, status=403)
        owner = b64decode(body["associated_data"]) + request.match_info["name"].encode()
        if request.match_info["call"] == "encrypt":
            nonce = os.urandom(12)
            sealed = nonce + self._cipher.encrypt(nonce, b64decode(body["plaintext"]), owner)
            return web.json_response({"data": {"ciphertext": f"vault:v1:{b64encode(sealed).decode()}"}})
        sealed = b64decode(body["ciphertext"].removeprefix("vault:v1:"))
        try:
            plain = self._cipher.decrypt(sealed[:12], sealed[12:], owner)
        except InvalidTag:
            return web.json_response({"errors": ["cipher: message authentication failed"]}, status=400)
        return web.json_response({"data": {"plaintext": b64encode(plain).decode()}})


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with Service().running() as service:
        yield service


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_key, "_PAUSE", 0.0)


@asynccontextmanager
async def served(url: str, service: Service, **settings: Any) -> AsyncIterator[Server]:
    given = {"key_service_url": service.url, "key_service_token": TOKEN, "master_key": "kms:orders", **settings}
    async with serving(url, encrypt_texts=True, key_service_timeout=0.5, **given) as server:
        yield server


async def test_the_service_wraps_keys_and_sees_no_text(database_url: str, service: Service) -> None:
    async with served(database_url, service) as server, Client(server.url) as client:
        said = await client.say(await client.chat(), "Tide.", model=server.scripts.model(message_of(text("Ebb."))))
        await client.events(said.stream_url)
        turn = await client.json("GET", said.url)
        assert turn["blocks"][0]["text"] == "Ebb."
        database = server.services.storage.database
        texts = [row["text"] for row in await database.rows(GET_TEXTS)]
        assert len(texts) == 2
        assert all(each.startswith(TEXT_MARK) for each in texts)
        (key,) = await database.rows(GET_KEYS)
        assert b"vault:v1:" in key["wrapped"]
    assert {call for call, _ in service.calls} == {"encrypt", "decrypt"}
    assert len(service.calls) <= 4, "a key is kept in memory"
    assert "Tide" not in str(service.calls)


@pytest.mark.parametrize("state", ["slow", "failing", "odd"])
async def test_turns_continue_while_the_service_is_away(
    database_url: str, service: Service, state: Literal["slow", "failing", "odd"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cached keys stay in use. A request that needs another key gets 503, and succeeds when the service is available
    again.
    """
    monkeypatch.setattr(service_key, "FRESH", 0.0)
    pause = Pause()
    async with served(database_url, service) as server, Client(server.url) as client:
        said = await client.say(
            await client.chat(), "Tide.", model=server.scripts.model(pausing(pause, "Ebb. ", "And flow."))
        )
        service.state = state
        pause.go.set()
        await client.events(said.stream_url)
        turn = await client.json("GET", said.url)
        assert (turn["status"], turn["blocks"][0]["text"]) == ("complete", "Ebb. And flow.")
        (key,) = await server.services.storage.database.rows(GET_KEYS)
        masters = MasterKeys([ServiceKey("orders", service.url, TOKEN, 0.5)])
        with pytest.raises(StorageUnavailable, match="The key service does not answer"):
            await masters.unwrap(key["owner"], key["wrapped"])
        service.state = "up"
        service.go.set()
        assert len(await masters.unwrap(key["owner"], key["wrapped"])) == 64


async def test_a_server_that_starts_while_the_service_is_away_answers_when_it_is_back(
    database_url: str, service: Service
) -> None:
    async with served(database_url, service) as server, Client(server.url) as client:
        said = await client.say(await client.chat(), "Tide.", model=server.scripts.model(message_of(text("Ebb."))))
        await client.events(said.stream_url)
    service.state = "failing"
    async with served(database_url, service) as server, Client(server.url) as client:
        refused = await client.get(said.url)
        assert refused.status_code == 503
        refused = await client.post("/api/turns", json={"blocks": [{"type": "text", "text": "Tide."}]})
        assert refused.status_code == 503
        service.state = "up"
        turn = await client.json("GET", said.url)
        assert turn["blocks"][0]["text"] == "Ebb."


async def test_a_refusing_service_locks_stored_contents(
    database_url: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_key, "FRESH", 0.0)
    monkeypatch.setattr("turnstream.extensions.encryption.codec.KEPT", 0.0)
    async with served(database_url, service) as server, Client(server.url) as client:
        said = await client.say(await client.chat(), "Tide.", model=server.scripts.model(message_of(text("Ebb."))))
        await client.events(said.stream_url)
        service.state = "refusing"
        refused = await client.get(said.url)
        assert refused.status_code == 503
        refused = await client.post(
            f"/api/chats/{said.assistant['chat_id']}/turns", json={"blocks": [{"type": "text", "text": "Ebb?"}]}
        )
        assert refused.status_code == 503
        service.state = "up"
        assert (await client.json("GET", said.url))["blocks"][0]["text"] == "Ebb."


async def test_a_key_is_asked_for_seldom_and_forgotten_when_it_is_refused(service: Service) -> None:
    now = 0.0
    key, plain = ServiceKey("orders", service.url, TOKEN, 0.5, lambda: now), new_owner_key()
    wrapped = await key.wrap("ada", plain)
    assert [await key.unwrap("ada", wrapped) for _ in range(3)] == [plain] * 3
    assert len(await asyncio.gather(*(key.unwrap("ada", wrapped) for _ in range(20)))) == 20
    assert len(service.calls) == 2
    with pytest.raises(CannotOpen):
        await key.unwrap("bob", wrapped)
    now = FRESH
    service.state = "failing"
    assert await key.unwrap("ada", wrapped) == plain
    now = STALE
    with pytest.raises(StorageUnavailable):
        await key.unwrap("ada", wrapped)
    service.state = "refusing"
    with pytest.raises(KeyRefused, match="refuses the key of ada"):
        await key.unwrap("ada", wrapped)
    service.state = "failing"
    now = 0.0
    with pytest.raises(StorageUnavailable):
        await key.unwrap("ada", wrapped)


async def test_keys_of_owners_go_to_the_service_and_back_to_a_file(harness: Harness, service: Service) -> None:
    local = new_master_key()
    sealed = (await OwnerKeys(harness.database, MasterKeys.read(local)).find_or_create("ada")).seal("secret", "place")
    env = {
        **os.environ,
        "DATABASE_URL": harness.url,
        "TURNSTREAM_KEY_SERVICE_URL": service.url,
        "TURNSTREAM_KEY_SERVICE_TOKEN": TOKEN,
    }
    for keys in (f"kms:orders,{local}", f"{local},kms:orders"):
        given = env | {"TURNSTREAM_MASTER_KEY": keys}
        done = await asyncio.to_thread(CliRunner().invoke, commands, ["keys", "rotate"], env=given)
        assert "1 of 1 keys are wrapped by the first master key" in done.output, done.output
        (row,) = await harness.database.rows(GET_KEYS)
        assert (b"vault:v1:" in row["wrapped"]) == keys.startswith("kms:")
        masters = MasterKeys([ServiceKey("orders", service.url, TOKEN, 0.5)])
        if not keys.startswith("kms:"):
            masters = MasterKeys.read(local)
        key = await OwnerKeys(harness.database, masters).find("ada")
        assert key is not None
        assert key.open(sealed, "place") == "secret"


async def test_the_doctor_tries_the_key(service: Service) -> None:
    check, models = EXTENSION.checks["key service"], Models()

    def settings(**given: Any) -> Settings:
        address: dict[str, Any] = {"key_service_url": service.url, "key_service_token": TOKEN}
        return Settings(_env_file=None, master_key=f"kms:orders,{new_master_key()}", **{**address, **given})

    assert await check(settings(), models, False) == "the keys are asked for when they are needed"
    assert await check(settings(), models, True) == "wraps and unwraps by orders"
    with pytest.raises(ConfigError, match="The key orders of TURNSTREAM_MASTER_KEY cannot be used"):
        await check(settings(key_service_token="another"), models, True)
    assert await check(Settings(_env_file=None), models, True) == "none"


def test_a_key_of_a_service_needs_its_address() -> None:
    with pytest.raises(
        ConfigError, match="TURNSTREAM_KEY_SERVICE_URL must be set, because TURNSTREAM_MASTER_KEY names"
    ):
        master_keys(Settings(_env_file=None, database_url="postgresql://x", master_key="kms:orders"))


async def test_a_turn_that_runs_while_the_service_refuses_ends_when_it_permits_again(
    database_url: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_key, "FRESH", 0.0)
    monkeypatch.setattr("turnstream.extensions.encryption.codec.KEPT", 0.0)
    pause = Pause()
    async with served(database_url, service) as server, Client(server.url) as client:
        model = server.scripts.model(pausing(pause, "Ebb. ", "And flow."))
        said = await client.say(await client.chat(), "Tide.", model=model)
        service.state = "refusing"
        service.refused = asyncio.Queue()
        pause.go.set()
        for _ in range(3):
            await service.refused.get()
        service.state = "up"
        await client.events(said.stream_url)
        turn = await client.json("GET", said.url)
        assert (turn["status"], turn["blocks"][0]["text"]) == ("complete", "Ebb. And flow.")
