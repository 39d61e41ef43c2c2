"""A webhook reports the end of each turn to an operator's server. The webhook is signed, is retried until it succeeds,
and is sent only once if no delivery fails.
"""

import asyncio
import base64
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import pytest
from aiohttp import web
from prometheus_client import REGISTRY
from pydantic import HttpUrl, SecretStr
from structlog.testing import capture_logs

from tests.integration.proxy import proxied
from tests.support.harness import OWNER, Asked, Harness, Replica
from tests.support.http_server import MODEL, serving
from tests.support.pages import blocks
from turnstream.config import Settings
from turnstream.domain.asks import AskAnswer
from turnstream.domain.errors import ConfigError, PermanentError
from turnstream.domain.turns import Turn
from turnstream.engine.hooks import TurnEnded
from turnstream.extensions.webhooks import receiver_of
from turnstream.extensions.webhooks.deliveries import Receiver, WebhookDeliveries, WebhookPolicy, body_of
from turnstream.extensions.webhooks.queue import Webhook, Webhooks
from turnstream.libraries.outgoing.signature import headers_of, verify
from turnstream.main import running
from turnstream.scripted import Pause, Reply, ScriptedProvider, message_of, text, tool_use
from turnstream.storage.chats.actions import KEEP_GRANT, Actions, Decision
from turnstream.storage.chats.turns import Turns
from turnstream.storage.database import Database, Statement, connect
from turnstream.tools.tool import tool, tools_of
from turnstream.tools.toolset import Toolset

PAGE = Path(__file__).parents[3] / "docs/hooks.md"
SECRET = "whsec_" + base64.b64encode(b"a secret that nobody else has").decode()
# A webhook is due again at once after a failure, and a poll finds it without a notification.
AT_ONCE = WebhookPolicy(look=0.01, base=0)
GET_WEBHOOK = Statement("SELECT * FROM webhooks WHERE turn_id = :turn")
GET_WAITS = Statement("SELECT * FROM waiting_webhooks WHERE turn_id = :turn ORDER BY asked")
COUNT_WEBHOOKS = Statement("SELECT count(*) FROM webhooks")
LAPSE = Statement("UPDATE webhooks SET due_at = now() WHERE turn_id = :turn")


@dataclass
class Operator:
    """A receiver of webhooks. The n-th request gets the n-th status of `answers`, or no answer if the status is None.
    Later requests get status 204.
    """

    port: int = 0
    answers: list[int | None] = field(default_factory=list)
    heard: asyncio.Queue[web.BaseRequest] = field(default_factory=asyncio.Queue)
    closing: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/ended"

    async def hear(self) -> tuple[str, dict[str, Any]]:
        """Verifies the signature of the next request. Returns the request's id and data."""
        request = await self.heard.get()
        body = await request.read()
        assert verify(SECRET, request.headers, body, now=time.time())
        assert (request.path, request.content_type) == ("/ended", "application/json")
        event = json.loads(body)
        assert event["type"] == "turn.ended"
        assert event["timestamp"] == event["data"]["ended_at"]
        return request.headers["webhook-id"], event["data"]

    async def hear_waiting(self) -> tuple[str, dict[str, Any]]:
        request = await self.heard.get()
        body = await request.read()
        assert verify(SECRET, request.headers, body, now=time.time())
        event = json.loads(body)
        assert (event["type"], event["timestamp"]) == ("turn.waiting", event["data"]["since"])
        return request.headers["webhook-id"], event["data"]

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        runner = web.ServerRunner(web.Server(self._answer), shutdown_timeout=0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port)
        await site.start()
        self.port = runner.addresses[0][1]
        try:
            yield
        finally:
            self.closing.set()
            await runner.cleanup()
            self.closing.clear()

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        await request.read()
        self.heard.put_nowait(request)
        status = self.answers.pop(0) if self.answers else 204
        if status is None:
            await self.closing.wait()
        return web.Response(status=status or 204, headers={"location": "/elsewhere"})


class Watched(Webhooks):
    """Reports each outcome after it is stored."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.written: asyncio.Queue[str] = asyncio.Queue()

    async def delivered(self, webhook: Webhook, answer: str) -> None:
        await super().delivered(webhook, answer)
        self.written.put_nowait(f"delivered {answer}")

    async def failed(self, webhook: Webhook, answer: str, wait: float) -> None:
        await super().failed(webhook, answer, wait)
        self.written.put_nowait(f"failed {answer}")

    async def given_up(self, webhook: Webhook, answer: str) -> None:
        await super().given_up(webhook, answer)
        self.written.put_nowait(f"given_up {answer}")


@pytest.fixture
async def operator() -> AsyncIterator[Operator]:
    operator = Operator()
    async with operator.listening():
        yield operator


@pytest.fixture
async def harness(database_url: str) -> AsyncIterator[Harness]:
    """Runs replicas whose turns create a webhook when they end."""
    async with connect(database_url, size=10) as database:
        yield Harness(database_url, database, ["ended"])


@asynccontextmanager
async def delivering(
    webhooks: Webhooks, operator: Operator, policy: WebhookPolicy = AT_ONCE
) -> AsyncIterator[WebhookDeliveries]:
    deliveries = WebhookDeliveries(webhooks, Receiver(operator.url, SECRET), policy)
    task = asyncio.create_task(deliveries.run())
    try:
        yield deliveries
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()


async def completed(harness: Harness) -> Asked:
    asked = await harness.ask()
    async with harness.replica(ScriptedProvider([message_of(text("Hello."))])) as replica:
        await harness.finish(replica, asked)
    return asked


async def failed(harness: Harness) -> Asked:
    asked = await harness.ask()
    async with harness.replica(ScriptedProvider([[PermanentError("invalid_request_error", "No.")]])) as replica:
        await harness.finish(replica, asked)
    return asked


async def cancelled(harness: Harness) -> Asked:
    asked, pause = await harness.ask(), Pause()
    async with harness.replica(ScriptedProvider([[pause]])) as replica:
        replica.worker.wake()
        await pause.reached.wait()
        await replica.cancel(asked)
        await replica.idle(asked)
    return asked


async def never_claimed(harness: Harness) -> Asked:
    async with harness.replica(ScriptedProvider([])):  # this replica runs, but does not know of the turn
        asked = await harness.ask()
        await Turns(harness.database).cancel(OWNER, asked.chat, asked.turn)
    return asked


async def row_of(harness: Harness, asked: Asked) -> dict[str, Any]:
    row = await harness.database.row(GET_WEBHOOK, turn=asked.turn)
    assert row is not None
    return dict(row)


def waits(kind: str) -> float:
    return REGISTRY.get_sample_value("turnstream_waits_total", {"kind": kind}) or 0


def counted(outcome: str) -> float:
    return REGISTRY.get_sample_value("turnstream_webhooks_total", {"outcome": outcome}) or 0


# --- contents --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "status", "error"),
    [
        (completed, "complete", None),
        (cancelled, "cancelled", None),
        (never_claimed, "cancelled", None),
        (failed, "error", {"type": "invalid_request_error", "message": "No.", "request_id": None, "details": None}),
    ],
)
async def test_every_end_of_a_turn_is_delivered(
    harness: Harness,
    operator: Operator,
    end: Callable[[Harness], Awaitable[Asked]],
    status: str,
    error: dict[str, Any] | None,
) -> None:
    asked = await end(harness)
    webhooks, before = Watched(harness.database), counted("delivered")
    async with delivering(webhooks, operator):
        id, data = await operator.hear()
        assert await webhooks.written.get() == "delivered 204"
    turn = await harness.turn(asked)
    assert turn.created_at is not None
    assert turn.ended_at is not None
    assert id == f"ended-{asked.turn}"
    assert data == {
        "turn": str(asked.turn),
        "chat": str(asked.chat),
        "owner": OWNER,
        "status": status,
        "stop_reason": turn.stop_reason,
        "model": "scripted",
        "usage": turn.usage,
        "cost": None,
        "error": error,
        "created_at": turn.created_at.isoformat().replace("+00:00", "Z"),
        "ended_at": turn.ended_at.isoformat().replace("+00:00", "Z"),
        "url": f"/api/chats/{asked.chat}/turns/{asked.turn}",
    }
    row = await row_of(harness, asked)
    assert (row["due_at"], row["tries"], row["delivered_at"] is not None) == (None, 1, True)
    assert counted("delivered") == before + 1


async def test_its_url_begins_with_the_prefix_under_which_the_server_is_reached(harness: Harness) -> None:
    asked = await completed(harness)
    (webhook,) = await Webhooks(harness.database).claim(1, 30)
    data = json.loads(body_of(webhook, root_path="/chat"))["data"]
    assert data["url"] == f"/chat/api/chats/{asked.chat}/turns/{asked.turn}"
    settings = Settings(_env_file=None, webhook_url="http://x", webhook_secret=SECRET, root_path="/chat")
    receiver = receiver_of(settings)
    assert receiver is not None
    assert receiver.root_path == "/chat"


async def test_without_a_webhook_no_row_is_written(database_url: str) -> None:
    async with connect(database_url, size=2) as database:
        harness = Harness(database_url, database)
        await completed(harness)
        await never_claimed(harness)
        row = await database.row(COUNT_WEBHOOKS)
    assert row is not None
    assert row["count"] == 0


async def test_a_turn_that_is_taken_back_by_its_queue_has_not_ended(harness: Harness) -> None:
    asked, pause = await harness.ask(), Pause()
    async with harness.replica(ScriptedProvider([[pause]])) as replica:
        replica.worker.wake()
        await pause.reached.wait()
        await replica.kill()
    assert await harness.database.row(GET_WEBHOOK, turn=asked.turn) is None


async def test_the_server_tells_of_turns_that_end_in_it_and_of_those_it_never_ran(
    database_url: str, operator: Operator
) -> None:
    settings: dict[str, Any] = {"webhook_url": operator.url, "webhook_secret": SECRET, "concurrent_turns": 1}
    pause = Pause()
    async with serving(database_url, **settings) as server:
        slow = server.scripts.model([pause])
        headers = {"authorization": f"Bearer {await server.token(OWNER)}"}
        async with httpx2.AsyncClient(base_url=server.url, headers=headers, trust_env=False) as client:
            said = {"blocks": [{"type": "text", "text": "Hello"}]}
            first = (await client.post("/api/turns", json={**said, "model": MODEL})).json()["assistant_turn"]
            assert (await operator.hear())[1]["turn"] == first["id"]
            await client.post("/api/turns", json={**said, "model": slow})
            await pause.reached.wait()
            waiting = (await client.post("/api/turns", json={**said, "model": MODEL})).json()
            await client.post(waiting["stream_url"].replace("/stream", "/cancel"))
            _, data = await operator.hear()
            assert (data["turn"], data["status"]) == (waiting["assistant_turn"]["id"], "cancelled")


def test_the_receiver_of_the_page_detects_forged_deliveries() -> None:
    code = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)[1]
    page: dict[str, Any] = {}
    exec(compile(code, "docs/hooks.md", "exec"), page)
    now = int(time.time())
    assert page["is_genuine"](SECRET, headers_of(SECRET, "ended-1", now, b"{}"), b"{}")
    assert not page["is_genuine"](SECRET, headers_of(SECRET, "ended-1", now, b"{}"), b"[]")
    assert not page["is_genuine"](SECRET, headers_of(SECRET, "ended-1", now - 600, b"{}"), b"{}")


# --- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [500, 404, 302])
async def test_a_rejected_delivery_is_repeated_under_the_same_id(
    harness: Harness, operator: Operator, status: int
) -> None:
    asked = await completed(harness)
    operator.answers = [status, 204]
    webhooks, before = Watched(harness.database), counted("failed")
    async with delivering(webhooks, operator):
        first, second = await operator.hear(), await operator.hear()
        assert [await webhooks.written.get() for _ in range(2)] == [f"failed {status}", "delivered 204"]
    assert first == second
    assert (await row_of(harness, asked))["tries"] == 2
    assert counted("failed") == before + 1


async def test_a_receiver_that_is_silent_is_not_waited_for(harness: Harness, operator: Operator) -> None:
    await completed(harness)
    operator.answers = [None]
    webhooks = Watched(harness.database)
    async with delivering(webhooks, operator, replace(AT_ONCE, timeout=0.3)):
        first, second = await operator.hear(), await operator.hear()
        assert (await webhooks.written.get()).startswith("failed")
    assert first == second


async def test_an_unreachable_receiver_gets_the_delivery_when_it_is_back(harness: Harness) -> None:
    await completed(harness)
    operator, webhooks = Operator(), Watched(harness.database)
    async with operator.listening():
        pass
    async with delivering(webhooks, operator):
        assert await webhooks.written.get() == "failed ClientConnectorError"
        async with operator.listening():
            await operator.hear()
            while (written := await webhooks.written.get()).startswith("failed"):
                pass
    assert written == "delivered 204"


@pytest.mark.parametrize(("answers", "tries"), [([410], 1), ([500, 503, 500], 3)])
async def test_a_delivery_is_given_up_after_a_410_or_after_enough_tries(
    harness: Harness, operator: Operator, answers: Sequence[int], tries: int
) -> None:
    asked = await completed(harness)
    operator.answers = [*answers]
    webhooks, before = Watched(harness.database), counted("given_up")
    with capture_logs() as lines:
        async with delivering(webhooks, operator, replace(AT_ONCE, tries=3)):
            written = [await webhooks.written.get() for _ in answers]
    assert written[-1] == f"given_up {answers[-1]}"
    row = await row_of(harness, asked)
    assert (row["due_at"], row["tries"], row["delivered_at"], row["answer"]) == (None, tries, None, str(answers[-1]))
    assert row["given_up_at"] is not None
    assert operator.heard.qsize() == tries
    assert counted("given_up") == before + 1
    assert [line["event"] for line in lines if line["event"].startswith("webhook")][-1] == "webhook.given_up"


async def test_a_hanging_receiver_does_not_delay_the_others(harness: Harness, operator: Operator) -> None:
    operator.answers = [None]
    webhooks = Watched(harness.database)
    async with delivering(webhooks, operator):
        asked = [await completed(harness)]
        await operator.hear()
        asked.append(await completed(harness))
        _, data = await operator.hear()
        assert await webhooks.written.get() == "delivered 204"
    assert data["turn"] == str(asked[1].turn)


def test_the_waits_grow_fourfold_and_end_after_about_three_days() -> None:
    policy = WebhookPolicy()
    waits = [policy.wait_after(tries) for tries in range(1, policy.tries)]
    assert all(0.8 * wanted <= wait <= 1.2 * wanted for wanted, wait in zip([5, 20, 80, 320], waits, strict=False))
    assert max(waits) <= 1.2 * policy.longest
    assert 0.8 * 72 <= sum(waits) / 3600 <= 1.2 * 72
    assert policy.lease > 2 * policy.timeout


# --- the delivering replica ------------------------------------------------------------------------------------------


async def test_another_replica_delivers_the_webhook_of_a_dead_one(harness: Harness, operator: Operator) -> None:
    asked = await completed(harness)
    operator.answers = [None]
    async with delivering(Webhooks(harness.database), operator):
        first = await operator.hear()
    assert await Webhooks(harness.database).claim(10, 60) == [], "it is the dead one's until its lease has lapsed"
    await harness.database.rows(LAPSE, turn=asked.turn)
    webhooks = Watched(harness.database)
    async with delivering(webhooks, operator):
        assert await operator.hear() == first
        assert await webhooks.written.get() == "delivered 204"


async def test_a_late_report_of_a_failure_does_not_change_the_claim_of_another(harness: Harness) -> None:
    asked, webhooks = await completed(harness), Webhooks(harness.database)
    (late,) = await webhooks.claim(1, 60)
    await harness.database.rows(LAPSE, turn=asked.turn)
    (taken,) = await webhooks.claim(1, 60)
    before = await row_of(harness, asked)
    await webhooks.failed(late, "500", 0)
    await webhooks.given_up(late, "410")
    assert await row_of(harness, asked) == before
    await webhooks.delivered(late, "204")
    await webhooks.failed(taken, "500", 0)
    await webhooks.given_up(taken, "410")
    after = await row_of(harness, asked)
    assert (after["due_at"], after["given_up_at"], after["answer"]) == (None, None, "204")


async def test_a_row_locked_by_another_claim_is_skipped_without_a_wait(harness: Harness) -> None:
    first, second = await completed(harness), await completed(harness)
    webhooks = Webhooks(harness.database)
    async with harness.locker() as locker:
        taking = "UPDATE webhooks SET due_at = now() + interval '60 seconds' WHERE turn_id = $1"
        async with locker.holding(taking, first.turn, commit=True), asyncio.timeout(60):
            assert [webhook.turn for webhook in await webhooks.claim(10, 60)] == [second.turn]
    assert await webhooks.claim(10, 60) == []


async def test_two_replicas_tell_of_each_turn_once(harness: Harness, operator: Operator) -> None:
    asked = [await harness.ask() for _ in range(30)]
    webhooks = Watched(harness.database)
    few = replace(AT_ONCE, at_once=3)
    async with (
        delivering(webhooks, operator, few),
        delivering(webhooks, operator, few),
        harness.replica(ScriptedProvider(lambda _: message_of(text("Hello.")))) as replica,
    ):
        replica.worker.wake()
        told = [await operator.hear() for _ in asked]
        written = [await webhooks.written.get() for _ in asked]
    assert {data["turn"] for _, data in told} == {str(each.turn) for each in asked}
    assert set(written) == {"delivered 204"}
    assert operator.heard.empty()


# --- turns that wait -------------------------------------------------------------------------------------------------


class Desk:
    @tool(approval="always")
    async def pay(self, euros: int) -> str:
        """Pay."""
        return f"paid {euros}"


def paying(*ids: str) -> Reply:
    return message_of(*(tool_use("pay", {"euros": 1}, id) for id in ids))


async def waits_of(harness: Harness, asked: Asked) -> list[tuple[int, list[str]]]:
    rows = await harness.database.rows(GET_WAITS, turn=asked.turn)
    return [(row["asked"], [call["tool_use_id"] for call in json.loads(row["calls"])]) for row in rows]


@pytest.fixture
async def waiting(database_url: str) -> AsyncIterator[Harness]:
    """Runs replicas whose turns create a webhook when they wait."""
    async with connect(database_url, size=10) as database:
        yield Harness(database_url, database, ["waiting"])


async def until_waiting(harness: Harness, replica: Replica, asked: Asked) -> Turn:
    replica.worker.wake()
    while (turn := await harness.turn(asked)).status != "waiting":  # noqa: ASYNC110, a row has no event
        await asyncio.sleep(0.001)
    return turn


async def test_a_turn_that_begins_to_wait_is_reported_once_for_each_round(waiting: Harness, operator: Operator) -> None:
    tools, replies = tools_of(Desk()), [paying("a", "b"), paying("c"), message_of(text("Done."))]
    asked = await waiting.ask(tools=tools)
    before = [waits("approval"), waits("client")]
    with capture_logs() as lines:
        async with waiting.replica(ScriptedProvider(replies), tools) as replica:
            for round in (["a", "b"], ["c"]):
                for call in round:
                    turn = await until_waiting(waiting, replica, asked)
                    digest = next(ask.digest for ask in turn.asks if ask.tool_use_id == call)
                    decision = Decision(call, digest, AskAnswer("approve"), "actions")
                    await Actions(waiting.database).answer(OWNER, asked.chat, asked.turn, [decision], None)
                    await replica.worker.refresh(asked.turn)
            turn = await waiting.finish(replica, asked)
    assert turn.status == "complete"
    assert await waits_of(waiting, asked) == [(2, ["a", "b"]), (3, ["c"])]
    assert await waiting.database.row(GET_WEBHOOK, turn=asked.turn) is None, "its end was not asked for"
    told = [(line["owner"], line["tools"], line["kinds"]) for line in lines if line["event"] == "turn.waiting"]
    assert told == [(OWNER, ["pay", "pay"], ["approval", "approval"]), (OWNER, ["pay"], ["approval"])]
    assert [waits("approval") - before[0], waits("client") - before[1]] == [3, 0]
    queue = Webhooks(waiting.database, "waiting")
    operator.answers = [500]
    async with delivering(queue, operator):
        heard = [await operator.hear_waiting() for _ in range(3)]
    ids = [id for id, _ in heard]
    assert sorted(set(ids)) == [f"waiting-{asked.turn}-{number}" for number in (2, 3)]
    data = dict(heard)[f"waiting-{asked.turn}-2"]
    assert data == {
        "turn": str(asked.turn),
        "chat": str(asked.chat),
        "owner": OWNER,
        "calls": [{"tool_use_id": id, "name": "pay", "type": "approval", "expires_at": None} for id in ("a", "b")],
        "since": data["since"],
        "url": f"/api/chats/{asked.chat}/turns/{asked.turn}",
    }


async def test_a_call_that_a_grant_allows_lets_nobody_wait(waiting: Harness) -> None:
    tools, provider = tools_of(Desk()), ScriptedProvider([paying("a"), message_of(text("Done."))])
    asked = await waiting.ask(tools=tools)
    digest = Toolset(tools).tool_digest("pay", [tools[0].spec])
    values = {"id": asked.turn, "turn": asked.turn, "tool_use_id": "x", "when": None, "tool": "pay", "digest": digest}
    await waiting.database.rows(KEEP_GRANT, chat=asked.chat, **values)
    async with waiting.replica(provider, tools) as replica:
        turn = await waiting.finish(replica, asked)
    assert [ask.answer.grant for ask in turn.asks if ask.answer] == [asked.turn]
    assert await waits_of(waiting, asked) == []


async def test_waits_are_not_reported_unless_configured(harness: Harness) -> None:
    tools = tools_of(Desk())
    asked = await harness.ask(tools=tools)
    async with harness.replica(ScriptedProvider([paying("a")]), tools) as replica:
        await until_waiting(harness, replica, asked)
    assert await waits_of(harness, asked) == []


@pytest.mark.parametrize("events", ["", "turn.ended,turn.begun", "ended"])
def test_an_event_that_there_is_not_is_refused_at_the_start(events: str) -> None:
    given = {"webhook_url": HttpUrl("http://receiver.example"), "webhook_secret": SecretStr(SECRET)}
    settings = Settings(_env_file=None, **given, webhook_events=events or " ")
    with pytest.raises(ConfigError, match=r"must name some of: turn\.ended, turn\.waiting"):
        receiver_of(settings)
    both = Settings(_env_file=None, **given, webhook_events="turn.waiting, turn.ended")
    receiver = receiver_of(both)
    assert receiver is not None
    assert receiver.kinds == {"ended", "waiting"}


async def test_the_end_of_a_local_turn_is_delivered_at_once(harness: Harness, operator: Operator) -> None:
    async with delivering(Webhooks(harness.database), operator, replace(AT_ONCE, look=600)) as deliveries:
        for asked in (await completed(harness), await completed(harness)):
            await deliveries.turn_ended(TurnEnded(OWNER, await harness.turn(asked)))
            assert (await operator.hear())[1]["turn"] == str(asked.turn)


async def test_a_place_that_becomes_free_is_taken_at_once(harness: Harness, operator: Operator) -> None:
    asked = {str((await completed(harness)).turn) for _ in range(3)}
    one_by_one = replace(AT_ONCE, look=600, at_once=1)
    async with delivering(Webhooks(harness.database), operator, one_by_one):
        assert {(await operator.hear())[1]["turn"] for _ in asked} == asked


# --- rows ------------------------------------------------------------------------------------------------------------


async def test_while_postgres_is_away_it_waits(harness: Harness, operator: Operator) -> None:
    await completed(harness)
    async with proxied(harness.url) as (url, proxy), connect(url, size=2) as database:
        proxy.cut()
        with capture_logs() as lines:
            async with delivering(Webhooks(database), operator):
                while len(lines) < 2:  # noqa: ASYNC110, a log has no event
                    await asyncio.sleep(0)
    assert {line["event"] for line in lines} == {"webhook.waits"}


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", [None, "not base64!"])
async def test_a_webhook_without_a_secret_that_can_sign_stops_the_start(secret: str | None) -> None:
    given: dict[str, Any] = {"webhook_url": "https://example.org/ended", "webhook_secret": secret}
    with pytest.raises(ConfigError, match="TURNSTREAM_WEBHOOK_SECRET"):
        async with running(Settings(_env_file=None, **given)):
            pass


def test_the_webhook_of_a_turn_that_waits_is_as_on_the_page() -> None:
    (example,) = blocks("docs/hooks.md", "A turn that waits", "json")
    shown = json.loads(example)["data"]
    since = datetime.fromisoformat(shown["since"])
    turn, chat = UUID(shown["turn"]), UUID(shown["chat"])
    owner, calls = shown["owner"], shown["calls"]
    webhook = Webhook(turn, chat, owner, "waiting", None, "demo", None, None, None, since, None, 1, 1, calls, since)
    assert json.loads(body_of(webhook, "waiting")) == json.loads(example)
