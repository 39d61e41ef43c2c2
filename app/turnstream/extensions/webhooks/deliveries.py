"""Delivers webhooks: sends a request to the operator's server for each turn that ends or starts to wait, and retries
until the server accepts it or the tries are used up.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import aiohttp
import msgspec
import structlog

from turnstream.domain.errors import StorageUnavailable
from turnstream.engine.hooks import Hooks, TurnEnded
from turnstream.extension import CallLinks
from turnstream.extensions.webhooks.queue import Webhook, Webhooks
from turnstream.kit.backoff import backoff, jittered
from turnstream.kit.clock import CLOCK
from turnstream.kit.ids import new_id
from turnstream.libraries.extension_metrics import WEBHOOKS
from turnstream.libraries.outgoing.signature import headers_of
from turnstream.storage.database import retry_while_unavailable
from turnstream.storage.runs.queue import WebhookKind
from turnstream.tracing import TRACING

log = structlog.get_logger(__name__)

_GONE = 410


@dataclass(frozen=True, slots=True)
class Receiver:
    """The operator's server. `secret` is the key of the signatures (turnstream.libraries.outgoing.signature); the path
    of the turn follows `root_path`. The server receives webhooks of `kinds`.
    """

    url: str
    secret: str
    root_path: str = ""
    kinds: frozenset[WebhookKind] = frozenset({"ended"})


@dataclass(frozen=True, slots=True)
class WebhookPolicy:
    """Times are in seconds. The wait after a failure starts at `base` and grows fourfold up to `longest`. With the
    defaults, the last try is made after about three days. `lease` is the time for which a try belongs to the claiming
    replica, and must be longer than `timeout`. If nothing wakes the delivery, rows are read every `look` seconds.
    """

    timeout: float = 10.0
    lease: float = 30.0
    look: float = 2.0
    at_once: int = 20
    tries: int = 16
    base: float = 5.0
    longest: float = 28_800.0

    def wait_after(self, tries: int) -> float:
        return jittered(backoff(tries, self.base, self.longest, factor=4.0), 0.8, 1.2)


class WebhookDeliveries(Hooks):
    """Delivers webhooks of one kind. The hook wakes the delivery when a turn ends on this replica; polls find the
    webhooks of other replicas.
    """

    def __init__(
        self, webhooks: Webhooks, receiver: Receiver, policy: WebhookPolicy, call_links: CallLinks | None = None
    ) -> None:
        self._webhooks = webhooks
        self._receiver = receiver
        self._policy = policy
        self._call_links = call_links
        self._woken = asyncio.Event()
        self._running = 0

    async def turn_ended(self, event: TurnEnded) -> None:  # noqa: ARG002, the row has all of it
        self._woken.set()

    async def run(self) -> None:
        """Delivers until it is cancelled."""
        timeout = aiohttp.ClientTimeout(total=self._policy.timeout)
        async with (
            aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as http,
            asyncio.TaskGroup() as group,
        ):
            while True:
                self._woken.clear()
                for webhook in await self._claim():
                    self._running += 1
                    group.create_task(self._deliver(http, webhook))
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._policy.look):
                        await self._woken.wait()

    async def _claim(self) -> Sequence[Webhook]:
        free = self._policy.at_once - self._running
        if free == 0:
            return ()
        try:
            return await self._webhooks.claim(free, self._policy.lease)
        except StorageUnavailable as error:
            log.warning("webhook.waits", error=str(error))
            return ()

    # --- one try -----------------------------------------------------------------------------------------------------

    async def _deliver(self, http: aiohttp.ClientSession, webhook: Webhook) -> None:
        try:
            await self._record(webhook, await self._post(http, webhook))
        finally:
            if self._running == self._policy.at_once:
                self._woken.set()  # other webhooks may wait for this slot
            self._running -= 1

    async def _post(self, http: aiohttp.ClientSession, webhook: Webhook) -> int | str:
        kind = self._webhooks.kind
        body = body_of(await self._with_links(webhook), kind, self._receiver.root_path)
        # The id is the same for all tries, so that the receiver can recognise a processed webhook.
        id = f"ended-{webhook.turn}" if kind == "ended" else f"waiting-{webhook.turn}-{webhook.number}"
        with TRACING.span("webhook", "CLIENT", parent=webhook.trace, turnstream__turn=str(webhook.turn)) as span:
            answer = await post_signed(http, self._receiver, id, body)
            span.set(turnstream__answer=str(answer))
        return answer

    async def _with_links(self, webhook: Webhook) -> Webhook:
        """Returns the webhook with `links` in its calls, if links are enabled."""
        links = self._call_links
        if links is None or not webhook.calls:
            return webhook
        made = [
            {**call, "links": await links(webhook.turn, call["tool_use_id"])} if call["type"] == "approval" else call
            for call in webhook.calls
        ]
        return replace(webhook, calls=made)

    async def _record(self, webhook: Webhook, answer: int | str) -> None:
        fields = {"turn": str(webhook.turn), "tries": webhook.tries, "answer": answer}
        if isinstance(answer, int) and 200 <= answer < 300:
            outcome = "delivered"
            await retry_while_unavailable(lambda: self._webhooks.delivered(webhook, str(answer)))
            log.info("webhook.delivered", **fields)
        elif answer == _GONE or webhook.tries >= self._policy.tries:
            outcome = "given_up"
            await retry_while_unavailable(lambda: self._webhooks.given_up(webhook, str(answer)))
            log.error("webhook.given_up", **fields)
        else:
            outcome = "failed"
            wait = self._policy.wait_after(webhook.tries)
            await retry_while_unavailable(lambda: self._webhooks.failed(webhook, str(answer), wait))
            log.warning("webhook.failed", **fields, seconds=round(wait, 3))
        WEBHOOKS.labels(outcome).inc()


async def post_signed(http: aiohttp.ClientSession, receiver: Receiver, id: str, body: bytes) -> int | str:
    """Returns the status of the answer, or the class of the error. The error's message is not used, because the message
    may contain the URL.
    """
    signature = headers_of(receiver.secret, id, int(CLOCK.seconds()), body)
    headers = {"content-type": "application/json", "user-agent": "turnstream", **signature, **TRACING.outgoing()}
    try:
        async with http.post(receiver.url, data=body, headers=headers, allow_redirects=False) as response:
            return response.status
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return type(error).__name__


async def ping_receiver(receiver: Receiver) -> int | str:
    """Sends the event `ping`, which belongs to no turn, and returns the same as `post_signed`."""
    body = msgspec.json.encode({"type": "ping", "timestamp": CLOCK.now(), "data": {}})
    timeout = aiohttp.ClientTimeout(total=WebhookPolicy().timeout)
    async with aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as http:
        return await post_signed(http, receiver, f"ping-{new_id()}", body)


def body_of(webhook: Webhook, kind: WebhookKind = "ended", root_path: str = "") -> bytes:
    """Returns the body of the request, which is the same for all tries."""
    turn = {"turn": webhook.turn, "chat": webhook.chat, "owner": webhook.owner}
    url = f"{root_path}/api/chats/{webhook.chat}/turns/{webhook.turn}"
    if kind == "ended":
        data = {
            **turn,
            "status": webhook.status,
            "stop_reason": webhook.stop_reason,
            "model": webhook.model,
            "usage": webhook.usage,
            "cost": webhook.cost,
            "error": webhook.error,
            "created_at": webhook.created_at,
            "ended_at": webhook.ended_at,
            "url": url,
        }
    else:  # the status may have changed since the event, and is omitted
        data = {**turn, "calls": webhook.calls, "since": webhook.happened_at, "url": url}
    return msgspec.json.encode({"type": f"turn.{kind}", "timestamp": webhook.happened_at, "data": data})
